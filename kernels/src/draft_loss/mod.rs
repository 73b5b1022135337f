//! Losses of a drafter's unroll, from head inputs to their gradients: the head, its loss and the way back in one.
//!
//! A *chain* is one query row with its unroll steps. Chains are evaluated a few at a time, so that logits exist for some
//! rows only, forwards and backwards; rows without a label never meet the head. Gradients are closed forms
//! (`spectrain_core::loss` has them in f64).

mod chains;
mod cpu;
mod reference;
mod row;
#[cfg(test)]
mod tests;

use crate::flex::{self, Floats};
use crate::product::Head;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, Flex, backend_extension};
use burn::tensor::Tensor;
use rayon::prelude::*;
use std::sync::Arc;

/// Which loss drives the drafter. `p` is the target's true distribution, `p̃` the same renormalised over the draft
/// vocabulary, `q` the drafter's, `α = Σ min(p, q)` their overlap.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum DraftLoss {
    /// `KL(p̃ ‖ q)`.
    Kl,
    /// `-Σ p̃ ln q`.
    CrossEntropy,
    /// `KL(q ‖ p̃)`.
    ReverseKl,
    /// Jensen–Shannon divergence of `p̃` and `q`.
    JensenShannon,
    /// `1 - α`.
    TotalVariation,
    /// `-ln α` (LK^α, arXiv 2602.23881).
    Lk,
    /// `λ KL + (1 - λ) TV` with `λ = exp(-eta α)` held constant (LK^λ, arXiv 2602.23881).
    LkLambda {
        /// How fast KL fades as acceptance rises.
        eta: f32,
    },
    /// `1 - length / steps` of a chain, with the length a product of overlaps (arXiv 2606.12370, Eq. 13).
    EndToEndTv,
    /// `1 - length / steps` of a chain that the target sampled, with the prefix weights that make it exact
    /// (`spectrain_core::loss::exact_length`).
    ExactLength,
}

impl DraftLoss {
    /// Whether the steps of a chain are one loss, which weighs them itself.
    pub fn is_chain(self) -> bool {
        matches!(self, Self::EndToEndTv | Self::ExactLength)
    }
}

/// What counts as acceptance in the figures beside the loss: what the declared verifier pays for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accepted {
    /// `Σ min(p, q)`: sampled drafts.
    Overlap,
    /// `p(argmax q)`: drafts that are the drafter's likeliest token.
    TargetOnly,
}

/// How the rows of a chain are weighed against one another, beside [`Problem::weights`]. The weights depend on the
/// drafter and are held constant in the gradient.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weighting {
    /// All alike.
    Fixed,
    /// By the chance that the verifier gets so far: the product of the earlier rows' overlaps.
    Accepted,
    /// D-PACE: row `j` counts `Σ_{m >= j} Π_{i <= m} (1 + q_i) / 2`, with `q_i` the drafter's share of the text's token.
    DPace,
}

/// What is asked of the drafter, and by which head.
pub struct Problem {
    /// Frozen output head over the draft vocabulary.
    pub head: Head,
    /// By unroll step the supervised queries, each with its row of the target tables.
    pub pairs: Vec<Vec<(usize, usize)>>,
    /// Factor on the gradients of each step.
    pub weights: Vec<f32>,
    /// The draft vocabulary's entry for the token that each target row predicts; chains follow it.
    pub labels: Vec<Option<u32>>,
    /// The loss.
    pub loss: DraftLoss,
    /// Weights within a chain; losses of chains weigh their steps themselves.
    pub weighting: Weighting,
    /// The figure beside it.
    pub accepted: Accepted,
}

/// What the loss says of one unroll step.
pub struct StepRows {
    /// Gradient with respect to the step's head inputs, weighted, `[queries, hidden]`; zero where nothing is supervised.
    pub gradient: Tensor<2>,
    /// Σ of the rows' losses, not weighted.
    pub loss: f64,
    /// Σ of the rows' chances of acceptance.
    pub accepted: f64,
}

/// Evaluates the head inputs `students`, `[queries, hidden]` each unroll step, against the target's head inputs
/// `teacher [targets, hidden]` with their log denominators `lse [targets]` over the whole vocabulary. No tensor here
/// carries a tape.
pub fn draft_loss(students: Vec<Tensor<2>>, teacher: Tensor<2>, lse: Tensor<1>, problem: Problem) -> Vec<StepRows> {
    let queries = students[0].dims()[0];
    let steps = students.len();
    let students = Tensor::cat(students, 0);
    let (gradient, metrics) = evaluate(students, teacher, lse, queries, problem);
    let metrics: Vec<f32> = metrics.into_data().try_to_vec().expect("an f32 tensor");
    let sum = |step: usize, which: usize| {
        let rows = &metrics[step * queries * 2..(step + 1) * queries * 2];
        rows.chunks_exact(2).map(|m| f64::from(m[which])).sum()
    };
    let step = |k: usize| StepRows {
        gradient: gradient.clone().narrow(0, k * queries, queries),
        loss: sum(k, 0),
        accepted: sum(k, 1),
    };
    (0..steps).map(step).collect()
}

fn evaluate(
    students: Tensor<2>,
    teacher: Tensor<2>,
    lse: Tensor<1>,
    queries: usize,
    problem: Problem,
) -> (Tensor<2>, Tensor<2>) {
    if !flex::is_fused(&students.device()) || problem.head.panels().is_none() {
        return reference::evaluate(students, teacher, lse, queries, &problem);
    }
    let (gradient, metrics) = Dispatch::draft_loss_rows(
        students.into_dispatch(),
        teacher.into_dispatch(),
        lse.into_dispatch(),
        queries,
        Arc::new(problem),
    );
    (Tensor::from_dispatch(gradient), Tensor::from_dispatch(metrics))
}

/// Log of the softmax denominator of each row of `logits [rows, vocabulary]`, `[rows]`.
pub fn log_denominator(logits: Tensor<2>) -> Tensor<1> {
    if !flex::is_fused(&logits.device()) {
        return reference::log_denominator(logits);
    }
    Tensor::from_dispatch(Dispatch::log_denominator_rows(logits.into_dispatch()))
}

/// Backend form.
#[backend_extension(Flex)]
pub trait DraftLossOps: Backend {
    /// Weighted gradient `[steps · queries, hidden]` and metrics `[steps · queries, 2]` (loss, acceptance).
    fn draft_loss_rows(
        students: FloatTensor<Self>,
        teacher: FloatTensor<Self>,
        lse: FloatTensor<Self>,
        queries: usize,
        problem: Arc<Problem>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
    /// Log softmax denominators.
    fn log_denominator_rows(logits: FloatTensor<Self>) -> FloatTensor<Self>;
}

impl DraftLossOps for Flex {
    fn draft_loss_rows(
        students: FloatTensor<Self>,
        teacher: FloatTensor<Self>,
        lse: FloatTensor<Self>,
        queries: usize,
        problem: Arc<Problem>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (students, teacher, lse) = (Floats::new(students), Floats::new(teacher), Floats::new(lse));
        let [rows, width] = students.dims();
        let tables =
            cpu::Tables { students: students.values(), teacher: teacher.values(), lse: lse.values(), queries, width };
        let panels = problem.head.panels().expect("the caller looked");
        let [gradient, metrics] = cpu::evaluate(&tables, &problem, panels);
        (flex::tensor(gradient, [rows, width]), flex::tensor(metrics, [rows, 2]))
    }

    fn log_denominator_rows(logits: FloatTensor<Self>) -> FloatTensor<Self> {
        let logits = Floats::new(logits);
        let [rows, width] = logits.dims();
        let rows_in = logits.values().par_chunks(width);
        let values = rows_in.map_init(Vec::new, |scratch, z| row::log_denominator(z, scratch)).collect();
        flex::tensor(values, [rows])
    }
}
