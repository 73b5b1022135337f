//! The CPU form: one task a conversation and key head, score matrices of one row block at a time.

use super::{Layout, UnrollAttentionOps, UnrollPlan, UnrollSegment};
use crate::cached_attention::Heads;
use crate::flex::{self, Floats};
use crate::matrix::{View, product};
use crate::simd::{dot, exp, exp_shifted, flushed, kernel, max, sum};
use burn::backend::Flex;
use burn::backend::tensor::FloatTensor;
use rayon::prelude::*;

impl UnrollAttentionOps for Flex {
    fn unroll_attention_rows(
        q: FloatTensor<Self>,
        kv: FloatTensor<Self>,
        layout: Layout,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (heads, plan) = (layout.heads, &layout.plan);
        let inputs = Inputs::new(&Floats::new(q), &Floats::new(kv), &layout);
        let parts = tasks(plan, heads, |task| forward(&inputs, &task));
        let mut out = flex::zeros(plan.queries() * heads.query_width());
        let mut denominator = flex::zeros(plan.queries() * heads.query);
        for (task, (o, d)) in parts {
            scatter(
                &mut out,
                &o,
                task.query,
                heads.query_width(),
                task.head * heads.group() * heads.dim,
                heads.group() * heads.dim,
            );
            scatter(&mut denominator, &d, task.query, heads.query, task.head * heads.group(), heads.group());
        }
        (
            flex::tensor(out, [plan.queries(), heads.query_width()]),
            flex::tensor(denominator, [plan.queries(), heads.query]),
        )
    }

    fn unroll_attention_gradient(
        q: FloatTensor<Self>,
        kv: FloatTensor<Self>,
        out: FloatTensor<Self>,
        denominator: FloatTensor<Self>,
        dout: FloatTensor<Self>,
        layout: Layout,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (heads, plan) = (layout.heads, &layout.plan);
        let inputs = Inputs::new(&Floats::new(q), &Floats::new(kv), &layout);
        let (out, denominator, dout) = (Floats::new(out), Floats::new(denominator), Floats::new(dout));
        let saved = Saved { out: out.values(), denominator: denominator.values(), dout: dout.values() };
        let parts = tasks(plan, heads, |task| backward(&inputs, &task, &saved));
        let (qw, kw, width) = (heads.query_width(), heads.key_width(), heads.group() * heads.dim);
        let rows = plan.keys() + layout.step * plan.queries();
        let (mut dq, mut dkv) = (flex::zeros(plan.queries() * qw), flex::zeros(rows * 2 * kw));
        for (task, grad) in parts {
            scatter(&mut dq, &grad.dq, task.query, qw, task.head * width, width);
            for (table, at) in [(&grad.dk, task.head * heads.dim), (&grad.dv, kw + task.head * heads.dim)] {
                let (first, later) = table.split_at(task.segment.keys * heads.dim);
                scatter(&mut dkv, first, task.key, 2 * kw, at, heads.dim);
                for (j, own) in later.chunks_exact((task.segment.queries * heads.dim).max(1)).enumerate() {
                    scatter(&mut dkv, own, plan.keys() + j * plan.queries() + task.query, 2 * kw, at, heads.dim);
                }
            }
        }
        dq.chunks_exact_mut(qw)
            .zip(plan.query_positions(layout.step))
            .for_each(|(row, p)| layout.rope.rotate_back(row, p));
        let positions = plan.key_positions(layout.step);
        dkv.chunks_exact_mut(2 * kw).zip(positions).for_each(|(row, p)| layout.rope.rotate_back(&mut row[..kw], p));
        (flex::tensor(dq, [plan.queries(), qw]), flex::tensor(dkv, [rows, 2 * kw]))
    }
}

/// Copies the packed `rows × width` numbers of `part` into columns `at..` of a table from row `first` on.
fn scatter(table: &mut [f32], part: &[f32], first: usize, stride: usize, at: usize, width: usize) {
    for (i, row) in part.chunks_exact(width).enumerate() {
        let start = (first + i) * stride + at;
        table[start..start + width].copy_from_slice(row);
    }
}

/// Work of one thread: one conversation and one key head.
#[derive(Clone, Copy)]
struct Task {
    segment: UnrollSegment,
    key: usize,
    query: usize,
    head: usize,
}

fn tasks<R: Send>(plan: &UnrollPlan, heads: Heads, run: impl Fn(Task) -> R + Sync) -> Vec<(Task, R)> {
    let list: Vec<Task> = plan
        .starts()
        .flat_map(|(segment, key, query)| (0..heads.key).map(move |head| Task { segment, key, query, head }))
        .collect();
    list.into_par_iter().map(|task| (task, run(task))).collect()
}

/// Rotated queries, keys and plain values.
struct Inputs<'a> {
    q: Vec<f32>,
    /// `[rows, k | v]`, keys rotated.
    kv: Vec<f32>,
    layout: &'a Layout,
}

/// What the forward pass left, and the gradient that came back.
struct Saved<'a> {
    out: &'a [f32],
    denominator: &'a [f32],
    dout: &'a [f32],
}

/// Gradients of one task: `dq [queries · group, dim]`; `dk`, `dv` `[keys + step·queries, dim]`.
struct Gradient {
    dq: Vec<f32>,
    dk: Vec<f32>,
    dv: Vec<f32>,
}

/// Numbers of one task, gathered into contiguous rows.
struct Local {
    /// `[queries · group, dim]`
    q: Vec<f32>,
    /// `[keys + step·queries, dim]`
    k: Vec<f32>,
    v: Vec<f32>,
}

/// Query rows handled together: bounds the score matrix.
const ROW_BLOCK: usize = 64;

impl<'a> Inputs<'a> {
    fn new(q: &Floats, kv: &Floats, layout: &'a Layout) -> Self {
        let (mut q, mut kv) = (q.values().to_vec(), kv.values().to_vec());
        let (qw, kw) = (layout.heads.query_width(), layout.heads.key_width());
        q.chunks_exact_mut(qw)
            .zip(layout.plan.query_positions(layout.step))
            .for_each(|(row, p)| layout.rope.rotate(row, p));
        let positions = layout.plan.key_positions(layout.step);
        kv.chunks_exact_mut(2 * kw).zip(positions).for_each(|(row, p)| layout.rope.rotate(&mut row[..kw], p));
        Self { q, kv, layout }
    }

    fn gather(&self, task: &Task) -> Local {
        let (heads, plan) = (self.layout.heads, &self.layout.plan);
        let (dim, kw) = (heads.dim, heads.key_width());
        let mut local = Local { q: self.columns(&self.q, task, heads.group() * dim), k: Vec::new(), v: Vec::new() };
        let own = (0..self.layout.step).map(|j| (plan.keys() + j * plan.queries() + task.query, task.segment.queries));
        for (first, count) in std::iter::once((task.key, task.segment.keys)).chain(own) {
            for row in self.kv[first * 2 * kw..(first + count) * 2 * kw].chunks_exact(2 * kw) {
                local.k.extend_from_slice(&row[task.head * dim..(task.head + 1) * dim]);
                local.v.extend_from_slice(&row[kw + task.head * dim..kw + (task.head + 1) * dim]);
            }
        }
        local
    }

    /// The task's columns of a table with one row per query, `width` columns per key head.
    fn columns(&self, table: &[f32], task: &Task, width: usize) -> Vec<f32> {
        let stride = width * self.layout.heads.key;
        let rows = &table[task.query * stride..(task.query + task.segment.queries) * stride];
        rows.chunks_exact(stride)
            .flat_map(|row| row[task.head * width..(task.head + 1) * width].iter().copied())
            .collect()
    }

    /// Scaled scores of rows `from..to` against the step-0 keys they may see: `[(to-from) · group, seen]`.
    #[inline(always)]
    fn scores(&self, local: &Local, task: &Task, from: usize, to: usize) -> (Vec<f32>, usize) {
        let heads = self.layout.heads;
        let (dim, count, seen) = (heads.dim, (to - from) * heads.group(), task.segment.first_query + to);
        let mut scores = vec![0.0; count * seen];
        let q = View::new(&local.q[from * heads.group() * dim..], count, dim, dim);
        product(&mut scores, seen, q, View::new(&local.k, seen, dim, dim).t(), heads.scale(), false);
        (scores, seen)
    }

    /// Row of the local key table that holds the own key of query row `row` at later step `j` (from 1).
    fn own_row(task: &Task, j: usize, row: usize) -> usize {
        task.segment.keys + (j - 1) * task.segment.queries + row
    }

    /// Gradients through one own key (row `own` of the local tables) of query `at`.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    fn own_gradient(
        &self,
        local: &Local,
        grad: &mut Gradient,
        at: usize,
        own: usize,
        dout: &[f32],
        denominator: f32,
        along: f32,
    ) {
        let (dim, scale) = (self.layout.heads.dim, self.layout.heads.scale());
        let (asks, own) = (at * dim..(at + 1) * dim, own * dim..(own + 1) * dim);
        let (q, k, v) = (&local.q[asks.clone()], &local.k[own.clone()], &local.v[own.clone()]);
        let weight = exp(dot(q, k) * scale - denominator);
        let dscore = weight * (dot(dout, v) - along) * scale;
        axpy(&mut grad.dq[asks], dscore, k);
        axpy(&mut grad.dk[own.clone()], dscore, q);
        axpy(&mut grad.dv[own], weight, dout);
    }
}

kernel! {
    fn forward(inputs: &Inputs, task: &Task) -> (Vec<f32>, Vec<f32>) {
        let (heads, step) = (inputs.layout.heads, inputs.layout.step);
        let (dim, group, queries) = (heads.dim, heads.group(), task.segment.queries);
        let local = inputs.gather(task);
        let (mut out, mut denominator) = (vec![0.0; queries * group * dim], vec![0.0; queries * group]);
        for from in (0..queries).step_by(ROW_BLOCK) {
            let to = (from + ROW_BLOCK).min(queries);
            let (mut scores, seen) = inputs.scores(&local, task, from, to);
            let mut own = vec![0.0; step];
            let mut own_weights = vec![0.0; (to - from) * group * step];
            for (i, scores) in scores.chunks_exact_mut(seen).enumerate() {
                let (row, at) = (from + i / group, from * group + i);
                let visible = task.segment.first_query + row + 1;
                let q = &local.q[at * dim..(at + 1) * dim];
                for j in 1..=step {
                    let key = Inputs::own_row(task, j, row) * dim;
                    own[j - 1] = dot(q, &local.k[key..key + dim]) * heads.scale();
                }
                denominator[at] = softmax(scores, visible, &mut own);
                own_weights[i * step..(i + 1) * step].copy_from_slice(&own);
            }
            let rows = (to - from) * group;
            let block = &mut out[from * group * dim..to * group * dim];
            product(block, dim, View::new(&scores, rows, seen, seen), View::new(&local.v, seen, dim, dim), 1.0, false);
            for (i, out) in block.chunks_exact_mut(dim).enumerate() {
                for j in 1..=step {
                    let value = Inputs::own_row(task, j, from + i / group) * dim;
                    axpy(out, own_weights[i * step + j - 1], &local.v[value..value + dim]);
                }
            }
        }
        (out, denominator)
    }
}

kernel! {
    fn backward(inputs: &Inputs, task: &Task, saved: &Saved) -> Gradient {
        let (heads, step) = (inputs.layout.heads, inputs.layout.step);
        let (dim, group, queries) = (heads.dim, heads.group(), task.segment.queries);
        let local = inputs.gather(task);
        let out = inputs.columns(saved.out, task, group * dim);
        let dout = inputs.columns(saved.dout, task, group * dim);
        let denominator = inputs.columns(saved.denominator, task, group);
        let mut grad =
            Gradient { dq: vec![0.0; local.q.len()], dk: vec![0.0; local.k.len()], dv: vec![0.0; local.v.len()] };
        for from in (0..queries).step_by(ROW_BLOCK) {
            let to = (from + ROW_BLOCK).min(queries);
            let rows = (to - from) * group;
            let (mut weights, seen) = inputs.scores(&local, task, from, to);
            let mut dscores = vec![0.0; rows * seen];
            let block = View::new(&dout[from * group * dim..], rows, dim, dim);
            product(&mut dscores, seen, block, View::new(&local.v, seen, dim, dim).t(), 1.0, false);
            for i in 0..rows {
                let (row, at) = (from + i / group, from * group + i);
                let visible = task.segment.first_query + row + 1;
                let (o, d) = (&out[at * dim..(at + 1) * dim], &dout[at * dim..(at + 1) * dim]);
                let along = dot(o, d);
                let weights = &mut weights[i * seen..(i + 1) * seen];
                let dscores = &mut dscores[i * seen..(i + 1) * seen];
                score_gradient(weights, dscores, visible, denominator[at], along, heads.scale());
                for j in 1..=step {
                    inputs.own_gradient(&local, &mut grad, at, Inputs::own_row(task, j, row), d, denominator[at], along);
                }
            }
            let q = View::new(&local.q[from * group * dim..], rows, dim, dim);
            let (weights, dscores) = (View::new(&weights, rows, seen, seen), View::new(&dscores, rows, seen, seen));
            let dq = &mut grad.dq[from * group * dim..to * group * dim];
            product(dq, dim, dscores, View::new(&local.k, seen, dim, dim), 1.0, true);
            product(&mut grad.dk, dim, dscores.t(), q, 1.0, true);
            product(&mut grad.dv, dim, weights.t(), block, 1.0, true);
        }
        grad
    }
}

#[inline(always)]
fn axpy(y: &mut [f32], a: f32, x: &[f32]) {
    y.iter_mut().zip(x).for_each(|(y, x)| *y += a * x);
}

/// Softmax over the first `visible` scores and all `own` ones, in place (zero beyond); returns the log denominator.
#[inline(always)]
fn softmax(scores: &mut [f32], visible: usize, own: &mut [f32]) -> f32 {
    let (scores, hidden) = scores.split_at_mut(visible);
    hidden.fill(0.0);
    let top = max(scores).max(own.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    exp_shifted(scores, top);
    own.iter_mut().for_each(|s| *s = exp(*s - top));
    let total = sum(scores) + own.iter().sum::<f32>();
    let inverse = total.recip();
    scores.iter_mut().for_each(|s| *s *= inverse);
    own.iter_mut().for_each(|s| *s *= inverse);
    top + total.ln()
}

/// Turns scores into weights and the gradient of the weights into that of the unscaled scores, in place.
#[inline(always)]
fn score_gradient(weights: &mut [f32], dscores: &mut [f32], visible: usize, denominator: f32, along: f32, scale: f32) {
    weights[visible..].fill(0.0);
    dscores[visible..].fill(0.0);
    for (w, d) in weights[..visible].iter_mut().zip(&mut dscores[..visible]) {
        *w = flushed(exp(*w - denominator));
        *d = *w * (*d - along) * scale;
    }
}
