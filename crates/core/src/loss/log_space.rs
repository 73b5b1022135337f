//! Sums and normalisation of numbers given by their logarithms.

/// `ln sum exp(x)`; negative infinity for no terms or none above it.
pub fn log_sum_exp(values: impl IntoIterator<Item = f64> + Clone) -> f64 {
    let max = values.clone().into_iter().fold(f64::NEG_INFINITY, f64::max);
    if max.is_infinite() {
        return max;
    }
    let sum: f64 = values.into_iter().map(|x| (x - max).exp()).sum();
    max + sum.ln()
}

/// `x - ln sum exp(x)`: logarithms of the softmax, `[V] -> [V]`.
pub fn log_softmax(logits: &[f64]) -> Vec<f64> {
    let total = log_sum_exp(logits.iter().copied());
    logits.iter().map(|x| x - total).collect()
}

/// `weight * x`, and 0 where `weight` is 0: the limit of `w ln w` and its like.
pub(super) fn weighted(weight: f64, x: f64) -> f64 {
    if weight == 0.0 { 0.0 } else { weight * x }
}
