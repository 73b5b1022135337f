//! Attention of packed new rows over a preallocated key/value cache, with rotary positions and any ancestor mask.
//!
//! Prefill, decoding, chains and trees are one operation: every segment names a cache slot, how much of it is
//! visible, and how its new rows see one another. Rows of other segments are never seen, so there is no padding.

use crate::flex::{self, Floats};
use crate::matrix::{View, product};
use crate::rope::{RopeTable, indices};
use crate::simd::{dot, exp_shifted, kernel, max, sum};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, Flex, backend_extension};
use burn::tensor::{Bool, Tensor, TensorData, activation};
use rayon::prelude::*;
use std::sync::Arc;

/// Sizes of grouped-query attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heads {
    /// Query heads; a multiple of `key`.
    pub query: usize,
    /// Key and value heads.
    pub key: usize,
    /// Width of one head.
    pub dim: usize,
}

impl Heads {
    /// Query heads per key head.
    pub fn group(&self) -> usize {
        self.query / self.key
    }

    /// Width of all query heads together.
    pub fn query_width(&self) -> usize {
        self.query * self.dim
    }

    /// Width of all key heads together, which is also that of the values.
    pub fn key_width(&self) -> usize {
        self.key * self.dim
    }

    /// Width of the joint projection `[q | k | v]`.
    pub fn joint_width(&self) -> usize {
        self.query_width() + 2 * self.key_width()
    }

    /// Factor on the scores, `1/√dim`.
    pub fn scale(&self) -> f32 {
        (self.dim as f32).sqrt().recip()
    }
}

/// New rows of one request.
///
/// Rows behind the first `cached` entries are *provisional*. A tree may be written in several passes, a level each: then
/// `parents` also names the provisional rows of earlier passes, which stand first.
#[derive(Debug, Clone)]
pub struct Segment {
    /// Cache slot of the request.
    pub slot: usize,
    /// Entries of the slot that all new rows see; provisional rows stand behind them.
    pub cached: usize,
    /// Number of new rows.
    pub rows: usize,
    /// For each provisional row, the new ones last, the provisional row it follows (`None`: only the first `cached`
    /// entries precede it). `None` for the whole: a chain of new rows.
    pub parents: Option<Vec<Option<usize>>>,
}

impl Segment {
    /// A chain of `rows` new rows behind `cached` entries of `slot`.
    pub fn chain(slot: usize, cached: usize, rows: usize) -> Self {
        Self { slot, cached, rows, parents: None }
    }

    /// Provisional rows of earlier passes.
    pub fn ahead(&self) -> usize {
        self.parents.as_ref().map_or(0, |parents| parents.len() - self.rows)
    }

    /// Whether new row `row` sees provisional row `other`: itself and its ancestors.
    pub fn sees(&self, row: usize, other: usize) -> bool {
        match &self.parents {
            None => other <= row,
            Some(parents) => ancestors(parents, self.ahead() + row).any(|r| r == other),
        }
    }
}

/// Provisional row `row` and those before it on its branch.
fn ancestors(parents: &[Option<usize>], row: usize) -> impl Iterator<Item = usize> + '_ {
    std::iter::successors(Some(row), |&r| parents[r])
}

/// Which packed rows belong to which request, and where they stand.
#[derive(Debug, Clone)]
pub struct CachedPlan {
    /// Segments in the order of their rows.
    pub segments: Vec<Segment>,
    /// Position id of every packed row.
    pub positions: Vec<u32>,
    /// Entries per slot.
    pub capacity: usize,
}

impl CachedPlan {
    /// Number of packed rows.
    pub fn rows(&self) -> usize {
        self.positions.len()
    }

    /// Cache row of every packed row.
    fn destinations(&self) -> impl Iterator<Item = usize> + '_ {
        let capacity = self.capacity;
        self.segments.iter().flat_map(move |s| {
            let first = s.slot * capacity + s.cached + s.ahead();
            first..first + s.rows
        })
    }

    fn check(&self, cache_rows: usize) {
        assert_eq!(self.segments.iter().map(|s| s.rows).sum::<usize>(), self.rows(), "segments do not cover the rows");
        for s in &self.segments {
            let end = s.cached + s.ahead() + s.rows;
            assert!(end <= self.capacity, "slot {} overflows its {} entries", s.slot, self.capacity);
            let ordered =
                |parents: &Vec<Option<usize>>| parents.iter().enumerate().all(|(i, p)| p.is_none_or(|p| p < i));
            assert!(s.parents.as_ref().is_none_or(ordered), "slot {}: a row stands before its parent", s.slot);
            assert!((s.slot + 1) * self.capacity <= cache_rows, "slot {} does not exist", s.slot);
        }
    }
}

/// Keys and values of one layer, `[slots · capacity, key heads · dim]` each; keys are stored rotated.
#[derive(Debug)]
pub struct LayerCache {
    /// Keys.
    pub keys: Tensor<2>,
    /// Values.
    pub values: Tensor<2>,
}

/// Writes the keys and values of the joint projection `qkv [rows, q | k | v]` into `cache` and returns the attention
/// output `[rows, query heads · dim]`.
pub fn cached_attention(
    qkv: Tensor<2>,
    cache: LayerCache,
    heads: Heads,
    rope: &Arc<RopeTable>,
    plan: &Arc<CachedPlan>,
) -> (Tensor<2>, LayerCache) {
    plan.check(cache.keys.dims()[0]);
    if !flex::is_fused(&qkv.device()) {
        return reference(qkv, cache, heads, rope, plan);
    }
    let (out, keys, values) = Dispatch::cached_attention_rows(
        qkv.into_dispatch(),
        cache.keys.into_dispatch(),
        cache.values.into_dispatch(),
        heads,
        rope.clone(),
        plan.clone(),
    );
    let cache = LayerCache { keys: Tensor::from_dispatch(keys), values: Tensor::from_dispatch(values) };
    (Tensor::from_dispatch(out), cache)
}

/// The same in plain tensor operations, one segment after the other.
pub fn reference(
    qkv: Tensor<2>,
    cache: LayerCache,
    heads: Heads,
    rope: &RopeTable,
    plan: &CachedPlan,
) -> (Tensor<2>, LayerCache) {
    let device = qkv.device();
    let rows = plan.rows();
    let split =
        |start, count| qkv.clone().narrow(1, start * heads.dim, count * heads.dim).reshape([rows, count, heads.dim]);
    let q = rope.rotate_tensor(split(0, heads.query), &plan.positions);
    let k = rope.rotate_tensor(split(heads.query, heads.key), &plan.positions).reshape([rows, heads.key_width()]);
    let v = split(heads.query + heads.key, heads.key).reshape([rows, heads.key_width()]);
    let destinations = indices(plan.destinations(), &device);
    let write = |table: Tensor<2>, new: Tensor<2>| {
        let old = table.clone().select(0, destinations.clone());
        table.select_assign(0, destinations.clone(), new - old, burn::tensor::IndexingUpdateOp::Add)
    };
    let (keys, values) = (write(cache.keys, k), write(cache.values, v));

    let mut outputs = Vec::new();
    let mut start = 0;
    for s in &plan.segments {
        let seen = s.cached + s.ahead() + s.rows;
        let entries = |table: &Tensor<2>| {
            let entries =
                table.clone().narrow(0, s.slot * plan.capacity, seen).reshape([seen, heads.key, 1, heads.dim]);
            entries.repeat_dim(2, heads.group()).reshape([seen, heads.query, heads.dim]).swap_dims(0, 1)
        };
        let q = q.clone().narrow(0, start, s.rows).swap_dims(0, 1);
        let scores = q.matmul(entries(&keys).swap_dims(1, 2)) * heads.scale();
        let hidden: Vec<bool> =
            (0..s.rows * seen).map(|i| i % seen >= s.cached && !s.sees(i / seen, i % seen - s.cached)).collect();
        let mask = Tensor::<3, Bool>::from_data(TensorData::new(hidden, [1, s.rows, seen]), &device);
        let scores = scores.mask_fill(mask.expand([heads.query, s.rows, seen]), f32::NEG_INFINITY);
        let out = activation::softmax(scores, 2).matmul(entries(&values));
        outputs.push(out.swap_dims(0, 1).reshape([s.rows, heads.query_width()]));
        start += s.rows;
    }
    (Tensor::cat(outputs, 0), LayerCache { keys, values })
}

/// Backend form. Shapes as in [`cached_attention`].
#[backend_extension(Flex)]
pub trait CachedAttentionOps: Backend {
    /// Attention output, and the caches with the new rows written.
    fn cached_attention_rows(
        qkv: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        heads: Heads,
        rope: Arc<RopeTable>,
        plan: Arc<CachedPlan>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);
}

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
    rows: std::ops::Range<usize>,
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
    let parts: Vec<Vec<f32>> =
        tasks.par_iter().map(|t| attend_task(t, queries, keys, values, heads, plan.capacity)).collect();
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
    fn attend_task(task: &Task, queries: &[f32], keys: &[f32], values: &[f32], heads: Heads, capacity: usize) -> Vec<f32> {
        let (segment, dim, group) = (task.segment, heads.dim, heads.group());
        let seen = segment.cached + if segment.parents.is_none() { task.rows.end } else { segment.ahead() + segment.rows };
        let width = group * dim;
        let mut q = Vec::with_capacity(task.rows.len() * width);
        for row in task.rows.clone() {
            let at = (task.first + row) * heads.query_width() + task.key_head * width;
            q.extend_from_slice(&queries[at..at + width]);
        }
        let count = task.rows.len() * group;
        let base = segment.slot * capacity * heads.key_width() + task.key_head * dim;
        let entries = |table: &'_ [f32]| -> std::ops::Range<usize> { base..(base + (seen - 1) * heads.key_width() + dim).min(table.len()) };
        let (keys, values) = (&keys[entries(keys)], &values[entries(values)]);
        let mut scores = vec![0.0; count * seen];
        score(&mut scores, &q, keys, count, seen, heads);
        for (i, scores) in scores.chunks_exact_mut(seen).enumerate() {
            softmax(scores, segment, task.rows.start + i / group);
        }
        let mut out = vec![0.0; count * dim];
        mix(&mut out, &scores, values, count, seen, heads);
        out
    }
}

/// Query rows below which plain loops beat a blocked matrix product.
const FEW: usize = 16;

#[inline(always)]
fn score(scores: &mut [f32], q: &[f32], keys: &[f32], count: usize, seen: usize, heads: Heads) {
    let (dim, stride) = (heads.dim, heads.key_width());
    if count > FEW {
        return product(
            scores,
            seen,
            View::new(q, count, dim, dim),
            View::new(keys, seen, dim, stride).t(),
            heads.scale(),
            false,
        );
    }
    for j in 0..seen {
        let key = &keys[j * stride..j * stride + dim];
        for (i, q) in q.chunks_exact(dim).enumerate() {
            scores[i * seen + j] = dot(q, key) * heads.scale();
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

#[inline(always)]
fn mix(out: &mut [f32], weights: &[f32], values: &[f32], count: usize, seen: usize, heads: Heads) {
    let (dim, stride) = (heads.dim, heads.key_width());
    if count > FEW {
        return product(
            out,
            dim,
            View::new(weights, count, seen, seen),
            View::new(values, seen, dim, stride),
            1.0,
            false,
        );
    }
    for j in 0..seen {
        let value = &values[j * stride..j * stride + dim];
        for (i, out) in out.chunks_exact_mut(dim).enumerate() {
            let weight = weights[i * seen + j];
            out.iter_mut().zip(value).for_each(|(o, v)| *o += weight * v);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{Device, Distribution, Tolerance};

    fn compare(segments: Vec<Segment>, positions: Vec<u32>) {
        let device = Device::flex();
        let heads = Heads { query: 6, key: 2, dim: 16 };
        let (slots, capacity) = (3, 80);
        let rope = Arc::new(RopeTable::new(200, heads.dim, 10_000.0));
        let plan = Arc::new(CachedPlan { segments, positions, capacity });
        let noise = |rows, width| Tensor::<2>::random([rows, width], Distribution::Normal(0.0, 1.0), &device);
        let qkv = noise(plan.rows(), heads.joint_width());
        let (keys, values) = (noise(slots * capacity, heads.key_width()), noise(slots * capacity, heads.key_width()));
        let cache = || LayerCache { keys: keys.clone(), values: values.clone() };
        let (a, cache_a) = cached_attention(qkv.clone(), cache(), heads, &rope, &plan);
        let (b, cache_b) = reference(qkv, cache(), heads, &rope, &plan);
        let tolerance = Tolerance::<f32>::rel_abs(1e-4, 2e-5);
        a.into_data().assert_approx_eq::<f32>(&b.into_data(), tolerance);
        cache_a.keys.into_data().assert_approx_eq::<f32>(&cache_b.keys.into_data(), tolerance);
        cache_a.values.into_data().assert_approx_eq::<f32>(&cache_b.values.into_data(), tolerance);
    }

    #[test]
    fn ragged_prefill_matches_the_reference() {
        let positions = (0..70).chain(5..6).chain(0..9).collect();
        compare(vec![Segment::chain(2, 0, 70), Segment::chain(0, 5, 1), Segment::chain(1, 0, 9)], positions);
    }

    #[test]
    fn trees_see_their_ancestors_only() {
        let tree = |rows: usize| (0..rows).map(|i| if i == 0 { None } else { Some((i - 1) / 2) }).collect::<Vec<_>>();
        let segments = vec![
            Segment { slot: 1, cached: 20, rows: 7, parents: Some(tree(7)) },
            Segment { slot: 0, cached: 0, rows: 3, parents: Some(vec![None, None, Some(0)]) },
        ];
        compare(segments, vec![20, 21, 21, 22, 22, 22, 22, 0, 0, 1]);
    }

    #[test]
    fn a_level_sees_its_ancestors_of_earlier_passes_only() {
        let parents = vec![None, None, Some(0), Some(1), Some(1), Some(3), Some(2), Some(3)];
        let segments = vec![Segment::chain(2, 4, 2), Segment { slot: 0, cached: 9, rows: 3, parents: Some(parents) }];
        compare(segments, vec![4, 5, 11, 11, 11]);
    }
}
