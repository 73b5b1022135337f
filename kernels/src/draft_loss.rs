//! Value and closed-form gradient of a drafter's loss, row by row, from logits.
//!
//! Everything stays in log space: `log α = logsumexp min(log p, log q)` needs no clamp, and the factor `1/α` of the
//! LK gradient never overflows because each of its terms is a probability ratio below one.

use crate::flex::{self, Floats};
use crate::simd::{exp, exp_shifted, flushed, kernel, max, sum};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, Flex, backend_extension};
use burn::tensor::{Tensor, activation};
use rayon::prelude::*;

/// Which loss drives the drafter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DraftLoss {
    /// `KL(p̃ ‖ q)` with the target distribution renormalised over the draft vocabulary.
    Kl,
    /// `-log Σ min(p, q)` with the true target distribution (LK^α, arXiv 2602.23881).
    Lk,
}

/// Result for a block of rows.
pub struct LossRows {
    /// Gradient with respect to the drafter's logits, times the row's weight, `[rows, draft vocabulary]`.
    pub gradient: Tensor<2>,
    /// Per row the unweighted loss (nats) and the overlap `Σ min(p, q)` with the true `p`, `[rows, 2]`.
    pub metrics: Tensor<2>,
}

/// Loss of the drafter's `logits [rows, draft vocabulary]` against the target's logits of the same tokens.
///
/// `target_lse [rows]` is the log denominator of the target over its *whole* vocabulary, so that
/// `exp(target - target_lse)` is the true probability; `weights [rows]` scale each row's gradient. No tensor here
/// carries a tape.
pub fn draft_loss(
    logits: Tensor<2>,
    target: Tensor<2>,
    target_lse: Tensor<1>,
    weights: Tensor<1>,
    loss: DraftLoss,
) -> LossRows {
    if !flex::is_fused(&logits.device()) {
        return reference(logits, target, target_lse, weights, loss);
    }
    let (gradient, metrics) = Dispatch::draft_loss_rows(
        logits.into_dispatch(),
        target.into_dispatch(),
        target_lse.into_dispatch(),
        weights.into_dispatch(),
        loss,
    );
    LossRows { gradient: Tensor::from_dispatch(gradient), metrics: Tensor::from_dispatch(metrics) }
}

/// The same in plain tensor operations.
pub fn reference(
    logits: Tensor<2>,
    target: Tensor<2>,
    target_lse: Tensor<1>,
    weights: Tensor<1>,
    loss: DraftLoss,
) -> LossRows {
    let log_q = activation::log_softmax(logits, 1);
    let log_p = target.clone() - target_lse.unsqueeze_dim(1);
    let smaller = log_p.clone().min_pair(log_q.clone());
    let log_overlap = log_sum_exp(smaller);
    let q = log_q.clone().exp();
    let (value, gradient) = match loss {
        DraftLoss::Kl => {
            let log_p = activation::log_softmax(target, 1);
            let p = log_p.clone().exp();
            ((p.clone() * (log_p - log_q)).sum_dim(1), q - p)
        }
        DraftLoss::Lk => {
            let under = log_q.clone().lower(log_p).float();
            let ratio = (log_q - log_overlap.clone()).clamp_max(0.0).exp();
            let covered = (ratio.clone() * under.clone()).sum_dim(1);
            (log_overlap.clone().neg(), q * covered - ratio * under)
        }
    };
    LossRows { gradient: gradient * weights.unsqueeze_dim(1), metrics: Tensor::cat(vec![value, log_overlap.exp()], 1) }
}

fn log_sum_exp(x: Tensor<2>) -> Tensor<2> {
    let top = x.clone().max_dim(1);
    (x - top.clone()).exp().sum_dim(1).log() + top
}

/// Log of the softmax denominator of each row of `logits [rows, vocabulary]`, `[rows]`.
pub fn log_denominator(logits: Tensor<2>) -> Tensor<1> {
    if !flex::is_fused(&logits.device()) {
        return log_sum_exp(logits).squeeze_dim(1);
    }
    Tensor::from_dispatch(Dispatch::log_denominator_rows(logits.into_dispatch()))
}

/// Backend form. Shapes as in [`draft_loss`].
#[backend_extension(Flex)]
pub trait DraftLossOps: Backend {
    /// Weighted gradient and metrics.
    fn draft_loss_rows(
        logits: FloatTensor<Self>,
        target: FloatTensor<Self>,
        target_lse: FloatTensor<Self>,
        weights: FloatTensor<Self>,
        loss: DraftLoss,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
    /// Log softmax denominators.
    fn log_denominator_rows(logits: FloatTensor<Self>) -> FloatTensor<Self>;
}

impl DraftLossOps for Flex {
    fn draft_loss_rows(
        logits: FloatTensor<Self>,
        target: FloatTensor<Self>,
        target_lse: FloatTensor<Self>,
        weights: FloatTensor<Self>,
        loss: DraftLoss,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (mut logits, target) = (Floats::new(logits), Floats::new(target));
        let (target_lse, weights) = (Floats::new(target_lse), Floats::new(weights));
        let [rows, width] = logits.dims();
        let mut metrics = flex::zeros(rows * 2);
        let (target_lse, weights, target) = (target_lse.values(), weights.values(), target.values());
        let work =
            logits.values_mut().par_chunks_mut(width).zip(target.par_chunks(width)).zip(metrics.par_chunks_mut(2));
        work.enumerate().for_each_init(Vec::new, |scratch, (row, ((z, t), metrics))| {
            let (t_lse, weight) = (target_lse[row], weights[row]);
            let (value, overlap) = match loss {
                DraftLoss::Kl => kl_row(z, t, t_lse, weight, scratch),
                DraftLoss::Lk => lk_row(z, t, t_lse, weight, scratch),
            };
            metrics.copy_from_slice(&[value, overlap]);
        });
        (logits.into_tensor(), flex::tensor(metrics, [rows, 2]))
    }

    fn log_denominator_rows(logits: FloatTensor<Self>) -> FloatTensor<Self> {
        let logits = Floats::new(logits);
        let [rows, width] = logits.dims();
        let values = logits
            .values()
            .par_chunks(width)
            .map_init(Vec::new, |scratch, z| log_denominator_row(z, scratch))
            .collect();
        flex::tensor(values, [rows])
    }
}

/// Log of the softmax denominator of `z`; leaves `e^(z - max z)` in `scratch`.
#[inline(always)]
fn log_denominator_of(z: &[f32], scratch: &mut Vec<f32>) -> f32 {
    scratch.clear();
    scratch.extend_from_slice(z);
    let top = max(scratch);
    exp_shifted(scratch, top);
    top + sum(scratch).ln()
}

kernel! {
    fn log_denominator_row(z: &[f32], scratch: &mut Vec<f32>) -> f32 {
        log_denominator_of(z, scratch)
    }
}

/// `log Σ min(p, q)` from logits and their log denominators.
#[inline(always)]
fn log_overlap(z: &[f32], z_lse: f32, t: &[f32], t_lse: f32, scratch: &mut [f32]) -> f32 {
    for ((s, z), t) in scratch.iter_mut().zip(z).zip(t) {
        let (log_q, log_p) = (z - z_lse, t - t_lse);
        *s = if log_q < log_p { log_q } else { log_p };
    }
    let top = max(scratch);
    exp_shifted(scratch, top);
    top + sum(scratch).ln()
}

kernel! {
    /// Replaces the logits by the weighted gradient of `KL(p̃ ‖ q)`; returns the loss and the true overlap.
    fn kl_row(z: &mut [f32], t: &[f32], t_lse: f32, weight: f32, scratch: &mut Vec<f32>) -> (f32, f32) {
        let z_lse = log_denominator_of(z, scratch);
        let overlap = exp(log_overlap(z, z_lse, t, t_lse, scratch));
        let t_own = log_denominator_of(t, scratch);
        for ((s, z), t) in scratch.iter_mut().zip(z.iter_mut()).zip(t) {
            let (log_p, log_q) = (t - t_own, *z - z_lse);
            let p = exp(log_p);
            *s = p * (log_p - log_q);
            *z = weight * flushed(exp(log_q) - p);
        }
        (sum(scratch), overlap)
    }
}

kernel! {
    /// Replaces the logits by the weighted gradient of `-log α`; returns the loss and `α`.
    fn lk_row(z: &mut [f32], t: &[f32], t_lse: f32, weight: f32, scratch: &mut Vec<f32>) -> (f32, f32) {
        let z_lse = log_denominator_of(z, scratch);
        let log_overlap = log_overlap(z, z_lse, t, t_lse, scratch);
        // The ratio q/α of an under-covered token is at most one: it is a part of α.
        for ((s, z), t) in scratch.iter_mut().zip(z.iter()).zip(t) {
            let (log_q, log_p) = (z - z_lse, t - t_lse);
            let ratio = exp((log_q - log_overlap).min(0.0));
            *s = if log_q < log_p { ratio } else { 0.0 };
        }
        let covered = sum(scratch);
        for (z, ratio) in z.iter_mut().zip(scratch.iter()) {
            *z = weight * flushed(exp(*z - z_lse) * covered - ratio);
        }
        (-log_overlap, exp(log_overlap))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use burn::tensor::{Device, Distribution, Tolerance};

    fn compare(loss: DraftLoss) {
        let device = Device::flex();
        let noise = |scale| Tensor::<2>::random([40, 133], Distribution::Normal(0.0, scale), &device);
        let (logits, target) = (noise(2.0), noise(3.0));
        let lse = log_denominator(target.clone()) + 0.2;
        let weights = Tensor::<1>::random([40], Distribution::Uniform(0.0, 1.0), &device);
        let a = draft_loss(logits.clone(), target.clone(), lse.clone(), weights.clone(), loss);
        let b = reference(logits, target, lse, weights, loss);
        let tolerance = Tolerance::<f32>::rel_abs(2e-4, 2e-6);
        a.metrics.into_data().assert_approx_eq::<f32>(&b.metrics.into_data(), tolerance);
        a.gradient.into_data().assert_approx_eq::<f32>(&b.gradient.into_data(), tolerance);
    }

    #[test]
    fn kl_matches_the_reference() {
        compare(DraftLoss::Kl);
    }

    #[test]
    fn lk_matches_the_reference() {
        compare(DraftLoss::Lk);
    }

    #[test]
    fn cold_start_still_has_a_gradient() {
        let (n, device) = (131_072, Device::flex());
        let mut target = vec![-200.0_f32; n];
        target[7] = 0.0;
        let target = Tensor::<1>::from_floats(target.as_slice(), &device).unsqueeze::<2>();
        let rows = draft_loss(
            Tensor::zeros([1, n], &device),
            target,
            Tensor::zeros([1], &device),
            Tensor::ones([1], &device),
            DraftLoss::Lk,
        );
        let gradient = rows.gradient.into_data().try_to_vec::<f32>().unwrap();
        let metrics = rows.metrics.into_data().try_to_vec::<f32>().unwrap();
        assert!((metrics[0] - (n as f32).ln()).abs() < 1e-4, "loss {}", metrics[0]);
        assert!((gradient[7] + 1.0 - 1.0 / n as f32).abs() < 1e-4, "gradient {}", gradient[7]);
    }
}
