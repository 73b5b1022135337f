//! DSpark's compound loss of one block position: hard cross-entropy, L1 distance, and the confidence head.

use super::{LossError, Row, confidence_bce, token_cross_entropy, total_variation};

/// Factors of the three terms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DsparkWeights {
    /// Of the hard cross-entropy.
    pub cross_entropy: f64,
    /// Of `||q - p||_1 = 2 TV`.
    pub l1: f64,
    /// Of the confidence head's binary cross-entropy.
    pub confidence: f64,
}

impl Default for DsparkWeights {
    /// The paper's factors.
    fn default() -> Self {
        Self { cross_entropy: 0.1, l1: 0.9, confidence: 1.0 }
    }
}

/// The three terms before their factors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DsparkTerms {
    /// `-ln q_token`, 0 if the token lies outside the draft vocabulary.
    pub cross_entropy: f64,
    /// `2 TV`, with the target's true probabilities.
    pub l1: f64,
    /// Binary cross-entropy of the confidence against `1 - TV`.
    pub confidence: f64,
}

/// Value and gradients at one block position.
#[derive(Clone, Debug, PartialEq)]
pub struct DsparkLoss {
    /// Weighted sum of the terms.
    pub value: f64,
    /// The terms.
    pub terms: DsparkTerms,
    /// `d value / d z`, `[draft vocabulary]`. The confidence label is a constant here.
    pub logits: Vec<f64>,
    /// `d value / d confidence logit`.
    pub confidence_logit: f64,
}

/// The compound loss; `token` is the text's token as an index into the draft vocabulary, `None` if it lies outside.
///
/// # Errors
/// If `token` is no such index or has no mass, or the confidence logit is not finite.
pub fn dspark(
    row: &Row,
    token: Option<usize>,
    confidence_logit: f64,
    weights: DsparkWeights,
) -> Result<DsparkLoss, LossError> {
    let tv = total_variation(row);
    let confidence = confidence_bce(confidence_logit, (1.0 - tv.value).clamp(0.0, 1.0))?;
    let mut logits: Vec<f64> = tv.logits.iter().map(|g| weights.l1 * 2.0 * g).collect();
    let mut cross_entropy = 0.0;
    if let Some(token) = token {
        let hard = token_cross_entropy(row, token)?;
        cross_entropy = hard.value;
        for (g, h) in logits.iter_mut().zip(hard.logits) {
            *g += weights.cross_entropy * h;
        }
    }
    let terms = DsparkTerms { cross_entropy, l1: 2.0 * tv.value, confidence: confidence.value };
    Ok(DsparkLoss {
        value: weights.cross_entropy * terms.cross_entropy
            + weights.l1 * terms.l1
            + weights.confidence * terms.confidence,
        terms,
        logits,
        confidence_logit: weights.confidence * confidence.gradient,
    })
}

/// Weights `exp(-k / decay)` of block positions `k = 0..length`.
///
/// The paper's code divides a batch's sum by the sum of these weights, other trainers by the number of positions: the
/// same direction at another learning rate. The caller divides.
pub fn block_weights(length: usize, decay: f64) -> Vec<f64> {
    (0..length).map(|k| (-(k as f64) / decay).exp()).collect()
}
