//! Reverse Kullback–Leibler divergence.

use super::log_space::weighted;
use super::{Gradient, LossError, Row};

/// `KL(q || p) = sum_v q_v ln(q_v / p_v)` with the target renormalised on the draft vocabulary; gradient
/// `q_j (ln(q_j / p_j) - KL(q || p)) / T`.
///
/// # Errors
/// If the target has no mass on the draft vocabulary, or none on a token to which the drafter gives mass.
pub fn reverse_kl(row: &Row) -> Result<Gradient, LossError> {
    let log_p = row.log_p_renormalised()?;
    let pairs = || log_p.iter().zip(row.log_q());
    let value: f64 = pairs().map(|(lp, lq)| weighted(lq.exp(), lq - lp)).sum();
    if value.is_infinite() {
        return Err(LossError::Unbounded);
    }
    let logits = pairs().map(|(lp, lq)| weighted(lq.exp(), lq - lp - value) / row.temperature()).collect();
    Ok(Gradient { value, logits })
}
