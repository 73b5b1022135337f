//! Offline's figure against the verifier's, question by question.

use super::fault::{Fault, Mismatch};
use crate::engine::Transcript;
use crate::offline::Scored;
use spectrain_core::reconciliation::Figure;
use spectrain_core::stats::bootstrap::{Ratio, ratio_of_sums};
use spectrain_core::stats::{Resampling, StatsError};

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

/// Refuses figures that do not agree.
///
/// # Errors
/// [`Mismatch`] with the first of them.
pub(super) fn agree(figures: &[Figure]) -> Result<(), Mismatch> {
    let Some(figure) = figures.iter().find(|f| !f.agrees) else { return Ok(()) };
    let &Figure { temperature, length, offline, verifier, .. } = figure;
    Err(Mismatch { fault: Fault::Figure { temperature, length, offline, verifier }, first: None })
}
