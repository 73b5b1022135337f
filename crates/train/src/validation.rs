//! Held-out conversations: figures of the loss, and the measured acceptance that decides which weights are kept.

use crate::selection::Verdict;
use crate::state::State;
use crate::window::Window;
use crate::{Batches, Record, TracedSides, TrainError, Trainer};
use burn::module::Module;
use spectrain_data::store::FeatureRow;
use spectrain_draft::batch::packed_rows;
use spectrain_draft::{Eagle3, TrainBatch};

/// Measures weights (on a plain device, without a tape).
pub type Measure<'a> = dyn Fn(&Eagle3) -> Result<Measured, String> + 'a;

/// What was measured of weights.
#[derive(Debug, Clone)]
pub struct Measured {
    /// Expected committed tokens per target call: the longest is kept.
    pub length: f64,
    /// Accepted tokens a round on traces, where there are any.
    pub traced: Vec<TracedSides>,
}

impl From<f64> for Measured {
    /// The length alone.
    fn from(length: f64) -> Self {
        Self { length, traced: Vec::new() }
    }
}

/// The end of an epoch.
pub(crate) struct Ended {
    /// Its validation.
    pub line: Record,
    /// What else is to be recorded.
    pub more: Vec<Record>,
    pub verdict: Verdict,
}

/// What a validation found.
pub struct Validated<'a> {
    /// Weighted loss per supervised token of the held-out conversations.
    pub loss: f64,
    /// Expected committed tokens per target call, where it is measured.
    pub expected_length: Option<f64>,
    /// The weights, when none before were measured to be as good.
    pub best: Option<&'a Eagle3>,
    /// Whether the training loss fell since the validation before and the expected length with it.
    pub over_training: bool,
    /// Whether the run ends here because too many validations in a row found nothing better.
    pub out_of_patience: bool,
}

impl<'a> Validated<'a> {
    /// What the end of an epoch says of `weights`.
    pub(crate) fn of(ended: &Ended, weights: &'a Eagle3, out_of_patience: bool) -> Option<Self> {
        let Record::Validation { loss, expected_length, over_training, .. } = ended.line else { return None };
        let best = ended.verdict.best.then_some(weights);
        Some(Self { loss, expected_length, best, over_training, out_of_patience })
    }
}

impl Trainer<'_> {
    /// Validates and measures the weights at the end of an epoch.
    pub(crate) fn end_epoch(&self, state: &mut State, held_out: &[usize]) -> Result<Ended, TrainError> {
        let weights = state.shown().valid();
        let window = self.validate(&weights, held_out);
        let measured = self.measure.map(|measure| measure(&weights)).transpose().map_err(TrainError::Output)?;
        let progress = &mut state.progress;
        let trained = self.mean_loss(&progress.epoch.sums, progress.epoch.tokens.max(1));
        let verdict = measured.as_ref().map(|m| progress.selection.judge(trained, m.length));
        let verdict = verdict.unwrap_or(Verdict { best: false, over_training: false });
        let step = progress.step;
        let line = Record::Validation {
            step,
            loss: self.mean_loss(&window.sums, window.tokens.max(1)),
            loss_step: window.means(|s| s.loss),
            alpha_step: window.means(|s| s.accepted),
            alpha_policy: window.of_policies(),
            expected_length: measured.as_ref().map(|m| m.length),
            over_training: verdict.over_training,
        };
        let traced = measured.map_or(Vec::new(), |m| m.traced);
        let more = traced.into_iter().map(|sides| Record::Traced { step, sides }).collect();
        Ok(Ended { line, more, verdict })
    }

    /// Sums over held-out conversations, without a tape.
    fn validate(&self, weights: &Eagle3, held_out: &[usize]) -> Window {
        let unroll = self.objective.step_weights.len();
        let sizes = held_out.iter().map(|&i| packed_rows(&self.rows[i], unroll)).collect();
        let mut window = Window::new(unroll);
        for group in Batches::new(sizes, self.config.batch_tokens, 0).epoch(0) {
            let rows: Vec<&FeatureRow> = group.iter().map(|&g| &self.rows[held_out[g]]).collect();
            if let Some(batch) = TrainBatch::new(&rows, unroll, &self.drafter.embedding.device()) {
                let (_, sums) = self.drafter.loss(weights, &batch, self.objective);
                window.add(&sums, batch.supervised_tokens());
            }
        }
        window
    }
}
