//! What a round costs on one device, measured, as it is kept beside a checkpoint in `cost-table.json`: the side of the
//! speed-up that does not depend on what is accepted.

use crate::stats::length::{CostTable, RoundTime, speedup};
use serde::{Deserialize, Serialize};

/// File name inside a checkpoint's directory.
pub const FILE: &str = "cost-table.json";

/// Costs of one drafter with its target on one device. Times are seconds, means over [`CostProfile::rounds`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CostProfile {
    /// Device name.
    pub device: String,
    /// Number format of both models.
    pub dtype: String,
    /// Tokens that a request held in the middle of the measured rounds, mean over requests.
    pub context: f64,
    /// Prompt tokens of a request, mean.
    pub prompt_tokens: f64,
    /// Least rounds behind a mean.
    pub rounds: usize,
    /// One entry a temperature and batch.
    pub batches: Vec<BatchCost>,
}

/// Costs at one temperature and number of requests, all of them busy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BatchCost {
    /// Sampling temperature.
    pub temperature: f64,
    /// Requests at once.
    pub batch: usize,
    /// One step of plain decoding, its draws included: T1.
    pub plain: f64,
    /// Plain pass over the prompts of all requests.
    pub plain_prompt: f64,
    /// By draft length, ascending.
    pub lengths: Vec<LengthCost>,
}

/// A round of drafts of one length.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LengthCost {
    /// Drafted tokens a request.
    pub length: usize,
    /// Rows of the target call: the root and the drafts of every request.
    pub nodes: usize,
    /// Drafting, and reading the accepted tokens' true features afterwards.
    pub draft: f64,
    /// The target call.
    pub verify: f64,
    /// Distributions, acceptance tests and draws.
    pub sample: f64,
    /// Commit and bookkeeping.
    pub state: f64,
    /// Pass over the prompts of all requests, their reading by the drafter included.
    pub prompt: f64,
}

impl LengthCost {
    /// The parts as the speed-up formula names them: draws belong to the target call that they follow, as they do in
    /// the plain step.
    pub fn round(&self) -> RoundTime {
        RoundTime { draft: self.draft, verify: self.verify + self.sample, state: self.state }
    }

    /// The whole round.
    pub fn total(&self) -> f64 {
        self.draft + self.verify + self.sample + self.state
    }
}

impl CostProfile {
    /// Costs at `temperature` and `batch`.
    pub fn at(&self, temperature: f64, batch: usize) -> Option<&BatchCost> {
        self.batches.iter().find(|b| b.temperature == temperature && b.batch == batch)
    }
}

impl BatchCost {
    /// Costs of drafts of `length`.
    pub fn length(&self, length: usize) -> Option<&LengthCost> {
        self.lengths.iter().find(|l| l.length == length)
    }

    /// Plain steps that a round of `length` costs: tokens per target call must pass this for drafting to pay.
    pub fn break_even(&self, length: usize) -> Option<f64> {
        Some(self.length(length)?.total() / self.plain)
    }

    /// `tokens · T1 / (T_draft + T_verify + T_state)`.
    pub fn speedup(&self, length: usize, tokens_per_call: f64) -> Option<f64> {
        Some(speedup(tokens_per_call, self.plain, self.length(length)?.round()))
    }

    /// The speed-up of whole requests of `answer` tokens: their prompts are read on both sides, and the prompt's pass
    /// writes the first token.
    pub fn request_speedup(&self, length: usize, tokens_per_call: f64, answer: f64) -> Option<f64> {
        let cost = self.length(length)?;
        let steps = (answer - 1.0).max(0.0);
        Some((self.plain_prompt + steps * self.plain) / (cost.prompt + steps / tokens_per_call * cost.total()))
    }

    /// The table that a draft length is chosen from; entry 0 is the plain step. Lengths end at the first gap.
    pub fn table(&self) -> CostTable {
        let known: Vec<&LengthCost> =
            self.lengths.iter().zip(1..).take_while(|(l, k)| l.length == *k).map(|l| l.0).collect();
        // The state's time is one number in the table; what a length's differs from it goes with the target call.
        let state = known.iter().map(|l| l.state).sum::<f64>() / known.len().max(1) as f64;
        CostTable {
            draft: std::iter::once(0.0).chain(known.iter().map(|l| l.draft)).collect(),
            verify: std::iter::once(self.plain - state)
                .chain(known.iter().map(|l| l.verify + l.sample + l.state - state))
                .collect(),
            state,
        }
    }
}
