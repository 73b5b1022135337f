//! Pearson's test of equality of law, and how many samples it needs to see a given bias.

use super::StatsError;
use super::special::{gamma_q, ln_gamma};

/// Smallest expected count of a bin (Cochran's rule); rarer outcomes are merged.
const MIN_EXPECTED: f64 = 5.0;

/// The outcome of a chi-square test.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChiSquare {
    /// `sum (observed - expected)^2 / expected` over the merged bins.
    pub statistic: f64,
    /// Merged bins less one.
    pub dof: usize,
    /// Probability of a statistic at least as large if the law is the expected one.
    pub p_value: f64,
}

/// Goodness of fit of `observed` counts `[V]` to the law `expected` `[V]` (probabilities; normalised here).
///
/// Outcomes that expect fewer than five samples form one bin, which takes in the rarest others until it expects five.
/// A count on an outcome of probability 0 refutes the law: statistic infinity, p-value 0.
///
/// # Errors
/// If the lengths differ, a probability is negative or not finite, all are zero, or fewer than two bins remain.
pub fn goodness_of_fit(observed: &[u64], expected: &[f64]) -> Result<ChiSquare, StatsError> {
    if observed.len() != expected.len() {
        return Err(StatsError::Length { what: "expected", expected: observed.len(), found: expected.len() });
    }
    if let Some(index) = expected.iter().position(|p| !(*p >= 0.0 && p.is_finite())) {
        return Err(StatsError::Range { what: "expected", index, value: expected[index] });
    }
    let samples = observed.iter().sum::<u64>() as f64;
    let mass: f64 = expected.iter().sum();
    if samples == 0.0 || mass == 0.0 {
        return Err(StatsError::TooFewSamples);
    }
    let impossible = observed.iter().zip(expected).any(|(&o, &p)| o > 0 && p == 0.0);
    let bins = merged(
        observed
            .iter()
            .zip(expected)
            .filter(|(_, p)| **p > 0.0)
            .map(|(&o, &p)| (o as f64, samples * p / mass))
            .collect(),
    );
    if bins.len() < 2 {
        return Err(StatsError::TooFewSamples);
    }
    let fit: f64 = bins.iter().map(|(o, e)| (o - e) * (o - e) / e).sum();
    let statistic = if impossible { f64::INFINITY } else { fit };
    let dof = bins.len() - 1;
    Ok(ChiSquare { statistic, dof, p_value: survival(statistic, dof) })
}

/// Merges the rarest (observed, expected) bins until every one expects enough.
fn merged(mut bins: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    bins.sort_by(|a, b| b.1.total_cmp(&a.1));
    while bins.len() > 1 && bins[bins.len() - 1].1 < MIN_EXPECTED {
        let last = bins.len() - 1;
        let rare = bins.remove(last);
        bins[last - 1].0 += rare.0;
        bins[last - 1].1 += rare.1;
    }
    bins
}

/// `P(X >= statistic)` of the chi-square distribution with `dof` degrees of freedom.
pub fn survival(statistic: f64, dof: usize) -> f64 {
    gamma_q(dof as f64 / 2.0, statistic / 2.0)
}

/// The statistic that the chi-square distribution exceeds with probability `level`.
pub fn critical_value(dof: usize, level: f64) -> f64 {
    root(|x| level - survival(x, dof))
}

/// The noncentrality at which a test at `level` rejects with probability `power`.
pub fn noncentrality(dof: usize, level: f64, power: f64) -> f64 {
    let critical = critical_value(dof, level);
    root(|lambda| noncentral_survival(critical, dof, lambda) - power)
}

/// Effect size `w² = sum (p' - p)² / p` of the law `biased` against `target`, over outcomes the target has.
pub fn effect_size(biased: &[f64], target: &[f64]) -> f64 {
    biased.iter().zip(target).filter(|(_, p)| **p > 0.0).map(|(b, p)| (b - p) * (b - p) / p).sum()
}

/// Samples that a test at `level` needs to reject a bias of effect size `effect` (`w²`) with probability `power`.
pub fn sample_size(effect: f64, dof: usize, level: f64, power: f64) -> f64 {
    (noncentrality(dof, level, power) / effect).ceil()
}

/// `P(X >= x)` of the noncentral chi-square distribution: a Poisson mixture of central ones.
fn noncentral_survival(x: f64, dof: usize, lambda: f64) -> f64 {
    let half = lambda / 2.0;
    let spread = 12.0 * (half.sqrt() + 2.0);
    let first = (half - spread).max(0.0) as usize;
    let last = (half + spread) as usize;
    (first..=last)
        .map(|j| {
            let count = j as f64;
            let log_rate = if j == 0 { 0.0 } else { count * half.ln() };
            (log_rate - half - ln_gamma(count + 1.0)).exp() * survival(x, dof + 2 * j)
        })
        .sum()
}

/// The root of an increasing function that is negative at zero.
fn root(f: impl Fn(f64) -> f64) -> f64 {
    let mut high = 1.0;
    while f(high) < 0.0 {
        high *= 2.0;
    }
    let mut low = 0.0;
    for _ in 0..100 {
        let middle = 0.5 * (low + high);
        if f(middle) < 0.0 {
            low = middle;
        } else {
            high = middle;
        }
    }
    0.5 * (low + high)
}
