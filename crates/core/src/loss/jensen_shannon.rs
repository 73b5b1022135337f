//! Jensen–Shannon divergence.

use std::f64::consts::LN_2;

use super::log_space::{log_sum_exp, weighted};
use super::{Gradient, LossError, Row};

/// `(KL(p || m) + KL(q || m)) / 2` with `m = (p + q) / 2` and the target renormalised on the draft vocabulary; at most
/// `ln 2`. Gradient `q_j (ln(q_j / m_j) - KL(q || m)) / (2 T)`.
///
/// # Errors
/// If the target has no mass on the draft vocabulary.
pub fn jensen_shannon(row: &Row) -> Result<Gradient, LossError> {
    let log_p = row.log_p_renormalised()?;
    let log_q = row.log_q();
    let log_m: Vec<f64> = log_p.iter().zip(log_q).map(|(lp, lq)| log_sum_exp([*lp, *lq]) - LN_2).collect();
    let divergence = |from: &[f64]| -> f64 { from.iter().zip(&log_m).map(|(x, m)| weighted(x.exp(), x - m)).sum() };
    let from_q = divergence(log_q);
    let logits = log_q
        .iter()
        .zip(&log_m)
        .map(|(lq, lm)| 0.5 * weighted(lq.exp(), lq - lm - from_q) / row.temperature())
        .collect();
    Ok(Gradient { value: 0.5 * (divergence(&log_p) + from_q), logits })
}
