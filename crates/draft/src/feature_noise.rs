//! Noise on the features in training (EAGLE, Li et al., 2024): uniform in `±a · 512 / T` for a conversation of `T`
//! tokens. At run time the drafter reads its own features, which are a little off; it learns to bear that.
//!
//! The paper adds it to the head's input, all of whose dimensions are alike in size. Taps are not, so here it is in units
//! of each dimension's typical size ([`crate::TapScale`]).

use burn::tensor::{Device, Tensor, TensorData};
use spectrain_core::rng::{Key, Purpose};

/// Tokens at which the bound is the amplitude.
const REFERENCE: f64 = 512.0;
/// Draws that one random word is cut into, 16 bits each.
const DRAWS: usize = 4;

/// The noise on one batch; the same seed and batch have the same.
#[derive(Debug, Clone, Copy)]
pub struct FeatureNoise {
    /// Largest absolute value in a conversation of 512 tokens; 0.1 in EAGLE.
    pub amplitude: f64,
    /// Seed of the run.
    pub seed: u64,
    /// Number of the batch in the run.
    pub batch: usize,
}

impl FeatureNoise {
    /// `x [rows, width]`, in units of typical size, with noise; row `r` is of a conversation of `lengths[r]` tokens.
    pub fn apply(&self, x: Tensor<2>, lengths: &[usize]) -> Tensor<2> {
        let [rows, width] = x.dims();
        let device: Device = x.device();
        x + Tensor::<2>::from_data(TensorData::new(self.values(lengths, width), [rows, width]), &device)
    }

    /// `[rows, width]`, row by row.
    fn values(&self, lengths: &[usize], width: usize) -> Vec<f32> {
        let row = |(r, length): (usize, &usize)| {
            let bound = self.amplitude * REFERENCE / *length as f64;
            let key = Key::new(self.seed, self.batch as u64, r as u64, Purpose::Noise);
            let words = (0..width.div_ceil(DRAWS) as u64).map(move |word| key.bits_at(word));
            // Cell midpoints, symmetric about 0.
            let uniform = |bits: u64, i: usize| (((bits >> (16 * i)) & 0xffff) as f64 + 0.5) / 32768.0 - 1.0;
            let draws = words.flat_map(move |bits| (0..DRAWS).map(move |i| (bound * uniform(bits, i)) as f32));
            draws.take(width)
        };
        lengths.iter().enumerate().flat_map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_uniform_in_a_bound_that_shrinks_with_the_conversation_and_differs_by_batch() {
        let noise = FeatureNoise { amplitude: 0.1, seed: 3, batch: 5 };
        let (width, lengths) = (20_001, [256, 1024, 1024]);
        let values = noise.values(&lengths, width);
        assert_eq!(values.len(), 3 * width);
        for (row, bound) in values.chunks(width).zip([0.2, 0.05, 0.05]) {
            let n = width as f64;
            let mean = row.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
            let square = row.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / n;
            let largest = row.iter().fold(0.0, |m: f64, &v| m.max(f64::from(v).abs()));
            assert!(mean.abs() < 0.02 * bound, "mean {mean}");
            assert!((square / (bound * bound / 3.0) - 1.0).abs() < 0.03, "mean square {square}");
            assert!(largest <= bound && largest > 0.999 * bound, "largest {largest}");
        }
        assert_ne!(values[width..2 * width], values[2 * width..], "rows differ");
        assert_eq!(values, noise.values(&lengths, width));
        assert_ne!(values, FeatureNoise { batch: 6, ..noise }.values(&lengths, width));
        assert_ne!(values, FeatureNoise { seed: 4, ..noise }.values(&lengths, width));
    }
}
