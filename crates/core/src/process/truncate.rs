//! Truncations of a distribution: top-k, top-p, min-p. Each zeroes entries; none ever removes the largest.
//!
//! Ties go to the lower id, so that exactly the declared number of tokens stays.

use std::cmp::Ordering;

/// Rounding allowed where a cumulative mass meets top-p: `0.5 + 0.3` must reach 0.8.
const BORDER: f64 = 1e-12;

/// Tokens sorted first by top-p: a whole vocabulary is rarely needed and costs milliseconds.
const FIRST_CHUNK: usize = 64;

/// Keeps the `k` most probable tokens; 0 keeps all.
pub(super) fn top_k(row: &mut [f64], k: usize) {
    if k == 0 || k >= row.len() {
        return;
    }
    let mut order: Vec<usize> = (0..row.len()).collect();
    order.select_nth_unstable_by(k, |a, b| descending(row, *a, *b));
    order[k..].iter().for_each(|&token| row[token] = 0.0);
}

/// Keeps the fewest most probable tokens whose share of the row's mass reaches `p` (to 1e-12); 1 keeps all.
pub(super) fn top_p(row: &mut [f64], p: f64) {
    if p >= 1.0 {
        return;
    }
    let mut order: Vec<usize> = (0..row.len()).filter(|&token| row[token] > 0.0).collect();
    let needed = (p - BORDER) * row.iter().sum::<f64>();
    let (mut kept, mut sorted, mut mass) = (0, 0, 0.0);
    while mass < needed && kept < order.len() {
        if kept == sorted {
            sorted += sort_next(&mut order[sorted..], row, FIRST_CHUNK.max(7 * sorted));
        }
        mass += row[order[kept]];
        kept += 1;
    }
    order[kept..].iter().for_each(|&token| row[token] = 0.0);
}

/// Brings the `count` most probable of `order` to its front, sorted; returns how many there are.
fn sort_next(order: &mut [usize], row: &[f64], count: usize) -> usize {
    let count = count.min(order.len());
    if count < order.len() {
        order.select_nth_unstable_by(count, |a, b| descending(row, *a, *b));
    }
    order[..count].sort_unstable_by(|a, b| descending(row, *a, *b));
    count
}

/// Keeps tokens of at least `fraction` of the largest probability; 0 keeps all.
pub(super) fn min_p(row: &mut [f64], fraction: f64) {
    let bound = fraction * row.iter().copied().fold(0.0, f64::max);
    row.iter_mut().filter(|mass| **mass < bound).for_each(|mass| *mass = 0.0);
}

/// Larger mass first, then lower id.
fn descending(row: &[f64], a: usize, b: usize) -> Ordering {
    row[b].total_cmp(&row[a]).then(a.cmp(&b))
}
