//! Root-mean-square normalisation: `y = x / sqrt(mean(x²) + eps) · gamma` over each row (Zhang and Sennrich, 2019).

use crate::flex::{self, Floats};
use crate::simd::{dot, kernel};
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, backend_extension};
use burn::tensor::Tensor;
use rayon::prelude::*;

/// Normalises the rows of `x [rows, width]` and scales them by `gamma [width]`.
pub fn rms_norm(x: Tensor<2>, gamma: Tensor<1>, eps: f64) -> Tensor<2> {
    if flex::is_fused(&x.device()) {
        return Tensor::from_dispatch(Dispatch::rms_norm_rows(x.into_dispatch(), gamma.into_dispatch(), eps));
    }
    reference(x, gamma, eps)
}

/// The same in plain tensor operations.
pub fn reference(x: Tensor<2>, gamma: Tensor<1>, eps: f64) -> Tensor<2> {
    let scale = (x.clone().powf_scalar(2.0).mean_dim(1) + eps).sqrt().recip();
    x * scale * gamma.unsqueeze()
}

/// Backend form. Shapes as in [`rms_norm`].
#[backend_extension(Flex, Autodiff)]
pub trait RmsNormOps: Backend {
    /// Normalised rows.
    fn rms_norm_rows(x: FloatTensor<Self>, gamma: FloatTensor<Self>, eps: f64) -> FloatTensor<Self>;
    /// Gradients with respect to `x` and `gamma` for the gradient `dy [rows, width]` of the output.
    fn rms_norm_gradient(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        dy: FloatTensor<Self>,
        eps: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

#[inline(always)]
fn inverse_rms(x: &[f32], eps: f64) -> f32 {
    (dot(x, x) / x.len() as f32 + eps as f32).sqrt().recip()
}

kernel! {
    fn norm_row(x: &[f32], gamma: &[f32], eps: f64, y: &mut [f32]) {
        let inverse = inverse_rms(x, eps);
        for ((y, x), g) in y.iter_mut().zip(x).zip(gamma) {
            *y = x * inverse * g;
        }
    }
}

impl RmsNormOps for Flex {
    fn rms_norm_rows(x: FloatTensor<Self>, gamma: FloatTensor<Self>, eps: f64) -> FloatTensor<Self> {
        let (x, gamma) = (Floats::new(x), Floats::new(gamma));
        let [rows, width] = x.dims();
        let mut y = flex::zeros(rows * width);
        let (x, gamma) = (x.values(), gamma.values());
        let work = y.par_chunks_mut(width).zip(x.par_chunks(width)).with_min_len(16);
        work.for_each(|(y, x)| norm_row(x, gamma, eps, y));
        flex::tensor(y, [rows, width])
    }

    fn rms_norm_gradient(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        dy: FloatTensor<Self>,
        eps: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (x, gamma, dy) = (Floats::new(x), Floats::new(gamma), Floats::new(dy));
        let [rows, width] = x.dims();
        let (x, gamma, dy) = (x.values(), gamma.values(), dy.values());
        let mut dx = flex::zeros(rows * width);
        // A fixed block size keeps the order of the sums, and so the bits, independent of the thread count.
        const BLOCK: usize = 64;
        let partial: Vec<Vec<f32>> = dx
            .par_chunks_mut(BLOCK * width)
            .enumerate()
            .map(|(block, dx)| {
                let mut dgamma = flex::zeros(width);
                for (i, dx) in dx.chunks_mut(width).enumerate() {
                    let row = (block * BLOCK + i) * width;
                    let (x, dy) = (&x[row..row + width], &dy[row..row + width]);
                    gradient_row(x, gamma, dy, eps, dx, &mut dgamma);
                }
                dgamma
            })
            .collect();
        let mut dgamma = flex::zeros(width);
        for part in partial {
            dgamma.iter_mut().zip(part).for_each(|(a, b)| *a += b);
        }
        (flex::tensor(dx, [rows, width]), flex::tensor(dgamma, [width]))
    }
}

kernel! {
    fn gradient_row(x: &[f32], gamma: &[f32], dy: &[f32], eps: f64, dx: &mut [f32], dgamma: &mut [f32]) {
        let inverse = inverse_rms(x, eps);
        for ((dx, dy), g) in dx.iter_mut().zip(dy).zip(gamma) {
            *dx = dy * g;
        }
        let along = dot(dx, x) * inverse * inverse / x.len() as f32;
        for (dx, x) in dx.iter_mut().zip(x) {
            *dx = inverse * (*dx - x * along);
        }
        for ((dgamma, dy), x) in dgamma.iter_mut().zip(dy).zip(x) {
            *dgamma += dy * x * inverse;
        }
    }
}

impl<B: RmsNormOps, C: CheckpointStrategy> RmsNormOps for Autodiff<B, C> {
    fn rms_norm_rows(x: FloatTensor<Self>, gamma: FloatTensor<Self>, eps: f64) -> FloatTensor<Self> {
        #[derive(Debug)]
        struct RmsNormBackward;

        impl<B: RmsNormOps> Backward<B, 2> for RmsNormBackward {
            type State = (B::FloatTensorPrimitive, B::FloatTensorPrimitive, f64);

            fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
                let dy = grads.consume::<B>(&ops.node);
                let (x, gamma, eps) = ops.state;
                let (dx, dgamma) = B::rms_norm_gradient(x, gamma, dy, eps);
                for (parent, grad) in ops.parents.into_iter().zip([dx, dgamma]) {
                    if let Some(node) = parent {
                        grads.register::<B>(node.id, grad);
                    }
                }
            }
        }

        let (x, x_node) = x.into_parts();
        let (gamma, gamma_node) = gamma.into_parts();
        let y = B::rms_norm_rows(x.clone(), gamma.clone(), eps);
        match RmsNormBackward.prepare::<C>([x_node, gamma_node]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish((x, gamma, eps), y),
            OpsKind::UnTracked(prep) => prep.finish(y),
        }
    }

    fn rms_norm_gradient(
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        unreachable!("gradients are first order")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use burn::tensor::{Device, Distribution, Tolerance};

    #[test]
    fn fused_form_and_gradients_match_the_reference() {
        let device = Device::flex().autodiff();
        let x = Tensor::<2>::random([130, 37], Distribution::Normal(0.0, 2.0), &device).require_grad();
        let gamma = Tensor::<1>::random([37], Distribution::Normal(1.0, 0.3), &device).require_grad();
        let weight = Tensor::<2>::random([130, 37], Distribution::Normal(0.0, 1.0), &device);
        let run = |f: fn(Tensor<2>, Tensor<1>, f64) -> Tensor<2>| {
            let y = f(x.clone(), gamma.clone(), 1e-5);
            let grads = (y.clone() * weight.clone()).sum().backward();
            (y.into_data(), x.grad(&grads).unwrap().into_data(), gamma.grad(&grads).unwrap().into_data())
        };
        let (a, b) = (run(rms_norm), run(reference));
        let tolerance = Tolerance::<f32>::rel_abs(1e-4, 1e-5);
        a.0.assert_approx_eq::<f32>(&b.0, tolerance);
        a.1.assert_approx_eq::<f32>(&b.1, tolerance);
        a.2.assert_approx_eq::<f32>(&b.2, tolerance);
    }
}
