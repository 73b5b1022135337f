//! SwiGLU: `silu(gate) · up` on the joint projection `[rows, gate | up]` (Shazeer, 2020).

use crate::flex::{self, Floats};
use crate::simd::{exp, kernel};
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, backend_extension};
use burn::tensor::{Tensor, activation};
use rayon::prelude::*;

/// `silu(x[:, ..width]) · x[:, width..]` for `x [rows, 2·width]`; the result is `[rows, width]`.
pub fn swiglu(x: Tensor<2>) -> Tensor<2> {
    if flex::is_fused(&x.device()) {
        return Tensor::from_dispatch(Dispatch::swiglu_rows(x.into_dispatch()));
    }
    reference(x)
}

/// The same in plain tensor operations.
pub fn reference(x: Tensor<2>) -> Tensor<2> {
    let width = x.dims()[1] / 2;
    let up = x.clone().narrow(1, width, width);
    activation::silu(x.narrow(1, 0, width)) * up
}

/// Backend form. Shapes as in [`swiglu`].
#[backend_extension(Flex, Autodiff)]
pub trait SwigluOps: Backend {
    /// Gated rows.
    fn swiglu_rows(x: FloatTensor<Self>) -> FloatTensor<Self>;
    /// Gradient with respect to `x` for the gradient `dy [rows, width]` of the output.
    fn swiglu_gradient(x: FloatTensor<Self>, dy: FloatTensor<Self>) -> FloatTensor<Self>;
}

#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

kernel! {
    fn gate_row(x: &[f32], y: &mut [f32]) {
        let (gate, up) = x.split_at(y.len());
        for ((y, g), u) in y.iter_mut().zip(gate).zip(up) {
            *y = g * sigmoid(*g) * u;
        }
    }
}

kernel! {
    fn gradient_row(x: &[f32], dy: &[f32], dx: &mut [f32]) {
        let (gate, up) = x.split_at(dy.len());
        let (dgate, dup) = dx.split_at_mut(dy.len());
        for ((((dgate, dup), gate), up), dy) in dgate.iter_mut().zip(dup).zip(gate).zip(up).zip(dy) {
            let s = sigmoid(*gate);
            *dup = dy * gate * s;
            *dgate = dy * up * s * (1.0 + gate * (1.0 - s));
        }
    }
}

impl SwigluOps for Flex {
    fn swiglu_rows(x: FloatTensor<Self>) -> FloatTensor<Self> {
        let x = Floats::new(x);
        let [rows, double] = x.dims();
        let width = double / 2;
        let mut y = flex::zeros(rows * width);
        let work = y.par_chunks_mut(width).zip(x.values().par_chunks(double)).with_min_len(8);
        work.for_each(|(y, x)| gate_row(x, y));
        flex::tensor(y, [rows, width])
    }

    fn swiglu_gradient(x: FloatTensor<Self>, dy: FloatTensor<Self>) -> FloatTensor<Self> {
        let (x, dy) = (Floats::new(x), Floats::new(dy));
        let [rows, double] = x.dims();
        let width = double / 2;
        let mut dx = flex::zeros(rows * double);
        let rows_in = x.values().par_chunks(double).zip(dy.values().par_chunks(width));
        let work = dx.par_chunks_mut(double).zip(rows_in).with_min_len(8);
        work.for_each(|(dx, (x, dy))| gradient_row(x, dy, dx));
        flex::tensor(dx, [rows, double])
    }
}

impl<B: SwigluOps, C: CheckpointStrategy> SwigluOps for Autodiff<B, C> {
    fn swiglu_rows(x: FloatTensor<Self>) -> FloatTensor<Self> {
        #[derive(Debug)]
        struct SwigluBackward;

        impl<B: SwigluOps> Backward<B, 1> for SwigluBackward {
            type State = B::FloatTensorPrimitive;

            fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
                let dy = grads.consume::<B>(&ops.node);
                let [parent] = ops.parents;
                if let Some(node) = parent {
                    grads.register::<B>(node.id, B::swiglu_gradient(ops.state, dy));
                }
            }
        }

        let (x, node) = x.into_parts();
        let y = B::swiglu_rows(x.clone());
        match SwigluBackward.prepare::<C>([node]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish(x, y),
            OpsKind::UnTracked(prep) => prep.finish(y),
        }
    }

    fn swiglu_gradient(_: FloatTensor<Self>, _: FloatTensor<Self>) -> FloatTensor<Self> {
        unreachable!("gradients are first order")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use burn::tensor::{Device, Distribution, Tolerance};

    #[test]
    fn fused_form_and_gradient_match_the_reference() {
        let device = Device::flex().autodiff();
        let x = Tensor::<2>::random([29, 2 * 43], Distribution::Normal(0.0, 3.0), &device).require_grad();
        let weight = Tensor::<2>::random([29, 43], Distribution::Normal(0.0, 1.0), &device);
        let run = |f: fn(Tensor<2>) -> Tensor<2>| {
            let y = f(x.clone());
            let grads = (y.clone() * weight.clone()).sum().backward();
            (y.into_data(), x.grad(&grads).unwrap().into_data())
        };
        let (a, b) = (run(swiglu), run(reference));
        let tolerance = Tolerance::<f32>::rel_abs(1e-4, 1e-5);
        a.0.assert_approx_eq::<f32>(&b.0, tolerance);
        a.1.assert_approx_eq::<f32>(&b.1, tolerance);
    }
}
