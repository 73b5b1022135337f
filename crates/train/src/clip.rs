//! Clipping by the norm of *all* gradients together. Burn's own clipping is per tensor, which changes the direction.

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;

/// Scales all gradients so that their joint Euclidean norm is at most `limit`; returns the norm before.
pub fn clip_global_norm<M: Module>(module: &M, grads: &mut GradientsParams, limit: f64) -> f64 {
    let mut squares = Squares { grads, total: 0.0 };
    module.visit(&mut squares);
    let norm = squares.total.sqrt();
    if norm > limit && norm.is_finite() {
        module.visit(&mut Scale { grads, factor: limit / norm });
    }
    norm
}

struct Squares<'a> {
    grads: &'a GradientsParams,
    total: f64,
}

impl ModuleVisitor for Squares<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(grad) = self.grads.get::<D>(param.id) {
            let square: f32 = (grad.clone() * grad).sum().into_scalar();
            self.total += f64::from(square);
        }
    }
}

struct Scale<'a> {
    grads: &'a mut GradientsParams,
    factor: f64,
}

impl ModuleVisitor for Scale<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(grad) = self.grads.remove::<D>(param.id) {
            self.grads.register(param.id, grad * self.factor);
        }
    }
}
