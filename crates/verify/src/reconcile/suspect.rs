//! A drafter that runs with one fault: the hypothesis that a diagnosis tries.

use super::Trained;
use super::fault::{Fault, Norm, Position, Shift, Stale};
use super::trace::{Round, Trace};
use burn::module::Module;
use burn::tensor::Tensor;
use spectrain_draft::Eagle3;
use spectrain_draft::eagle3::Layer;
use spectrain_kernels::cached_attention::{CachedPlan, cached_attention};
use spectrain_kernels::product::Projection;
use spectrain_kernels::rms_norm::rms_norm;
use spectrain_kernels::rope::RopeTable;
use spectrain_model::{KvCache, SlotRows, host_rows, sample::argmax};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Weights at rest, as every suspect shares them.
pub(super) struct Frozen {
    weights: Eagle3,
    layer: Layer<Projection>,
    /// The layer with its residual on the other side of the hidden norm.
    other_residual: Layer<Projection>,
}

impl Frozen {
    pub(super) fn new(trained: &Trained) -> Self {
        let device = trained.target.device();
        let weights = trained.weights.folded(&trained.drafter.scale).valid().fork(device);
        let config = &trained.drafter.config;
        let mut other = config.clone();
        other.norm_before_residual = !config.norm_before_residual;
        Self { layer: weights.frozen(config), other_residual: weights.frozen(&other), weights }
    }
}

/// A run time with one fault.
pub(super) struct Suspect<'a> {
    trained: &'a Trained<'a>,
    frozen: &'a Frozen,
    fault: &'a Fault,
    rope: Arc<RopeTable>,
}

impl<'a> Suspect<'a> {
    pub(super) fn new(trained: &'a Trained<'a>, frozen: &'a Frozen, fault: &'a Fault) -> Self {
        let drafter = trained.drafter;
        let rope = match fault {
            Fault::Theta { served, .. } => {
                Arc::new(RopeTable::new(drafter.rope.positions(), drafter.config.head_dim, *served))
            }
            _ => drafter.rope.clone(),
        };
        Self { trained, frozen, fault, rope }
    }

    fn shift(&self) -> Option<Shift> {
        if let Fault::LabelShift(shift) = self.fault { Some(*shift) } else { None }
    }

    fn norm(&self) -> Option<Norm> {
        if let Fault::Norm(norm) = self.fault { Some(*norm) } else { None }
    }

    fn stale(&self) -> Option<Stale> {
        if let Fault::StaleCache(stale) = self.fault { Some(*stale) } else { None }
    }

    fn layer(&self) -> &Layer<Projection> {
        match self.norm() {
            Some(Norm::Residual | Norm::Stream) => &self.frozen.other_residual,
            _ => &self.frozen.layer,
        }
    }

    /// Drafts where `trace` did, and hands round, step and logits to `see` until it breaks. `features` enter each layer
    /// of the target along the text, from the first on.
    pub(super) fn replay(
        &self,
        trace: &Trace,
        features: &[Tensor<2>],
        mut see: impl FnMut(usize, usize, &[f32]) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let config = &self.trained.drafter.config;
        let taps = if let Fault::Taps { served, .. } = self.fault { served } else { &config.taps };
        let fused = self.layer().fuse(Tensor::cat(taps.iter().map(|&l| features[l].clone()).collect(), 1));
        let drafted: usize = trace.rounds.iter().map(|r| r.draft.tokens.len()).sum();
        let capacity = trace.text.len() + drafted + 1;
        let mut cache = KvCache::new(1, 1, capacity, config.heads(), self.trained.target.device());
        let (mut have, mut before): (usize, Option<&Round>) = (0, None);
        for (number, round) in trace.rounds.iter().enumerate() {
            let end = round.known - 1 - usize::from(self.shift() == Some(Shift::Behind));
            if let (Some(stale), Some(before)) = (self.stale(), before) {
                let provisional = before.draft.tokens.len() - 1;
                match stale {
                    Stale::Accepted => {
                        let kept = provisional.min(end - have - 1);
                        cache.commit(0, kept);
                        have += kept;
                    }
                    Stale::Rejected => cache.commit(0, provisional),
                }
            }
            let (tokens, rows) = self.rows(trace, &fused, have, end);
            let hidden = self.pass(&mut cache, &tokens, rows, 0);
            cache.commit(0, end - have);
            self.draft(&mut cache, hidden.narrow(0, end - have - 1, 1), round, |step, row| see(number, step, row))?;
            (have, before) = (end, Some(round));
        }
        ControlFlow::Continue(())
    }

    /// Tokens and features of the committed rows from `have` to `end`.
    fn rows(&self, trace: &Trace, fused: &Tensor<2>, have: usize, end: usize) -> (Vec<u32>, Tensor<2>) {
        let own = usize::from(self.shift() == Some(Shift::OwnToken));
        let tokens = trace.text[have + 1 - own..end + 1 - own].to_vec();
        if self.shift() != Some(Shift::EarlierFeature) {
            return (tokens, fused.clone().narrow(0, have, end - have));
        }
        let row = |t: usize| fused.clone().narrow(0, t.saturating_sub(1), 1);
        (tokens, Tensor::cat((have..end).map(row).collect(), 0))
    }

    /// The steps of one round behind the newest row's `hidden`.
    fn draft(
        &self,
        cache: &mut KvCache,
        mut hidden: Tensor<2>,
        round: &Round,
        mut see: impl FnMut(usize, &[f32]) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let drafter = self.trained.drafter;
        let ahead = self.shift() == Some(Shift::Ahead);
        // A draft that is ahead hides its first token, which is its own choice.
        let mut hidden_token = None;
        for step in 0..round.draft.tokens.len() + usize::from(ahead) {
            if step > 0 {
                let token = hidden_token.take().unwrap_or_else(|| round.draft.tokens[step - 1 - usize::from(ahead)]);
                let read = match self.norm() {
                    Some(Norm::PassedOn) => self.layer().head_input(hidden),
                    _ => hidden,
                };
                hidden = self.pass(cache, &[token], read, step);
            }
            let input = match self.norm() {
                Some(Norm::Head) => hidden.clone(),
                _ => self.layer().head_input(hidden.clone()),
            };
            let logits = host_rows(drafter.head.logits(input));
            match (ahead, step) {
                (true, 0) => hidden_token = Some(drafter.vocab.d2t[argmax(&logits) as usize]),
                _ => see(step - usize::from(ahead), &logits)?,
            }
        }
        ControlFlow::Continue(())
    }

    /// One pass of the layer: committed rows at step 0, else one provisional row.
    fn pass(&self, cache: &mut KvCache, tokens: &[u32], hidden: Tensor<2>, step: usize) -> Tensor<2> {
        let drafter = self.trained.drafter;
        let layer = self.layer();
        let joined = self.join(drafter.embed(tokens), hidden.clone(), step);
        let qkv = Tensor::cat(vec![layer.q.apply(joined.clone()), layer.kv.apply(joined)], 1);
        let cached = cache.len(0) + step.saturating_sub(1);
        let positions = (0..tokens.len()).map(|i| self.position(cached + i, step)).collect();
        let planned = cache.plan_ahead(&[SlotRows::chain(0, tokens.len())], step.saturating_sub(1));
        let plan = Arc::new(CachedPlan { positions, ..CachedPlan::clone(&planned) });
        let heads = drafter.config.heads();
        let attended = cache.with_layer(0, |c| cached_attention(qkv, c, heads, &self.rope, &plan));
        layer.finish(hidden, attended)
    }

    fn join(&self, embedded: Tensor<2>, hidden: Tensor<2>, step: usize) -> Tensor<2> {
        let eps = self.trained.drafter.config.rms_norm_eps;
        let weights = &self.frozen.weights;
        let un_normed = match self.norm() {
            Some(Norm::Feature) => step == 0,
            Some(Norm::Hidden | Norm::Stream) => true,
            _ => false,
        };
        if un_normed {
            Tensor::cat(vec![rms_norm(embedded, weights.input_layernorm.val(), eps), hidden], 1)
        } else if self.norm() == Some(Norm::Embedding) {
            Tensor::cat(vec![embedded, rms_norm(hidden, weights.hidden_norm.val(), eps)], 1)
        } else {
            self.layer().join(embedded, hidden)
        }
    }

    /// Position of a row that training has at `right`.
    fn position(&self, right: usize, step: usize) -> u32 {
        let position = match self.fault {
            Fault::Position(position) if step > 0 => match position {
                Position::Frozen => right - step,
                Position::Restarted => step,
                Position::Offset(by) => right.saturating_add_signed(*by),
            },
            _ => right,
        };
        position.min(self.rope.positions() - 1) as u32
    }
}
