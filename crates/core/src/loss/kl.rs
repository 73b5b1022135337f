//! Forward Kullback–Leibler divergence.

use super::log_space::weighted;
use super::{Gradient, LossError, Row};

/// `KL(p || q) = sum_v p_v ln(p_v / q_v)` with the target renormalised on the draft vocabulary; gradient `(q - p)/T`.
///
/// # Errors
/// If the target has no mass on the draft vocabulary, or the drafter none on a token of the target.
pub fn kl(row: &Row) -> Result<Gradient, LossError> {
    let log_p = row.log_p_renormalised()?;
    let pairs = || log_p.iter().zip(row.log_q());
    let value: f64 = pairs().map(|(lp, lq)| weighted(lp.exp(), lp - lq)).sum();
    if value.is_infinite() {
        return Err(LossError::Unbounded);
    }
    let logits = pairs().map(|(lp, lq)| (lq.exp() - lp.exp()) / row.temperature()).collect();
    Ok(Gradient { value, logits })
}
