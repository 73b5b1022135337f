//! What the unroll is trained on: a loss, its weight at each step, and the figures worth watching.

use crate::batch::TrainBatch;
use burn::tensor::{IndexingUpdateOp, Tensor};
use spectrain_kernels::draft_loss::{Accepted, DraftLoss, Problem, StepRows, Weighting, draft_loss};
use spectrain_kernels::product::Head;
use spectrain_kernels::rope::indices;

/// The declared loss.
#[derive(Debug, Clone)]
pub struct Objective {
    /// Loss of one row.
    pub loss: DraftLoss,
    /// How the rows of a chain are weighed, beside `step_weights`.
    pub weighting: Weighting,
    /// What counts as acceptance in the sums.
    pub accepted: Accepted,
    /// Weight of the feature loss, smooth L1 between the head inputs of drafter and target, mean over dimensions
    /// (EAGLE, Li et al., 2024, section 4.2).
    pub feature_weight: f32,
    /// Weight of each unroll step; the length is the number of steps.
    pub step_weights: Vec<f32>,
}

/// Sums over the supervised rows of one unroll step.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct StepLoss {
    /// Σ loss: nats, and the weighted feature loss where there is one.
    pub loss: f64,
    /// Σ chance of acceptance under the declared verifier, teacher-forced: a proxy of what it will measure.
    pub accepted: f64,
    /// Rows.
    pub rows: usize,
}

impl StepLoss {
    /// Adds another batch's sums.
    pub fn add(&mut self, other: &Self) {
        self.loss += other.loss;
        self.accepted += other.accepted;
        self.rows += other.rows;
    }
}

impl Objective {
    /// Evaluates an unroll: `hidden [queries, hidden]` is each step's head input, plain. Returns for each step the
    /// gradient of the mean loss over the supervised tokens with respect to it, and the step's sums. The head and what
    /// follows it never enter a tape: the gradients are closed forms.
    pub fn evaluate(
        &self,
        hidden: Vec<Tensor<2>>,
        batch: &TrainBatch,
        head: &Head,
        labels: Vec<Option<u32>>,
    ) -> Vec<(Tensor<2>, StepLoss)> {
        let per_token = 1.0 / batch.supervised_tokens() as f32;
        let weights: Vec<f32> = self.step_weights.iter().map(|w| w * per_token).collect();
        let problem = Problem {
            head: head.clone(),
            pairs: batch.supervised.clone(),
            weights: weights.clone(),
            labels,
            loss: self.loss,
            weighting: self.weighting,
            accepted: self.accepted,
        };
        let found = draft_loss(hidden.clone(), batch.target_hidden.clone(), batch.target_lse.clone(), problem);
        let step = |(k, (hidden, step)): (usize, (Tensor<2>, StepRows))| {
            let mut sum = StepLoss { loss: step.loss, accepted: step.accepted, rows: batch.supervised[k].len() };
            let mut gradient = step.gradient;
            if self.feature_weight > 0.0 && sum.rows > 0 {
                let (value, of_features) = self.feature_loss(&hidden, batch, k);
                sum.loss += value;
                gradient = gradient + of_features * weights[k];
            }
            (gradient, sum)
        };
        hidden.into_iter().zip(found).enumerate().map(step).collect()
    }

    /// Σ of step `k`'s feature losses and their gradient `[queries, hidden]`.
    fn feature_loss(&self, student: &Tensor<2>, batch: &TrainBatch, k: usize) -> (f64, Tensor<2>) {
        let device = student.device();
        let (queries, targets): (Vec<usize>, Vec<usize>) = batch.supervised[k].iter().copied().unzip();
        let (queries, targets) = (indices(queries, &device), indices(targets, &device));
        let distance = student.clone().select(0, queries.clone()) - batch.target_hidden.clone().select(0, targets);
        let scale = self.feature_weight / distance.dims()[1] as f32;
        // Smooth L1 is c · (d − c/2) with c = d held to −1..1, its own slope.
        let slope = distance.clone().clamp(-1.0, 1.0);
        let value: f32 = (slope.clone() * (distance - slope.clone() * 0.5)).sum().into_scalar();
        let gradient = student.zeros_like().select_assign(0, queries, slope * scale, IndexingUpdateOp::Add);
        (f64::from(scale * value), gradient)
    }
}
