//! Sequential temperature scaling (DSpark): one temperature per draft position, fitted left to right.
//!
//! A length is chosen by the probability that a whole prefix survives, so what must be calibrated is the running
//! product of the positions' confidences, not each confidence alone. Position `j` is fitted with the temperatures of
//! the positions before it frozen.

use super::StatsError;
use super::calibration::{expected_calibration_error, reliability};

/// The logistic function.
pub fn sigmoid(logit: f64) -> f64 {
    1.0 / (1.0 + (-logit).exp())
}

/// Candidate temperatures from 1/8 to 8 in sixteenths of an octave, nearest to 1 first: of equals the mildest wins.
pub fn default_grid() -> Vec<f64> {
    const STEPS_PER_OCTAVE: f64 = 16.0;
    const OCTAVES: f64 = 3.0;
    let half = (STEPS_PER_OCTAVE * OCTAVES) as i32;
    let mut steps: Vec<i32> = (-half..=half).collect();
    steps.sort_by_key(|step| step.abs());
    steps.into_iter().map(|step| (f64::from(step) / STEPS_PER_OCTAVE).exp2()).collect()
}

/// Temperatures `[length]` that calibrate the running product of `sigmoid(logit / T)`.
///
/// # Shapes
/// - `logits` `[rows, length]`, row-major: confidence logits of the positions of a drafted chain.
/// - `accepted` `[rows]`: drafts that the verifier accepted, `0..=length`.
/// - `grid`: candidate temperatures, positive; of equally good ones the first is taken.
/// - `upper_edges`: bins of the calibration error, as in [`reliability`].
///
/// # Errors
/// If there is no row or candidate, the shapes do not fit, a candidate is not positive, or a logit is NaN.
pub fn fit(
    logits: &[f64],
    accepted: &[usize],
    length: usize,
    grid: &[f64],
    upper_edges: &[f64],
) -> Result<Vec<f64>, StatsError> {
    check(logits, accepted, length, grid)?;
    let mut prefix = vec![1.0; accepted.len()];
    let mut temperatures = Vec::with_capacity(length);
    for position in 0..length {
        let observed: Vec<f64> = accepted.iter().map(|&reached| f64::from(u8::from(reached > position))).collect();
        let scaled = |temperature: f64| -> Vec<f64> {
            let column = logits.iter().skip(position).step_by(length);
            prefix.iter().zip(column).map(|(before, logit)| before * sigmoid(logit / temperature)).collect()
        };
        let (mut best, mut least) = (grid[0], f64::INFINITY);
        for &temperature in grid {
            let bins = reliability(&scaled(temperature), &observed, upper_edges)?;
            let error = expected_calibration_error(&bins);
            if error < least {
                (best, least) = (temperature, error);
            }
        }
        prefix = scaled(best);
        temperatures.push(best);
    }
    Ok(temperatures)
}

fn check(logits: &[f64], accepted: &[usize], length: usize, grid: &[f64]) -> Result<(), StatsError> {
    if accepted.is_empty() {
        return Err(StatsError::Empty { what: "accepted" });
    }
    if grid.is_empty() {
        return Err(StatsError::Empty { what: "grid" });
    }
    if logits.len() != accepted.len() * length {
        return Err(StatsError::Length { what: "logits", expected: accepted.len() * length, found: logits.len() });
    }
    let range = |what, index, value| StatsError::Range { what, index, value };
    if let Some(index) = grid.iter().position(|t| !(*t > 0.0 && t.is_finite())) {
        return Err(range("grid", index, grid[index]));
    }
    if let Some(index) = logits.iter().position(|logit| logit.is_nan()) {
        return Err(range("logits", index, logits[index]));
    }
    if let Some(index) = accepted.iter().position(|&reached| reached > length) {
        return Err(range("accepted", index, accepted[index] as f64));
    }
    Ok(())
}
