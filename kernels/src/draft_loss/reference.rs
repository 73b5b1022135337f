//! The same in plain tensor operations, block after block: every device, and what the CPU form is compared with.

use super::chains::{Block, Link, blocks, factors};
use super::{Accepted, DraftLoss, Problem};
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
    let (value, gradient) = if problem.loss.is_chain() {
        of_chains(log_q, log_p, log_alpha, block, problem)
    } else {
        of_rows(problem.loss, log_q, log_p, activation::log_softmax(target, 1), log_alpha)
    };
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

/// As [`of_rows`], for losses of whole chains.
fn of_chains(
    log_q: Tensor<2>,
    log_p: Tensor<2>,
    log_alpha: Tensor<2>,
    block: &Block,
    problem: &Problem,
) -> (Tensor<2>, Tensor<2>) {
    let device = log_q.device();
    let host = |x: Tensor<2>| -> Vec<f32> { x.into_data().try_to_vec().expect("an f32 tensor") };
    let token = |r: &super::chains::Row| problem.labels[block.targets[r.target]];
    let labels: Vec<u32> = block.rows.iter().map(|r| token(r).unwrap_or(0)).collect();
    let rows = labels.len();
    let words = log_q.dims()[1];
    let hot: Vec<f32> = labels.iter().flat_map(|&x| (0..words).map(move |w| f32::from(w == x as usize))).collect();
    let hot = Tensor::<2>::from_data(TensorData::new(hot, [rows, words]), &device);
    let ratio = host(((log_q.clone() - log_p.clone()) * hot.clone()).sum_dim(1).exp());
    let known = |i: usize| token(&block.rows[i]).is_some();
    let links: Vec<Link> = host(log_alpha.exp())
        .into_iter()
        .zip(&ratio)
        .enumerate()
        .map(|(i, (alpha, &ratio))| Link { alpha, ratio: if known(i) { ratio } else { 0.0 } })
        .collect();
    let mut start = 0;
    let chain = |chain: &[super::chains::Row]| {
        let links = &links[start..start + chain.len()];
        start += chain.len();
        factors(problem.loss, chain, links, problem.pairs.len())
    };
    let parts: Vec<_> = block.chains().flat_map(chain).collect();
    let column = |values: Vec<f32>| Tensor::<2>::from_data(TensorData::new(values, [rows, 1]), &device);
    let scale = column(parts.iter().map(|(f, _)| f.scale).collect());
    // Acceptance of the token gains nothing once the drafter gives it what the target does.
    let worth = |i: usize| if known(i) && ratio[i] < 1.0 { parts[i].0.worth } else { 0.0 };
    let worth = column((0..rows).map(worth).collect());
    let gradient = total_variation(&log_q, &log_p) - worth * (hot - log_q.exp());
    (column(parts.iter().map(|(_, share)| *share).collect()), gradient * scale)
}

fn log_sum_exp(x: Tensor<2>) -> Tensor<2> {
    let top = x.clone().max_dim(1);
    (x - top.clone()).exp().sum_dim(1).log() + top
}

/// Log of the softmax denominator of each row of `logits`, `[rows]`.
pub(super) fn log_denominator(logits: Tensor<2>) -> Tensor<1> {
    log_sum_exp(logits).squeeze_dim(1)
}
