//! Which optimiser updates which parameter.

use burn::module::{Module, ModuleVisitor, Param, ParamGroup, ParamId};
use burn::optim::{AdamWConfig, AdjustLrFn, ModuleOptimizer, MuonConfig};
use burn::tensor::Tensor;

/// How matrices are updated; vectors are AdamW's in both cases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MatrixUpdate {
    /// Adam with decoupled weight decay (Loshchilov & Hutter, 2019).
    AdamW,
    /// Orthogonalised momentum (Jordan et al., 2024), its updates scaled to the usual size of AdamW's (Liu et al.,
    /// 2025), so that one learning rate suits matrices and vectors.
    Muon,
}

/// Knobs of the optimiser.
#[derive(Debug, Clone, Copy)]
pub struct OptimiserConfig {
    /// Update of the matrices.
    pub matrices: MatrixUpdate,
    /// AdamW's decay rates of the two moments.
    pub betas: (f64, f64),
    /// AdamW's term in the denominator.
    pub eps: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
}

impl OptimiserConfig {
    /// The optimiser of `module`, without any state yet.
    pub fn init<M: Module>(&self, module: &M) -> ModuleOptimizer {
        let adamw = AdamWConfig::new()
            .with_beta_1(self.betas.0 as f32)
            .with_beta_2(self.betas.1 as f32)
            .with_epsilon(self.eps as f32)
            .with_weight_decay(self.weight_decay as f32)
            .init();
        if self.matrices == MatrixUpdate::AdamW {
            return adamw;
        }
        let mut matrices = Matrices::default();
        module.visit(&mut matrices);
        let decay = burn::optim::decay::WeightDecayConfig::new(self.weight_decay as f32);
        let muon = MuonConfig::new().with_adjust_lr_fn(AdjustLrFn::MatchRmsAdamW).with_weight_decay(Some(decay));
        adamw.with_group(ParamGroup::from_ids(matrices.ids), muon.build(), None)
    }
}

/// Name of the output head, which is AdamW's: its rows are tokens, of which a step moves few, and no map between spaces
/// of one kind (Jordan et al., 2024).
const HEAD: &str = "head";

/// Collects the parameters of two dimensions, the output head excepted.
#[derive(Default)]
struct Matrices {
    ids: Vec<ParamId>,
    /// The fields that the parameter at hand lies in.
    path: Vec<String>,
}

impl ModuleVisitor for Matrices {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if D == 2 && !self.path.iter().any(|name| name == HEAD) {
            self.ids.push(param.id);
        }
    }

    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::optim::GradientsParams;
    use burn::tensor::Device;

    #[derive(Module, Debug)]
    struct Layer {
        tall: Param<Tensor<2>>,
        norm: Param<Tensor<1>>,
        wide: Param<Tensor<2>>,
        head: Option<Param<Tensor<2>>>,
    }

    /// The layer's parameters before and after one step of the size 1 without decay, `after - before` of each.
    fn moved(matrices: MatrixUpdate) -> [Vec<f32>; 4] {
        let device = Device::flex().autodiff();
        let value = |i: usize| ((i * 7 + 3) % 11) as f32 / 11.0 - 0.4;
        let data = |rows: usize, columns: usize| {
            let values: Vec<f32> = (0..rows * columns).map(value).collect();
            burn::tensor::TensorData::new(values, [rows, columns])
        };
        let norm: Vec<f32> = (0..3).map(value).collect();
        let layer = Layer {
            tall: Param::from_data(data(6, 3), &device),
            norm: Param::from_data(norm.as_slice(), &device),
            wide: Param::from_data(data(3, 5), &device),
            head: Some(Param::from_data(data(5, 4), &device)),
        };
        let output = layer.tall.val() * layer.norm.val().unsqueeze_dim(0);
        let wide = output.matmul(layer.wide.val());
        let loss = wide.clone().square().sum() + wide.matmul(layer.head.as_ref().expect("a head").val()).square().sum();
        let grads = GradientsParams::from_grads(loss.backward(), &layer);
        let config = OptimiserConfig { matrices, betas: (0.9, 0.95), eps: 1e-8, weight_decay: 0.0 };
        let after = config.init(&layer).step(1.0, layer.clone(), grads);
        let difference = |a: Vec<f32>, b: Vec<f32>| a.iter().zip(&b).map(|(a, b)| a - b).collect::<Vec<f32>>();
        let matrix = |p: &Param<Tensor<2>>| p.val().into_data().try_to_vec::<f32>().expect("f32 values");
        let vector = |p: &Param<Tensor<1>>| p.val().into_data().try_to_vec::<f32>().expect("f32 values");
        [
            difference(matrix(&after.tall), matrix(&layer.tall)),
            difference(vector(&after.norm), vector(&layer.norm)),
            difference(matrix(&after.wide), matrix(&layer.wide)),
            difference(matrix(after.head.as_ref().expect("a head")), matrix(layer.head.as_ref().expect("a head"))),
        ]
    }

    #[test]
    fn muon_has_the_matrices_and_adamw_the_rest() {
        let (adamw, muon) = (moved(MatrixUpdate::AdamW), moved(MatrixUpdate::Muon));
        assert_eq!(adamw[1], muon[1], "a norm moves as under AdamW alone");
        assert_eq!(adamw[3], muon[3], "and so does the head");
        // AdamW's first step is the gradient's sign. Muon's is U Vᵀ of the gradient, each singular value brought to
        // 0.7..1.2, times 0.2 √max(rows, columns): of mean square 0.2² or so, and of as many directions as the
        // gradient has.
        for (i, (rank, long)) in [(0, (3.0, 6.0)), (2, (3.0, 5.0))] {
            assert!(adamw[i].iter().all(|v: &f32| (v.abs() - 1.0).abs() < 1e-3), "AdamW: {:?}", adamw[i]);
            let square: f32 = muon[i].iter().map(|v| v * v).sum();
            let (low, high) = (0.7_f32.powi(2) * 0.04 * rank * long, 1.25_f32.powi(2) * 0.04 * rank * long);
            assert!(low < square && square < high, "parameter {i}: {square} outside {low}..{high}");
        }
    }
}
