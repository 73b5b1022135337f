//! Attention over the cache on the CPU: a task for each key head and block of rows, over runs of adjacent entries.

use super::plan::ancestors;
use super::{CachedAttentionOps, CachedPlan, Heads, Segment};
use crate::flex::{self, Floats};
use crate::matrix::{View, product};
use crate::rope::RopeTable;
use crate::simd::{dot, exp_shifted, kernel, max, sum};
use burn::backend::Flex;
use burn::backend::tensor::FloatTensor;
use rayon::prelude::*;
use std::ops::Range;
use std::sync::Arc;

impl CachedAttentionOps for Flex {
    fn cached_attention_rows(
        qkv: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        heads: Heads,
        rope: Arc<RopeTable>,
        plan: Arc<CachedPlan>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let (qkv, mut keys, mut values) = (Floats::new(qkv), Floats::new(keys), Floats::new(values));
        let queries = write_rows(qkv.values(), keys.values_mut(), values.values_mut(), heads, &rope, &plan);
        let out = attend(&queries, keys.values(), values.values(), heads, &plan);
        (flex::tensor(out, [plan.rows(), heads.query_width()]), keys.into_tensor(), values.into_tensor())
    }
}

/// Writes rotated keys and values to their cache rows; returns the rotated queries `[rows, query heads · dim]`.
fn write_rows(
    qkv: &[f32],
    keys: &mut [f32],
    values: &mut [f32],
    heads: Heads,
    rope: &RopeTable,
    plan: &CachedPlan,
) -> Vec<f32> {
    let (qw, kw) = (heads.query_width(), heads.key_width());
    let mut queries = flex::zeros(plan.rows() * qw);
    for ((row, destination), &position) in plan.destinations().enumerate().zip(&plan.positions) {
        let source = &qkv[row * heads.joint_width()..(row + 1) * heads.joint_width()];
        let (q, key) = (&mut queries[row * qw..(row + 1) * qw], &mut keys[destination * kw..(destination + 1) * kw]);
        q.copy_from_slice(&source[..qw]);
        rope.rotate(q, position as usize);
        key.copy_from_slice(&source[qw..qw + kw]);
        rope.rotate(key, position as usize);
        values[destination * kw..(destination + 1) * kw].copy_from_slice(&source[qw + kw..]);
    }
    queries
}

/// New rows that one task takes: bounds the score matrix to what stays in the second-level cache.
const ROW_BLOCK: usize = 48;

/// Work of one thread: some new rows of one segment, and the query heads of one key head.
struct Task<'a> {
    segment: &'a Segment,
    /// Packed row of the segment's first row.
    first: usize,
    /// Rows of the segment, from and to.
    rows: Range<usize>,
    key_head: usize,
}

fn attend(queries: &[f32], keys: &[f32], values: &[f32], heads: Heads, plan: &CachedPlan) -> Vec<f32> {
    let mut tasks = Vec::new();
    let mut first = 0;
    for segment in &plan.segments {
        for from in (0..segment.rows).step_by(ROW_BLOCK) {
            let rows = from..(from + ROW_BLOCK).min(segment.rows);
            tasks.extend((0..heads.key).map(|key_head| Task { segment, first, rows: rows.clone(), key_head }));
        }
        first += segment.rows;
    }
    let parts: Vec<Vec<f32>> = tasks.par_iter().map(|t| attend_task(t, queries, keys, values, heads)).collect();
    let width = heads.group() * heads.dim;
    let mut out = flex::zeros(plan.rows() * heads.query_width());
    for (task, part) in tasks.iter().zip(&parts) {
        for (row, values) in task.rows.clone().zip(part.chunks_exact(width)) {
            let at = (task.first + row) * heads.query_width() + task.key_head * width;
            out[at..at + width].copy_from_slice(values);
        }
    }
    out
}

kernel! {
    fn attend_task(task: &Task, queries: &[f32], keys: &[f32], values: &[f32], heads: Heads) -> Vec<f32> {
        let (segment, dim, group) = (task.segment, heads.dim, heads.group());
        let seen = if segment.parents.is_none() { segment.cached + task.rows.end } else { segment.seen() };
        let width = group * dim;
        let mut q = Vec::with_capacity(task.rows.len() * width);
        for row in task.rows.clone() {
            let at = (task.first + row) * heads.query_width() + task.key_head * width;
            q.extend_from_slice(&queries[at..at + width]);
        }
        let count = task.rows.len() * group;
        let mut scores = vec![0.0; count * seen];
        for (first, rows) in segment.entries.of(0..seen) {
            score(&mut scores, &q, head(keys, &rows, task.key_head, heads), count, (first, rows.len(), seen), heads);
        }
        for (i, scores) in scores.chunks_exact_mut(seen).enumerate() {
            softmax(scores, segment, task.rows.start + i / group);
        }
        let mut out = vec![0.0; count * dim];
        for (first, rows) in segment.entries.of(0..seen) {
            mix(&mut out, &scores, head(values, &rows, task.key_head, heads), count, (first, rows.len(), seen), heads);
        }
        out
    }
}

/// The part of `table` that holds `key_head` of adjacent `rows`, not empty: as many vectors, `key_width` apart.
#[inline(always)]
fn head<'a>(table: &'a [f32], rows: &Range<usize>, key_head: usize, heads: Heads) -> &'a [f32] {
    let (first, last) = (rows.start * heads.key_width(), (rows.end - 1) * heads.key_width());
    &table[first + key_head * heads.dim..last + (key_head + 1) * heads.dim]
}

/// Query rows below which plain loops beat a blocked matrix product.
const FEW: usize = 16;

/// Scores of `run` adjacent entries from number `first` of `seen` on.
#[inline(always)]
fn score(
    scores: &mut [f32],
    q: &[f32],
    keys: &[f32],
    count: usize,
    (first, run, seen): (usize, usize, usize),
    heads: Heads,
) {
    let (dim, stride) = (heads.dim, heads.key_width());
    if count > FEW {
        return product(
            &mut scores[first..],
            seen,
            View::new(q, count, dim, dim),
            View::new(keys, run, dim, stride).t(),
            heads.scale(),
            false,
        );
    }
    for j in 0..run {
        let key = &keys[j * stride..j * stride + dim];
        for (i, q) in q.chunks_exact(dim).enumerate() {
            scores[i * seen + first + j] = dot(q, key) * heads.scale();
        }
    }
}

/// Softmax over what `row` of the segment sees; exactly zero elsewhere.
#[inline(always)]
fn softmax(scores: &mut [f32], segment: &Segment, row: usize) {
    if let Some(parents) = &segment.parents {
        let mut branch: Vec<usize> = ancestors(parents, segment.ahead() + row).collect();
        branch.reverse();
        return branch_softmax(scores, segment.cached, &branch);
    }
    let (scores, hidden) = scores.split_at_mut(segment.cached + row + 1);
    hidden.fill(0.0);
    normalise(scores);
}

/// Softmax over the first `cached` scores and those of the provisional rows in `branch`.
#[inline(always)]
fn branch_softmax(scores: &mut [f32], cached: usize, branch: &[usize]) {
    let provisional: Vec<f32> = branch.iter().map(|&r| scores[cached + r]).collect();
    scores[cached..cached + branch.len()].copy_from_slice(&provisional);
    normalise(&mut scores[..cached + branch.len()]);
    let weights = scores[cached..cached + branch.len()].to_vec();
    scores[cached..].fill(0.0);
    branch.iter().zip(weights).for_each(|(&r, weight)| scores[cached + r] = weight);
}

#[inline(always)]
fn normalise(scores: &mut [f32]) {
    let top = max(scores);
    exp_shifted(scores, top);
    let inverse = sum(scores).recip();
    scores.iter_mut().for_each(|s| *s *= inverse);
}

/// Adds the values of `run` adjacent entries from number `first` of `seen` on, by their weights.
#[inline(always)]
fn mix(
    out: &mut [f32],
    weights: &[f32],
    values: &[f32],
    count: usize,
    (first, run, seen): (usize, usize, usize),
    heads: Heads,
) {
    let (dim, stride) = (heads.dim, heads.key_width());
    if count > FEW {
        let weights = View::new(&weights[first..], count, run, seen);
        return product(out, dim, weights, View::new(values, run, dim, stride), 1.0, first > 0);
    }
    for j in 0..run {
        let value = &values[j * stride..j * stride + dim];
        for (i, out) in out.chunks_exact_mut(dim).enumerate() {
            let weight = weights[i * seen + first + j];
            out.iter_mut().zip(value).for_each(|(o, v)| *o += weight * v);
        }
    }
}
