//! End-to-end total variation: expected accepted drafts as a product of overlaps (Bebop, arXiv 2606.12370, Eq. 13).
//!
//! The overlaps are taken under the target's tokens, while accepted prefixes follow another law, so the product is
//! biased; [`super::exact_length`] carries the weights that repair it.

use super::{ChainGradient, LossError, Row, total_variation};

/// `sum_j prod_{i<=j} alpha_i` and its derivatives.
#[derive(Clone, Debug, PartialEq)]
pub struct LengthProduct {
    /// Prefix products `prod_{i<=j} alpha_i`, `[steps]`.
    pub prefix: Vec<f64>,
    /// Their sum: expected accepted drafts if the overlaps were independent of the tokens.
    pub length: f64,
    /// `W_i = d length / d alpha_i`, `[steps]`, without a division: safe at `alpha = 0`.
    pub weights: Vec<f64>,
}

/// The length product of per-step overlaps `alpha` `[steps]`.
pub fn length_product(alpha: &[f64]) -> LengthProduct {
    let prefix = crate::stats::length::survival(alpha);
    let mut weights = vec![0.0; alpha.len()];
    let mut rest = 0.0;
    for i in (0..alpha.len()).rev() {
        let before = if i == 0 { 1.0 } else { prefix[i - 1] };
        rest = 1.0 + alpha.get(i + 1).map_or(0.0, |next| next * rest);
        weights[i] = before * rest;
    }
    LengthProduct { length: prefix.iter().sum(), prefix, weights }
}

/// `1 - length / steps` over the unroll steps of one row; gradient of step `i`: `(W_i / steps) * grad TV_i`.
///
/// # Errors
/// If there is no step.
pub fn end_to_end_tv(steps: &[Row]) -> Result<ChainGradient, LossError> {
    if steps.is_empty() {
        return Err(LossError::Empty { what: "steps" });
    }
    let count = steps.len() as f64;
    let alpha: Vec<f64> = steps.iter().map(|row| row.overlap().alpha()).collect();
    let product = length_product(&alpha);
    let logits = steps
        .iter()
        .zip(&product.weights)
        .map(|(row, weight)| {
            let tv = total_variation(row).logits;
            tv.into_iter().map(|g| g * weight / count).collect()
        })
        .collect();
    Ok(ChainGradient { value: 1.0 - product.length / count, logits })
}
