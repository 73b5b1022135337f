//! The drafter at run time: the same layer over a cache instead of an unroll table.
//!
//! A slot's cache holds one row a committed pair (features at `t`, token at `t + 1`). Drafting writes provisional rows
//! behind them, those of a tree a whole depth at a time for all slots; the next [`Proposer::observe`] overwrites them
//! with rows made of true features.

use super::{Eagle3, Eagle3Drafter, Layer};
use crate::drawing::Drawing;
use crate::growing::Growing;
use crate::proposer::{Draft, DrafterMemory, Observed, Plan, Proposer, Wanted};
use burn::module::Module;
use burn::tensor::Tensor;
use rayon::prelude::*;
use spectrain_core::process::RowError;
use spectrain_kernels::cached_attention::cached_attention;
use spectrain_kernels::product::Projection;
use spectrain_kernels::rope::indices;
use spectrain_model::{KvCache, Prefix, SlotRows, host_rows};

/// An EAGLE-3 drafter that follows several slots.
pub struct Eagle3Proposer {
    drafter: Eagle3Drafter,
    layer: Layer<Projection>,
    /// Bytes of the weights.
    weights: usize,
    cache: KvCache,
    /// Hidden state of each slot's newest committed row, `[1, hidden]`.
    newest: Vec<Option<Tensor<2>>>,
}

impl Eagle3Proposer {
    /// Wraps trained weights, which read taps divided by the drafter's scale; no gradient is recorded.
    pub fn new(drafter: Eagle3Drafter, weights: &Eagle3) -> Self {
        let device = drafter.embedding.device();
        let cache = KvCache::new(1, 0, 0, drafter.config.heads(), &device);
        let weights = weights.folded(&drafter.scale).valid().fork(&device);
        let layer = weights.frozen(&drafter.config);
        Self { drafter, layer, weights: weights.bytes(), cache, newest: Vec::new() }
    }

    /// One pass of the layer over packed rows: hidden states after the layer `[rows, hidden]`.
    ///
    /// `ahead` provisional rows a slot were already written.
    fn pass(&mut self, rows: &[SlotRows], tokens: &[u32], hidden: Tensor<2>, ahead: usize) -> Tensor<2> {
        let w = &self.layer;
        let joined = w.join(self.drafter.embed(tokens), hidden.clone());
        let qkv = Tensor::cat(vec![w.q.apply(joined.clone()), w.kv.apply(joined)], 1);
        let plan = self.cache.plan_ahead(rows, ahead);
        let heads = self.drafter.config.heads();
        let attended = self.cache.with_layer(0, |c| cached_attention(qkv, c, heads, &self.drafter.rope, &plan));
        w.finish(hidden, attended)
    }

    fn logits(&self, hidden: Tensor<2>) -> Vec<f32> {
        host_rows(self.drafter.head.logits(self.layer.head_input(hidden)))
    }

    /// Hidden states of the newest committed rows of `slots`, `[slots, hidden]`.
    fn newest(&self, slots: impl Iterator<Item = usize>) -> Tensor<2> {
        let newest = slots.map(|s| self.newest[s].clone().expect("a slot is observed before it drafts"));
        Tensor::cat(newest.collect(), 0)
    }

    /// How tokens behind `prefix` are drawn.
    fn drawing<'a>(&'a self, prefix: Prefix<'a>) -> Drawing<'a> {
        let vocab = &self.drafter.vocab;
        Drawing { prefix, d2t: &vocab.d2t, vocabulary: vocab.target_vocab }
    }

    /// One chain a slot; those that are long enough, or cannot go on, leave the pass.
    fn draft_chains(&mut self, wanted: &[Wanted]) -> Result<Vec<Draft>, RowError> {
        let mut drafts = vec![Draft::default(); wanted.len()];
        let mut active: Vec<usize> = (0..wanted.len()).filter(|&i| wanted[i].length > 0).collect();
        if active.is_empty() {
            return Ok(drafts);
        }
        let mut hidden = self.newest(active.iter().map(|&i| wanted[i].slot));
        let width = self.drafter.vocab.d2t.len();
        for step in 0.. {
            if step > 0 {
                let grows = |i: usize| wanted[i].length > step && drafts[i].tokens.len() == step;
                let still: Vec<usize> = (0..active.len()).filter(|&row| grows(active[row])).collect();
                if still.is_empty() {
                    break;
                }
                if still.len() < active.len() {
                    hidden = hidden.clone().select(0, indices(still.iter().copied(), &hidden.device()));
                    active = still.into_iter().map(|row| active[row]).collect();
                }
                let rows: Vec<SlotRows> = active.iter().map(|&i| SlotRows::chain(wanted[i].slot, 1)).collect();
                let tokens: Vec<u32> = active.iter().map(|&i| drafts[i].tokens[step - 1]).collect();
                hidden = self.pass(&rows, &tokens, hidden, step - 1);
            }
            let logits = self.logits(hidden.clone());
            // The active ones stand in the order of the drafts.
            let growing = drafts.iter_mut().zip(wanted).filter(|(d, w)| w.length > step && d.tokens.len() == step);
            let growing: Vec<_> = growing.zip(logits.chunks(width)).collect();
            growing
                .into_par_iter()
                .try_for_each(|((draft, w), logits)| draft.push(logits, w, &self.drawing(w.prefix)))?;
        }
        Ok(drafts)
    }

    /// Grows one tree a slot, all of them a depth at a time.
    fn draft_trees<'w>(&mut self, wanted: &[Wanted<'w>]) -> Result<Vec<Draft>, RowError> {
        let width = self.drafter.vocab.d2t.len();
        let branch = |w: &Wanted<'w>| {
            let tree = Growing::new(w.plan, w.prefix.chance()).expect("a plan of trees");
            Branches { slot: w.slot, tree, parents: Vec::new(), level: Vec::new(), last: 1 }
        };
        let mut trees: Vec<Branches> = wanted.iter().map(branch).collect();
        if trees.is_empty() {
            return Ok(Vec::new());
        }
        let mut hidden = self.newest(wanted.iter().map(|w| w.slot));
        for depth in 0.. {
            if depth > 0 {
                let (rows, tokens, above) = next_level(&mut trees);
                if rows.is_empty() {
                    break;
                }
                let tokens: Vec<u32> = tokens.into_iter().map(|t| self.drafter.vocab.d2t[t as usize]).collect();
                let above = hidden.clone().select(0, indices(above, &hidden.device()));
                hidden = self.pass(&rows, &tokens, above, 0);
            }
            let logits = self.logits(hidden.clone());
            let mut rest = logits.as_slice();
            let growing = trees.iter_mut().zip(wanted).map(|(t, w)| {
                let (own, others) = rest.split_at(t.tree.frontier().len() * width);
                rest = others;
                (&mut t.tree, w, own)
            });
            let growing: Vec<(&mut Growing, &Wanted, &[f32])> = growing.collect();
            let grow = |(tree, w, rows): (&mut Growing, &Wanted, &[f32])| tree.expand(rows, &self.drawing(w.prefix));
            growing.into_par_iter().try_for_each(grow)?;
        }
        let d2t = &self.drafter.vocab.d2t;
        Ok(trees.into_iter().map(|t| t.tree.finish(d2t).expect("a tree has its root")).collect())
    }
}

/// A slot's tree and its rows in the drafter's cache.
struct Branches<'a> {
    slot: usize,
    tree: Growing<'a>,
    /// For each provisional row the one it follows; `None` follows the committed rows.
    parents: Vec<Option<usize>>,
    /// Nodes of the newest level of rows with their provisional rows; empty where that is the committed one.
    level: Vec<(usize, usize)>,
    /// Rows in the last pass.
    last: usize,
}

/// The rows that run next: their places, their tokens, and for each the row of the last pass that its parent was.
fn next_level(trees: &mut [Branches]) -> (Vec<SlotRows>, Vec<u32>, Vec<usize>) {
    let (mut rows, mut tokens, mut above) = (Vec::new(), Vec::new(), Vec::new());
    let mut first = 0;
    for t in trees {
        let mut level = Vec::new();
        for &node in t.tree.frontier() {
            let parent = t.tree.parent(node);
            let at = t.level.iter().position(|&(n, _)| n == parent);
            above.push(first + at.unwrap_or(0));
            tokens.push(t.tree.token(node));
            level.push((node, t.parents.len()));
            t.parents.push(at.map(|at| t.level[at].1));
        }
        first += t.last;
        if !level.is_empty() {
            let tree = SlotRows::tree(t.slot, level.len(), t.parents.clone());
            rows.push(tree.expect("rows of a level stand behind those of the last"));
        }
        t.last = level.len();
        t.level = level;
    }
    (rows, tokens, above)
}

impl Proposer for Eagle3Proposer {
    fn taps(&self) -> &[usize] {
        &self.drafter.config.taps
    }

    fn draft_to_target(&self) -> &[u32] {
        &self.drafter.vocab.d2t
    }

    fn open(&mut self, slots: usize, capacity: usize) {
        let device = self.drafter.embedding.device();
        self.cache = KvCache::new(1, slots, capacity, self.drafter.config.heads(), &device);
        self.newest = vec![None; slots];
    }

    fn clear(&mut self, slot: usize) {
        self.cache.clear(slot);
        self.newest[slot] = None;
    }

    fn observe(&mut self, observed: &[Observed], features: Vec<Tensor<2>>) {
        let tokens: Vec<u32> = observed.iter().flat_map(|o| o.next.iter().copied()).collect();
        if tokens.is_empty() {
            return;
        }
        let rows: Vec<SlotRows> = observed.iter().map(|o| SlotRows::chain(o.slot, o.next.len())).collect();
        let fused = self.layer.fuse(Tensor::cat(features, 1));
        let hidden = self.pass(&rows, &tokens, fused, 0);
        let mut end = 0;
        for o in observed.iter().filter(|o| !o.next.is_empty()) {
            end += o.next.len();
            self.cache.commit(o.slot, o.next.len());
            self.newest[o.slot] = Some(hidden.clone().narrow(0, end - 1, 1));
        }
    }

    /// Chains and trees make passes of their own.
    fn draft(&mut self, wanted: &[Wanted]) -> Result<Vec<Draft>, RowError> {
        let is_chain = |w: &Wanted| matches!(w.plan, Plan::Chain { .. });
        let (chains, trees): (Vec<Wanted>, Vec<Wanted>) = wanted.iter().copied().partition(is_chain);
        let mut chains = self.draft_chains(&chains)?.into_iter();
        let mut trees = self.draft_trees(&trees)?.into_iter();
        let own = |w: &Wanted| if is_chain(w) { chains.next() } else { trees.next() };
        Ok(wanted.iter().filter_map(own).collect())
    }

    fn memory(&self, plan: &Plan) -> DrafterMemory {
        // A leaf is never read by the layer, and the root is a committed row.
        let provisional = self.newest.len() * plan.expanded() * self.cache.bytes_per_token();
        let weights = self.weights + self.drafter.head.bytes() + self.drafter.head.copies();
        DrafterMemory { weights, cache: self.cache.bytes(), provisional }
    }

    fn committed(&self, slot: usize) -> usize {
        self.cache.len(slot)
    }
}
