//! The same in plain tensor operations, block after block: every device, and what the CPU form is compared with.

use super::chains::{Block, Factor, Link, Row, blocks, parts};
use super::{Accepted, DraftLoss, Problem, Weighting};
use crate::rope::indices;
use burn::tensor::{Tensor, TensorData, activation};

/// Chains of a block.
const CHAINS: usize = 64;

/// Gradient `[steps · queries, hidden]` and metrics `[steps · queries, 2]`, zero where nothing is supervised.
pub(super) fn evaluate(
    students: Tensor<2>,
    teacher: Tensor<2>,
    lse: Tensor<1>,
    queries: usize,
    problem: &Problem,
) -> (Tensor<2>, Tensor<2>) {
    let device = students.device();
    let [rows, width] = students.dims();
    let mut gradient = Tensor::<2>::zeros([rows, width], &device);
    let mut metrics = Tensor::<2>::zeros([rows, 2], &device);
    for block in blocks(&problem.pairs, CHAINS) {
        let at = || indices(block.rows.iter().map(|r| r.step * queries + r.query), &device);
        let targets = indices(block.targets.iter().copied(), &device);
        let pick = indices(block.rows.iter().map(|r| r.target), &device);
        let target = problem.head.logits(teacher.clone().select(0, targets.clone())).select(0, pick.clone());
        let lse = lse.clone().select(0, targets).select(0, pick).unsqueeze_dim(1);
        let logits = problem.head.logits(students.clone().select(0, at()));
        let (of_logits, of_rows) = losses(logits, target, lse, &block, problem);
        let add = burn::tensor::IndexingUpdateOp::Add;
        gradient = gradient.select_assign(0, at(), problem.head.pull_back(of_logits), add);
        metrics = metrics.select_assign(0, at(), of_rows, burn::tensor::IndexingUpdateOp::Add);
    }
    (gradient, metrics)
}

/// Weighted gradients of the rows' logits, and their values beside their overlaps.
fn losses(
    logits: Tensor<2>,
    target: Tensor<2>,
    lse: Tensor<2>,
    block: &Block,
    problem: &Problem,
) -> (Tensor<2>, Tensor<2>) {
    let device = logits.device();
    let column = |values: Vec<f32>| {
        let rows = values.len();
        Tensor::<2>::from_data(TensorData::new(values, [rows, 1]), &device)
    };
    let log_q = activation::log_softmax(logits, 1);
    let log_p = target.clone() - lse;
    let log_alpha = log_sum_exp(log_p.clone().min_pair(log_q.clone()));
    let accepted = match problem.accepted {
        Accepted::Overlap => log_alpha.clone().exp(),
        Accepted::TargetOnly => log_p.clone().gather(1, log_q.clone().argmax(1)).exp(),
    };
    let weight = column(block.rows.iter().map(|r| problem.weights[r.step]).collect());
    let fixed = !problem.loss.is_chain() && problem.weighting == Weighting::Fixed;
    let chained = (!fixed).then(|| Chained::new(&log_q, &log_p, &log_alpha, block, problem));
    let (mut value, mut gradient) = match &chained {
        Some(chained) if problem.loss.is_chain() => chained.of_chains(&log_q, &log_p),
        _ => of_rows(problem.loss, log_q, log_p, activation::log_softmax(target, 1), log_alpha),
    };
    if let Some(chained) = chained {
        gradient = gradient * column(chained.parts.iter().map(|(factor, _)| factor.scale).collect());
        let shares: Option<Vec<f32>> = chained.parts.iter().map(|(_, share)| *share).collect();
        value = shares.map_or(value, column);
    }
    (gradient * weight, Tensor::cat(vec![value, accepted], 1))
}

/// Value `[rows, 1]` and gradient `[rows, draft vocabulary]` of the losses of one row.
fn of_rows(
    loss: DraftLoss,
    log_q: Tensor<2>,
    log_p: Tensor<2>,
    own: Tensor<2>,
    log_alpha: Tensor<2>,
) -> (Tensor<2>, Tensor<2>) {
    let (p, q) = (own.clone().exp(), log_q.clone().exp());
    let kl = |own: Tensor<2>| (p.clone() * (own - log_q.clone())).sum_dim(1);
    match loss {
        DraftLoss::Kl => (kl(own), q - p),
        DraftLoss::CrossEntropy => ((p.clone() * log_q).sum_dim(1).neg(), q - p),
        DraftLoss::ReverseKl => {
            let of_token = q.clone() * (log_q - own);
            let value = of_token.clone().sum_dim(1);
            (value.clone(), of_token - q * value)
        }
        DraftLoss::JensenShannon => {
            let log_mean = ((p.clone() + q.clone()) * 0.5).log();
            let of_q = q.clone() * (log_q - log_mean.clone());
            let drafters = of_q.clone().sum_dim(1);
            let value = (p * (own - log_mean)).sum_dim(1) + drafters.clone();
            (value * 0.5, (of_q - q * drafters) * 0.5)
        }
        DraftLoss::Lk => {
            let under = log_q.clone().lower(log_p).float();
            let ratio = (log_q - log_alpha.clone()).clamp_max(0.0).exp() * under;
            (log_alpha.neg(), q * ratio.clone().sum_dim(1) - ratio)
        }
        DraftLoss::LkLambda { eta } => {
            let alpha = log_alpha.exp();
            let mix = (alpha.clone() * -eta).exp();
            let rest = mix.clone().neg() + 1.0;
            let gradient = mix.clone() * (q - p.clone()) + rest.clone() * total_variation(&log_q, &log_p);
            (mix * kl(own) + rest * (alpha.neg() + 1.0), gradient)
        }
        DraftLoss::TotalVariation | DraftLoss::EndToEndTv | DraftLoss::ExactLength => {
            let gradient = total_variation(&log_q, &log_p);
            (log_alpha.exp().neg() + 1.0, gradient)
        }
    }
}

/// The gradient of `1 - α`, row by row.
fn total_variation(log_q: &Tensor<2>, log_p: &Tensor<2>) -> Tensor<2> {
    let q = log_q.clone().exp();
    let under = log_q.clone().lower(log_p.clone()).float();
    let mass = (q.clone() * under.clone()).sum_dim(1);
    q * (mass - under)
}

/// What the rows of a block are within their chains.
struct Chained {
    parts: Vec<(Factor, Option<f32>)>,
    /// One at each row's token, `[rows, draft vocabulary]`.
    hot: Tensor<2>,
    /// What more of `q` on that token is worth, `[rows, 1]`.
    worth: Tensor<2>,
}

impl Chained {
    fn new(log_q: &Tensor<2>, log_p: &Tensor<2>, log_alpha: &Tensor<2>, block: &Block, problem: &Problem) -> Self {
        let device = log_q.device();
        let host = |x: Tensor<2>| -> Vec<f32> { x.into_data().try_to_vec().expect("an f32 tensor") };
        let [rows, words] = log_q.dims();
        let tokens: Vec<Option<u32>> = block.rows.iter().map(|r| problem.labels[block.targets[r.target]]).collect();
        let hot = tokens.iter().flat_map(|x| (0..words).map(move |w| f32::from(*x == Some(w as u32)))).collect();
        let hot = Tensor::<2>::from_data(TensorData::new::<f32, _>(hot, [rows, words]), &device);
        // A row without a token has zeros for ones, hence a ratio and a share of 1 that do not count.
        let at_token = |x: Tensor<2>| host((x * hot.clone()).sum_dim(1).exp());
        let ratio = at_token(log_q.clone() - log_p.clone());
        let share = at_token(log_q.clone());
        let alpha = host(log_alpha.clone().exp());
        let known = |i: usize, value: f32| if tokens[i].is_some() { value } else { 0.0 };
        let link = |i: usize| Link { alpha: alpha[i], ratio: known(i, ratio[i]), share: known(i, share[i]) };
        let links: Vec<Link> = (0..rows).map(link).collect();
        let mut start = 0;
        let chain = |chain: &[Row]| {
            let links = &links[start..start + chain.len()];
            start += chain.len();
            parts(problem, chain, links)
        };
        let parts: Vec<_> = block.chains().flat_map(chain).collect();
        // Acceptance of the token gains nothing once the drafter gives it what the target does.
        let worth = (0..rows).map(|i| known(i, if ratio[i] < 1.0 { parts[i].0.worth } else { 0.0 })).collect();
        Self { parts, hot, worth: Tensor::from_data(TensorData::new::<f32, _>(worth, [rows, 1]), &device) }
    }

    /// As [`of_rows`], for losses of whole chains: `1 - α` and what the token is worth.
    fn of_chains(&self, log_q: &Tensor<2>, log_p: &Tensor<2>) -> (Tensor<2>, Tensor<2>) {
        let gain = self.worth.clone() * (self.hot.clone() - log_q.clone().exp());
        (self.worth.zeros_like(), total_variation(log_q, log_p) - gain)
    }
}

fn log_sum_exp(x: Tensor<2>) -> Tensor<2> {
    let top = x.clone().max_dim(1);
    (x - top.clone()).exp().sum_dim(1).log() + top
}

/// Log of the softmax denominator of each row of `logits`, `[rows]`.
pub(super) fn log_denominator(logits: Tensor<2>) -> Tensor<1> {
    log_sum_exp(logits).squeeze_dim(1)
}
