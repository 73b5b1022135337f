//! Attention of packed new rows over a preallocated key/value cache, with rotary positions and any ancestor mask.
//!
//! Prefill, decoding, chains and trees are one operation: every segment names the table rows of its
//! entries, how many of them all see, and how its new rows see one another. Rows of other segments are never seen, so there is no padding.

mod cpu;
mod plan;
mod runs;

pub use plan::{CachedPlan, Segment};
pub use runs::Runs;

use crate::flex;
use crate::rope::{RopeTable, indices};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, backend_extension};
use burn::tensor::{Bool, Tensor, TensorData, activation};
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

/// Keys and values of one layer, `[pages · page, key heads · dim]` each; keys are stored rotated.
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
        let seen = s.seen();
        let entries = |table: &Tensor<2>| {
            let runs = s.entries.of(0..seen).map(|(_, rows)| table.clone().narrow(0, rows.start, rows.len()));
            let entries = Tensor::cat(runs.collect(), 0).reshape([seen, heads.key, 1, heads.dim]);
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

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{Device, Distribution, Tolerance};

    /// Rows of the tables.
    const ROWS: usize = 240;

    fn compare(segments: Vec<Segment>, positions: Vec<u32>) {
        let device = Device::flex();
        let heads = Heads { query: 6, key: 2, dim: 16 };
        let rope = Arc::new(RopeTable::new(200, heads.dim, 10_000.0));
        let plan = Arc::new(CachedPlan { segments, positions });
        let noise = |rows, width| Tensor::<2>::random([rows, width], Distribution::Normal(0.0, 1.0), &device);
        let qkv = noise(plan.rows(), heads.joint_width());
        let (keys, values) = (noise(ROWS, heads.key_width()), noise(ROWS, heads.key_width()));
        let cache = || LayerCache { keys: keys.clone(), values: values.clone() };
        let (a, cache_a) = cached_attention(qkv.clone(), cache(), heads, &rope, &plan);
        let (b, cache_b) = reference(qkv.clone(), cache(), heads, &rope, &plan);
        let tolerance = Tolerance::<f32>::rel_abs(1e-4, 2e-5);
        a.clone().into_data().assert_approx_eq::<f32>(&b.into_data(), tolerance);
        for (a, b) in [(&cache_a.keys, cache_b.keys), (&cache_a.values, cache_b.values)] {
            a.clone().into_data().assert_approx_eq::<f32>(&b.into_data(), tolerance);
        }
        let scattered = Scattered::new(&plan.segments);
        let moved = LayerCache { keys: scattered.table(&keys), values: scattered.table(&values) };
        let plan = CachedPlan { segments: scattered.segments.clone(), positions: plan.positions.clone() };
        let (c, cache_c) = cached_attention(qkv, moved, heads, &rope, &Arc::new(plan));
        c.into_data().assert_approx_eq::<f32>(&a.into_data(), tolerance);
        // What is written is the same to the bit, and nothing else is touched.
        for (c, a) in [(cache_c.keys, cache_a.keys), (cache_c.values, cache_a.values)] {
            c.into_data().assert_eq(&scattered.table(&a).into_data(), true);
        }
    }

    /// The same segments with their entries in pages of three rows, in another order.
    struct Scattered {
        segments: Vec<Segment>,
        /// Where the table's rows come from.
        source: Vec<usize>,
    }

    impl Scattered {
        fn new(segments: &[Segment]) -> Self {
            let target: Vec<usize> = (0..ROWS).map(|row| row / 3 * 77 % 80 * 3 + row % 3).collect();
            let mut source = vec![0; ROWS];
            target.iter().enumerate().for_each(|(from, &to)| source[to] = from);
            let scatter = |s: &Segment| {
                let mut entries = Runs::default();
                s.entries.rows(0..s.seen()).for_each(|row| entries.push(target[row]..target[row] + 1));
                Segment { entries, ..s.clone() }
            };
            Self { segments: segments.iter().map(scatter).collect(), source }
        }

        fn table(&self, table: &Tensor<2>) -> Tensor<2> {
            table.clone().select(0, indices(self.source.iter().copied(), &table.device()))
        }
    }

    #[test]
    fn ragged_prefill_matches_the_reference() {
        let positions = (0..70).chain(5..6).chain(0..9).collect();
        compare(vec![Segment::chain(160, 0, 70), Segment::chain(0, 5, 1), Segment::chain(80, 0, 9)], positions);
    }

    #[test]
    fn trees_see_their_ancestors_only() {
        let tree = |rows: usize| (0..rows).map(|i| if i == 0 { None } else { Some((i - 1) / 2) }).collect::<Vec<_>>();
        let segments = vec![Segment::tree(80, 20, 7, tree(7)), Segment::tree(0, 0, 3, vec![None, None, Some(0)])];
        compare(segments, vec![20, 21, 21, 22, 22, 22, 22, 0, 0, 1]);
    }

    #[test]
    fn a_level_sees_its_ancestors_of_earlier_passes_only() {
        let parents = vec![None, None, Some(0), Some(1), Some(1), Some(3), Some(2), Some(3)];
        let segments = vec![Segment::chain(160, 4, 2), Segment::tree(0, 9, 3, parents)];
        compare(segments, vec![4, 5, 11, 11, 11]);
    }
}
