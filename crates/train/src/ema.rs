//! The exponential moving average of the weights: less noise than the last step's, and what is validated and kept.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;

/// Share of the average that step `step`, counted from 1, keeps. A constant `decay` would hold on to the fresh weights
/// for `1 / (1 - decay)` steps; at first it is therefore lower (as TensorFlow's `ExponentialMovingAverage` has it).
pub(crate) fn kept(decay: f64, step: usize) -> f64 {
    let step = step as f64;
    decay.min((1.0 + step) / (10.0 + step))
}

/// `kept · average + (1 − kept) · weights`, parameter by parameter; both are on the same plain device.
pub(crate) fn averaged<M: Module>(average: M, weights: &M, kept: f64) -> M {
    let mut tensors = Tensors(GradientsParams::new());
    weights.visit(&mut tensors);
    average.map(&mut Average { weights: tensors.0, kept })
}

/// Every parameter's value by its number; burn's container of gradients is one of tensors by number.
struct Tensors(GradientsParams);

impl ModuleVisitor for Tensors {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.0.register(param.id, param.val());
    }
}

struct Average {
    weights: GradientsParams,
    kept: f64,
}

impl ModuleMapper for Average {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, average, mapper) = param.consume();
        let weight = self.weights.remove::<D>(id).expect("the average has the parameters of the weights");
        Param::from_mapped_value(id, average * self.kept + weight * (1.0 - self.kept), mapper)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    #[derive(Module, Debug)]
    struct Two {
        matrix: Param<Tensor<2>>,
        vector: Param<Tensor<1>>,
    }

    #[test]
    fn an_average_follows_by_hand_values() {
        let device = Device::flex();
        let weights = |matrix: f32, vector: f32| Two {
            matrix: Param::from_data([[matrix, 0.0]], &device),
            vector: Param::from_data([vector], &device),
        };
        let mut average = weights(1.0, 8.0);
        let read = |two: &Two| -> Vec<f32> {
            let matrix: Vec<f32> = two.matrix.val().into_data().try_to_vec().expect("f32 values");
            let vector: Vec<f32> = two.vector.val().into_data().try_to_vec().expect("f32 values");
            [matrix, vector].concat()
        };
        let mut next = average.clone();
        for (matrix, vector, expected) in [(3.0, 0.0, [1.5, 0.0, 6.0]), (3.5, 2.0, [2.0, 0.0, 5.0])] {
            next.matrix = next.matrix.map(|t| t * 0.0 + Tensor::<2>::from_data([[matrix, 0.0]], &device));
            next.vector = next.vector.map(|t| t * 0.0 + vector);
            average = averaged(average, &next, 0.75);
            assert_eq!(read(&average), expected);
        }
    }

    #[test]
    fn the_first_steps_keep_little() {
        assert_eq!([1, 8, 90].map(|step| kept(0.9, step)), [2.0 / 11.0, 0.5, 0.9]);
        assert_eq!(kept(0.1, 1), 0.1);
    }
}
