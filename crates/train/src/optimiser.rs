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
        let mut matrices = Matrices(Vec::new());
        module.visit(&mut matrices);
        let decay = burn::optim::decay::WeightDecayConfig::new(self.weight_decay as f32);
        let muon = MuonConfig::new().with_adjust_lr_fn(AdjustLrFn::MatchRmsAdamW).with_weight_decay(Some(decay));
        adamw.with_group(ParamGroup::from_ids(matrices.0), muon.build(), None)
    }
}

/// Collects the parameters of two dimensions.
struct Matrices(Vec<ParamId>);

impl ModuleVisitor for Matrices {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if D == 2 {
            self.0.push(param.id);
        }
    }
}
