//! Numbers as text. A figure that was not measured, or cannot exist, is a dash and never `NaN`.

use spectrain_core::evaluation::{Evaluation, Seconds};

const NONE: &str = "–";

/// `value` with `digits` decimals.
pub fn fixed(value: f64, digits: usize) -> String {
    if value.is_finite() { format!("{value:.digits$}") } else { NONE.to_string() }
}

/// `part` of `whole` in per cent, rounded to a whole number.
pub fn percent(part: f64, whole: f64) -> String {
    fixed(100.0 * part / whole, 0)
}

/// A speedup as `0.76×`.
pub fn times(value: f64) -> String {
    if value.is_finite() { format!("{value:.2}×") } else { NONE.to_string() }
}

/// The measured speedup of `e`, with its interval where there is one.
pub fn speedup(e: &Evaluation) -> String {
    match e.speedup_interval {
        Some(i) if e.speedup.is_finite() => format!("{} [{}, {}]", times(e.speedup), fixed(i.low, 2), fixed(i.high, 2)),
        _ => times(e.speedup),
    }
}

/// Values with `digits` decimals each, blank-separated.
pub fn list(values: &[f64], digits: usize) -> String {
    values.iter().map(|&v| fixed(v, digits)).collect::<Vec<_>>().join(" ")
}

/// Drafting, target passes, sampling and bookkeeping of a speculative run, in this order.
pub fn parts(seconds: &Seconds) -> [f64; 4] {
    [seconds.t_draft, seconds.t_verify, seconds.t_sample, seconds.t_state]
}

/// `text` behind `count` with an `s` unless it is one.
pub fn counted(count: usize, text: &str) -> String {
    format!("{count} {text}{}", if count == 1 { "" } else { "s" })
}
