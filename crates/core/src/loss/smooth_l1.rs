//! Smooth L1 between features (EAGLE-1, HASS).

use super::LossError;

/// Mean over features of `d²/2` for `|d| < 1` and `|d| - 1/2` beyond, with `d = predicted - target`; and its gradient
/// with respect to `predicted`, `[h]`.
///
/// # Errors
/// If there is no feature, or the lengths differ.
pub fn smooth_l1(predicted: &[f64], target: &[f64]) -> Result<(f64, Vec<f64>), LossError> {
    if predicted.is_empty() {
        return Err(LossError::Empty { what: "predicted" });
    }
    if predicted.len() != target.len() {
        return Err(LossError::Length { what: "target", expected: predicted.len(), found: target.len() });
    }
    let count = predicted.len() as f64;
    let distance = || predicted.iter().zip(target).map(|(a, b)| a - b);
    let value: f64 = distance().map(|d| if d.abs() < 1.0 { 0.5 * d * d } else { d.abs() - 0.5 }).sum();
    let gradient = distance().map(|d| d.clamp(-1.0, 1.0) / count).collect();
    Ok((value / count, gradient))
}
