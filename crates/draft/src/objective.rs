//! What the unroll is trained on: a loss, its weight at each step, and the figures worth watching.

use crate::batch::TrainBatch;
use crate::round_starts::{Started, round_starts};
use burn::tensor::{IndexingUpdateOp, Tensor, TensorData};
use spectrain_core::loss::Policy;
use spectrain_core::recipe::{RowWeighting, TargetUse};
use spectrain_core::rng::{Key, Purpose};
use spectrain_kernels::draft_loss::{
    Accepted, DraftLoss, Policies, Problem, StepRows, TargetForm, Weighting, draft_loss,
};
use spectrain_kernels::product::Head;
use spectrain_kernels::rope::indices;
use std::sync::Arc;

/// The declared loss.
#[derive(Debug, Clone)]
pub struct Objective {
    /// Loss of one row.
    pub loss: DraftLoss,
    /// How the rows of a chain are weighed, beside `step_weights`.
    pub weighting: Weighting,
    /// How chains are weighed against one another.
    pub rows: RowWeighting,
    /// Rounds that were made: chains behind their roots count alone, whatever `rows` says of others.
    pub started: Option<Arc<Started>>,
    /// What of the target is read.
    pub target: TargetUse,
    /// Processors that both distributions go through; of several every conversation draws one for each batch. Empty for
    /// none.
    pub policies: Vec<Policy>,
    /// Seed of that draw.
    pub seed: u64,
    /// What counts as acceptance in the sums.
    pub accepted: Accepted,
    /// Weight of the feature loss, smooth L1 between the head inputs of drafter and target, mean over dimensions
    /// (EAGLE, Li et al., 2024, section 4.2).
    pub feature_weight: f32,
    /// Weight of each unroll step; the length is the number of steps.
    pub step_weights: Vec<f32>,
}

/// Output heads that a loss needs.
pub struct OutputHeads<'a> {
    /// The target's rows of the draft vocabulary.
    pub target: &'a Head,
    /// The target's whole head.
    pub whole: &'a Head,
    /// The target's id of every draft token.
    pub ids: &'a [u32],
    /// The drafter's own, whose gradient is then given as well.
    pub own: Option<Head>,
}

/// Sums over the rows of one policy.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PolicyShare {
    /// Σ chance of acceptance.
    pub accepted: f64,
    /// Rows.
    pub rows: usize,
}

/// Sums over the supervised rows of one unroll step.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepLoss {
    /// Σ loss: nats, and the weighted feature loss where there is one.
    pub loss: f64,
    /// Σ chance of acceptance under the declared verifier, teacher-forced: a proxy of what it will measure.
    pub accepted: f64,
    /// Rows.
    pub rows: usize,
    /// The same by policy, where there are several.
    pub policies: Vec<PolicyShare>,
}

impl StepLoss {
    /// Adds another batch's sums.
    pub fn add(&mut self, other: &Self) {
        self.loss += other.loss;
        self.accepted += other.accepted;
        self.rows += other.rows;
        self.policies.resize(self.policies.len().max(other.policies.len()), PolicyShare::default());
        for (sum, share) in self.policies.iter_mut().zip(&other.policies) {
            sum.accepted += share.accepted;
            sum.rows += share.rows;
        }
    }
}

/// What a loss gives back.
pub struct Evaluated {
    /// By step the gradient of the mean loss over the supervised tokens with respect to the head inputs,
    /// `[queries, hidden]`, and the step's sums.
    pub steps: Vec<(Tensor<2>, StepLoss)>,
    /// The gradient of the drafter's own head, `[draft vocabulary, hidden]`, where it has one.
    pub head: Option<Tensor<2>>,
}

impl Objective {
    /// `loss` on the target's distribution as it is, every row alike; one weight for each unroll step.
    pub fn new(loss: DraftLoss, step_weights: Vec<f32>) -> Self {
        Self {
            loss,
            weighting: Weighting::Fixed,
            rows: RowWeighting::All,
            started: None,
            target: TargetUse::Distribution,
            policies: Vec::new(),
            seed: 0,
            accepted: Accepted::Overlap,
            feature_weight: 0.0,
            step_weights,
        }
    }

    /// Evaluates an unroll: `hidden [queries, hidden]` is each step's head input, plain. OutputHeads and what follows them
    /// never enter a tape: the gradients are closed forms.
    pub fn evaluate(
        &self,
        hidden: Vec<Tensor<2>>,
        batch: &TrainBatch,
        heads: OutputHeads,
        labels: Vec<Option<u32>>,
    ) -> Evaluated {
        let per_token = 1.0 / batch.supervised_tokens() as f32;
        let weights: Vec<f32> = self.step_weights.iter().map(|w| w * per_token).collect();
        let drawn = self.drawn(batch);
        let problem = self.problem(batch, heads, labels, &weights, &drawn);
        let found = draft_loss(hidden.clone(), batch.target_hidden.clone(), batch.target_lse.clone(), problem);
        let starts = match (&self.started, self.rows) {
            (Some(started), _) => Some(started.weights(batch)),
            (None, RowWeighting::RoundStart) => Some(round_starts(batch, &found.steps)),
            (None, RowWeighting::All) => None,
        };
        let step = |(k, (hidden, step)): (usize, (Tensor<2>, StepRows))| {
            let mut sum = self.sums(batch, k, &step, starts.as_deref(), &drawn);
            let mut gradient = step.gradient;
            if self.feature_weight > 0.0 && sum.rows > 0 {
                let (value, of_features) = self.feature_loss(&hidden, batch, k, starts.as_deref());
                sum.loss += value;
                gradient = gradient + of_features * weights[k];
            }
            if let Some(starts) = &starts {
                let column = TensorData::new(starts.clone(), [starts.len(), 1]);
                gradient = gradient * Tensor::<2>::from_data(column, &hidden.device());
            }
            (gradient, sum)
        };
        Evaluated { steps: hidden.into_iter().zip(found.steps).enumerate().map(step).collect(), head: found.head }
    }

    fn problem(
        &self,
        batch: &TrainBatch,
        heads: OutputHeads,
        labels: Vec<Option<u32>>,
        weights: &[f32],
        drawn: &[usize],
    ) -> Problem {
        let target = match self.target {
            TargetUse::Distribution => TargetForm::Hidden,
            TargetUse::Ids => TargetForm::Known(labels.iter().map(|x| x.iter().map(|&x| (x, 0.0)).collect()).collect()),
        };
        let reduced = heads.ids.len() < heads.whole.rows().dims()[0];
        let whole = || reduced.then(|| (heads.whole.clone(), Arc::new(heads.ids.to_vec())));
        let policies = || Policies { list: self.policies.clone(), of: drawn.to_vec(), whole: whole() };
        Problem {
            weights: weights.to_vec(),
            weighting: self.weighting,
            accepted: self.accepted,
            policies: (!self.policies.is_empty()).then(policies),
            passage: self.rows == RowWeighting::RoundStart,
            own: heads.own,
            target,
            ..Problem::new(heads.target.clone(), batch.supervised.clone(), labels, self.loss)
        }
    }

    /// Which policy each target row of `batch` is under. A conversation has one at a time, as a served request has.
    fn drawn(&self, batch: &TrainBatch) -> Vec<usize> {
        let count = self.policies.len();
        let draw = |&request: &u64| {
            let key = Key::new(self.seed, request, batch.number as u64, Purpose::Policy);
            if count > 1 { key.below_at(0, count) } else { 0 }
        };
        batch.requests.iter().map(draw).collect()
    }

    /// The sums of step `k`; chains count as `starts` says, acceptance is that of all rows.
    fn sums(&self, batch: &TrainBatch, k: usize, step: &StepRows, starts: Option<&[f32]>, drawn: &[usize]) -> StepLoss {
        let pairs = &batch.supervised[k];
        let weighed = |starts: &[f32]| {
            let rows = starts.iter().zip(&step.metrics);
            rows.map(|(start, metrics)| f64::from(*start) * f64::from(metrics[0])).sum()
        };
        let loss = starts.map_or_else(|| step.loss(), weighed);
        let several = if self.policies.len() > 1 { self.policies.len() } else { 0 };
        let mut policies = vec![PolicyShare::default(); several];
        if several > 0 {
            for &(query, target) in pairs {
                policies[drawn[target]].accepted += f64::from(step.metrics[query][1]);
                policies[drawn[target]].rows += 1;
            }
        }
        StepLoss { loss, accepted: step.accepted(), rows: pairs.len(), policies }
    }

    /// Σ of step `k`'s feature losses, weighed by `starts`, and their gradient `[queries, hidden]`, not weighed.
    fn feature_loss(
        &self,
        student: &Tensor<2>,
        batch: &TrainBatch,
        k: usize,
        starts: Option<&[f32]>,
    ) -> (f64, Tensor<2>) {
        let device = student.device();
        let (queries, targets): (Vec<usize>, Vec<usize>) = batch.supervised[k].iter().copied().unzip();
        let weights = starts.map(|starts| queries.iter().map(|&q| starts[q]).collect::<Vec<f32>>());
        let (queries, targets) = (indices(queries, &device), indices(targets, &device));
        let distance = student.clone().select(0, queries.clone()) - batch.target_hidden.clone().select(0, targets);
        let scale = self.feature_weight / distance.dims()[1] as f32;
        // Smooth L1 is c · (d − c/2) with c = d held to −1..1, its own slope.
        let slope = distance.clone().clamp(-1.0, 1.0);
        let mut terms = slope.clone() * (distance - slope.clone() * 0.5);
        if let Some(weights) = weights {
            let rows = weights.len();
            terms = terms * Tensor::<2>::from_data(TensorData::new(weights, [rows, 1]), &device);
        }
        let value: f32 = terms.sum().into_scalar();
        let gradient = student.zeros_like().select_assign(0, queries, slope * scale, IndexingUpdateOp::Add);
        (f64::from(scale * value), gradient)
    }
}
