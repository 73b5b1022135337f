//! The offline estimate as it is written to JSON: what a drafter would commit per target call on stored answers.

use crate::rules::Rule;
use crate::stats::Interval;
use serde::{Deserialize, Serialize};

/// The estimate at one draft length.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OfflineEstimate {
    /// Drafted tokens per round.
    pub length: usize,
    /// Prompts.
    pub questions: usize,
    /// Answer tokens that rounds cover.
    pub tokens: usize,
    /// Committed tokens per target call with its 95 % interval, resampled by question: an estimate of the verifier's
    /// figure of this name.
    pub tokens_per_target_call: Interval,
    /// The same over the rounds that the end of the text does not cut short; none where every round may be cut.
    pub complete_rounds: Option<Interval>,
    /// The plain mean over rows of the same rounds. It is no estimate of what the verifier measures: it weighs easy
    /// text too much, because easy text holds fewer round starts.
    pub row_mean_biased: f64,
}

/// Estimates of one checkpoint at one temperature.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OfflineEstimates {
    /// The checkpoint's directory.
    pub checkpoint: String,
    /// Sampling temperature of target and drafter.
    pub temperature: f64,
    /// Rule.
    pub rule: Rule,
    /// By draft length.
    pub lengths: Vec<OfflineEstimate>,
}

/// Two checkpoints on the same answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Difference {
    /// One checkpoint.
    pub first: String,
    /// The other.
    pub second: String,
    /// Sampling temperature.
    pub temperature: f64,
    /// Drafted tokens per round.
    pub length: usize,
    /// Tokens per target call of the first less those of the second, with its 95 % interval; a resample takes the
    /// same questions on both sides.
    pub difference: Interval,
}

impl Difference {
    /// The better checkpoint; none while the interval holds 0.
    pub fn better(&self) -> Option<&str> {
        match (self.difference.low > 0.0, self.difference.high < 0.0) {
            (true, _) => Some(&self.first),
            (_, true) => Some(&self.second),
            _ => None,
        }
    }
}
