//! Offline's figure against the verifier's, question by question.

use super::fault::{Fault, Mismatch};
use crate::engine::Transcript;
use crate::offline::Scored;
use spectrain_core::reconciliation::Figure;
use spectrain_core::stats::bootstrap::{Ratio, ratio_of_sums};
use spectrain_core::stats::chi_square::critical_value;
use spectrain_core::stats::{Interval, Resampling, StatsError};

/// Part of the figure that the rounding of stored features may move it by.
const ROUNDING: f64 = 0.005;
/// Questions below which an interval by question says nothing.
const QUESTIONS: usize = 10;
/// Resamples: enough for the tails of a few dozen comparisons.
const RESAMPLES: usize = 10_000;

/// One point of a curve.
#[derive(Debug, Clone, Copy)]
pub struct Point {
    /// Sampling temperature.
    pub temperature: f64,
    /// Drafted tokens a round.
    pub length: usize,
    /// Comparisons that must hold together, this one among them, at 99 %.
    pub comparisons: usize,
    /// Seed of the resampling.
    pub seed: u64,
}

/// Compares the rounds that offline makes of one text with those that the verifier made of another: row `i` of
/// `scored` and transcript `i` answer the same question. None where fewer than ten have rounds on both sides.
///
/// # Errors
/// When a probability is none.
pub fn figure(scored: &[Scored], transcripts: &[Transcript], point: Point) -> Result<Option<Figure>, StatsError> {
    let mut offline = Vec::new();
    let mut verifier = Vec::new();
    for answer in scored {
        let rounds = transcripts[answer.row].rounds();
        let measured = rounds.fold(Ratio { numerator: 0.0, denominator: 0.0 }, |sum, round| Ratio {
            numerator: sum.numerator + round.committed as f64,
            denominator: sum.denominator + 1.0,
        });
        let predicted = answer.renewal(point.length)?.all_rounds;
        if measured.denominator > 0.0 && predicted.denominator > 0.0 {
            offline.push(predicted);
            verifier.push(measured);
        }
    }
    if offline.len() < QUESTIONS {
        return Ok(None);
    }
    // All comparisons together hold at 99 % if each holds at this level (Bonferroni).
    let level = 1.0 - 0.01 / point.comparisons as f64;
    let resampling = Resampling { level, resamples: RESAMPLES, seed: point.seed };
    let difference = resampling.paired_difference(&offline, &verifier)?;
    let difference = widened(difference, offline.len(), 1.0 - level);
    let (offline, verifier) = (ratio_of_sums(&offline), ratio_of_sums(&verifier));
    let room = ROUNDING * verifier;
    Ok(Some(Figure {
        temperature: point.temperature,
        length: point.length,
        offline,
        verifier,
        difference,
        level,
        agrees: difference.low <= room && -room <= difference.high,
    }))
}

/// `interval` with room for what resampling does not see of a small sample: percentiles spread by `√((n - 1)/n)` too
/// little, and know nothing of the spread's own uncertainty, which is Student's over the normal quantile (Hesterberg
/// 2015, "What teachers should know about the bootstrap", section 5.3; Student's by its Cornish-Fisher series).
fn widened(interval: Interval, questions: usize, alpha: f64) -> Interval {
    let (n, z) = (questions as f64, critical_value(1, alpha).sqrt());
    let freedom = n - 1.0;
    let terms = [
        (z.powi(3) + z) / 4.0,
        (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / 96.0,
        (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / 384.0,
    ];
    let student = z + terms.iter().rev().fold(0.0, |sum, term| (sum + term) / freedom);
    let factor = student / z * (n / freedom).sqrt();
    let end = |end: f64| interval.estimate + factor * (end - interval.estimate);
    Interval { low: end(interval.low), high: end(interval.high), ..interval }
}

/// Refuses figures that do not agree.
///
/// # Errors
/// [`Mismatch`] with the first of them.
pub(super) fn agree(figures: &[Figure]) -> Result<(), Mismatch> {
    let Some(figure) = figures.iter().find(|f| !f.agrees) else { return Ok(()) };
    let &Figure { temperature, length, offline, verifier, .. } = figure;
    Err(Mismatch { fault: Fault::Figure { temperature, length, offline, verifier }, first: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_questions_widen_the_interval_as_students_quantile_does() {
        let unit = Interval { estimate: 1.0, low: 0.0, high: 3.0 };
        // Two-sided 1 %: 3.2498 with 9 degrees of freedom, 2.5758 for the normal.
        let found = widened(unit, 10, 0.01);
        let factor = 3.2498 / 2.5758 * (10.0_f64 / 9.0).sqrt();
        assert!((1.0 - found.low - factor).abs() < 0.005 * factor, "{found:?}");
        assert!((found.high - 1.0 - 2.0 * factor).abs() < 0.01 * factor, "{found:?}");
        assert!((widened(unit, 10_000, 0.01).high - 3.0).abs() < 0.01);
    }
}
