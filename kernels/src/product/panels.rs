//! Matrix products against a matrix that was laid out in *panels*: 48 columns wide, row after row.
//!
//! A product reads a panel once from first to last byte, whatever the number of rows it multiplies: few rows run at
//! the speed of memory, many at that of the multipliers. Each result is one sum in the order of the inputs, so that it
//! does not depend on which rows stand beside it.

use super::tile::{Line, Part, WIDTH, Walk, available, most_rows};
use crate::matrix::View;
use rayon::prelude::*;
use std::ops::Range;

/// Rows of a piece of work; its part of `a` stays in the cache while the panel does.
const CHUNK: usize = 256;
/// Inputs that are summed before the results are written: so much of a panel stays in the second-level cache.
const DEPTH: usize = 1024;
/// Products below this many multiplications are not worth waking another thread.
const SMALL: usize = 1 << 17;

/// A matrix `[inputs, outputs]` in panels; the last one is filled up with zeros.
pub struct Panels {
    lines: Vec<Line>,
    inputs: usize,
    outputs: usize,
}

impl Panels {
    /// Lays out `matrix`; `None` where the processor lacks the instructions to multiply by it.
    pub fn new(matrix: View) -> Option<Self> {
        if !available() {
            return None;
        }
        let (inputs, outputs) = (matrix.rows, matrix.cols);
        let per_panel = inputs * WIDTH / 16;
        let mut lines = vec![Line([0.0; 16]); outputs.div_ceil(WIDTH) * per_panel];
        let fill = |(panel, lines): (usize, &mut [Line])| {
            let columns = panel * WIDTH..outputs.min((panel + 1) * WIDTH);
            fill(lines, matrix, columns);
        };
        if per_panel > 0 {
            let panels = lines.par_chunks_mut(per_panel).enumerate();
            panels.with_min_len(SMALL.div_ceil(16 * per_panel)).for_each(fill);
        }
        Some(Self { lines, inputs, outputs })
    }

    /// Rows of the matrix.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Columns of the matrix.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Bytes that are held.
    pub fn bytes(&self) -> usize {
        size_of_val(self.lines.as_slice())
    }

    /// `a · self`, `[a.rows, outputs]` row after row.
    pub fn product(&self, a: View) -> Vec<f32> {
        let len = a.rows * self.outputs;
        if self.inputs == 0 {
            return vec![0.0; len];
        }
        let mut out: Vec<f32> = Vec::with_capacity(len);
        self.check(a);
        // SAFETY: so much was reserved, and a product writes every element before it reads it.
        unsafe {
            self.run(a, &Out(out.as_mut_ptr()));
            out.set_len(len);
        }
        out
    }

    /// `out = a · self`, with `out [a.rows, outputs]` row after row, on all threads.
    pub fn multiply(&self, a: View, out: &mut [f32]) {
        let out = self.checked(a, out);
        // SAFETY: `out` holds all rows and is borrowed alone.
        unsafe { self.run(a, &out) };
    }

    /// [`Self::multiply`] on this thread only.
    pub fn multiply_alone(&self, a: View, out: &mut [f32]) {
        let out = self.checked(a, out);
        // SAFETY: as above.
        unsafe { self.run_alone(a, &out) };
    }

    /// # Safety
    /// `out` points to `a.rows · outputs` numbers that nobody else touches, and `a` was checked.
    unsafe fn run(&self, a: View, out: &Out) {
        if a.rows * self.inputs * self.outputs <= SMALL {
            // SAFETY: handed on.
            return unsafe { self.run_alone(a, out) };
        }
        let (panels, chunks) = (self.outputs.div_ceil(WIDTH), a.rows.div_ceil(CHUNK));
        (0..panels * chunks).into_par_iter().for_each(|i| {
            let (panel, chunk) = (i / chunks, i % chunks);
            let rows = chunk * CHUNK..a.rows.min((chunk + 1) * CHUNK);
            for from in (0..self.inputs).step_by(DEPTH) {
                // SAFETY: panels exist only where the instructions do; `a` and `out` were checked, and no two pieces
                // write the same rows of the same columns.
                unsafe { self.block(a, panel, from, rows.clone(), out) };
            }
        });
    }

    /// # Safety
    /// As [`Self::run`].
    unsafe fn run_alone(&self, a: View, out: &Out) {
        for rows in (0..a.rows).step_by(CHUNK).map(|first| first..a.rows.min(first + CHUNK)) {
            for from in (0..self.inputs).step_by(DEPTH) {
                for panel in 0..self.outputs.div_ceil(WIDTH) {
                    // SAFETY: as above; there is one thread.
                    unsafe { self.block(a, panel, from, rows.clone(), out) };
                }
            }
        }
    }

    fn check(&self, a: View) {
        assert!(a.cols == self.inputs && a.fits(), "matrix product of unfit views");
    }

    /// Refuses views and buffers that do not fit, and clears what an empty sum leaves.
    fn checked(&self, a: View, out: &mut [f32]) -> Out {
        self.check(a);
        assert_eq!(out.len(), a.rows * self.outputs, "matrix product into a buffer of another size");
        if self.inputs == 0 {
            out.fill(0.0);
        }
        Out(out.as_mut_ptr())
    }

    /// The inputs of one panel from `from` on, at most [`DEPTH`], times the rows `rows` of `a`; adds to what the
    /// inputs before gave.
    ///
    /// # Safety
    /// The processor has the instructions of a [`Part`]; `a` fits its slice and has as many columns as `self` inputs;
    /// `out` points to `a.rows · outputs` numbers, of which nobody else touches these rows of this panel's columns.
    unsafe fn block(&self, a: View, panel: usize, from: usize, rows: Range<usize>, out: &Out) {
        let (lines, later) = self.lines[panel * self.inputs * 3..].split_at(self.inputs * 3);
        let width = WIDTH.min(self.outputs - panel * WIDTH);
        let depth = DEPTH.min(self.inputs - from);
        let lines = &lines[from * 3..(from + depth) * 3];
        let tiles = rows.len().div_ceil(most_rows());
        for t in 0..tiles {
            // Tiles as equal as can be: one of a single row would wait for its sums.
            let (first, end) = (rows.start + t * rows.len() / tiles, rows.start + (t + 1) * rows.len() / tiles);
            let walk = match tiles {
                1 => Walk::alone(lines, end - first),
                _ => Walk::together(later.get(from * 3..).unwrap_or_default(), lines.len(), t, tiles, end - first),
            };
            let part = Part { a, first, from, lines, walk, resume: from > 0 };
            // SAFETY: the tile lies within the rows and columns that the caller grants.
            unsafe {
                let to = out.0.add(first * self.outputs + panel * WIDTH);
                part.run(end - first, to, self.outputs, width);
            }
        }
    }
}

/// Where results go; each piece of work writes its own part.
struct Out(*mut f32);

// SAFETY: pieces of work write disjoint parts.
unsafe impl Sync for Out {}

/// Copies `columns` of `matrix` into a panel.
fn fill(lines: &mut [Line], matrix: View, columns: Range<usize>) {
    let View { data, row_stride, col_stride, .. } = matrix;
    if col_stride == 1 {
        for (row, lines) in lines.chunks_exact_mut(3).enumerate() {
            let values = &data[row * row_stride + columns.start..][..columns.len()];
            lines.iter_mut().zip(values.chunks(16)).for_each(|(line, v)| line.0[..v.len()].copy_from_slice(v));
        }
        return;
    }
    // In blocks of rows, so that a transposed matrix is read along its own rows while the block stays at hand.
    for (block, lines) in lines.chunks_mut(3 * 16).enumerate() {
        for (j, column) in columns.clone().enumerate() {
            let values = data[block * 16 * row_stride + column * col_stride..].iter().step_by(row_stride);
            lines.iter_mut().skip(j / 16).step_by(3).zip(values).for_each(|(line, v)| line.0[j % 16] = *v);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn noise(n: usize, seed: u64) -> Vec<f32> {
        let next = |state: &mut u64| {
            *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            Some((*state >> 40) as f32 / (1 << 24) as f32 - 0.5)
        };
        (0..n).scan(seed, |s, _| next(s)).collect()
    }

    /// The largest deviation from a product in f64.
    fn deviation(a: View, b: View) -> f64 {
        let at = |v: View, r: usize, c: usize| f64::from(v.data[r * v.row_stride + c * v.col_stride]);
        let mut out = vec![f32::NAN; a.rows * b.cols];
        Panels::new(b).unwrap().multiply(a, &mut out);
        let exact = |r: usize, c: usize| (0..a.cols).map(|i| at(a, r, i) * at(b, i, c)).sum::<f64>();
        let cells = (0..a.rows).flat_map(|r| (0..b.cols).map(move |c| (r, c)));
        cells.zip(&out).map(|((r, c), x)| (exact(r, c) - f64::from(*x)).abs()).fold(0.0, f64::max)
    }

    #[test]
    fn every_remainder_of_rows_inputs_and_columns_is_right() {
        if !available() {
            return;
        }
        for rows in [1, 2, 3, 7, 8, 9, 17, 259] {
            for inputs in [1, 5, 64, 70, DEPTH + 3] {
                for outputs in [1, 16, 47, 48, 49, 100] {
                    let (a, b) = (noise(rows * inputs, 1), noise(inputs * outputs, 2));
                    let plain = (View::new(&a, rows, inputs, inputs), View::new(&b, inputs, outputs, outputs));
                    let turned = (View::new(&a, inputs, rows, rows).t(), View::new(&b, outputs, inputs, inputs).t());
                    for (a, b) in [plain, turned] {
                        let worst = deviation(a, b);
                        assert!(worst < 1e-4, "{rows}×{inputs}×{outputs}: off by {worst}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_row_does_not_depend_on_its_neighbours() {
        if !available() {
            return;
        }
        let (rows, inputs, outputs) = (29, 300, 131);
        let (a, b) = (noise(rows * inputs, 3), noise(inputs * outputs, 4));
        let panels = Panels::new(View::new(&b, inputs, outputs, outputs)).unwrap();
        let mut all = vec![0.0; rows * outputs];
        panels.multiply(View::new(&a, rows, inputs, inputs), &mut all);
        for row in 0..rows {
            let mut alone = vec![0.0; outputs];
            panels.multiply(View::new(&a[row * inputs..], 1, inputs, inputs), &mut alone);
            assert_eq!(alone, all[row * outputs..(row + 1) * outputs]);
        }
    }
}
