//! Matrix products against a matrix that was laid out in *panels*: 48 columns wide, row after row.
//!
//! A product reads a panel once from first to last byte, whatever the number of rows it multiplies: few rows run at
//! the speed of memory, many at that of the multipliers. Each result is one sum in the order of the inputs, so that it
//! does not depend on which rows stand beside it.

use crate::matrix::View;
use rayon::prelude::*;
use std::ops::Range;

/// Columns of a panel: three vectors of sixteen numbers.
const WIDTH: usize = 48;
/// Rows that are multiplied at a time: 8 × 3 vectors of sums leave registers for what is read.
const ROWS: usize = 8;
/// Rows of a piece of work; its part of `a` stays in the cache while the panel does.
const CHUNK: usize = 32 * ROWS;
/// Inputs that are summed before the results are written: so much of a panel stays in the second-level cache.
const DEPTH: usize = 1024;
/// Lines that are asked for ahead of their use while a panel comes from memory.
const AHEAD: usize = 96;
/// Products below this many multiplications are not worth waking another thread.
const SMALL: usize = 1 << 17;

/// One cache line, so that no vector crosses two.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; 16]);

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
    /// The processor has the instructions of [`tile`]; `a` fits its slice and has as many columns as `self` inputs;
    /// `out` points to `a.rows · outputs` numbers, of which nobody else touches these rows of this panel's columns.
    unsafe fn block(&self, a: View, panel: usize, from: usize, rows: Range<usize>, out: &Out) {
        let (lines, later) = self.lines[panel * self.inputs * 3..].split_at(self.inputs * 3);
        let width = WIDTH.min(self.outputs - panel * WIDTH);
        let depth = DEPTH.min(self.inputs - from);
        let lines = &lines[from * 3..(from + depth) * 3];
        let tiles = rows.len().div_ceil(ROWS);
        for t in 0..tiles {
            // Tiles as equal as can be: one of a single row would wait for its sums.
            let (first, end) = (rows.start + t * rows.len() / tiles, rows.start + (t + 1) * rows.len() / tiles);
            let ahead = match tiles {
                1 => Ahead { lines: lines.as_ptr().wrapping_add(AHEAD), inputs: depth, each: 3 },
                _ => Ahead::share(later.get(from * 3..).unwrap_or_default(), lines.len(), t, tiles),
            };
            let part = Part { a, first, from, lines, ahead, resume: from > 0 };
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

/// True where the processor has the instructions for products by panels.
pub fn available() -> bool {
    #[cfg(target_arch = "x86_64")]
    return matches!(crate::simd::level(), crate::simd::Level::Wide);
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Lines that a tile asks memory for while it multiplies. A tile that is alone looks some way ahead of itself; several
/// bring the next panel together, so that memory is busy all the time that this panel is at hand.
#[derive(Clone, Copy)]
struct Ahead {
    lines: *const Line,
    /// Inputs at which lines are asked for, from the first on.
    inputs: usize,
    /// Lines at each of them, 1 to 3.
    each: usize,
}

impl Ahead {
    /// What tile `t` of `tiles` brings of the first `count` lines of `next`.
    fn share(next: &[Line], count: usize, t: usize, tiles: usize) -> Self {
        let count = count.min(next.len());
        let (first, end) = (t * count / tiles, (t + 1) * count / tiles);
        let each = 3_usize.div_ceil(tiles);
        Self { lines: next[first..].as_ptr(), inputs: (end - first) / each, each }
    }
}

/// A tile's part of the work: some inputs of at most [`ROWS`] rows.
#[derive(Clone, Copy)]
struct Part<'a> {
    a: View<'a>,
    /// First row.
    first: usize,
    /// First input.
    from: usize,
    /// The panel's lines of these inputs, three an input.
    lines: &'a [Line],
    /// Lines to ask memory for on the way.
    ahead: Ahead,
    /// Whether the results hold the sums of the inputs before.
    resume: bool,
}

impl Part<'_> {
    /// Multiplies `rows` rows into `out`, whose rows lie `stride` apart and are `width` wide.
    ///
    /// # Safety
    /// As [`tile`]; `out` may be shorter than a panel's width.
    unsafe fn run(self, rows: usize, out: *mut f32, stride: usize, width: usize) {
        if width == WIDTH {
            // SAFETY: handed on.
            return unsafe { self.dispatch(rows, out, stride) };
        }
        let mut whole = [[0.0_f32; WIDTH]; ROWS];
        for (r, row) in whole.iter_mut().enumerate().take(if self.resume { rows } else { 0 }) {
            // SAFETY: the caller grants `width` columns of these rows.
            row[..width].copy_from_slice(unsafe { std::slice::from_raw_parts(out.add(r * stride), width) });
        }
        // SAFETY: `whole` is as wide as a panel and has enough rows.
        unsafe { self.dispatch(rows, whole.as_mut_ptr().cast(), WIDTH) };
        for (r, row) in whole.iter().enumerate().take(rows) {
            // SAFETY: as above.
            unsafe { std::slice::from_raw_parts_mut(out.add(r * stride), width) }.copy_from_slice(&row[..width]);
        }
    }

    /// # Safety
    /// As [`tile`].
    #[cfg(target_arch = "x86_64")]
    unsafe fn dispatch(self, rows: usize, out: *mut f32, stride: usize) {
        // SAFETY: handed on.
        unsafe {
            match self.ahead.each {
                1 => self.rows::<1>(rows, out, stride),
                2 => self.rows::<2>(rows, out, stride),
                _ => self.rows::<3>(rows, out, stride),
            }
        }
    }

    /// # Safety
    /// As [`tile`].
    #[cfg(target_arch = "x86_64")]
    unsafe fn rows<const EACH: usize>(self, rows: usize, out: *mut f32, stride: usize) {
        // SAFETY: handed on.
        unsafe {
            match rows {
                1 => tile::<1, EACH>(self, out, stride),
                2 => tile::<2, EACH>(self, out, stride),
                3 => tile::<3, EACH>(self, out, stride),
                4 => tile::<4, EACH>(self, out, stride),
                5 => tile::<5, EACH>(self, out, stride),
                6 => tile::<6, EACH>(self, out, stride),
                7 => tile::<7, EACH>(self, out, stride),
                8 => tile::<8, EACH>(self, out, stride),
                _ => unreachable!("tiles have 1 to {ROWS} rows"),
            }
        }
    }

    /// # Safety
    /// None is needed: nothing is built in panels here.
    #[cfg(not(target_arch = "x86_64"))]
    unsafe fn dispatch(self, _: usize, _: *mut f32, _: usize) {
        unreachable!("no panels without their instructions")
    }
}

/// `R` rows times one panel, with `EACH` lines asked for ahead at a time.
///
/// # Safety
/// The processor has AVX-512F; `part.a` fits its slice and holds the rows `first..first + R` and the inputs of
/// `part.lines`; `out` points to `R` rows of [`WIDTH`] numbers, `stride` apart.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn tile<const R: usize, const EACH: usize>(part: Part, out: *mut f32, stride: usize) {
    use std::arch::x86_64::*;
    let (row, col) = (part.a.row_stride, part.a.col_stride);
    let lines: *const f32 = part.lines.as_ptr().cast();
    let (next, inputs) = (part.ahead.lines, part.lines.len() / 3);
    // SAFETY: what is read lies in `part.a` and `part.lines`, what is written in `out`, as the caller promised;
    // a prefetch of an address that does not exist does nothing.
    unsafe {
        let a = part.a.data.as_ptr().add(part.first * row + part.from * col);
        let mut sums = [[_mm512_setzero_ps(); 3]; R];
        let mut add = |i: usize| {
            let b = lines.add(i * WIDTH);
            let b = [_mm512_load_ps(b), _mm512_load_ps(b.add(16)), _mm512_load_ps(b.add(32))];
            for (r, sums) in sums.iter_mut().enumerate() {
                let x = _mm512_set1_ps(*a.add(r * row + i * col));
                for (sum, b) in sums.iter_mut().zip(b) {
                    *sum = _mm512_fmadd_ps(x, b, *sum);
                }
            }
        };
        let asking = part.ahead.inputs.min(inputs);
        for i in 0..asking {
            for j in 0..EACH {
                _mm_prefetch::<_MM_HINT_T1>(next.wrapping_add(i * EACH + j).cast());
            }
            add(i);
        }
        (asking..inputs).for_each(add);
        for (r, sums) in sums.iter().enumerate() {
            for (j, sum) in sums.iter().enumerate() {
                let out = out.add(r * stride + j * 16);
                // A sum of partial sums: fewer roundings lie between a term and the result.
                let before = if part.resume { _mm512_loadu_ps(out) } else { _mm512_setzero_ps() };
                _mm512_storeu_ps(out, _mm512_add_ps(before, *sum));
            }
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
            for inputs in [1, 5, 64, DEPTH + 3] {
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
