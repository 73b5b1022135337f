//! The unroll of training: the layer over a batch, step after step, each step on the hidden states of the one before.

use super::layer::{Layer, Matrix};
use super::{Eagle3, Eagle3Drafter};
use crate::batch::TrainBatch;
use burn::tensor::Tensor;
use spectrain_kernels::rope::indices;
use spectrain_kernels::unroll_attention::unroll_attention;

/// What a step leaves behind.
pub(super) struct Stepped {
    /// Un-normed hidden states of the query rows, `[queries, hidden]`: what the next step reads.
    pub hidden: Tensor<2>,
    /// Keys and values of all steps so far, `[keys + step · queries, k | v]`.
    pub kv: Tensor<2>,
}

/// A batch on its way through the layer.
pub(super) struct Unroll<'a, M> {
    pub drafter: &'a Eagle3Drafter,
    pub layer: Layer<M>,
    pub batch: &'a TrainBatch,
}

impl<M: Matrix> Unroll<'_, M> {
    /// The fused taps of every key row, `[keys, hidden]`: what step 0 reads.
    pub fn fused(&self) -> Tensor<2> {
        let taps = &self.batch.taps;
        let taps = taps.clone() / self.drafter.scale.sizes(&taps.device());
        let noise = self.batch.noise.as_ref();
        self.layer.fuse(if let Some(noise) = noise { noise.apply(taps, &self.batch.lengths) } else { taps })
    }

    /// Step `k` on `hidden` (of all key rows at step 0, of the query rows later), after steps that left `kv`.
    pub fn step(&self, k: usize, hidden: Tensor<2>, kv: Option<Tensor<2>>) -> Stepped {
        let (drafter, batch, layer) = (self.drafter, self.batch, &self.layer);
        let tokens = if k == 0 { &batch.next } else { &batch.tokens[k] };
        let joined = layer.join(drafter.embed(tokens), hidden.clone());
        let joined = if let Some(dropout) = &batch.dropout { dropout.apply(joined, k) } else { joined };
        let own = layer.kv.apply(joined.clone());
        let kv = if let Some(before) = kv { Tensor::cat(vec![before, own], 0) } else { own };
        let (hidden, joined) = if k == 0 {
            let queries = indices(batch.plan.query_rows(), &hidden.device());
            (hidden.select(0, queries.clone()), joined.select(0, queries))
        } else {
            (hidden, joined)
        };
        let q = layer.q.apply(joined);
        let attended = unroll_attention(q, kv.clone(), k, drafter.config.heads(), &drafter.rope, &batch.plan);
        Stepped { hidden: layer.finish(hidden, attended), kv }
    }
}

impl Eagle3Drafter {
    /// Unrolls `weights` over a batch and hands each step's head input `[queries, hidden]` to `step`.
    pub fn unroll(&self, weights: &Eagle3, batch: &TrainBatch, mut step: impl FnMut(usize, Tensor<2>)) {
        let run = Unroll { drafter: self, layer: weights.learned(&self.config), batch };
        let (mut hidden, mut kv) = (run.fused(), None);
        for k in 0..batch.tokens.len() {
            let stepped = run.step(k, hidden, kv);
            step(k, run.layer.head_input(stepped.hidden.clone()));
            (hidden, kv) = (stepped.hidden, Some(stepped.kv));
        }
    }
}
