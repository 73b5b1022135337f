//! Input dropout (Srivastava et al., 2014): a training step leaves out some of the numbers that the drafter's layer
//! reads, differently at every step. With few tokens and several epochs a drafter otherwise learns the answers by heart:
//! its training loss falls to a third of the held-out one.

use burn::tensor::{Device, Tensor, TensorData};
use spectrain_core::rng::{Key, Purpose};

/// What one batch leaves out; the same seed and batch leave out the same.
#[derive(Debug, Clone, Copy)]
pub struct Dropout {
    /// Share that is left out, at least 0 and below 1; the rest is scaled up to keep the mean.
    pub rate: f64,
    /// Seed of the run.
    pub seed: u64,
    /// Number of the batch in the run.
    pub batch: usize,
}

/// Draws that one random word is cut into.
const DRAWS: usize = 4;

impl Dropout {
    /// `x [rows, width]` of unroll step `k` without what is left out.
    pub fn apply(&self, x: Tensor<2>, k: usize) -> Tensor<2> {
        let [rows, width] = x.dims();
        let mask = self.mask(k, rows * width);
        let device: Device = x.device();
        x * Tensor::<2>::from_data(TensorData::new(mask, [rows, width]), &device)
    }

    /// `n` factors: 0, or what makes the mean 1.
    fn mask(&self, k: usize, n: usize) -> Vec<f32> {
        // 0 to 2 are the other uses of the data's stream: order, split, greedy answers.
        let key = Key::new(self.seed, self.batch as u64, 3 + k as u64, Purpose::Data);
        let limit = (self.rate * 65536.0) as u64;
        let kept = (1.0 / (1.0 - self.rate)) as f32;
        let factor = |bits: u64, i: usize| if (bits >> (16 * i)) & 0xffff < limit { 0.0 } else { kept };
        let words = (0..n.div_ceil(DRAWS) as u64).map(|word| key.bits_at(word));
        let mut mask: Vec<f32> = words.flat_map(|bits| (0..DRAWS).map(move |i| factor(bits, i))).collect();
        mask.truncate(n);
        mask
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_left_out_the_mean_kept_and_every_step_differs() {
        let dropout = Dropout { rate: 0.25, seed: 3, batch: 5 };
        let mask = dropout.mask(0, 40_001);
        let left_out = mask.iter().filter(|m| **m == 0.0).count() as f64 / mask.len() as f64;
        let mean = mask.iter().sum::<f32>() / mask.len() as f32;
        assert_eq!(mask.len(), 40_001);
        assert!((left_out - 0.25).abs() < 0.01 && (mean - 1.0).abs() < 0.015, "{left_out} left out, mean {mean}");
        assert_eq!(mask, dropout.mask(0, 40_001));
        assert_ne!(mask, dropout.mask(1, 40_001));
        assert_ne!(mask, Dropout { batch: 6, ..dropout }.mask(0, 40_001));
    }
}
