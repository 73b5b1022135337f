//! Loops that the compiler turns into vector code for the processor it runs on.

/// Defines a function that runs its body compiled for the widest vector unit of the processor at hand.
///
/// Everything that the body calls must be `#[inline(always)]`, closures be called from one place only: what is not
/// inlined is compiled for the oldest processor of the platform.
macro_rules! kernel {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $out:ty)? $body:block) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments)]
        $vis fn $name($($arg: $type),*) $(-> $out)? {
            #[inline(always)]
            #[allow(clippy::too_many_arguments)]
            fn body($($arg: $type),*) $(-> $out)? $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
                fn wide($($arg: $type),*) $(-> $out)? {
                    body($($arg),*)
                }

                #[target_feature(enable = "avx2,fma")]
                fn medium($($arg: $type),*) $(-> $out)? {
                    body($($arg),*)
                }

                match $crate::simd::level() {
                    // SAFETY: the level says that the processor has these features.
                    $crate::simd::Level::Wide => return unsafe { wide($($arg),*) },
                    // SAFETY: as above.
                    $crate::simd::Level::Medium => return unsafe { medium($($arg),*) },
                    $crate::simd::Level::Base => {}
                }
            }
            body($($arg),*)
        }
    };
}

pub(crate) use kernel;

/// Vector units that kernels are compiled for.
#[cfg(target_arch = "x86_64")]
pub enum Level {
    /// AVX-512.
    Wide,
    /// AVX2 with fused multiply-add.
    Medium,
    /// What every processor of the platform has.
    Base,
}

/// The widest level of this processor.
#[cfg(target_arch = "x86_64")]
#[inline]
pub fn level() -> Level {
    let fma = is_x86_feature_detected!("fma");
    let wide = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    match (fma, wide, is_x86_feature_detected!("avx2")) {
        (true, true, _) => Level::Wide,
        (true, false, true) => Level::Medium,
        _ => Level::Base,
    }
}

const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// ln 2 split in two, so that the range reduction loses no bits (Cody and Waite).
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;
/// 1.5 · 2²³: adding it rounds to an integer that then sits in the low bits.
const ROUND: f32 = 12_582_912.0;

/// e^x without branches, relative error below 3e-7 on [-87, 88]; zero below -87, where f32 becomes subnormal.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    let zero = x < -87.0;
    let x = x.clamp(-87.3, 88.3);
    let shifted = x.mul_add(LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN2_LOW, n.mul_add(-LN2_HIGH, x));
    let y = small_exp_m1(r) + 1.0;
    let scale = (shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127)) << 23;
    if zero { 0.0 } else { y * f32::from_bits(scale) }
}

/// `e^x - 1` on [-87, 88], relative error below 4e-7, for small `x` too.
#[inline(always)]
pub fn exp_m1(x: f32) -> f32 {
    let shifted = x.mul_add(LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN2_LOW, n.mul_add(-LN2_HIGH, x));
    let scale = f32::from_bits((shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127)) << 23);
    scale.mul_add(small_exp_m1(r), scale - 1.0)
}

/// `e^r - 1` for `|r|` up to `ln 2 / 2` (Cephes).
#[inline(always)]
fn small_exp_m1(r: f32) -> f32 {
    let p = 1.987_569_1e-4_f32;
    let p = p.mul_add(r, 1.398_199_9e-3);
    let p = p.mul_add(r, 8.333_452e-3);
    let p = p.mul_add(r, 4.166_579_6e-2);
    let p = p.mul_add(r, 1.666_666_5e-1);
    let p = p.mul_add(r, 0.5);
    p.mul_add(r * r, r)
}

/// `ln(1 + x)` on [-0.5, 1], relative error below 2e-7: `2 artanh(x / (2 + x))` as a series.
#[inline(always)]
pub fn ln_1p(x: f32) -> f32 {
    let s = x / (2.0 + x);
    let square = s * s;
    let p = 1.0_f32 / 15.0;
    let p = p.mul_add(square, 1.0 / 13.0);
    let p = p.mul_add(square, 1.0 / 11.0);
    let p = p.mul_add(square, 1.0 / 9.0);
    let p = p.mul_add(square, 1.0 / 7.0);
    let p = p.mul_add(square, 1.0 / 5.0);
    let p = p.mul_add(square, 1.0 / 3.0);
    2.0 * p.mul_add(square * s, s)
}

/// What is smaller than this beside a one is nothing in f32. Flushing it to zero keeps subnormal numbers, on which a
/// processor computes a hundred times slower, out of the matrix products.
const NOTHING: f32 = 1e-20;

/// `x`, or zero where it is nothing.
#[inline(always)]
pub fn flushed(x: f32) -> f32 {
    if x.abs() < NOTHING { 0.0 } else { x }
}

/// Lanes of the running sums below: a fixed number keeps the order of additions the same on every processor.
const LANES: usize = 16;

/// Sum of `x`: short sums in f32, their sum in f64, so that a vocabulary's length costs no digits.
#[inline(always)]
pub fn sum(x: &[f32]) -> f32 {
    sum64(x) as f32
}

/// [`sum`], not rounded at the end.
#[inline(always)]
pub fn sum64(x: &[f32]) -> f64 {
    let mut whole = 0.0_f64;
    for part in x.chunks(32 * LANES) {
        whole += f64::from(short_sum(part));
    }
    whole
}

#[inline(always)]
fn short_sum(x: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    let chunks = x.chunks_exact(LANES);
    let tail: f32 = chunks.remainder().iter().sum();
    for chunk in chunks {
        for (lane, v) in lanes.iter_mut().zip(chunk) {
            *lane += v;
        }
    }
    lanes.iter().sum::<f32>() + tail
}

/// Largest of `x`; negative infinity when empty.
#[inline(always)]
pub fn max(x: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if a > b { a } else { b };
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let chunks = x.chunks_exact(LANES);
    let tail = chunks.remainder().iter().copied().fold(f32::NEG_INFINITY, larger);
    for chunk in chunks {
        for (lane, v) in lanes.iter_mut().zip(chunk) {
            *lane = larger(*lane, *v);
        }
    }
    lanes.into_iter().fold(tail, larger)
}

/// Scalar product of equally long slices.
#[inline(always)]
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    let (a_chunks, b_chunks) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let tail: f32 = a_chunks.remainder().iter().zip(b_chunks.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in a_chunks.zip(b_chunks) {
        for ((lane, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *lane = a.mul_add(*b, *lane);
        }
    }
    lanes.iter().sum::<f32>() + tail
}

/// Replaces `x` by `e^(x - shift)`, flushed; `shift` is the largest of `x`.
#[inline(always)]
pub fn exp_shifted(x: &mut [f32], shift: f32) {
    for v in x {
        *v = flushed(exp(*v - shift));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_accurate_over_its_range() {
        for i in 0..200_000 {
            let x = -87.0 + 175.0 * i as f32 / 200_000.0;
            let exact = f64::from(x).exp();
            let relative = (f64::from(exp(x)) - exact).abs() / exact;
            assert!(relative < 3e-7, "exp({x}) is off by {relative}");
        }
    }

    #[test]
    fn exp_m1_is_accurate_over_its_range() {
        let small = (1..=40).map(|i| 2.0_f32.powi(-i));
        let wide = (0..200_000).map(|i| -86.9 + 174.0 * i as f32 / 200_000.0);
        for x in wide.chain(small.clone()).chain(small.map(|x| -x)) {
            let exact = f64::from(x).exp_m1();
            let relative = (f64::from(exp_m1(x)) - exact).abs() / exact.abs();
            assert!(relative < 4e-7, "exp({x}) - 1 is off by {relative}");
        }
    }

    #[test]
    fn ln_1p_is_accurate_over_its_range() {
        for i in (-50_000..=100_000).filter(|i| *i != 0) {
            let x = i as f32 / 100_000.0;
            let exact = f64::from(x).ln_1p();
            let relative = (f64::from(ln_1p(x)) - exact).abs() / exact.abs();
            assert!(relative < 2e-7, "ln(1 + {x}) is off by {relative}");
        }
    }

    #[test]
    fn folds_cover_tails() {
        let x: Vec<f32> = (0..37).map(|i| i as f32).collect();
        assert_eq!(sum(&x), 666.0);
        assert_eq!(max(&x), 36.0);
        assert_eq!(dot(&x[..17], &x[..17]), 1496.0);
    }
}
