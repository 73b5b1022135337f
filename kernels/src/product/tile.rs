//! The innermost part of a product: a few rows times some inputs of one panel, in registers.

use crate::matrix::View;
#[cfg(target_arch = "x86_64")]
use crate::simd::Level;

/// Columns of a panel: three cache lines of sixteen numbers.
pub const WIDTH: usize = 48;
/// Lines that are asked for ahead of their use while a panel comes from memory.
const AHEAD: usize = 96;
/// Inputs that a tile reads in all its passes before the next ones while a panel comes from memory.
const BLOCK: usize = 32;
/// Most rows of a tile on any processor.
const ROWS: usize = 8;

/// One cache line, so that no vector crosses two.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Line(pub [f32; 16]);

/// True where the processor has the instructions for products by panels.
pub fn available() -> bool {
    most_rows() > 0
}

/// Rows that are multiplied at a time: as many as have room for their sums in registers, beside what is read; none where
/// there are no instructions for it.
pub fn most_rows() -> usize {
    #[cfg(target_arch = "x86_64")]
    return match crate::simd::level() {
        Level::Wide => 8,
        Level::Medium => 6,
        Level::Base => 0,
    };
    #[cfg(not(target_arch = "x86_64"))]
    0
}

/// Times that a tile of so many rows reads its inputs: once where all sums of a panel's width have room in registers.
fn passes(rows: usize) -> usize {
    #[cfg(target_arch = "x86_64")]
    if matches!(crate::simd::level(), Level::Medium) && rows > 2 {
        return 3;
    }
    let _ = rows;
    1
}

/// How a tile goes through its inputs, and the lines that it asks memory for meanwhile, step by step: a step is one input
/// in one pass.
#[derive(Clone, Copy)]
pub struct Walk {
    /// Inputs that are read in all passes before the next ones.
    block: usize,
    /// The first line that is asked for.
    lines: *const Line,
    /// Steps at which lines are asked for, from the first on.
    steps: usize,
    /// Lines at each of them, 1 to 3.
    each: usize,
}

impl Walk {
    /// A tile of `rows` rows that is alone looks some way ahead of itself in `lines`, so that memory is read in order.
    pub fn alone(lines: &[Line], rows: usize) -> Self {
        let passes = passes(rows);
        Self {
            block: BLOCK,
            lines: lines.as_ptr().wrapping_add(AHEAD),
            steps: lines.len() / 3 * passes,
            each: 3 / passes,
        }
    }

    /// Several tiles bring the first `count` lines of `next` together, so that memory is busy all the time that their
    /// own panel is at hand: this is tile `t` of `tiles`, with `rows` rows.
    pub fn together(next: &[Line], count: usize, t: usize, tiles: usize, rows: usize) -> Self {
        let count = count.min(next.len());
        let (first, end) = (t * count / tiles, (t + 1) * count / tiles);
        let each = 3_usize.div_ceil(tiles * passes(rows));
        Self { block: usize::MAX, lines: next[first..].as_ptr(), steps: (end - first) / each, each }
    }
}

/// A tile's part of the work: some inputs of at most [`most_rows`] rows.
#[derive(Clone, Copy)]
pub struct Part<'a> {
    /// The rows.
    pub a: View<'a>,
    /// First row.
    pub first: usize,
    /// First input.
    pub from: usize,
    /// The panel's lines of these inputs, three an input.
    pub lines: &'a [Line],
    /// The way through the lines.
    pub walk: Walk,
    /// Whether the results hold the sums of the inputs before.
    pub resume: bool,
}

impl Part<'_> {
    /// Multiplies `rows` rows into `out`, whose rows lie `stride` apart and are `width` wide.
    ///
    /// # Safety
    /// There are as many rows as [`most_rows`] at most; `a` fits its slice and holds the rows from `first` on and the
    /// inputs of `lines`; `out` points to `rows` rows of `width` numbers, `stride` apart.
    pub unsafe fn run(self, rows: usize, out: *mut f32, stride: usize, width: usize) {
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
    /// As [`Self::run`], with a panel's width.
    #[cfg(target_arch = "x86_64")]
    unsafe fn dispatch(self, rows: usize, out: *mut f32, stride: usize) {
        // SAFETY: handed on.
        unsafe {
            match self.walk.each {
                1 => self.rows::<1>(rows, out, stride),
                2 => self.rows::<2>(rows, out, stride),
                _ => self.rows::<3>(rows, out, stride),
            }
        }
    }

    /// # Safety
    /// As [`Self::dispatch`].
    #[cfg(target_arch = "x86_64")]
    unsafe fn rows<const EACH: usize>(self, rows: usize, out: *mut f32, stride: usize) {
        // SAFETY: handed on; the level says which instructions there are.
        unsafe {
            match (crate::simd::level(), rows) {
                (Level::Wide, 1) => wide::<1, EACH>(self, out, stride),
                (Level::Wide, 2) => wide::<2, EACH>(self, out, stride),
                (Level::Wide, 3) => wide::<3, EACH>(self, out, stride),
                (Level::Wide, 4) => wide::<4, EACH>(self, out, stride),
                (Level::Wide, 5) => wide::<5, EACH>(self, out, stride),
                (Level::Wide, 6) => wide::<6, EACH>(self, out, stride),
                (Level::Wide, 7) => wide::<7, EACH>(self, out, stride),
                (Level::Wide, 8) => wide::<8, EACH>(self, out, stride),
                (Level::Medium, 1) => medium::<1, 6, EACH>(self, out, stride),
                (Level::Medium, 2) => medium::<2, 6, EACH>(self, out, stride),
                (Level::Medium, 3) => medium::<3, 2, EACH>(self, out, stride),
                (Level::Medium, 4) => medium::<4, 2, EACH>(self, out, stride),
                (Level::Medium, 5) => medium::<5, 2, EACH>(self, out, stride),
                (Level::Medium, 6) => medium::<6, 2, EACH>(self, out, stride),
                _ => unreachable!("tiles have 1 to {} rows", most_rows()),
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
unsafe fn wide<const R: usize, const EACH: usize>(part: Part, out: *mut f32, stride: usize) {
    use std::arch::x86_64::*;
    let (row, col) = (part.a.row_stride, part.a.col_stride);
    let lines: *const f32 = part.lines.as_ptr().cast();
    let (next, inputs) = (part.walk.lines, part.lines.len() / 3);
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
        let asking = part.walk.steps.min(inputs);
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

/// As [`wide`] with half as long vectors, `VECTORS` of a panel's six at a time, one pass after the other.
///
/// # Safety
/// As [`wide`], with AVX2 and fused multiply-add; `VECTORS` is 2 or 6.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn medium<const R: usize, const VECTORS: usize, const EACH: usize>(part: Part, out: *mut f32, stride: usize) {
    use std::arch::x86_64::*;
    let (row, col) = (part.a.row_stride, part.a.col_stride);
    let lines: *const f32 = part.lines.as_ptr().cast();
    let (next, inputs) = (part.walk.lines, part.lines.len() / 3);
    let block = part.walk.block.min(inputs).max(1);
    // SAFETY: as in `wide`.
    unsafe {
        let a = part.a.data.as_ptr().add(part.first * row + part.from * col);
        let mut passes = [[[_mm256_setzero_ps(); VECTORS]; R]; 3];
        let passes = &mut passes[..6 / VECTORS];
        let mut step = 0;
        for from in (0..inputs).step_by(block) {
            let len = block.min(inputs - from);
            for (pass, held) in passes.iter_mut().enumerate() {
                let mut sums = *held;
                let mut add = |i: usize| {
                    let b = lines.add(i * WIDTH + pass * VECTORS * 8);
                    let b: [__m256; VECTORS] = std::array::from_fn(|j| _mm256_load_ps(b.add(j * 8)));
                    for (r, sums) in sums.iter_mut().enumerate() {
                        let x = _mm256_set1_ps(*a.add(r * row + i * col));
                        for (sum, b) in sums.iter_mut().zip(b) {
                            *sum = _mm256_fmadd_ps(x, b, *sum);
                        }
                    }
                };
                let asking = part.walk.steps.saturating_sub(step).min(len);
                for i in 0..asking {
                    for j in 0..EACH {
                        _mm_prefetch::<_MM_HINT_T1>(next.wrapping_add((step + i) * EACH + j).cast());
                    }
                    add(from + i);
                }
                (from + asking..from + len).for_each(add);
                step += len;
                *held = sums;
            }
        }
        for (pass, sums) in passes.iter().enumerate() {
            for (r, sums) in sums.iter().enumerate() {
                for (j, sum) in sums.iter().enumerate() {
                    let out = out.add(r * stride + (pass * VECTORS + j) * 8);
                    let before = if part.resume { _mm256_loadu_ps(out) } else { _mm256_setzero_ps() };
                    _mm256_storeu_ps(out, _mm256_add_ps(before, *sum));
                }
            }
        }
    }
}
