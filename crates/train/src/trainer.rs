//! The loop: `for batch { forward → loss → backward → clip → step → log }`.

use crate::{Batches, MetricSink, Record, Schedule, clip_global_norm};
use burn::module::Module;
use burn::optim::{AdamWConfig, GradientsParams};
use spectrain_core::rng::{Key, Purpose};
use spectrain_data::store::FeatureRow;
use spectrain_draft::batch::packed_rows;
use spectrain_draft::{Eagle3, Eagle3Drafter, Objective, StepLoss, TrainBatch};
use std::time::Instant;

/// Knobs of the loop.
#[derive(Debug, Clone)]
pub struct TrainConfig {
    /// Passes over the conversations.
    pub epochs: usize,
    /// Packed rows per optimiser step.
    pub batch_tokens: usize,
    /// Peak learning rate.
    pub learning_rate: f64,
    /// Share of the steps that warm up.
    pub warmup_ratio: f64,
    /// AdamW's decay rates of the two moments.
    pub betas: (f64, f64),
    /// AdamW's term in the denominator.
    pub eps: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// Largest norm of all gradients together.
    pub clip_norm: f64,
    /// Share of the conversations that are held out.
    pub validation_share: f64,
    /// Optimiser steps between records.
    pub log_every: usize,
    /// Optimiser steps between checkpoints; 0 for none before the end.
    pub checkpoint_every: usize,
    /// Seed of order and split.
    pub seed: u64,
}

/// Why training stopped.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// No conversation has a supervised token that the unroll reaches.
    #[error("no supervised tokens after masking: nothing to train on")]
    Empty,
    /// The loss is no number any more.
    #[error("the loss became {loss} at step {step}: lower train.learning_rate or train.clip_norm")]
    Diverged {
        /// Optimiser step.
        step: usize,
        /// The value.
        loss: f64,
    },
    /// A record or checkpoint could not be written.
    #[error("{0}")]
    Output(String),
}

/// What the loop tells its caller after every optimiser step.
pub struct Update<'a> {
    /// Optimiser steps taken.
    pub step: usize,
    /// Optimiser steps in all.
    pub total: usize,
    /// Weighted loss per supervised token.
    pub loss: f64,
    /// Supervised tokens of the step.
    pub tokens: usize,
    /// Current weights, when a checkpoint is due.
    pub checkpoint: Option<&'a Eagle3>,
}

/// Everything that stays the same during a run.
pub struct Trainer<'a> {
    /// Drafter with its frozen parts.
    pub drafter: &'a Eagle3Drafter,
    /// Loss and its weights.
    pub objective: &'a Objective,
    /// Knobs.
    pub config: &'a TrainConfig,
    /// Captured conversations.
    pub rows: &'a [FeatureRow],
}

impl Trainer<'_> {
    /// Conversations to train on and held-out ones.
    pub fn split(&self) -> (Vec<usize>, Vec<usize>) {
        let held_out = |i: &usize| {
            Key::new(self.config.seed, *i as u64, 1, Purpose::Data).uniform() < self.config.validation_share
        };
        (0..self.rows.len()).partition(|i| !held_out(i))
    }

    /// Trains `weights`, which live on an autodiff device, and returns them.
    ///
    /// # Errors
    /// [`TrainError`]; what `on_step` returns as an error ends the run.
    pub fn run(
        &self,
        mut weights: Eagle3,
        sink: &mut dyn MetricSink,
        on_step: &mut dyn FnMut(Update) -> Result<(), String>,
    ) -> Result<Eagle3, TrainError> {
        let c = self.config;
        let (train, held_out) = self.split();
        let unroll = self.objective.step_weights.len();
        let sizes = train.iter().map(|&i| packed_rows(&self.rows[i], unroll)).collect();
        let batches = Batches::new(sizes, c.batch_tokens, c.seed);
        let total = batches.steps(c.epochs);
        if total == 0 {
            return Err(TrainError::Empty);
        }
        let schedule = Schedule::new(c.learning_rate, c.warmup_ratio, total);
        let mut optimiser = AdamWConfig::new()
            .with_beta_1(c.betas.0 as f32)
            .with_beta_2(c.betas.1 as f32)
            .with_epsilon(c.eps as f32)
            .with_weight_decay(c.weight_decay as f32)
            .init();
        let (mut step, mut window) = (0, Window::new(unroll));
        for epoch in 0..c.epochs {
            let groups = batches.epoch(epoch);
            for (i, group) in groups.iter().enumerate() {
                let rows: Vec<&FeatureRow> = group.iter().map(|&g| &self.rows[train[g]]).collect();
                let Some(batch) = TrainBatch::new(&rows, unroll, &self.drafter.embedding.device()) else { continue };
                let (loss, sums) = self.drafter.loss(&weights, &batch, self.objective);
                let mut grads = GradientsParams::from_grads(loss.backward(), &weights);
                let norm = clip_global_norm(&weights, &mut grads, c.clip_norm);
                let value = self.mean_loss(&sums, batch.supervised_tokens());
                if !(value.is_finite() && norm.is_finite()) {
                    return Err(TrainError::Diverged { step, loss: value });
                }
                weights = optimiser.step(schedule.rate(step), weights, grads);
                window.add(&sums, batch.supervised_tokens());
                step += 1;
                if step.is_multiple_of(c.log_every.max(1)) || step == total {
                    let epoch = epoch as f64 + (i + 1) as f64 / groups.len() as f64;
                    let record = self.step_record(&window, step, epoch, schedule.rate(step - 1), norm);
                    sink.record(&record).map_err(|e| TrainError::Output(format!("metrics: {e}")))?;
                    window = Window::new(unroll);
                }
                let due = step == total || (c.checkpoint_every > 0 && step.is_multiple_of(c.checkpoint_every));
                let tokens = batch.supervised_tokens();
                let update = Update { step, total, loss: value, tokens, checkpoint: due.then_some(&weights) };
                on_step(update).map_err(TrainError::Output)?;
            }
            if !held_out.is_empty() {
                let record = self.validate(&weights, &held_out, step);
                sink.record(&record).map_err(|e| TrainError::Output(format!("metrics: {e}")))?;
            }
        }
        Ok(weights)
    }

    /// Weighted loss per supervised token of summed steps.
    fn mean_loss(&self, sums: &[StepLoss], tokens: usize) -> f64 {
        let weighted = sums.iter().zip(&self.objective.step_weights).map(|(s, w)| s.loss * f64::from(*w));
        weighted.sum::<f64>() / tokens as f64
    }

    fn step_record(&self, window: &Window, step: usize, epoch: f64, learning_rate: f64, gradient_norm: f64) -> Record {
        Record::Step {
            step,
            epoch,
            loss: self.mean_loss(&window.sums, window.tokens),
            alpha_step: window.means(|s| s.overlap),
            learning_rate,
            gradient_norm,
            tokens_per_second: window.tokens as f64 / window.start.elapsed().as_secs_f64(),
        }
    }

    /// Figures on held-out conversations, without a tape.
    fn validate(&self, weights: &Eagle3, held_out: &[usize], step: usize) -> Record {
        let weights = weights.valid();
        let unroll = self.objective.step_weights.len();
        let sizes = held_out.iter().map(|&i| packed_rows(&self.rows[i], unroll)).collect();
        let mut window = Window::new(unroll);
        for group in Batches::new(sizes, self.config.batch_tokens, 0).epoch(0) {
            let rows: Vec<&FeatureRow> = group.iter().map(|&g| &self.rows[held_out[g]]).collect();
            if let Some(batch) = TrainBatch::new(&rows, unroll, &self.drafter.embedding.device()) {
                let (_, sums) = self.drafter.loss(&weights, &batch, self.objective);
                window.add(&sums, batch.supervised_tokens());
            }
        }
        Record::Validation {
            step,
            loss: self.mean_loss(&window.sums, window.tokens.max(1)),
            loss_step: window.means(|s| s.loss),
            alpha_step: window.means(|s| s.overlap),
        }
    }
}

/// Sums since the last record.
struct Window {
    sums: Vec<StepLoss>,
    tokens: usize,
    start: Instant,
}

impl Window {
    fn new(unroll: usize) -> Self {
        Self { sums: vec![StepLoss::default(); unroll], tokens: 0, start: Instant::now() }
    }

    fn add(&mut self, sums: &[StepLoss], tokens: usize) {
        self.sums.iter_mut().zip(sums).for_each(|(a, b)| a.add(b));
        self.tokens += tokens;
    }

    fn means(&self, what: impl Fn(&StepLoss) -> f64) -> Vec<f64> {
        self.sums.iter().map(|s| what(s) / s.rows.max(1) as f64).collect()
    }
}
