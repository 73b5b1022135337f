//! The confidence head's loss: binary cross-entropy against a soft label.

use super::LossError;
use crate::stats::temperature_scaling::sigmoid;

/// Binary cross-entropy of a confidence logit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Confidence {
    /// `-c* ln c - (1 - c*) ln(1 - c)` in nats, `c` the sigmoid of the logit.
    pub value: f64,
    /// `d value / d logit = c - c*`.
    pub gradient: f64,
    /// `value` less the label's entropy, which no drafter can go below: 0 at `c = c*`.
    pub excess: f64,
}

/// The loss of confidence `logit` against `label`, the acceptance probability `1 - TV`, a constant of the gradient.
///
/// # Errors
/// If `label` is outside `[0, 1]` or `logit` is not finite.
pub fn confidence_bce(logit: f64, label: f64) -> Result<Confidence, LossError> {
    if !(0.0..=1.0).contains(&label) {
        return Err(LossError::Range { what: "label", value: label });
    }
    if !logit.is_finite() {
        return Err(LossError::Range { what: "logit", value: logit });
    }
    let softplus = logit.max(0.0) + (-logit.abs()).exp().ln_1p();
    let value = softplus - label * logit;
    let surprise = |c: f64| if c > 0.0 { -c * c.ln() } else { 0.0 };
    Ok(Confidence { value, gradient: sigmoid(logit) - label, excess: value - surprise(label) - surprise(1.0 - label) })
}
