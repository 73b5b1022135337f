//! Probabilities on the host, for sampling and verification.

use crate::simd::{exp, kernel, max};

/// Softmax of one row of `logits` at `temperature > 0`, normalised in f64.
///
/// The same function serves the plain path and the verifier, so that both mean the same distribution.
pub fn probabilities(logits: &[f32], temperature: f64) -> Vec<f64> {
    let mut weights = weights(logits, (1.0 / temperature) as f32);
    let scale = 1.0 / weights.iter().sum::<f64>();
    weights.iter_mut().for_each(|w| *w *= scale);
    weights
}

kernel! {
    fn weights(logits: &[f32], inverse: f32) -> Vec<f64> {
        let top = max(logits);
        let mut weights = vec![0.0; logits.len()];
        for (w, l) in weights.iter_mut().zip(logits) {
            *w = f64::from(exp((l - top) * inverse));
        }
        weights
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_a_distribution_and_sharpens_with_low_temperature() {
        let logits = [1.0, 2.0, 0.5, -3.0];
        let warm = probabilities(&logits, 1.0);
        let cold = probabilities(&logits, 0.5);
        assert!((warm.iter().sum::<f64>() - 1.0).abs() < 1e-12);
        assert!((warm[1] / warm[0] - 1.0_f64.exp()).abs() < 1e-5);
        assert!((cold[1] / cold[0] - 2.0_f64.exp()).abs() < 1e-5);
    }
}
