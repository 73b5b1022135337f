//! The loop: `for batch { forward → loss → backward → clip → step → log }`.

use crate::error::TrainError;
use crate::metrics::peak_memory_mib;
use crate::plan::{Step, plan};
use crate::snapshot::{self, Snapshot, SnapshotError};
use crate::state::State;
use crate::window::Window;
use crate::{Measure, MetricSink, Record, StepGradients, TrainConfig, Validated, clip_global_norm};
use spectrain_data::store::FeatureRow;
use spectrain_draft::batch::packed_rows;
use spectrain_draft::{Eagle3, Eagle3Drafter, Objective, StepLoss};
use std::iter;
use std::path::Path;

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
    /// Why the step was not taken, if it was not.
    pub skipped: Option<Skipped>,
    /// What a validation found, at the end of an epoch.
    pub validated: Option<Validated<'a>>,
    /// Current weights, when a checkpoint is due, and the way to save the rest of the state beside them.
    pub checkpoint: Option<Due<'a>>,
}

/// A step that was not taken.
#[derive(Debug, Clone)]
pub struct Skipped {
    /// Median loss of the steps before.
    pub median: f64,
    /// Requests in its batches.
    pub requests: Vec<u64>,
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
    /// Measures the weights at the end of every epoch, where conversations are held out.
    pub measure: Option<&'a Measure<'a>>,
}

/// Where a run starts.
pub enum Start {
    /// At step 0, with these weights, which live on an autodiff device.
    Fresh(Box<Eagle3>),
    /// Where an earlier run stood.
    Resumed(Box<Snapshot>),
}

/// Figures of one step.
struct Taken {
    /// Weighted loss per supervised token.
    loss: f64,
    /// Norm of all gradients before clipping.
    norm: f64,
    /// Supervised tokens.
    tokens: usize,
    skipped: Option<Skipped>,
}

impl Trainer<'_> {
    /// Trains from `start` to the end and returns the weights: of the last step, or their average where
    /// [`TrainConfig::ema`] asks for one.
    ///
    /// # Errors
    /// [`TrainError`]; what `on_step` returns as an error ends the run.
    pub fn run(
        &self,
        start: Start,
        sink: &mut dyn MetricSink,
        on_step: &mut dyn FnMut(Update) -> Result<(), String>,
    ) -> Result<Eagle3, TrainError> {
        let (c, unroll) = (self.config, self.objective.step_weights.len());
        let (train, held_out) = c.split(self.rows.len());
        let plan = plan(c, train.iter().map(|&i| packed_rows(&self.rows[i], unroll)).collect());
        let total = plan.len();
        if total == 0 {
            return Err(TrainError::Empty);
        }
        let schedule = c.schedule(total);
        let mut state = State::begin(start, c, unroll);
        let mut record = |record: Record| sink.record(&record).map_err(|e| TrainError::Output(format!("metrics: {e}")));
        while state.progress.step < total && !state.progress.selection.exhausted(c.patience) {
            let (now, rate) = (&plan[state.progress.step], schedule.rate(state.progress.step));
            let taken = self.take_step(&mut state, now, &train, rate)?;
            let step = state.progress.step;
            if let Some(line) = self.skip_record(step, &taken) {
                record(line)?;
            }
            if step.is_multiple_of(c.log_every.max(1)) || step == total {
                self.step_record(&state.progress.window, step, now.seen, rate, taken.norm)
                    .map_or(Ok(()), &mut record)?;
                state.progress.window = Window::new(unroll);
            }
            let ended =
                if now.last && !held_out.is_empty() { Some(self.end_epoch(&mut state, &held_out)?) } else { None };
            if now.last {
                state.progress.epoch = Window::new(unroll);
            }
            let out_of_patience = state.progress.selection.exhausted(c.patience);
            let validated = ended.as_ref().and_then(|e| Validated::of(e, state.shown(), out_of_patience));
            for line in ended.iter().flat_map(|e| iter::once(&e.line).chain(&e.more)) {
                record(line.clone())?;
            }
            let over = step == total || out_of_patience;
            let stopped = !over && (self.stop)();
            let due = stopped || over || (c.checkpoint_every > 0 && step.is_multiple_of(c.checkpoint_every));
            let save = |dir: &Path| snapshot::save(dir, &state, &self.drafter.config);
            let checkpoint = due.then_some(Due { weights: state.shown(), state: &save });
            let Taken { loss, tokens, skipped, .. } = taken;
            on_step(Update { step, total, loss, tokens, skipped, validated, checkpoint })
                .map_err(TrainError::Output)?;
            if stopped {
                return Err(TrainError::Stopped { step, total });
            }
        }
        Ok(state.into_shown())
    }

    /// One optimiser step on the batches of `now`, conversations among `train`; not taken if its loss is a spike.
    fn take_step(&self, state: &mut State, now: &Step, train: &[usize], rate: f64) -> Result<Taken, TrainError> {
        let rows = |batch: &Vec<usize>| batch.iter().map(|&g| &self.rows[train[g]]).collect();
        let batches: Vec<Vec<&FeatureRow>> = now.batches.iter().map(rows).collect();
        let requests = |batches: &[Vec<&FeatureRow>]| batches.iter().flatten().map(|row| row.request).collect();
        let StepGradients { mut grads, sums, tokens, odd } = self.gradients(&state.weights, &batches, now.first_batch);
        if let Some(anchor) = &self.config.anchor {
            anchor.pull(&state.weights, &mut grads);
        }
        let norm = clip_global_norm(&state.weights, &mut grads, self.config.clip_norm);
        let loss = self.mean_loss(&sums, tokens);
        state.progress.step += 1;
        if !(loss.is_finite() && norm.is_finite()) {
            let at = odd.map_or(&batches[..], |i| &batches[i..=i]);
            return Err(TrainError::Diverged { step: state.progress.step, loss, norm, requests: requests(at) });
        }
        if let Some(median) = state.progress.guard.spike(loss, self.config.spike) {
            let skipped = Some(Skipped { median, requests: requests(&batches) });
            return Ok(Taken { loss, norm, tokens, skipped });
        }
        state.weights = state.optimiser.step(rate, state.weights.clone(), grads);
        state.follow(self.config.ema);
        state.progress.window.add(&sums, tokens);
        state.progress.epoch.add(&sums, tokens);
        Ok(Taken { loss, norm, tokens, skipped: None })
    }

    /// Weighted loss per supervised token of summed steps.
    pub(crate) fn mean_loss(&self, sums: &[StepLoss], tokens: usize) -> f64 {
        let weighted = sums.iter().zip(&self.objective.step_weights).map(|(s, w)| s.loss * f64::from(*w));
        weighted.sum::<f64>() / tokens as f64
    }

    fn skip_record(&self, step: usize, taken: &Taken) -> Option<Record> {
        let Skipped { median, requests } = taken.skipped.clone()?;
        Some(Record::Skipped { step, loss: taken.loss, median, requests })
    }

    /// Means over `window`; none where every step in it was skipped.
    fn step_record(&self, window: &Window, step: usize, epoch: f64, rate: f64, norm: f64) -> Option<Record> {
        (window.tokens > 0).then(|| Record::Step {
            step,
            epoch,
            loss: self.mean_loss(&window.sums, window.tokens),
            loss_step: window.means(|s| s.loss),
            alpha_step: window.means(|s| s.accepted),
            alpha_policy: window.of_policies(),
            learning_rate: rate,
            gradient_norm: norm,
            tokens_per_second: window.tokens as f64 / window.start.elapsed().as_secs_f64(),
            memory_mib: peak_memory_mib(),
        })
    }
}
