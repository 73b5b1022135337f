//! Knobs of the loop.

use crate::{OptimiserConfig, Schedule};
use spectrain_core::recipe::ScheduleShape;
use spectrain_core::rng::{Key, Purpose};

/// Knobs of the loop.
#[derive(Debug, Clone)]
pub struct TrainConfig {
    /// Passes over the conversations.
    pub epochs: usize,
    /// Packed rows per batch.
    pub batch_tokens: usize,
    /// Batches per optimiser step, at least 1.
    pub accumulate: usize,
    /// Peak learning rate.
    pub learning_rate: f64,
    /// Share of the steps that warm up.
    pub warmup_ratio: f64,
    /// Learning rate after the warm-up.
    pub schedule: ScheduleShape,
    /// Share of the steps that decays at the end under [`ScheduleShape::Wsd`].
    pub decay_share: f64,
    /// Share of the layer's inputs that a step leaves out.
    pub dropout: f64,
    /// Update of the parameters.
    pub optimiser: OptimiserConfig,
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

impl TrainConfig {
    /// Conversations to train on and held-out ones, of `count`.
    pub fn split(&self, count: usize) -> (Vec<usize>, Vec<usize>) {
        let held_out = |i: &usize| Key::new(self.seed, *i as u64, 1, Purpose::Data).uniform() < self.validation_share;
        (0..count).partition(|i| !held_out(i))
    }

    /// The learning rate of a run of `total` steps.
    pub(crate) fn schedule(&self, total: usize) -> Schedule {
        Schedule::new(self.schedule, self.learning_rate, self.warmup_ratio, self.decay_share, total)
    }
}
