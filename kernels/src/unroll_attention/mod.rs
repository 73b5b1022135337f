//! Attention of one unroll step in training (EAGLE-3's training-time test), with its backward pass.
//!
//! At step `k` row `t` sees the step-0 keys of rows `≤ t` of its own conversation and, of every later step
//! `1..=k`, only its own key: memory grows with `rows² + k·rows`, never with `k·rows²`. At run time the same layout
//! is the drafter's cache followed by its own provisional rows.

mod cpu;

use crate::cached_attention::Heads;
use crate::flex;
use crate::rope::RopeTable;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, backend_extension};
use burn::tensor::{Bool, Tensor, TensorData, activation};
use std::sync::Arc;

/// Rows of one conversation.
#[derive(Debug, Clone, Copy)]
pub struct UnrollSegment {
    /// Step-0 key rows; row `i` stands at position `i`.
    pub keys: usize,
    /// The first of them that also asks.
    pub first_query: usize,
    /// Rows that ask, from `first_query` on.
    pub queries: usize,
}

/// The conversations of a batch, packed one after the other.
#[derive(Debug, Clone)]
pub struct UnrollPlan {
    /// Conversations in the order of their rows.
    pub segments: Vec<UnrollSegment>,
}

impl UnrollPlan {
    /// Step-0 key rows of the batch.
    pub fn keys(&self) -> usize {
        self.segments.iter().map(|s| s.keys).sum()
    }

    /// Query rows of the batch.
    pub fn queries(&self) -> usize {
        self.segments.iter().map(|s| s.queries).sum()
    }

    /// Index among the key rows of every query row.
    pub fn query_rows(&self) -> impl Iterator<Item = usize> {
        self.starts().flat_map(|(s, key, _)| (0..s.queries).map(move |i| key + s.first_query + i))
    }

    /// Segments with their first key row and first query row.
    fn starts(&self) -> impl Iterator<Item = (UnrollSegment, usize, usize)> {
        self.segments.iter().scan((0, 0), |(key, query), s| {
            let start = (*s, *key, *query);
            (*key, *query) = (*key + s.keys, *query + s.queries);
            Some(start)
        })
    }

    fn query_positions(&self, step: usize) -> impl Iterator<Item = usize> {
        self.segments.iter().flat_map(move |s| (0..s.queries).map(move |i| s.first_query + i + step))
    }

    /// Positions of the rows of the key table: all step-0 rows, then the query rows of steps `1..=step`.
    fn key_positions(&self, step: usize) -> Vec<usize> {
        let first = self.segments.iter().flat_map(|s| 0..s.keys);
        first.chain((1..=step).flat_map(|k| self.query_positions(k))).collect()
    }
}

/// Attention output `[queries, query heads · dim]` of unroll step `step`.
///
/// `q [queries, query heads · dim]` and `kv [keys + step·queries, 2 · key heads · dim]` are not yet rotated; the rows
/// of `kv` are the step-0 rows followed by the query rows of each later step.
pub fn unroll_attention(
    q: Tensor<2>,
    kv: Tensor<2>,
    step: usize,
    heads: Heads,
    rope: &Arc<RopeTable>,
    plan: &Arc<UnrollPlan>,
) -> Tensor<2> {
    assert_eq!(q.dims(), [plan.queries(), heads.query_width()]);
    assert_eq!(kv.dims(), [plan.keys() + step * plan.queries(), 2 * heads.key_width()]);
    if !flex::is_fused(&q.device()) {
        return reference(q, kv, step, heads, rope, plan);
    }
    let shape = Layout { step, heads, rope: rope.clone(), plan: plan.clone() };
    Tensor::from_dispatch(Dispatch::unroll_attention_out(q.into_dispatch(), kv.into_dispatch(), shape))
}

/// The same in plain tensor operations, one conversation after the other.
pub fn reference(
    q: Tensor<2>,
    kv: Tensor<2>,
    step: usize,
    heads: Heads,
    rope: &RopeTable,
    plan: &UnrollPlan,
) -> Tensor<2> {
    let (device, rows) = (q.device(), kv.dims()[0]);
    let ids = |positions: Vec<usize>| positions.into_iter().map(|p| p as u32).collect::<Vec<_>>();
    let q = rope
        .rotate_tensor(q.reshape([plan.queries(), heads.query, heads.dim]), &ids(plan.query_positions(step).collect()));
    let part = |start| kv.clone().narrow(1, start, heads.key_width()).reshape([rows, heads.key, heads.dim]);
    let k = rope.rotate_tensor(part(0), &ids(plan.key_positions(step)));
    let v = part(heads.key_width());
    let mut outputs = Vec::new();
    for (s, key, query) in plan.starts() {
        let own = |j: usize| plan.keys() + (j - 1) * plan.queries() + query;
        let rows_of = |table: &Tensor<3>, start, count| {
            let rows = table.clone().narrow(0, start, count).unsqueeze_dim::<4>(2).repeat_dim(2, heads.group());
            rows.reshape([count, heads.query, heads.dim]).swap_dims(0, 1)
        };
        let q = q.clone().narrow(0, query, s.queries).swap_dims(0, 1);
        let hidden: Vec<bool> = (0..s.queries * s.keys).map(|i| i % s.keys > s.first_query + i / s.keys).collect();
        let hidden = Tensor::<3, Bool>::from_data(TensorData::new(hidden, [1, s.queries, s.keys]), &device);
        let first = q.clone().matmul(rows_of(&k, key, s.keys).swap_dims(1, 2));
        let first = first.mask_fill(hidden.expand([heads.query, s.queries, s.keys]), f32::NEG_INFINITY);
        let own_scores = (1..=step).map(|j| (q.clone() * rows_of(&k, own(j), s.queries)).sum_dim(2));
        let scores = Tensor::cat(std::iter::once(first).chain(own_scores).collect(), 2) * heads.scale();
        let weights = activation::softmax(scores, 2);
        let mut out = weights.clone().narrow(2, 0, s.keys).matmul(rows_of(&v, key, s.keys));
        for j in 1..=step {
            out = out + weights.clone().narrow(2, s.keys + j - 1, 1) * rows_of(&v, own(j), s.queries);
        }
        outputs.push(out.swap_dims(0, 1).reshape([s.queries, heads.query_width()]));
    }
    Tensor::cat(outputs, 0)
}

/// Everything about an unroll step but its numbers.
#[derive(Debug, Clone)]
pub struct Layout {
    step: usize,
    heads: Heads,
    rope: Arc<RopeTable>,
    plan: Arc<UnrollPlan>,
}

/// Backend form. Shapes as in [`unroll_attention`].
#[backend_extension(Flex, Autodiff)]
pub trait UnrollAttentionOps: Backend {
    /// Attention output.
    fn unroll_attention_out(q: FloatTensor<Self>, kv: FloatTensor<Self>, layout: Layout) -> FloatTensor<Self> {
        Self::unroll_attention_rows(q, kv, layout).0
    }
    /// Attention output and the log of each softmax denominator `[queries, query heads]`.
    fn unroll_attention_rows(
        q: FloatTensor<Self>,
        kv: FloatTensor<Self>,
        layout: Layout,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
    /// Gradients with respect to `q` and `kv`.
    fn unroll_attention_gradient(
        q: FloatTensor<Self>,
        kv: FloatTensor<Self>,
        out: FloatTensor<Self>,
        denominator: FloatTensor<Self>,
        dout: FloatTensor<Self>,
        layout: Layout,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

impl<B: UnrollAttentionOps, C: CheckpointStrategy> UnrollAttentionOps for Autodiff<B, C> {
    fn unroll_attention_out(q: FloatTensor<Self>, kv: FloatTensor<Self>, layout: Layout) -> FloatTensor<Self> {
        #[derive(Debug)]
        struct UnrollAttentionBackward;

        #[derive(Debug, Clone)]
        struct Kept<T> {
            q: T,
            kv: T,
            out: T,
            denominator: T,
            layout: Layout,
        }

        impl<B: UnrollAttentionOps> Backward<B, 2> for UnrollAttentionBackward {
            type State = Kept<B::FloatTensorPrimitive>;

            fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
                let dout = grads.consume::<B>(&ops.node);
                let Kept { q, kv, out, denominator, layout } = ops.state;
                let (dq, dkv) = B::unroll_attention_gradient(q, kv, out, denominator, dout, layout);
                for (parent, grad) in ops.parents.into_iter().zip([dq, dkv]) {
                    if let Some(node) = parent {
                        grads.register::<B>(node.id, grad);
                    }
                }
            }
        }

        let (q, q_node) = q.into_parts();
        let (kv, kv_node) = kv.into_parts();
        let (out, denominator) = B::unroll_attention_rows(q.clone(), kv.clone(), layout.clone());
        match UnrollAttentionBackward.prepare::<C>([q_node, kv_node]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish(Kept { q, kv, out: out.clone(), denominator, layout }, out),
            OpsKind::UnTracked(prep) => prep.finish(out),
        }
    }

    fn unroll_attention_rows(
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: Layout,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        unreachable!("the tracked form is `unroll_attention_out`")
    }

    fn unroll_attention_gradient(
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: Layout,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        unreachable!("gradients are first order")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use burn::tensor::{Device, Distribution, Tolerance};

    fn compare(step: usize) {
        let device = Device::flex().autodiff();
        let heads = Heads { query: 6, key: 2, dim: 8 };
        let rope = Arc::new(RopeTable::new(128, heads.dim, 10_000.0));
        let segment = |keys, first_query, queries| UnrollSegment { keys, first_query, queries };
        let plan = Arc::new(UnrollPlan { segments: vec![segment(90, 10, 75), segment(5, 0, 5), segment(12, 7, 2)] });
        let noise = |rows, width| Tensor::<2>::random([rows, width], Distribution::Normal(0.0, 1.0), &device);
        let q = noise(plan.queries(), heads.query_width()).require_grad();
        let kv = noise(plan.keys() + step * plan.queries(), 2 * heads.key_width()).require_grad();
        let weight = noise(plan.queries(), heads.query_width());
        let run = |out: Tensor<2>| {
            let grads = (out.clone() * weight.clone()).sum().backward();
            (out.into_data(), q.grad(&grads).unwrap().into_data(), kv.grad(&grads).unwrap().into_data())
        };
        let a = run(unroll_attention(q.clone(), kv.clone(), step, heads, &rope, &plan));
        let b = run(reference(q.clone(), kv.clone(), step, heads, &rope, &plan));
        let tolerance = Tolerance::<f32>::rel_abs(2e-4, 2e-5);
        a.0.assert_approx_eq::<f32>(&b.0, tolerance);
        a.1.assert_approx_eq::<f32>(&b.1, tolerance);
        a.2.assert_approx_eq::<f32>(&b.2, tolerance);
    }

    #[test]
    fn first_step_and_gradients_match_the_reference() {
        compare(0);
    }

    #[test]
    fn later_step_and_gradients_match_the_reference() {
        compare(3);
    }
}
