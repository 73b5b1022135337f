//! LK^λ: KL while acceptance is low, TV once it is high (LK losses, arXiv 2602.23881).

use super::{Gradient, LossError, Row, kl, total_variation};

/// `lambda = exp(-eta * alpha)`. `alpha` is a constant of the gradient; the paper aggregates it over a batch.
pub fn mixing_weight(eta: f64, alpha: f64) -> f64 {
    (-eta * alpha).exp()
}

/// `lambda KL + (1 - lambda) TV`, KL with the target renormalised on the draft vocabulary and TV without.
///
/// # Errors
/// As [`kl`].
pub fn lk_lambda(row: &Row, lambda: f64) -> Result<Gradient, LossError> {
    let (kl, tv) = (kl(row)?, total_variation(row));
    let mix = |a: f64, b: f64| lambda * a + (1.0 - lambda) * b;
    Ok(Gradient {
        value: mix(kl.value, tv.value),
        logits: kl.logits.iter().zip(&tv.logits).map(|(a, b)| mix(*a, *b)).collect(),
    })
}
