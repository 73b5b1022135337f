//! Top-k coverage: what a verifier of deterministic candidates rewards.
//!
//! A drafter that proposes its `k` likeliest tokens is accepted with the target's mass on them. Membership in the top k
//! has no derivative, so the gradient is that of a surrogate: on the set itself, membership is replaced by
//! `1 + s - sg(s)` with `s` the drafter's softmax over the set (straight-through).

use super::log_space::log_sum_exp;
use super::{Gradient, LossError, Row};

/// Indices of the drafter's `k` likeliest tokens, likeliest first, the lower index among equals.
///
/// # Errors
/// If `k` is 0 or above the size of the draft vocabulary.
pub fn top_tokens(row: &Row, k: usize) -> Result<Vec<usize>, LossError> {
    let log_q = row.log_q();
    if k == 0 || k > log_q.len() {
        return Err(LossError::Range { what: "k", value: k as f64 });
    }
    let mut order: Vec<usize> = (0..log_q.len()).collect();
    order.sort_by(|&a, &b| log_q[b].total_cmp(&log_q[a]));
    order.truncate(k);
    Ok(order)
}

/// `ln sum_{c in C} p(c)` over the drafter's top `k`, with the target's true probabilities.
///
/// # Errors
/// As [`top_tokens`].
pub fn log_coverage(row: &Row, k: usize) -> Result<f64, LossError> {
    let top = top_tokens(row, k)?;
    Ok(log_sum_exp(top.iter().map(|&c| row.log_p()[c])))
}

/// `-ln sum_{c in C} p(c)`; surrogate gradient `-s_j (p_j - sum_c s_c p_c) / (T sum_c p_c)` on C, 0 elsewhere.
///
/// # Errors
/// As [`top_tokens`], and if the target has no mass on C.
pub fn coverage(row: &Row, k: usize) -> Result<Gradient, LossError> {
    let top = top_tokens(row, k)?;
    let log_covered = log_sum_exp(top.iter().map(|&c| row.log_p()[c]));
    if log_covered == f64::NEG_INFINITY {
        return Err(LossError::NoTargetMass);
    }
    let log_set = log_sum_exp(top.iter().map(|&c| row.log_q()[c]));
    let soft = |c: usize| (row.log_q()[c] - log_set).exp();
    let share = |c: usize| (row.log_p()[c] - log_covered).exp();
    let mean: f64 = top.iter().map(|&c| soft(c) * share(c)).sum();
    let mut logits = vec![0.0; row.log_q().len()];
    for &c in &top {
        logits[c] = -soft(c) * (share(c) - mean) / row.temperature();
    }
    Ok(Gradient { value: -log_covered, logits })
}
