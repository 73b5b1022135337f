//! Total variation: the probability that a sampled draft is rejected.

use super::{Gradient, Row};

/// `TV = 1 - alpha`, with the target's true probabilities, so the target's mass outside the draft vocabulary counts as
/// rejected. Gradient `-q_j (I_j - S) / T`, with `I_j = [q_j < p_j]` and `S = sum_v I_v q_v`.
///
/// The value is summed as `sum_v (q_v - p_v)_+`, which keeps its digits where `alpha` is close to 1.
pub fn total_variation(row: &Row) -> Gradient {
    let overlap = row.overlap();
    let (under, over) = (overlap.log_under.exp(), overlap.log_over.exp());
    let pairs = || row.log_p().iter().zip(row.log_q());
    let value = pairs().filter(|(lp, lq)| lq > lp).map(|(lp, lq)| -lq.exp() * (lp - lq).exp_m1()).sum();
    let logits = row
        .log_q()
        .iter()
        .enumerate()
        .map(|(j, lq)| {
            let share = if row.is_under_covered(j) { -over } else { under };
            lq.exp() * share / row.temperature()
        })
        .collect();
    Gradient { value, logits }
}
