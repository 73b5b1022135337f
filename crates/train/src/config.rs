//! Knobs of the loop.

use crate::{Anchor, OptimiserConfig, Replica, Schedule};
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
    /// The further devices that share a step's batches.
    pub replicas: Vec<Replica>,
    /// Whether the unroll's steps are run again in the backward pass instead of kept.
    pub recompute: bool,
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
    /// Amplitude of the noise on the features; see [`spectrain_draft::FeatureNoise`].
    pub feature_noise: f64,
    /// Largest share that the average of the weights keeps at a step; 0 for no average.
    pub ema: f64,
    /// A step whose loss is so many times the median of recent ones is not taken; 0 takes every step.
    pub spike: f64,
    /// Update of the parameters.
    pub optimiser: OptimiserConfig,
    /// Where the weights are pulled back to, if anywhere.
    pub anchor: Option<Anchor>,
    /// Largest norm of all gradients together.
    pub clip_norm: f64,
    /// Share of the conversations that are held out.
    pub validation_share: f64,
    /// Validations in a row without a longer expected length that end the run; 0 for none.
    pub patience: usize,
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
