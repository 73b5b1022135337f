//! Proposers that copy from text: they read tokens only, no features, and their proposals are certain.

use crate::proposer::{Draft, DrafterMemory, Observed, Plan, Proposer, Wanted};
use burn::tensor::Tensor;
use spectrain_core::process::RowError;

/// How tokens are found that may follow a text.
pub trait Source {
    /// What is kept of a slot's text.
    type Index;

    /// An empty text.
    fn index(&self) -> Self::Index;

    /// Appends a committed token.
    fn push(&self, index: &mut Self::Index, token: u32);

    /// Up to `length` tokens that may follow the text; none where nothing is known.
    fn propose(&self, index: &Self::Index, length: usize) -> Vec<u32>;

    /// Takes note of an answer that has ended, as far as it was told.
    fn finished(&mut self, answer: &[u32]) {
        let _ = answer;
    }

    /// Forgets finished answers.
    fn reset(&mut self) {}
}

/// A text with its index.
struct Slot<I> {
    tokens: Vec<u32>,
    /// Tokens of the prompt.
    prompt: usize,
    index: I,
}

/// A [`Source`] as a proposer of chains. The draft vocabulary is the target's, and never read.
pub struct TextProposer<S: Source> {
    source: S,
    slots: Vec<Slot<S::Index>>,
}

impl<S: Source> TextProposer<S> {
    /// Proposes what `source` finds.
    pub fn new(source: S) -> Self {
        Self { source, slots: Vec::new() }
    }

    /// Tokens of `slot` that were told, the first included.
    pub fn text(&self, slot: usize) -> &[u32] {
        &self.slots[slot].tokens
    }

    fn tell(&mut self, slot: usize, tokens: &[u32]) {
        let Slot { tokens: known, index, .. } = &mut self.slots[slot];
        tokens.iter().for_each(|&token| self.source.push(index, token));
        known.extend_from_slice(tokens);
    }
}

impl<S: Source> Proposer for TextProposer<S> {
    fn taps(&self) -> &[usize] {
        &[]
    }

    fn draft_to_target(&self) -> &[u32] {
        &[]
    }

    fn open(&mut self, slots: usize, _: usize) {
        self.source.reset();
        self.slots = (0..slots).map(|_| Slot { tokens: Vec::new(), prompt: 0, index: self.source.index() }).collect();
    }

    fn clear(&mut self, slot: usize) {
        let empty = Slot { tokens: Vec::new(), prompt: 0, index: self.source.index() };
        let Slot { tokens, prompt, .. } = std::mem::replace(&mut self.slots[slot], empty);
        if tokens.len() > prompt {
            self.source.finished(&tokens[prompt..]);
        }
    }

    fn start(&mut self, slot: usize, prompt: &[u32]) {
        self.clear(slot);
        self.slots[slot].prompt = prompt.len();
        // The rest of the prompt is observed.
        self.tell(slot, &prompt[..1]);
    }

    fn observe(&mut self, observed: &[Observed], _: Vec<Tensor<2>>) {
        observed.iter().for_each(|o| self.tell(o.slot, &o.next));
    }

    fn draft(&mut self, wanted: &[Wanted]) -> Result<Vec<Draft>, RowError> {
        let chain = |w: &Wanted| self.source.propose(&self.slots[w.slot].index, w.length);
        Ok(wanted.iter().map(|w| Draft { tokens: chain(w), ..Draft::default() }).collect())
    }

    fn memory(&self, _: &Plan) -> DrafterMemory {
        DrafterMemory::default()
    }

    fn committed(&self, slot: usize) -> usize {
        self.slots[slot].tokens.len().saturating_sub(1)
    }
}
