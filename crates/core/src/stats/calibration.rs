//! Whether a confidence means what it says: reliability bins, ECE, Brier score, AUROC.

use super::StatsError;

/// One reliability bin.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bin {
    /// Predictions in the bin.
    pub count: usize,
    /// Their mean prediction; 0 for an empty bin.
    pub mean_predicted: f64,
    /// Their mean outcome; 0 for an empty bin.
    pub mean_observed: f64,
}

/// Upper edges of `count` bins of equal width on `[0, 1]`.
pub fn equal_width_edges(count: usize) -> Vec<f64> {
    (1..=count).map(|i| i as f64 / count as f64).collect()
}

/// Reliability bins of `predicted` `[n]` against `observed` `[n]`, both in `[0, 1]`.
///
/// Bin `b` holds predictions in `(upper_edges[b-1], upper_edges[b]]`, the first also 0; the last edge is 1.
///
/// # Errors
/// If there is nothing to bin, the lengths differ, or a value or edge is outside `[0, 1]` or out of order.
pub fn reliability(predicted: &[f64], observed: &[f64], upper_edges: &[f64]) -> Result<Vec<Bin>, StatsError> {
    check(predicted, observed)?;
    check_edges(upper_edges)?;
    let mut bins = vec![Bin::default(); upper_edges.len()];
    for (&p, &o) in predicted.iter().zip(observed) {
        let bin = &mut bins[upper_edges.partition_point(|edge| *edge < p)];
        bin.count += 1;
        bin.mean_predicted += p;
        bin.mean_observed += o;
    }
    for bin in bins.iter_mut().filter(|bin| bin.count > 0) {
        bin.mean_predicted /= bin.count as f64;
        bin.mean_observed /= bin.count as f64;
    }
    Ok(bins)
}

/// Expected calibration error: mean over predictions of their bin's |mean prediction - mean outcome|.
pub fn expected_calibration_error(bins: &[Bin]) -> f64 {
    let total: usize = bins.iter().map(|bin| bin.count).sum();
    bins.iter().map(|bin| bin.count as f64 * (bin.mean_predicted - bin.mean_observed).abs()).sum::<f64>() / total as f64
}

/// Brier score: mean squared difference of prediction and outcome.
///
/// # Errors
/// As [`reliability`].
pub fn brier_score(predicted: &[f64], observed: &[f64]) -> Result<f64, StatsError> {
    check(predicted, observed)?;
    let sum: f64 = predicted.iter().zip(observed).map(|(p, o)| (p - o) * (p - o)).sum();
    Ok(sum / predicted.len() as f64)
}

/// Area under the ROC curve: probability that a positive outcome scores above a negative one, ties counted half.
///
/// `None` if one of the two outcomes does not occur.
pub fn auroc(scores: &[f64], positive: &[bool]) -> Option<f64> {
    let mut ranked: Vec<(f64, bool)> = scores.iter().copied().zip(positive.iter().copied()).collect();
    ranked.sort_by(|a, b| a.0.total_cmp(&b.0));
    let positives = ranked.iter().filter(|(_, is)| *is).count() as f64;
    let negatives = ranked.len() as f64 - positives;
    if positives == 0.0 || negatives == 0.0 {
        return None;
    }
    let (mut wins, mut below) = (0.0, 0.0);
    for ties in ranked.chunk_by(|a, b| a.0 == b.0) {
        let up = ties.iter().filter(|(_, is)| *is).count() as f64;
        let down = ties.len() as f64 - up;
        wins += up * (below + 0.5 * down);
        below += down;
    }
    Some(wins / (positives * negatives))
}

fn check(predicted: &[f64], observed: &[f64]) -> Result<(), StatsError> {
    if predicted.is_empty() {
        return Err(StatsError::Empty { what: "predicted" });
    }
    if predicted.len() != observed.len() {
        return Err(StatsError::Length { what: "observed", expected: predicted.len(), found: observed.len() });
    }
    for (what, values) in [("predicted", predicted), ("observed", observed)] {
        if let Some(index) = values.iter().position(|v| !(0.0..=1.0).contains(v)) {
            return Err(StatsError::Range { what, index, value: values[index] });
        }
    }
    Ok(())
}

fn check_edges(edges: &[f64]) -> Result<(), StatsError> {
    let mut before = 0.0;
    for (index, &value) in edges.iter().enumerate() {
        let last = index + 1 == edges.len();
        if !(value > before && value <= 1.0) || (last && value < 1.0) {
            return Err(StatsError::Range { what: "upper_edges", index, value });
        }
        before = value;
    }
    if edges.is_empty() {
        return Err(StatsError::Empty { what: "upper_edges" });
    }
    Ok(())
}
