//! What changes from step to step.

use crate::ema::{averaged, kept};
use crate::guard::Guard;
use crate::selection::Selection;
use crate::snapshot::Snapshot;
use crate::window::Window;
use crate::{Start, TrainConfig};
use burn::module::Module;
use burn::optim::ModuleOptimizer;
use serde::{Deserialize, Serialize};
use spectrain_draft::Eagle3;

/// Weights, moments, and what the loop remembers.
pub(crate) struct State {
    pub weights: Eagle3,
    /// Average of the weights on a plain device, where the run has one.
    pub average: Option<Eagle3>,
    pub optimiser: ModuleOptimizer,
    pub progress: Progress,
}

/// What the loop remembers beside tensors.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Progress {
    /// Optimiser steps, skipped ones among them.
    pub step: usize,
    /// Sums since the last record.
    pub window: Window,
    /// Sums since the epoch began.
    pub epoch: Window,
    pub guard: Guard,
    pub selection: Selection,
}

impl State {
    /// The state at `start` of a run with `unroll` steps.
    pub fn begin(start: Start, config: &TrainConfig, unroll: usize) -> Self {
        let averages = config.ema > 0.0;
        match start {
            Start::Fresh(weights) => {
                let (window, epoch) = (Window::new(unroll), Window::new(unroll));
                let (guard, selection) = (Guard::default(), Selection::default());
                Self {
                    average: averages.then(|| weights.valid()),
                    optimiser: config.optimiser.init(&*weights),
                    weights: *weights,
                    progress: Progress { step: 0, window, epoch, guard, selection },
                }
            }
            Start::Resumed(snapshot) => {
                let Snapshot { weights, average, optimiser, progress } = *snapshot;
                let optimiser = config.optimiser.init(&weights).load_record(optimiser);
                Self { weights, average, optimiser, progress }
            }
        }
    }

    /// The weights that are validated and kept.
    pub fn shown(&self) -> &Eagle3 {
        self.average.as_ref().unwrap_or(&self.weights)
    }

    /// As [`Self::shown`], for good.
    pub fn into_shown(self) -> Eagle3 {
        self.average.unwrap_or(self.weights)
    }

    /// Lets the average, if there is one, follow the weights after a step; `decay` is its share at most.
    pub fn follow(&mut self, decay: f64) {
        let kept = kept(decay, self.progress.step);
        self.average = self.average.take().map(|average| averaged(average, &self.weights.valid(), kept));
    }
}
