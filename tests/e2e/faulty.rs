//! An EAGLE-3 run time of the tests' own, with one fault if wanted.

use burn::module::Module;
use burn::tensor::Tensor;
use spectrain_core::process::RowError;
use spectrain_draft::eagle3::Layer;
use spectrain_draft::proposer::{Draft, DrafterMemory, Observed, Pick, Plan, Proposer, Wanted};
use spectrain_draft::{Eagle3, Eagle3Drafter};
use spectrain_kernels::cached_attention::{CachedPlan, cached_attention};
use spectrain_kernels::product::Projection;
use spectrain_kernels::rms_norm::rms_norm;
use spectrain_kernels::rope::RopeTable;
use spectrain_model::{KvCache, SlotRows, host_rows, sample::argmax};
use std::sync::Arc;

/// What is wrong with it.
#[derive(Debug, Clone, PartialEq)]
pub enum Injected {
    Nothing,
    /// A row's features meet the token that they belong to; the text begins with this token.
    OwnToken(u32),
    /// A row's features are those of the row before.
    EarlierFeature,
    /// The first proposal is swallowed.
    Swallowed,
    /// The newest row comes too late for the draft.
    LateRow,
    /// The decoder is asked for these layers.
    AskedTaps(Vec<usize>),
    /// The first two taps are fused in the wrong order.
    SwappedTaps,
    /// Steps behind the first stay at the position of the newest row.
    FrozenPosition,
    /// Steps behind the first stand one further.
    FurtherPosition,
    /// Steps behind the first are counted from 0.
    RestartedPosition,
    Theta(f64),
    /// Draft entry `i` is taken for target token `i`, and the decoder is told so.
    ToldMap,
    /// The same, but the decoder is told the right table.
    SilentMap,
    /// `hidden_norm` is forgotten for the fused features.
    UnNormedFeature,
    /// `hidden_norm` is forgotten at every step.
    UnNormedHidden,
    /// Accepted rows keep what drafting wrote.
    KeptDrafts,
    /// Rejected rows stay.
    KeptRejected,
}

pub struct FaultyProposer {
    drafter: Eagle3Drafter,
    weights: Eagle3,
    layer: Layer<Projection>,
    injected: Injected,
    taps: Vec<usize>,
    /// Target token that each draft entry is taken for, and what the decoder is told.
    tables: [Vec<u32>; 2],
    cache: KvCache,
    slots: Vec<Slot>,
}

#[derive(Clone, Default)]
struct Slot {
    /// Hidden state of the newest row.
    newest: Option<Tensor<2>>,
    /// Rows that drafting wrote.
    provisional: usize,
    /// Last token and features that were seen.
    last: Option<(u32, Tensor<2>)>,
    /// A row that waits for its time.
    late: Option<(u32, Tensor<2>)>,
}

impl FaultyProposer {
    pub fn new(drafter: &Eagle3Drafter, weights: &Eagle3, injected: Injected) -> Self {
        let (mut drafter, device) = (drafter.clone(), drafter.embedding.device());
        let (right, identity) = (drafter.vocab.d2t.clone(), (0..drafter.vocab.d2t.len() as u32).collect::<Vec<_>>());
        let tables = match injected {
            Injected::ToldMap => [identity.clone(), identity],
            Injected::SilentMap => [identity, right],
            _ => [right.clone(), right],
        };
        let taps = match &injected {
            Injected::AskedTaps(taps) => taps.clone(),
            _ => drafter.config.taps.clone(),
        };
        if let Injected::Theta(theta) = injected {
            drafter.rope = Arc::new(RopeTable::new(drafter.rope.positions(), drafter.config.head_dim, theta));
        }
        let weights = weights.folded(&drafter.scale).valid().fork(&device);
        let layer = weights.frozen(&drafter.config);
        let cache = KvCache::new(1, 0, 0, drafter.config.heads(), &device);
        Self { drafter, weights, layer, injected, taps, tables, cache, slots: Vec::new() }
    }

    fn is(&self, injected: &Injected) -> bool {
        self.injected == *injected
    }

    /// Rows of `slot` behind its committed ones; `step` is 0 for true rows.
    fn pass(&mut self, slot: usize, tokens: &[u32], hidden: Tensor<2>, step: usize) -> Tensor<2> {
        let eps = self.drafter.config.rms_norm_eps;
        let bare = self.is(&Injected::UnNormedHidden) || (step == 0 && self.is(&Injected::UnNormedFeature));
        let joined = if bare {
            let embedded = rms_norm(self.drafter.embed(tokens), self.weights.input_layernorm.val(), eps);
            Tensor::cat(vec![embedded, hidden.clone()], 1)
        } else {
            self.layer.join(self.drafter.embed(tokens), hidden.clone())
        };
        let qkv = Tensor::cat(vec![self.layer.q.apply(joined.clone()), self.layer.kv.apply(joined)], 1);
        let committed = self.cache.len(slot);
        let first = if step == 0 { committed } else { committed + step - 1 };
        let start = match (&self.injected, step) {
            (_, 0) => first,
            (Injected::FrozenPosition, _) => committed - 1,
            (Injected::FurtherPosition, _) => first + 1,
            (Injected::RestartedPosition, _) => step,
            _ => first,
        };
        let planned = self.cache.plan_ahead(&[SlotRows::chain(slot, tokens.len())], first - committed);
        let positions = (start..start + tokens.len()).map(|p| p as u32).collect();
        let plan = CachedPlan { positions, ..CachedPlan::clone(&planned) };
        let (heads, rope) = (self.drafter.config.heads(), self.drafter.rope.clone());
        let attended = self.cache.with_layer(0, |c| cached_attention(qkv, c, heads, &rope, &Arc::new(plan)));
        self.layer.finish(hidden, attended)
    }

    /// The rows as a run time with the fault pairs them.
    fn paired(&mut self, slot: usize, next: &[u32], fused: Tensor<2>) -> (Vec<u32>, Tensor<2>) {
        let n = next.len();
        let row = |i: usize| fused.clone().narrow(0, i, 1);
        let before = self.slots[slot].last.replace((next[n - 1], row(n - 1)));
        match self.injected {
            Injected::OwnToken(first) => {
                let before = before.map_or(first, |b| b.0);
                ([&[before], &next[..n - 1]].concat(), fused)
            }
            Injected::EarlierFeature => {
                let before = before.map_or(row(0), |b| b.1);
                let rows = std::iter::once(before).chain((0..n - 1).map(row)).collect();
                (next.to_vec(), Tensor::cat(rows, 0))
            }
            Injected::LateRow => {
                let held = self.slots[slot].late.replace((next[n - 1], row(n - 1)));
                let (mut tokens, mut rows) = (Vec::new(), Vec::new());
                if let Some((token, features)) = held {
                    (tokens, rows) = (vec![token], vec![features]);
                }
                tokens.extend_from_slice(&next[..n - 1]);
                rows.extend((0..n - 1).map(row));
                (tokens, Tensor::cat(rows, 0))
            }
            _ => (next.to_vec(), fused),
        }
    }
}

impl Proposer for FaultyProposer {
    fn taps(&self) -> &[usize] {
        &self.taps
    }

    fn draft_to_target(&self) -> &[u32] {
        &self.tables[1]
    }

    fn open(&mut self, slots: usize, capacity: usize) {
        // Rejected rows that stay need room.
        let capacity = if self.is(&Injected::KeptRejected) { 4 * capacity } else { capacity };
        self.cache = KvCache::new(1, slots, capacity, self.drafter.config.heads(), &self.drafter.embedding.device());
        self.slots = vec![Slot::default(); slots];
    }

    fn clear(&mut self, slot: usize) {
        self.cache.clear(slot);
        self.slots[slot] = Slot::default();
    }

    fn observe(&mut self, observed: &[Observed], mut features: Vec<Tensor<2>>) {
        if self.is(&Injected::SwappedTaps) {
            features.swap(0, 1);
        }
        let fused = self.layer.fuse(Tensor::cat(features, 1));
        let mut end = 0;
        for o in observed {
            let own = fused.clone().narrow(0, end, o.next.len());
            end += o.next.len();
            let (mut tokens, mut rows) = self.paired(o.slot, &o.next, own);
            let provisional = std::mem::take(&mut self.slots[o.slot].provisional);
            if self.is(&Injected::KeptDrafts) {
                let kept = provisional.min(tokens.len() - 1);
                self.cache.commit(o.slot, kept);
                tokens.drain(..kept);
                rows = rows.narrow(0, kept, tokens.len());
            } else if self.is(&Injected::KeptRejected) {
                self.cache.commit(o.slot, provisional);
            }
            let hidden = self.pass(o.slot, &tokens, rows, 0);
            self.cache.commit(o.slot, tokens.len());
            self.slots[o.slot].newest = Some(hidden.narrow(0, tokens.len() - 1, 1));
        }
    }

    fn draft(&mut self, wanted: &[Wanted]) -> Result<Vec<Draft>, RowError> {
        let swallowed = usize::from(self.is(&Injected::Swallowed));
        let mut drafts = Vec::new();
        for &Wanted { slot, length, plan, .. } in wanted {
            assert!(matches!(plan, Plan::Chain { pick: Pick::Argmax, .. }), "the gate drafts chains of argmaxima");
            let mut draft = Draft::default();
            let mut hidden = self.slots[slot].newest.clone().unwrap();
            for step in 0..length + swallowed {
                if step > 0 {
                    hidden = self.pass(slot, &[draft.tokens[step - 1]], hidden, step);
                }
                let logits = host_rows(self.drafter.head.logits(self.layer.head_input(hidden.clone())));
                draft.tokens.push(self.tables[0][argmax(&logits) as usize]);
                draft.logits.push(logits);
            }
            self.slots[slot].provisional = length - 1;
            draft.tokens.drain(..swallowed);
            draft.logits.drain(..swallowed);
            drafts.push(draft);
        }
        Ok(drafts)
    }

    fn memory(&self, _: &Plan) -> DrafterMemory {
        DrafterMemory::default()
    }

    fn committed(&self, slot: usize) -> usize {
        self.cache.len(slot)
    }
}
