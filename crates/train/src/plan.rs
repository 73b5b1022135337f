//! What every optimiser step of a run learns from, known before the first.

use crate::{Batches, TrainConfig};

/// One optimiser step.
pub(crate) struct Step {
    /// Number of its first batch, counted from 0 over the whole run.
    pub first_batch: usize,
    /// Epochs seen after the step, with fraction.
    pub seen: f64,
    /// Whether the epoch ends with it.
    pub last: bool,
    /// Its batches: conversations, as indices among those to train on.
    pub batches: Vec<Vec<usize>>,
}

/// Every optimiser step of the run, in order; `sizes[i]` packed rows of conversation `i`. The last step of an epoch may
/// have fewer batches than the others.
pub(crate) fn plan(config: &TrainConfig, sizes: Vec<usize>) -> Vec<Step> {
    let batches = Batches::new(sizes, config.batch_tokens, config.seed);
    let mut steps = Vec::new();
    let mut first_batch = 0;
    for epoch in 0..config.epochs {
        let groups = batches.epoch(epoch);
        let count = groups.len().div_ceil(config.accumulate);
        for (i, batches) in groups.chunks(config.accumulate).enumerate() {
            let seen = epoch as f64 + (i + 1) as f64 / count as f64;
            steps.push(Step { first_batch, seen, last: i + 1 == count, batches: batches.to_vec() });
            first_batch += batches.len();
        }
    }
    steps
}
