//! Cross-entropy, against the target's distribution or against one token.

use super::log_space::weighted;
use super::{Gradient, LossError, Row};

/// Soft cross-entropy `-sum_v p_v ln q_v` with the target renormalised on the draft vocabulary; gradient `(q - p)/T`.
///
/// # Errors
/// If the target has no mass on the draft vocabulary, or the drafter none on a token of the target.
pub fn cross_entropy(row: &Row) -> Result<Gradient, LossError> {
    let p: Vec<f64> = row.log_p_renormalised()?.into_iter().map(f64::exp).collect();
    against(row, &p)
}

/// Hard cross-entropy `-ln q_token`, `token` an index into the draft vocabulary.
///
/// # Errors
/// If `token` is no such index, or the drafter gives it no mass.
pub fn token_cross_entropy(row: &Row, token: usize) -> Result<Gradient, LossError> {
    let mut p = vec![0.0; row.log_q().len()];
    *p.get_mut(token).ok_or(LossError::Range { what: "token", value: token as f64 })? = 1.0;
    against(row, &p)
}

fn against(row: &Row, p: &[f64]) -> Result<Gradient, LossError> {
    let pairs = || p.iter().zip(row.log_q());
    let value: f64 = pairs().map(|(p, log_q)| -weighted(*p, *log_q)).sum();
    if value.is_infinite() {
        return Err(LossError::Unbounded);
    }
    let logits = pairs().map(|(p, log_q)| (log_q.exp() - p) / row.temperature()).collect();
    Ok(Gradient { value, logits })
}
