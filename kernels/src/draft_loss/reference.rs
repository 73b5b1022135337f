//! The same in plain tensor operations, block after block: every device, and what the CPU form is compared with.

use super::chains::{Block, Factor, Link, Row, blocks, parts};
use super::policies::{shape, shape_draft};
use super::{Accepted, DraftLoss, METRICS, Policies, Problem, TargetForm, Weighting};
use crate::rope::indices;
use burn::tensor::{Device, IndexingUpdateOp, Tensor, TensorData, activation};

/// Chains of a block.
const CHAINS: usize = 64;

/// Gradient `[steps · queries, hidden]` and metrics `[steps · queries, METRICS]`, zero where nothing is supervised, and
/// the gradient of the drafter's own head, or one zero.
pub(super) fn evaluate(
    students: Tensor<2>,
    teacher: Tensor<2>,
    lse: Tensor<1>,
    queries: usize,
    problem: &Problem,
) -> [Tensor<2>; 3] {
    let device = students.device();
    let [rows, width] = students.dims();
    let mut gradient = Tensor::<2>::zeros([rows, width], &device);
    let mut metrics = Tensor::<2>::zeros([rows, METRICS], &device);
    let of_head = problem.own.as_ref().map_or([1, 1], |head| head.rows().dims());
    let mut of_head = Tensor::<2>::zeros(of_head, &device);
    for block in blocks(&problem.pairs, CHAINS) {
        let at = || indices(block.rows.iter().map(|r| r.step * queries + r.query), &device);
        let inputs = students.clone().select(0, at());
        let both = Both::new(problem, &block, problem.student().logits(inputs.clone()), &teacher, &lse);
        let (of_logits, of_rows) = losses(both, &block, problem);
        if problem.own.is_some() {
            of_head = of_head + of_logits.clone().transpose().matmul(inputs);
        }
        let add = IndexingUpdateOp::Add;
        gradient = gradient.select_assign(0, at(), problem.student().pull_back(of_logits), add);
        metrics = metrics.select_assign(0, at(), of_rows, IndexingUpdateOp::Add);
    }
    [gradient, metrics, of_head]
}

/// The logits of a block's rows, as they are compared.
struct Both {
    /// The drafter's, `[rows, draft vocabulary]`.
    student: Tensor<2>,
    /// The target's, `[rows, draft vocabulary]`.
    target: Tensor<2>,
    /// The target's log denominators, `[rows, 1]`.
    lse: Tensor<2>,
    /// 1 where the two share a token, `[rows, 1]`; `None` where they all do.
    meet: Option<Tensor<2>>,
}

impl Both {
    fn new(problem: &Problem, block: &Block, student: Tensor<2>, teacher: &Tensor<2>, lse: &Tensor<1>) -> Self {
        let device = student.device();
        let targets = indices(block.targets.iter().copied(), &device);
        let pick = || indices(block.rows.iter().map(|r| r.target), &device);
        let words = student.dims()[1];
        if let TargetForm::Known(known) = &problem.target {
            let mut values = vec![f32::NEG_INFINITY; block.rows.len() * words];
            for (row, values) in block.rows.iter().zip(values.chunks_exact_mut(words)) {
                known[block.targets[row.target]].iter().for_each(|&(token, log)| values[token as usize] = log);
            }
            let lse = Tensor::zeros([block.rows.len(), 1], &device);
            return Self { student, target: table(values, words, &device), lse, meet: None };
        }
        let teacher = teacher.clone().select(0, targets.clone());
        if let Some(policies) = &problem.policies {
            let all = policies.whole.as_ref().map_or(&problem.head, |(head, _)| head).logits(teacher);
            return Self::shaped(problem, policies, block, student, all);
        }
        let lse = lse.clone().select(0, targets).select(0, pick()).unsqueeze_dim(1);
        Self { student, target: problem.head.logits(teacher).select(0, pick()), lse, meet: None }
    }

    /// Row by row on the host, where the processors are; `all` are the target's logits, `[targets, vocabulary]`.
    fn shaped(problem: &Problem, policies: &Policies, block: &Block, student: Tensor<2>, all: Tensor<2>) -> Self {
        let device = student.device();
        let ([_, words], [_, all_words]) = (student.dims(), all.dims());
        let (mut student, mut all) = (host(student), host(all));
        let (mut kept, mut spare) = (Vec::new(), Vec::new());
        let rows = all.chunks_exact_mut(all_words).zip(&block.targets);
        rows.for_each(|(row, &at)| shape(policies.at(at), row, &mut kept));
        let lse = host(log_sum_exp(table(all.clone(), all_words, &device)));
        let (mut target, mut lse_of, mut meet) = (Vec::new(), Vec::new(), Vec::new());
        for (row, z) in block.rows.iter().zip(student.chunks_exact_mut(words)) {
            let logits = &all[row.target * all_words..(row.target + 1) * all_words];
            let start = target.len();
            match &policies.whole {
                Some((_, ids)) => target.extend(ids.iter().map(|&id| logits[id as usize])),
                None => target.extend_from_slice(logits),
            }
            let policy = policies.at(block.targets[row.target]);
            let shared = shape_draft(policy, problem.loss, z, &target[start..], &mut kept, &mut spare);
            meet.push(f32::from(u8::from(shared)));
            lse_of.push(lse[row.target]);
        }
        let [student, target] = [student, target].map(|values| table(values, words, &device));
        let [lse, meet] = [lse_of, meet].map(|values| table(values, 1, &device));
        Self { student, target, lse, meet: Some(meet) }
    }
}

fn host(tensor: Tensor<2>) -> Vec<f32> {
    tensor.into_data().try_to_vec().expect("an f32 tensor")
}

/// `values` in rows of `width`.
fn table(values: Vec<f32>, width: usize, device: &Device) -> Tensor<2> {
    let rows = values.len() / width;
    Tensor::from_data(TensorData::new(values, [rows, width]), device)
}

/// Weighted gradients of the rows' logits, and their metrics.
fn losses(both: Both, block: &Block, problem: &Problem) -> (Tensor<2>, Tensor<2>) {
    let Both { student, target, lse, meet } = both;
    let device = student.device();
    let column = |values: Vec<f32>| table(values, 1, &device);
    let likeliest = student.clone().argmax(1);
    let log_q = activation::log_softmax(student, 1);
    let log_p = target.clone() - lse;
    let log_alpha = log_sum_exp(log_p.clone().min_pair(log_q.clone()));
    let met = |x: Tensor<2>| if let Some(meet) = &meet { x * meet.clone() } else { x };
    let alpha = met(log_alpha.clone().exp());
    let accepted = match problem.accepted {
        Accepted::Overlap => alpha.clone(),
        Accepted::TargetOnly => log_p.clone().gather(1, likeliest.clone()).exp(),
    };
    let slope = |r: &Row| problem.policies.as_ref().map_or(1.0, |p| p.at(block.targets[r.target]).temperature as f32);
    let weight = column(block.rows.iter().map(|r| problem.weights[r.step] / slope(r)).collect());
    let fixed = !problem.loss.is_chain() && problem.weighting == Weighting::Fixed;
    let chained = (!fixed || problem.passage).then(|| Chained::new(&log_q, &log_p, &alpha, block, problem));
    // Where the target has nothing on the draft vocabulary there is no gradient.
    let nothing = target.clone().max_dim(1).equal_elem(f32::NEG_INFINITY);
    let (mut value, mut gradient) = match &chained {
        Some(chained) if problem.loss.is_chain() => chained.of_chains(&log_q, &log_p),
        _ => of_rows(problem.loss, log_q, log_p, activation::log_softmax(target, 1), log_alpha),
    };
    let [rows, words] = gradient.dims();
    gradient = gradient.mask_fill(nothing.clone().expand([rows, words]), 0.0);
    let rejected = f32::from(u8::from(problem.loss == DraftLoss::TotalVariation));
    value = value.mask_fill(nothing, rejected);
    let mut passed = value.zeros_like();
    if let Some(chained) = chained {
        if !fixed {
            gradient = gradient * column(chained.parts.iter().map(|(factor, _)| factor.scale).collect());
            let shares: Option<Vec<f32>> = chained.parts.iter().map(|(_, share)| *share).collect();
            value = shares.map_or(value, column);
        }
        if problem.passage {
            let likeliest: Vec<i64> = likeliest.into_data().convert::<i64>().try_to_vec().expect("whole numbers");
            passed = column(chained.passed(problem.accepted, &likeliest));
        }
    }
    (gradient * weight, Tensor::cat(vec![value, accepted, passed], 1))
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
    // Where there is no mass the logarithm may be infinite.
    let weighed = |mass: &Tensor<2>, x: Tensor<2>| {
        let none = mass.clone().equal_elem(0.0);
        (mass.clone() * x).mask_fill(none, 0.0)
    };
    let kl = |own: Tensor<2>| weighed(&p, own - log_q.clone()).sum_dim(1);
    match loss {
        DraftLoss::Kl => (kl(own), q - p),
        DraftLoss::CrossEntropy => (weighed(&p, log_q).sum_dim(1).neg(), q - p),
        DraftLoss::ReverseKl => {
            let of_token = weighed(&q, log_q - own);
            let value = of_token.clone().sum_dim(1);
            (value.clone(), of_token - q * value)
        }
        DraftLoss::JensenShannon => {
            let log_mean = ((p.clone() + q.clone()) * 0.5).log();
            let of_q = weighed(&q, log_q - log_mean.clone());
            let drafters = of_q.clone().sum_dim(1);
            let value = weighed(&p, own - log_mean).sum_dim(1) + drafters.clone();
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
    tokens: Vec<Option<u32>>,
    /// `q/p` of each row's token, 0 without one.
    ratio: Vec<f32>,
}

impl Chained {
    fn new(log_q: &Tensor<2>, log_p: &Tensor<2>, alpha: &Tensor<2>, block: &Block, problem: &Problem) -> Self {
        let device = log_q.device();
        let [rows, words] = log_q.dims();
        let tokens: Vec<Option<u32>> = block.rows.iter().map(|r| problem.labels[block.targets[r.target]]).collect();
        let hot = tokens.iter().flat_map(|x| (0..words).map(move |w| f32::from(*x == Some(w as u32)))).collect();
        let at = || indices(tokens.iter().map(|x| x.unwrap_or(0) as usize), &device).unsqueeze_dim(1);
        let [log_q, log_p] = [log_q, log_p].map(|x| host(x.clone().gather(1, at())));
        let alpha = host(alpha.clone());
        let known = |i: usize, value: f32| if tokens[i].is_some() { value } else { 0.0 };
        let possible = |i: usize| alpha[i] > 0.0 && log_p[i] > f32::NEG_INFINITY;
        let ratio = |i: usize| if possible(i) { known(i, (log_q[i] - log_p[i]).exp()) } else { 0.0 };
        let ratio: Vec<f32> = (0..rows).map(ratio).collect();
        let link = |i: usize| Link { alpha: alpha[i], ratio: ratio[i], share: known(i, log_q[i].exp()) };
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
        Self { parts, hot: table(hot, words, &device), worth: table(worth, 1, &device), tokens, ratio }
    }

    /// The chance that the verifier goes on behind each row along the text; `likeliest` are the drafter's tokens.
    fn passed(&self, accepted: Accepted, likeliest: &[i64]) -> Vec<f32> {
        let hit =
            |(token, likeliest): (&Option<u32>, &i64)| f32::from(u8::from(token.map(i64::from) == Some(*likeliest)));
        match accepted {
            Accepted::Overlap => self.ratio.iter().map(|ratio| ratio.min(1.0)).collect(),
            Accepted::TargetOnly => self.tokens.iter().zip(likeliest).map(hit).collect(),
        }
    }

    /// As [`of_rows`], for losses of whole chains: `1 - α` and what the token is worth.
    fn of_chains(&self, log_q: &Tensor<2>, log_p: &Tensor<2>) -> (Tensor<2>, Tensor<2>) {
        let gain = self.worth.clone() * (self.hot.clone() - log_q.clone().exp());
        (self.worth.zeros_like(), total_variation(log_q, log_p) - gain)
    }
}

fn log_sum_exp(x: Tensor<2>) -> Tensor<2> {
    // A row of nothing but -inf has the logarithm -inf.
    let top = x.clone().max_dim(1).clamp_min(-1e30);
    (x - top.clone()).exp().sum_dim(1).log() + top
}

/// Log of the softmax denominator of each row of `logits`, `[rows]`.
pub(super) fn log_denominator(logits: Tensor<2>) -> Tensor<1> {
    log_sum_exp(logits).squeeze_dim(1)
}
