//! Rotary position embedding, rotate-half layout, by explicit position ids (Su et al., 2021; Hugging Face's Llama).
//!
//! Trees give several rows the same position, so positions are data, never a counter.

use burn::tensor::{Device, Int, Tensor, TensorData};

/// Cosines and sines of every position, `[positions, dim / 2]` each.
#[derive(Debug)]
pub struct RopeTable {
    half: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl RopeTable {
    /// Table for `positions` positions of heads `dim` wide with base `theta`.
    ///
    /// Frequencies and angles are rounded to f32 as the reference implementation does, since the rounding of the
    /// angle grows with the position and would show in the logits.
    pub fn new(positions: usize, dim: usize, theta: f64) -> Self {
        let half = dim / 2;
        let power = |i: usize| theta.powf(f64::from(2.0 * i as f32 / dim as f32)) as f32;
        let frequency: Vec<f32> = (0..half).map(|i| 1.0 / power(i)).collect();
        let angle = |i: usize| f64::from((i / half) as f32 * frequency[i % half]);
        Self {
            half,
            cos: (0..positions * half).map(|i| angle(i).cos() as f32).collect(),
            sin: (0..positions * half).map(|i| angle(i).sin() as f32).collect(),
        }
    }

    /// Number of positions the table covers.
    pub fn positions(&self) -> usize {
        self.cos.len() / self.half
    }

    fn row(&self, position: usize) -> (&[f32], &[f32]) {
        assert!(position < self.positions(), "position {position} lies beyond the {} of the model", self.positions());
        let at = position * self.half;
        (&self.cos[at..at + self.half], &self.sin[at..at + self.half])
    }

    /// Rotates each head of `x [heads · dim]` to `position`, in place.
    pub fn rotate(&self, x: &mut [f32], position: usize) {
        let (cos, sin) = self.row(position);
        for head in x.chunks_exact_mut(2 * self.half) {
            let (a, b) = head.split_at_mut(self.half);
            for i in 0..self.half {
                let (x, y) = (a[i], b[i]);
                a[i] = x * cos[i] - y * sin[i];
                b[i] = y * cos[i] + x * sin[i];
            }
        }
    }

    /// Undoes [`Self::rotate`]; also its transpose, so that gradients go back through it.
    pub fn rotate_back(&self, x: &mut [f32], position: usize) {
        let (cos, sin) = self.row(position);
        for head in x.chunks_exact_mut(2 * self.half) {
            let (a, b) = head.split_at_mut(self.half);
            for i in 0..self.half {
                let (x, y) = (a[i], b[i]);
                a[i] = x * cos[i] + y * sin[i];
                b[i] = y * cos[i] - x * sin[i];
            }
        }
    }

    /// Reference form: rotates `x [rows, heads, dim]` to the `positions` of its rows in plain tensor operations.
    pub fn rotate_tensor(&self, x: Tensor<3>, positions: &[u32]) -> Tensor<3> {
        let device = x.device();
        let [rows, _, dim] = x.dims();
        let cos = self.gather(&self.cos, positions, &device);
        let sin = self.gather(&self.sin, positions, &device);
        let a = x.clone().narrow(2, 0, self.half);
        let b = x.narrow(2, self.half, self.half);
        let first = a.clone() * cos.clone() - b.clone() * sin.clone();
        let second = b * cos + a * sin;
        debug_assert_eq!((rows, dim), (positions.len(), 2 * self.half));
        Tensor::cat(vec![first, second], 2)
    }

    fn gather(&self, table: &[f32], positions: &[u32], device: &Device) -> Tensor<3> {
        let values: Vec<f32> = positions
            .iter()
            .flat_map(|&p| table[p as usize * self.half..(p as usize + 1) * self.half].iter().copied())
            .collect();
        Tensor::from_data(TensorData::new(values, [positions.len(), 1, self.half]), device)
    }
}

/// Indices as an integer tensor `[n]` on `device`.
pub fn indices(values: impl IntoIterator<Item = usize>, device: &Device) -> Tensor<1, Int> {
    let values: Vec<i64> = values.into_iter().map(|v| v as i64).collect();
    let n = values.len();
    Tensor::from_data(TensorData::new(values, [n]), device)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn rotation_goes_back_and_matches_the_tensor_form() {
        let table = RopeTable::new(64, 8, 10_000.0);
        let start: Vec<f32> = (0..16).map(|i| (i as f32 * 0.7).sin()).collect();
        let mut x = start.clone();
        table.rotate(&mut x, 37);
        let tensor = Tensor::<3>::from_data(TensorData::new(start.clone(), [1, 2, 8]), &Device::flex());
        let other = table.rotate_tensor(tensor, &[37]).into_data().try_to_vec::<f32>().unwrap();
        for (a, b) in x.iter().zip(&other) {
            assert!((a - b).abs() < 1e-6);
        }
        table.rotate_back(&mut x, 37);
        for (a, b) in x.iter().zip(&start) {
            assert!((a - b).abs() < 1e-6);
        }
    }
}
