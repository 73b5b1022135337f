//! The loop: `for batch { forward → loss → backward → clip → step → log }`.

use crate::metrics::peak_memory_mib;
use crate::plan::plan;
use crate::snapshot::{self, Snapshot, SnapshotError};
use crate::window::Window;
use crate::{Batches, MetricSink, Record, StepGradients, TrainConfig, clip_global_norm};
use burn::module::Module;
use burn::optim::ModuleOptimizer;
use spectrain_data::store::FeatureRow;
use spectrain_draft::batch::packed_rows;
use spectrain_draft::{Eagle3, Eagle3Drafter, Objective, StepLoss, TrainBatch};
use std::path::Path;

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
    /// It was asked to stop; a checkpoint holds where it stood.
    #[error("stopped after step {step} of {total}")]
    Stopped {
        /// Optimiser steps taken.
        step: usize,
        /// Optimiser steps in all.
        total: usize,
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
    /// Current weights, when a checkpoint is due, and the way to save the rest of the state beside them.
    pub checkpoint: Option<Due<'a>>,
}

/// A checkpoint that is due.
pub struct Due<'a> {
    /// Weights to write.
    pub weights: &'a Eagle3,
    state: &'a dyn Fn(&Path) -> Result<(), SnapshotError>,
}

impl Due<'_> {
    /// Writes what a resumed run needs to `dir/state`.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn save_state(&self, dir: &Path) -> Result<(), SnapshotError> {
        (self.state)(dir)
    }
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
    /// Whether the run shall stop after the step at hand, with a checkpoint.
    pub stop: &'a dyn Fn() -> bool,
}

/// Where a run starts.
pub enum Start {
    /// At step 0, with these weights, which live on an autodiff device.
    Fresh(Box<Eagle3>),
    /// Where an earlier run stood.
    Resumed(Box<Snapshot>),
}

/// What changes from step to step.
struct State {
    weights: Eagle3,
    optimiser: ModuleOptimizer,
    /// Sums since the last record.
    window: Window,
}

/// Figures of one step.
struct Taken {
    /// Weighted loss per supervised token.
    loss: f64,
    /// Norm of all gradients before clipping.
    norm: f64,
    /// Supervised tokens.
    tokens: usize,
}

impl Trainer<'_> {
    /// Trains from `start` to the end and returns the weights.
    ///
    /// # Errors
    /// [`TrainError`]; what `on_step` returns as an error ends the run.
    pub fn run(
        &self,
        start: Start,
        sink: &mut dyn MetricSink,
        on_step: &mut dyn FnMut(Update) -> Result<(), String>,
    ) -> Result<Eagle3, TrainError> {
        let c = self.config;
        let (train, held_out) = c.split(self.rows.len());
        let unroll = self.objective.step_weights.len();
        let plan = plan(c, train.iter().map(|&i| packed_rows(&self.rows[i], unroll)).collect());
        let total = plan.len();
        if total == 0 {
            return Err(TrainError::Empty);
        }
        let schedule = c.schedule(total);
        let (done, mut state) = self.begin(start);
        for (i, now) in plan.iter().enumerate().skip(done) {
            let step = i + 1;
            let rows = |group: &Vec<usize>| group.iter().map(|&g| &self.rows[train[g]]).collect();
            let batches: Vec<Vec<&FeatureRow>> = now.batches.iter().map(rows).collect();
            let found = self.gradients(&state.weights, &batches, now.first_batch);
            let taken = self.take_step(&mut state, found, schedule.rate(i), i)?;
            let mut record =
                |record: Record| sink.record(&record).map_err(|e| TrainError::Output(format!("metrics: {e}")));
            if step.is_multiple_of(c.log_every.max(1)) || step == total {
                record(self.step_record(&state.window, step, now.seen, schedule.rate(i), taken.norm))?;
                state.window = Window::new(self.objective.step_weights.len());
            }
            if now.last && !held_out.is_empty() {
                record(self.validate(&state.weights, &held_out, step))?;
            }
            let stopped = step < total && (self.stop)();
            let due = stopped || step == total || (c.checkpoint_every > 0 && step.is_multiple_of(c.checkpoint_every));
            let config = &self.drafter.config;
            let save = |dir: &Path| snapshot::save(dir, step, &state.weights, config, &state.optimiser, &state.window);
            let checkpoint = due.then_some(Due { weights: &state.weights, state: &save });
            let Taken { loss, tokens, .. } = taken;
            on_step(Update { step, total, loss, tokens, checkpoint }).map_err(TrainError::Output)?;
            if stopped {
                return Err(TrainError::Stopped { step, total });
            }
        }
        Ok(state.weights)
    }

    /// Steps that are done, and what they left.
    fn begin(&self, start: Start) -> (usize, State) {
        let init = |weights: &Eagle3| self.config.optimiser.init(weights);
        match start {
            Start::Fresh(weights) => {
                let window = Window::new(self.objective.step_weights.len());
                (0, State { optimiser: init(&weights), weights: *weights, window })
            }
            Start::Resumed(snapshot) => {
                let Snapshot { step, weights, optimiser, window } = *snapshot;
                (step, State { optimiser: init(&weights).load_record(optimiser), weights, window })
            }
        }
    }

    /// One optimiser step along the gradient `found`; `i` steps were taken before.
    fn take_step(&self, state: &mut State, found: StepGradients, rate: f64, i: usize) -> Result<Taken, TrainError> {
        let StepGradients { mut grads, sums, tokens } = found;
        let norm = clip_global_norm(&state.weights, &mut grads, self.config.clip_norm);
        let loss = self.mean_loss(&sums, tokens);
        if !(loss.is_finite() && norm.is_finite()) {
            return Err(TrainError::Diverged { step: i, loss });
        }
        state.weights = state.optimiser.step(rate, state.weights.clone(), grads);
        state.window.add(&sums, tokens);
        Ok(Taken { loss, norm, tokens })
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
            loss_step: window.means(|s| s.loss),
            alpha_step: window.means(|s| s.overlap),
            learning_rate,
            gradient_norm,
            tokens_per_second: window.tokens as f64 / window.start.elapsed().as_secs_f64(),
            memory_mib: peak_memory_mib(),
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
