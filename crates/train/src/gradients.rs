//! The gradient of one optimiser step, over one batch or several.

use crate::Trainer;
use burn::optim::{GradientsAccumulator, GradientsParams};
use spectrain_data::store::FeatureRow;
use spectrain_draft::batch::supervised_tokens;
use spectrain_draft::{Dropout, Eagle3, FeatureNoise, StepLoss, TrainBatch};

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

impl Trainer<'_> {
    /// The gradient of `weights` on `batches`, packed one after the other; the first is batch `first` of the run.
    ///
    /// Every batch weighs as many parts as it has supervised tokens, so that the result is the gradient of one batch
    /// that holds them all. A mean over batches is not: a batch of short answers would count as much as one of long.
    ///
    /// # Panics
    /// If a batch has no supervised token.
    pub fn gradients(&self, weights: &Eagle3, batches: &[Vec<&FeatureRow>], first: usize) -> StepGradients {
        let unroll = self.objective.step_weights.len();
        let tokens = batches.iter().flatten().map(|row| supervised_tokens(row, unroll)).sum();
        let mut sums = vec![StepLoss::default(); unroll];
        let mut sum = GradientsAccumulator::new();
        let mut odd = None;
        for (i, rows) in batches.iter().enumerate() {
            let batch = self.pack(rows, first + i);
            let share = batch.supervised_tokens() as f32 / tokens as f32;
            let (grads, found) = if self.config.recompute {
                self.drafter.recomputed_gradients(weights, &batch, self.objective, share)
            } else {
                let (surrogate, found) = self.drafter.loss(weights, &batch, self.objective);
                (GradientsParams::from_grads((surrogate * share).backward(), weights), found)
            };
            sum.accumulate(weights, grads);
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
