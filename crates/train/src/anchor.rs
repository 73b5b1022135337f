//! Weights that are trained further, held near where they started (L2-SP, Li et al., 2018).

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use spectrain_draft::Eagle3;

/// Adds `strength / 2 · |w − w₀|²` to the loss.
#[derive(Debug, Clone)]
pub struct Anchor {
    /// Its weight in the loss.
    pub strength: f64,
    /// `w₀`, in the form in which the weights are trained.
    pub origin: Eagle3,
}

impl Anchor {
    /// Adds the gradient of the pull on `weights` to `grads`.
    pub(crate) fn pull(&self, weights: &Eagle3, grads: &mut GradientsParams) {
        pull(self.strength, &self.origin, weights, grads);
    }
}

/// Parameters are matched by their ids.
fn pull<M: Module>(strength: f64, origin: &M, weights: &M, grads: &mut GradientsParams) {
    let mut values = Values { found: GradientsParams::new() };
    origin.visit(&mut values);
    weights.visit(&mut Pull { strength, origin: &values.found, grads });
}

/// The values of all parameters by id; gradients are kept in the same container.
struct Values {
    found: GradientsParams,
}

impl ModuleVisitor for Values {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.found.register(param.id, param.val().without_autodiff());
    }
}

struct Pull<'a> {
    strength: f64,
    origin: &'a GradientsParams,
    grads: &'a mut GradientsParams,
}

impl ModuleVisitor for Pull<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(origin) = self.origin.get::<D>(param.id) else { return };
        if let Some(grad) = self.grads.remove::<D>(param.id) {
            let away = param.val().without_autodiff() - origin;
            self.grads.register(param.id, grad + away * self.strength);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    #[derive(Module, Debug)]
    struct Two {
        a: Param<Tensor<2>>,
        b: Param<Tensor<1>>,
    }

    #[test]
    fn the_pull_is_the_distance_times_the_strength() {
        let device = Device::flex().autodiff();
        let origin = Two { a: Param::from_data([[1.0, 2.0]], &device), b: Param::from_data([3.0, -1.0], &device) };
        // Leaves of their own, under the same ids, as a checkpoint that is read twice gives them.
        let weights = Two {
            a: Param::initialized(origin.a.id, Tensor::from_data([[1.5, 2.5]], &device).require_grad()),
            b: Param::initialized(origin.b.id, Tensor::from_data([6.0, -2.0], &device).require_grad()),
        };
        let loss = weights.a.val().sum() + weights.b.val().sum() * 4.0;
        let mut grads = GradientsParams::from_grads(loss.backward(), &weights);
        pull(0.1, &origin, &weights, &mut grads);
        let a: Vec<f32> = grads.get::<2>(weights.a.id).expect("a").into_data().try_to_vec().expect("f32");
        let b: Vec<f32> = grads.get::<1>(weights.b.id).expect("b").into_data().try_to_vec().expect("f32");
        let near = |x: &[f32], y: [f32; 2]| x.iter().zip(y).all(|(x, y)| (x - y).abs() < 1e-6);
        assert!(near(&a, [1.05, 1.05]) && near(&b, [4.3, 3.9]), "{a:?} {b:?}");
    }
}
