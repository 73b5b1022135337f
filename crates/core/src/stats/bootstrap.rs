//! Intervals by resampling questions.
//!
//! Rounds of one question resemble each other, so rounds are not independent: the question is the unit. A statistic
//! is a ratio of sums over questions, and each resample takes the sums again.

use serde::{Deserialize, Serialize};

use super::StatsError;
use crate::rng::{Key, Purpose};

/// One question's part of a ratio of sums, such as committed tokens over target calls.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// What is added up above the line.
    pub numerator: f64,
    /// What is added up below the line; positive.
    pub denominator: f64,
}

/// An estimate with the ends of its percentile interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// The statistic of the data.
    pub estimate: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// How to resample; the same values give the same interval on every machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Resampling {
    /// Number of resamples.
    pub resamples: usize,
    /// Coverage of the interval, such as 0.95.
    pub level: f64,
    /// Seed of the resampling alone.
    pub seed: u64,
}

impl Default for Resampling {
    fn default() -> Self {
        Self { resamples: 10_000, level: 0.95, seed: 0 }
    }
}

/// Sum of numerators over sum of denominators; NaN for no questions.
pub fn ratio_of_sums<'a>(questions: impl IntoIterator<Item = &'a Ratio>) -> f64 {
    let (above, below) = questions.into_iter().fold((0.0, 0.0), |(a, b), q| (a + q.numerator, b + q.denominator));
    above / below
}

impl Resampling {
    /// Interval of the ratio of sums over `questions`.
    ///
    /// # Errors
    /// If there is no question, a denominator is not positive, or this plan has no resamples or a level outside (0, 1).
    pub fn ratio(&self, questions: &[Ratio]) -> Result<Interval, StatsError> {
        check(questions)?;
        self.interval(questions.len(), |pick| ratio_of_sums(pick.map(|i| &questions[i])))
    }

    /// Interval of the difference `first - second` of two ratios of sums over the same questions, in the same order.
    ///
    /// A resample takes the same questions on both sides, so what a question does to both cancels.
    ///
    /// # Errors
    /// As [`Resampling::ratio`], and if the two sides differ in length.
    pub fn paired_difference(&self, first: &[Ratio], second: &[Ratio]) -> Result<Interval, StatsError> {
        self.paired(first, second, |first, second| first - second)
    }

    /// Interval of the quotient `first / second` of two ratios of sums over the same questions, in the same order, paired
    /// as in [`Resampling::paired_difference`].
    ///
    /// # Errors
    /// As [`Resampling::paired_difference`].
    pub fn quotient(&self, first: &[Ratio], second: &[Ratio]) -> Result<Interval, StatsError> {
        self.paired(first, second, |first, second| first / second)
    }

    /// Interval of what `combine` makes of both sides' ratios of sums.
    fn paired(
        &self,
        first: &[Ratio],
        second: &[Ratio],
        combine: impl Fn(f64, f64) -> f64,
    ) -> Result<Interval, StatsError> {
        check(first)?;
        check(second)?;
        if first.len() != second.len() {
            return Err(StatsError::Length { what: "second", expected: first.len(), found: second.len() });
        }
        self.interval(first.len(), |pick| {
            let side = |ratios: &[Ratio]| ratio_of_sums(pick.clone().map(|i| &ratios[i]));
            combine(side(first), side(second))
        })
    }

    fn interval(&self, count: usize, statistic: impl Fn(Pick) -> f64) -> Result<Interval, StatsError> {
        if self.resamples == 0 {
            return Err(StatsError::Empty { what: "resamples" });
        }
        if !(self.level > 0.0 && self.level < 1.0) {
            return Err(StatsError::Range { what: "level", index: 0, value: self.level });
        }
        let mut draws: Vec<f64> = (0..self.resamples as u64)
            .map(|resample| {
                let key = Key::new(self.seed, resample, 0, Purpose::Bootstrap);
                statistic(Pick::drawn(key, count))
            })
            .collect();
        draws.sort_by(f64::total_cmp);
        let tail = (1.0 - self.level) / 2.0;
        Ok(Interval {
            estimate: statistic(Pick::all(count)),
            low: quantile(&draws, tail),
            high: quantile(&draws, 1.0 - tail),
        })
    }
}

/// Question indices of one resample, or each question once.
#[derive(Clone)]
struct Pick {
    key: Option<Key>,
    next: usize,
    count: usize,
}

impl Pick {
    fn all(count: usize) -> Self {
        Self { key: None, next: 0, count }
    }

    fn drawn(key: Key, count: usize) -> Self {
        Self { key: Some(key), next: 0, count }
    }
}

impl Iterator for Pick {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let index = self.next;
        if index == self.count {
            return None;
        }
        self.next += 1;
        Some(self.key.map_or(index, |key| key.below_at(index as u64, self.count)))
    }
}

/// The quantile at `share` of sorted values, linear between neighbours.
pub(super) fn quantile(sorted: &[f64], share: f64) -> f64 {
    let place = share * (sorted.len() - 1) as f64;
    let below = place.floor() as usize;
    let above = (below + 1).min(sorted.len() - 1);
    sorted[below] + (place - below as f64) * (sorted[above] - sorted[below])
}

fn check(questions: &[Ratio]) -> Result<(), StatsError> {
    if questions.is_empty() {
        return Err(StatsError::Empty { what: "questions" });
    }
    for (index, question) in questions.iter().enumerate() {
        let value = question.denominator;
        if !(value > 0.0 && value.is_finite()) {
            return Err(StatsError::Range { what: "denominator", index, value });
        }
        if !question.numerator.is_finite() {
            return Err(StatsError::Range { what: "numerator", index, value: question.numerator });
        }
    }
    Ok(())
}
