//! Losses of a drafter's unroll, from head inputs to their gradients: the head, its loss and the way back in one.
//!
//! A *chain* is one query row with its unroll steps. Chains are evaluated a few at a time, so that logits exist for some
//! rows only, forwards and backwards; rows without a label never meet the head. Gradients are closed forms
//! (`spectrain_core::loss` has them in f64).

mod chains;
mod cpu;
mod head_gradient;
mod policies;
mod reference;
mod row;
#[cfg(test)]
mod tests;

use crate::flex::{self, Floats};
use crate::product::Head;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, Flex, backend_extension};
use burn::tensor::Tensor;
pub use policies::Policies;
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

/// What is known of the target's distribution at a row.
#[derive(Debug, Clone, PartialEq)]
pub enum TargetForm {
    /// All of it: the target's head inputs times its head, with the log denominators over its whole vocabulary.
    Hidden,
    /// `ln p` of some tokens of the draft vocabulary, row by row: the likeliest, or the text's own token alone. What is
    /// not named counts as nothing; the overlap is then too small by at most the smaller of the two tails
    /// (`spectrain_core::loss::Row::of_known`).
    Known(Vec<Vec<(u32, f32)>>),
}

/// What is asked of the drafter, and by which head.
pub struct Problem {
    /// The target's output head over the draft vocabulary, which the drafter shares.
    pub head: Head,
    /// The drafter's own head, where it has one; its gradient is then asked for as well.
    pub own: Option<Head>,
    /// What is known of the target.
    pub target: TargetForm,
    /// Processors that target and drafter go through before they are compared.
    pub policies: Option<Policies>,
    /// Whether [`StepRows::metrics`] say how likely the verifier goes on behind a row along the text.
    pub passage: bool,
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

impl Problem {
    /// A problem on the target's own head, with fixed weights and nothing else asked.
    pub fn new(head: Head, pairs: Vec<Vec<(usize, usize)>>, labels: Vec<Option<u32>>, loss: DraftLoss) -> Self {
        Self {
            head,
            own: None,
            target: TargetForm::Hidden,
            policies: None,
            passage: false,
            weights: vec![1.0; pairs.len()],
            pairs,
            labels,
            loss,
            weighting: Weighting::Fixed,
            accepted: Accepted::Overlap,
        }
    }

    /// The head that gives the drafter's logits.
    fn student(&self) -> &Head {
        self.own.as_ref().unwrap_or(&self.head)
    }

    /// The heads whose panels the CPU form needs.
    fn heads(&self) -> impl Iterator<Item = &Head> {
        let whole = self.policies.iter().filter_map(|p| p.whole.as_ref().map(|(head, _)| head));
        [&self.head, self.student()].into_iter().chain(whole)
    }
}

/// What the loss says of an unroll.
pub struct Found {
    /// By step.
    pub steps: Vec<StepRows>,
    /// Gradient of the drafter's own head, `[draft vocabulary, hidden]`, where it has one.
    pub head: Option<Tensor<2>>,
}

/// Numbers of a row's metrics.
const METRICS: usize = 3;

/// What the loss says of one unroll step.
pub struct StepRows {
    /// Gradient with respect to the step's head inputs, weighted, `[queries, hidden]`; zero where nothing is supervised.
    pub gradient: Tensor<2>,
    /// Of each query its loss, not weighted, its chance of acceptance, and, where [`Problem::passage`] asks, the chance
    /// that the verifier goes on along the text; zeros where nothing is supervised.
    pub metrics: Vec<[f32; METRICS]>,
}

impl StepRows {
    /// Σ of the rows' losses.
    pub fn loss(&self) -> f64 {
        self.metrics.iter().map(|m| f64::from(m[0])).sum()
    }

    /// Σ of the rows' chances of acceptance.
    pub fn accepted(&self) -> f64 {
        self.metrics.iter().map(|m| f64::from(m[1])).sum()
    }
}

/// Evaluates the head inputs `students`, `[queries, hidden]` each unroll step, against the target's head inputs
/// `teacher [targets, hidden]` with their log denominators `lse [targets]` over the whole vocabulary. No tensor here
/// carries a tape.
pub fn draft_loss(students: Vec<Tensor<2>>, teacher: Tensor<2>, lse: Tensor<1>, problem: Problem) -> Found {
    let queries = students[0].dims()[0];
    let steps = students.len();
    let has_own = problem.own.is_some();
    let students = Tensor::cat(students, 0);
    let [gradient, metrics, head] = evaluate(students, teacher, lse, queries, problem);
    let metrics: Vec<f32> = metrics.into_data().try_to_vec().expect("an f32 tensor");
    let (rows, _) = metrics.as_chunks::<METRICS>();
    let step = |k: usize| StepRows {
        gradient: gradient.clone().narrow(0, k * queries, queries),
        metrics: rows[k * queries..(k + 1) * queries].to_vec(),
    };
    Found { steps: (0..steps).map(step).collect(), head: has_own.then_some(head) }
}

fn evaluate(
    students: Tensor<2>,
    teacher: Tensor<2>,
    lse: Tensor<1>,
    queries: usize,
    problem: Problem,
) -> [Tensor<2>; 3] {
    if !flex::is_fused(&students.device()) || problem.heads().any(|head| head.panels().is_none()) {
        return reference::evaluate(students, teacher, lse, queries, &problem);
    }
    let (gradient, metrics, head) = Dispatch::draft_loss_rows(
        students.into_dispatch(),
        teacher.into_dispatch(),
        lse.into_dispatch(),
        queries,
        Arc::new(problem),
    );
    [gradient, metrics, head].map(Tensor::from_dispatch)
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
    /// Weighted gradient `[steps · queries, hidden]`, metrics `[steps · queries, METRICS]`, and the gradient of the
    /// drafter's own head, `[draft vocabulary, hidden]`, or one zero where it has none.
    fn draft_loss_rows(
        students: FloatTensor<Self>,
        teacher: FloatTensor<Self>,
        lse: FloatTensor<Self>,
        queries: usize,
        problem: Arc<Problem>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);
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
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let (students, teacher, lse) = (Floats::new(students), Floats::new(teacher), Floats::new(lse));
        let [rows, width] = students.dims();
        let tables =
            cpu::Tables { students: students.values(), teacher: teacher.values(), lse: lse.values(), queries, width };
        let [gradient, metrics, head] = cpu::evaluate(&tables, &problem);
        let of_head = if problem.own.is_some() { [head.len() / width, width] } else { [1, 1] };
        (flex::tensor(gradient, [rows, width]), flex::tensor(metrics, [rows, METRICS]), flex::tensor(head, of_head))
    }

    fn log_denominator_rows(logits: FloatTensor<Self>) -> FloatTensor<Self> {
        let logits = Floats::new(logits);
        let [rows, width] = logits.dims();
        let rows_in = logits.values().par_chunks(width);
        let values = rows_in.map_init(Vec::new, |scratch, z| row::log_denominator(z, scratch)).collect();
        flex::tensor(values, [rows])
    }
}
