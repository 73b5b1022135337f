//! LK^α: the negative logarithm of the acceptance probability (LK losses, arXiv 2602.23881).

use super::{Gradient, LossError, Row};

/// `-ln alpha`; gradient `grad TV / alpha`, each entry at most `1/T` in size.
///
/// The division by `alpha` happens between logarithms, so nothing is clamped and the gradient of a cold start over a
/// large vocabulary is that of cross-entropy, not zero.
///
/// # Errors
/// If the target has no mass on the draft vocabulary: the position is rejected whatever the drafter does.
pub fn lk_alpha(row: &Row) -> Result<Gradient, LossError> {
    let overlap = row.overlap();
    if overlap.log_alpha == f64::NEG_INFINITY {
        return Err(LossError::NoTargetMass);
    }
    let logits = row
        .log_q()
        .iter()
        .enumerate()
        .map(|(j, lq)| {
            let relative = lq - overlap.log_alpha;
            let share = if row.is_under_covered(j) {
                -(relative + overlap.log_over).exp()
            } else {
                (relative + overlap.log_under).exp()
            };
            share / row.temperature()
        })
        .collect();
    Ok(Gradient { value: -overlap.log_alpha, logits })
}
