//! The gradient of one optimiser step, over one batch or several, on one device or several.

use crate::replicas::{dealt, joined, on_each};
use crate::{TrainConfig, Trainer};
use burn::optim::{GradientsAccumulator, GradientsParams};
use spectrain_data::store::FeatureRow;
use spectrain_draft::batch::supervised_tokens;
use spectrain_draft::{Dropout, Eagle3, Eagle3Drafter, FeatureNoise, Objective, StepLoss, TrainBatch};

/// Gradient and figures of a step.
pub struct StepGradients {
    /// Gradient of the mean loss over all supervised tokens of the step.
    pub grads: GradientsParams,
    /// Sums of each unroll step.
    pub sums: Vec<StepLoss>,
    /// Supervised tokens.
    pub tokens: usize,
    /// The first batch whose loss is no number, if there is one.
    pub odd: Option<usize>,
}

/// Batches of a step, each with its place in the step.
pub(crate) type Share<'a> = Vec<(usize, &'a [&'a FeatureRow])>;

impl Trainer<'_> {
    /// The gradient of `weights` on `batches`, packed one after the other; the first is batch `first` of the run. With
    /// [`crate::TrainConfig::replicas`] every device takes a share of them.
    ///
    /// Every batch weighs as many parts as it has supervised tokens, so that the result is the gradient of one batch
    /// that holds them all. A mean over batches is not: a batch of short answers would count as much as one of long.
    ///
    /// # Panics
    /// If a batch has no supervised token.
    pub fn gradients(&self, weights: &Eagle3, batches: &[Vec<&FeatureRow>], first: usize) -> StepGradients {
        let Self { drafter, objective, config, .. } = *self;
        let unroll = objective.step_weights.len();
        let tokens = batches.iter().flatten().map(|row| supervised_tokens(row, unroll)).sum();
        let own = Worker { drafter, objective, config, first, tokens };
        let shares = dealt(batches, 1 + config.replicas.len());
        let parts = on_each(own, weights, &shares, &config.replicas);
        joined(weights, parts, tokens, &weights.fc.val().device())
    }
}

/// What makes gradients on one device.
#[derive(Clone, Copy)]
pub(crate) struct Worker<'a> {
    /// The drafter's frozen parts, on the device.
    pub drafter: &'a Eagle3Drafter,
    pub objective: &'a Objective,
    pub config: &'a TrainConfig,
    /// Number of the step's first batch in the run.
    pub first: usize,
    /// Supervised tokens of the whole step.
    pub tokens: usize,
}

impl Worker<'_> {
    /// The part that `share` has in the step's gradient.
    pub fn gradients(&self, weights: &Eagle3, share: &Share) -> StepGradients {
        let mut sums = vec![StepLoss::default(); self.objective.step_weights.len()];
        let mut sum = GradientsAccumulator::new();
        let (mut tokens, mut odd) = (0, None);
        for &(i, rows) in share {
            let batch = self.pack(rows, self.first + i);
            let part = batch.supervised_tokens() as f32 / self.tokens as f32;
            let (grads, found) = if self.config.recompute {
                self.drafter.recomputed_gradients(weights, &batch, self.objective, part)
            } else {
                let (surrogate, found) = self.drafter.loss(weights, &batch, self.objective);
                (GradientsParams::from_grads((surrogate * part).backward(), weights), found)
            };
            sum.accumulate(weights, grads);
            tokens += batch.supervised_tokens();
            odd = odd.or_else(|| found.iter().any(|s| !s.loss.is_finite()).then_some(i));
            sums.iter_mut().zip(&found).for_each(|(a, b)| a.add(b));
        }
        StepGradients { grads: sum.grads(), sums, tokens, odd }
    }

    /// Batch `number` of the run.
    fn pack(&self, rows: &[&FeatureRow], number: usize) -> TrainBatch {
        let (c, unroll) = (self.config, self.objective.step_weights.len());
        let batch = TrainBatch::new(rows, unroll, &self.drafter.embedding.device());
        let mut batch = batch.expect("a planned batch has supervised tokens");
        batch.number = number + 1;
        let noise = FeatureNoise { amplitude: c.feature_noise, seed: c.seed, batch: number };
        batch.noise = (c.feature_noise > 0.0).then_some(noise);
        batch.dropout = (c.dropout > 0.0).then_some(Dropout { rate: c.dropout, seed: c.seed, batch: number });
        batch
    }
}
