//! The result of a measurement as it is written to `eval/*.json`, so that whoever draws or compares results needs
//! neither a model nor Burn. The names of the JSON keys are the names of the fields.

use crate::rules::Rule;
use crate::stats::{Acceptance, Interval};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Rounds of one task, or of all, counted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Counted {
    /// Prompts.
    pub questions: usize,
    /// Headline with its 95 % interval, resampled by question.
    pub interval: Interval,
    /// Everything counted over the rounds.
    #[serde(flatten)]
    pub acceptance: Acceptance,
}

/// Seconds by part.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Seconds {
    /// Drafting, the rewriting of accepted rows included.
    pub t_draft: f64,
    /// Target passes.
    pub t_verify: f64,
    /// Distributions and draws.
    pub t_sample: f64,
    /// Commit and bookkeeping.
    pub t_state: f64,
    /// Whole speculative run.
    pub speculative: f64,
    /// Whole plain run of the same requests.
    pub plain: f64,
}

/// The result of one measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// What the rule promises.
    pub guarantee: String,
    /// Rule.
    pub rule: Rule,
    /// Temperature.
    pub temperature: f64,
    /// Drafted tokens per round.
    pub length: usize,
    /// Requests at a time.
    pub batch: usize,
    /// Longest answer.
    pub max_new_tokens: usize,
    /// Seed.
    pub seed: u64,
    /// Number format of both models.
    pub dtype: String,
    /// Over all tasks.
    #[serde(flatten)]
    pub overall: Counted,
    /// By task.
    pub tasks: BTreeMap<String, Counted>,
    /// Where the time went.
    pub seconds: Seconds,
    /// Output tokens per second, speculative.
    pub tokens_per_second: f64,
    /// Output tokens per second of the plain path.
    pub plain_tokens_per_second: f64,
    /// Ratio of the two rates, measured in one process.
    pub speedup: f64,
    /// Prompts whose text equals the plain path's, where rule and seed promise that; the rest differ by rounding.
    pub same_text: Option<usize>,
    /// Rejections without residual mass that fell back to the target.
    pub residual_fallbacks: usize,
}
