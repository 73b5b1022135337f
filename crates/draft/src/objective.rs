//! What the unroll is trained on: a loss, its weight at each step, and the figures worth watching.

use burn::tensor::{Tensor, TensorData};
use spectrain_kernels::draft_loss::{DraftLoss, draft_loss};
use spectrain_kernels::rope::indices;
use spectrain_model::Head;

/// The declared loss.
#[derive(Debug, Clone)]
pub struct Objective {
    /// Loss of one row.
    pub loss: DraftLoss,
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
    /// Σ overlap `Σ min(p, q)` with the target's true distribution: teacher-forced, a proxy of acceptance.
    pub overlap: f64,
    /// Rows.
    pub rows: usize,
}

impl StepLoss {
    /// Adds another batch's sums.
    pub fn add(&mut self, other: &Self) {
        self.loss += other.loss;
        self.overlap += other.overlap;
        self.rows += other.rows;
    }
}

/// Rows whose logits exist at a time.
const ROW_BLOCK: usize = 512;

/// The frozen side of the loss.
pub struct Teacher<'a> {
    /// Head inputs of the target, `[targets, hidden]`, plain.
    pub hidden: &'a Tensor<2>,
    /// Target logits over the draft vocabulary, `[targets, draft vocabulary]`, plain.
    pub logits: Tensor<2>,
    /// Log denominators over the whole vocabulary, `[targets]`, plain.
    pub lse: Tensor<1>,
    /// Frozen output head over the draft vocabulary.
    pub head: &'a Head,
}

impl Teacher<'_> {
    /// Loss of one unroll step.
    ///
    /// `hidden [queries, hidden]` is the head's input on the tape, `pairs` the supervised query rows with their
    /// target rows, `weight` the factor on every row's gradient. Returns a scalar on the tape whose gradient is that
    /// of the loss (its value is not), and the sums. Logits and their gradients exist for [`ROW_BLOCK`] rows at a
    /// time and never enter the tape: the gradient with respect to `hidden` is formed in closed form.
    pub fn step(
        &self,
        hidden: Tensor<2>,
        pairs: &[(usize, usize)],
        objective: &Objective,
        weight: f32,
    ) -> (Tensor<1>, StepLoss) {
        let device = self.logits.device();
        let mut sums = StepLoss { rows: pairs.len(), ..Default::default() };
        let values = hidden.clone().without_autodiff();
        let mut surrogate = Tensor::<1>::zeros([1], &hidden.device());
        for block in pairs.chunks(ROW_BLOCK) {
            let rows = indices(block.iter().map(|(q, _)| *q), &device);
            let targets = indices(block.iter().map(|(_, t)| *t), &device);
            let student = values.clone().select(0, rows);
            let logits = self.head.logits(student.clone());
            let target = self.logits.clone().select(0, targets.clone());
            let lse = self.lse.clone().select(0, targets.clone());
            let weights = Tensor::from_data(TensorData::new(vec![weight; block.len()], [block.len()]), &device);
            let result = draft_loss(logits, target, lse, weights, objective.loss);
            let mut gradient = self.head.pull_back(result.gradient);
            if objective.feature_weight > 0.0 {
                let distance = student - self.hidden.clone().select(0, targets);
                let scale = objective.feature_weight / distance.dims()[1] as f32;
                // Smooth L1 is c · (d − c/2) with c = d held to −1..1, its own slope.
                let slope = distance.clone().clamp(-1.0, 1.0);
                let value: f32 = (slope.clone() * (distance - slope.clone() * 0.5)).sum().into_scalar();
                sums.loss += f64::from(scale * value);
                gradient = gradient + slope * (scale * weight);
            }
            let metrics: Vec<f32> = result.metrics.into_data().try_to_vec().expect("f32 metrics");
            sums.loss += metrics.chunks_exact(2).map(|m| f64::from(m[0])).sum::<f64>();
            sums.overlap += metrics.chunks_exact(2).map(|m| f64::from(m[1])).sum::<f64>();
            let on_tape = hidden.clone().select(0, indices(block.iter().map(|(q, _)| *q), &hidden.device()));
            surrogate = surrogate + (on_tape * gradient).sum();
        }
        (surrogate, sums)
    }
}
