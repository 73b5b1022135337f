//! The result of a measurement as it is written to `eval/*.json`, so that whoever draws or compares results needs
//! neither a model nor Burn. The names of the JSON keys are the names of the fields.

pub mod document;

use crate::rules::Rule;
use crate::stats::{Acceptance, Definitions, Interval, Latency};
use crate::tree::TreeKind;
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
    /// The headline as other projects define it; empty for an estimate.
    #[serde(flatten)]
    pub definitions: Definitions,
    /// Tokens of the answers, the prompt's token of each included; none for an estimate.
    #[serde(default)]
    pub output_tokens: Option<usize>,
    /// What the requests waited for; none for an estimate.
    #[serde(default)]
    pub latency: Option<Latency>,
    /// Output tokens per second of the requests that kept the stated objective; none without one, and for an estimate.
    /// Those of the tasks add up to the whole.
    #[serde(default)]
    pub goodput: Option<f64>,
}

/// Bytes that a run held.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// The target's weights.
    pub target_weights: usize,
    /// What the drafter holds beside the target: its own weights, and its copies of the target's.
    pub drafter_weights: usize,
    /// The target's key/value cache, provisional rows included.
    pub target_cache: usize,
    /// The drafter's key/value cache, provisional rows included.
    pub drafter_cache: usize,
    /// Part of both caches that a round fills before its verdict, in all slots.
    pub provisional: usize,
}

impl Memory {
    /// All of it; provisional rows lie in the caches.
    pub fn total(&self) -> usize {
        self.target_weights + self.drafter_weights + self.target_cache + self.drafter_cache
    }
}

/// Plain decoding of the same requests: the point at length 0 of a curve. Each target call commits one token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plain {
    /// Over all tasks.
    #[serde(flatten)]
    pub overall: Counted,
    /// By task.
    pub tasks: BTreeMap<String, Counted>,
    /// What it held.
    pub memory: Memory,
    /// Output tokens per second of its slowest and its fastest stint: how steady the machine was. None in results of
    /// earlier versions.
    #[serde(default)]
    pub stints: Option<[f64; 2]>,
}

/// What a shorter draft would have committed, from the rounds of a longer one: not measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Drafted tokens per round.
    pub length: usize,
    /// Over all tasks.
    #[serde(flatten)]
    pub overall: Counted,
    /// By task.
    pub tasks: BTreeMap<String, Counted>,
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
    /// Processors that were set besides, by key.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub processors: BTreeMap<String, f64>,
    /// Drafted tokens per round, of a tree on its longest path.
    pub length: usize,
    /// What a round drafted.
    #[serde(default)]
    pub tree: TreeKind,
    /// Most rows of a round's target pass, the root counted; none in results of earlier versions.
    #[serde(default)]
    pub nodes: Option<usize>,
    /// The chain of as many nodes on the same prompts, measured beside a tree.
    #[serde(default)]
    pub chain: Option<Box<Evaluation>>,
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
    /// Ratio of the two rates, measured by turns in one process.
    pub speedup: f64,
    /// The same with its 95 % interval, resampled by stints of questions that both answered one after the other; none in
    /// results of earlier versions.
    #[serde(default)]
    pub speedup_interval: Option<Interval>,
    /// Prompts whose text equals the plain path's, where rule and seed promise that; the rest differ by rounding.
    pub same_text: Option<usize>,
    /// Rejections without residual mass that fell back to the target.
    pub residual_fallbacks: usize,
    /// What the run held; none in results of earlier versions.
    #[serde(default)]
    pub memory: Option<Memory>,
    /// The plain path at this temperature, which all lengths share; none in results of earlier versions.
    #[serde(default)]
    pub plain: Option<Plain>,
    /// Shorter lengths that were not measured, estimated from this measurement's rounds.
    #[serde(default)]
    pub estimates: Vec<Estimate>,
}

/// Processors in words, such as `top_p = 0.9, repetition_penalty = 1.1`; empty for none.
pub fn listed(processors: &BTreeMap<String, f64>) -> String {
    processors.iter().map(|(key, value)| format!("{key} = {value}")).collect::<Vec<_>>().join(", ")
}

/// The length at which most tokens per second were measured, 0 for plain decoding, among evaluations that differ in the
/// length alone; the shorter of equals.
pub fn fastest(evaluations: &[&Evaluation]) -> Option<usize> {
    let plain = evaluations.iter().map(|e| (0, e.plain_tokens_per_second));
    let all = plain.chain(evaluations.iter().map(|e| (e.length, e.tokens_per_second)));
    let better = |best: Option<(usize, f64)>, (length, rate): (usize, f64)| match best {
        Some((k, r)) if (r, length) >= (rate, k) => Some((k, r)),
        _ => Some((length, rate)),
    };
    all.filter(|(_, rate)| rate.is_finite()).fold(None, better).map(|(length, _)| length)
}
