//! DSpark's Markov head: a low-rank bias on the draft logits that depends on the previous token of the block.

use super::LossError;

/// `U_k(v) + W1[x_{k-1}] · W2[:, v]`: logits of a block position given the previous token.
///
/// # Shapes
/// - `base` `[V]`: the parallel drafter's logits `U_k`.
/// - `previous` `[rank]`: the row of `W1` of the previous token.
/// - `w2` `[rank][V]`.
///
/// # Errors
/// If the shapes do not fit.
pub fn markov_logits(base: &[f64], previous: &[f64], w2: &[Vec<f64>]) -> Result<Vec<f64>, LossError> {
    let length = |what, expected, found| LossError::Length { what, expected, found };
    if w2.len() != previous.len() {
        return Err(length("w2", previous.len(), w2.len()));
    }
    let mut logits = base.to_vec();
    for (factor, row) in previous.iter().zip(w2) {
        if row.len() != base.len() {
            return Err(length("row of w2", base.len(), row.len()));
        }
        for (logit, weight) in logits.iter_mut().zip(row) {
            *logit += factor * weight;
        }
    }
    Ok(logits)
}
