//! A smaller model of the same vocabulary as a drafter (Leviathan et al. 2023; Chen et al. 2023).
//!
//! Its cache lags behind the text: what was committed since the last draft runs when the next is asked for, in one pass
//! for all slots. Drafted tokens that ran and were accepted stay in the cache; the others are rolled back.

use crate::drawing::Drawing;
use crate::proposer::{Draft, DrafterMemory, Observed, Plan, Proposer, Wanted};
use burn::tensor::Tensor;
use spectrain_core::process::RowError;
use spectrain_kernels::rope::indices;
use spectrain_model::{KvCache, Llama, SlotRows, host_rows};

/// A language model that drafts chains.
pub struct DraftModelProposer {
    model: Llama,
    cache: KvCache,
    slots: Vec<Slot>,
    /// Every token is its own.
    d2t: Vec<u32>,
}

#[derive(Default, Clone)]
struct Slot {
    /// Committed tokens, of which the cache holds the first.
    text: Vec<u32>,
    /// Drafted tokens whose rows lie behind the committed ones.
    provisional: Vec<u32>,
}

impl DraftModelProposer {
    /// Drafts with `model`, whose tokens are the target's.
    pub fn new(model: Llama) -> Self {
        let cache = model.cache(0, 0);
        let d2t = (0..model.config().vocab_size as u32).collect();
        Self { model, cache, slots: Vec::new(), d2t }
    }

    /// Logits of the last row of each of `rows`, `[rows, vocabulary]`.
    fn logits(&mut self, rows: &[SlotRows], tokens: &[u32], ahead: usize) -> Vec<f32> {
        let plan = self.cache.plan_ahead(rows, ahead);
        let hidden = self.model.forward(tokens, &plan, &mut self.cache, &[]).hidden;
        let ends = rows.iter().scan(0, |end, rows| {
            *end += rows.rows;
            Some(*end - 1)
        });
        let last = hidden.select(0, indices(ends, self.model.device()));
        host_rows(self.model.logits(last))
    }

    /// Runs what was committed since the last draft of `wanted`, and returns what may follow.
    fn catch_up(&mut self, wanted: &[Wanted]) -> Vec<f32> {
        let (mut rows, mut tokens) = (Vec::new(), Vec::new());
        for w in wanted {
            let pending = &self.slots[w.slot].text[self.cache.len(w.slot)..];
            rows.push(SlotRows::chain(w.slot, pending.len()));
            tokens.extend_from_slice(pending);
        }
        let logits = self.logits(&rows, &tokens, 0);
        rows.iter().for_each(|rows| self.cache.commit(rows.slot, rows.rows));
        logits
    }

    /// Chains as long as they are wanted and as the model's positions allow.
    fn chains(&mut self, wanted: &[Wanted]) -> Result<Vec<Draft>, RowError> {
        let mut drafts = vec![Draft::default(); wanted.len()];
        let room = |w: &Wanted| (self.model.config().max_positions + 1).saturating_sub(self.slots[w.slot].text.len());
        let lengths: Vec<usize> = wanted.iter().map(|w| w.length.min(room(w))).collect();
        let width = self.d2t.len();
        for step in 0..lengths.iter().copied().max().unwrap_or(0) {
            // A chain may have ended where no token could follow.
            let grows = |&i: &usize| lengths[i] > step && drafts[i].tokens.len() == step;
            let active: Vec<usize> = (0..wanted.len()).filter(grows).collect();
            if active.is_empty() {
                break;
            }
            let own: Vec<Wanted> = active.iter().map(|&i| wanted[i]).collect();
            let logits = match step {
                0 => self.catch_up(&own),
                _ => {
                    let rows: Vec<SlotRows> = own.iter().map(|w| SlotRows::chain(w.slot, 1)).collect();
                    let tokens: Vec<u32> = active.iter().map(|&i| drafts[i].tokens[step - 1]).collect();
                    own.iter().zip(&tokens).for_each(|(w, &token)| self.slots[w.slot].provisional.push(token));
                    self.logits(&rows, &tokens, step - 1)
                }
            };
            for (&i, row) in active.iter().zip(logits.chunks(width)) {
                let drawing = Drawing { prefix: wanted[i].prefix, d2t: &self.d2t, vocabulary: width };
                drafts[i].push(row, &wanted[i], &drawing)?;
            }
        }
        Ok(drafts)
    }
}

impl Proposer for DraftModelProposer {
    fn taps(&self) -> &[usize] {
        &[]
    }

    fn draft_to_target(&self) -> &[u32] {
        &self.d2t
    }

    fn open(&mut self, slots: usize, capacity: usize) {
        self.cache = self.model.cache(slots, capacity);
        self.slots = vec![Slot::default(); slots];
    }

    fn clear(&mut self, slot: usize) {
        self.cache.clear(slot);
        self.slots[slot] = Slot::default();
    }

    fn start(&mut self, slot: usize, prompt: &[u32]) {
        self.clear(slot);
        // The rest of the prompt is observed.
        self.slots[slot].text.push(prompt[0]);
    }

    fn observe(&mut self, observed: &[Observed], _: Vec<Tensor<2>>) {
        for o in observed {
            let slot = &mut self.slots[o.slot];
            let drafted = std::mem::take(&mut slot.provisional);
            // The newest token always runs, since what follows it is asked for.
            let told = &o.next[..o.next.len().saturating_sub(1)];
            let kept = drafted.iter().zip(told).take_while(|(drafted, next)| drafted == next).count();
            self.cache.commit(o.slot, kept);
            slot.text.extend_from_slice(&o.next);
        }
    }

    fn draft(&mut self, wanted: &[Wanted]) -> Result<Vec<Draft>, RowError> {
        self.chains(wanted)
    }

    fn memory(&self, plan: &Plan) -> DrafterMemory {
        let provisional = self.slots.len() * plan.depth().saturating_sub(1) * self.cache.bytes_per_token();
        DrafterMemory { weights: self.model.bytes(), cache: self.cache.bytes(), provisional }
    }

    /// Committed rows; the newest tokens run with the next draft.
    fn committed(&self, slot: usize) -> usize {
        self.cache.len(slot)
    }
}
