//! The gradient of a head that is trained: `Gᵀ X` of the logits' gradients and the head's inputs, block after block.
//!
//! Sums run in the order of the blocks on every machine, whatever the number of threads: a resumed run must end at the
//! same weights.

use crate::matrix::{View, product};
use rayon::prelude::*;

/// Words whose part of the gradient a thread sums up at a time.
const SLICE: usize = 256;

/// What one block has to add.
pub(super) struct Piece {
    /// Gradients of the logits, `[rows, words]`.
    pub logits: Vec<f32>,
    /// Head inputs, `[rows, width]`.
    pub inputs: Vec<f32>,
}

/// Adds `pieces` to `sum [words, width]`.
pub(super) fn add(sum: &mut [f32], pieces: &[Piece], words: usize, width: usize) {
    sum.par_chunks_mut(SLICE * width).enumerate().for_each(|(slice, out)| {
        let first = slice * SLICE;
        let count = out.len() / width;
        for piece in pieces.iter().filter(|piece| !piece.inputs.is_empty()) {
            let rows = piece.inputs.len() / width;
            let gradient = View::new(&piece.logits[first..], rows, count, words).t();
            product(out, width, gradient, View::new(&piece.inputs, rows, width, width), 1.0, true);
        }
    });
}
