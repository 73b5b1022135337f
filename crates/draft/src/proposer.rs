//! What a drafter does at run time, whatever its kind.

use burn::tensor::Tensor;

/// Tokens that one slot has newly committed, with the target features that belong to them.
///
/// Row `i` pairs the features at token position `t` with the token at `t + 1`; after the call the drafter knows every
/// committed token, the newest (whose features do not exist yet) included.
pub struct Observed {
    /// The slot.
    pub slot: usize,
    /// The tokens `x[t+1]`, one a row.
    pub next: Vec<u32>,
}

/// How draft tokens are picked.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pick {
    /// The most likely one; the lowest id among equals.
    Argmax,
    /// Drawn from the drafter's distribution at this temperature.
    Sample(f64),
}

/// A drafted chain.
#[derive(Debug, Clone, Default)]
pub struct Draft {
    /// Target token ids.
    pub tokens: Vec<u32>,
    /// The distribution each token was really drawn from, over the draft vocabulary; empty for [`Pick::Argmax`].
    pub q: Vec<Vec<f64>>,
    /// The drafter's logits over the draft vocabulary at each step.
    pub logits: Vec<Vec<f32>>,
}

/// Bytes that a drafter holds for the slots that it was opened with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DrafterMemory {
    /// Weights, copies of the target's included, what is shared with the target not.
    pub weights: usize,
    /// Key/value cache, provisional rows included.
    pub cache: usize,
    /// Part of the cache that drafting fills before the verdict, in all slots.
    pub provisional: usize,
}

/// Uniform number for the draft token of `slot` at draft step `step`.
pub type Uniform<'a> = dyn Fn(usize, usize) -> f64 + Sync + 'a;

/// A drafter at run time: it follows the committed text of several slots and proposes chains behind it.
pub trait Proposer {
    /// Taps of the target whose features [`Self::observe`] reads.
    fn taps(&self) -> &[usize];

    /// Target token id of every draft vocabulary entry.
    fn draft_to_target(&self) -> &[u32];

    /// Prepares `slots` slots of up to `capacity` tokens.
    fn open(&mut self, slots: usize, capacity: usize);

    /// Forgets what `slot` holds.
    fn clear(&mut self, slot: usize);

    /// Commits rows: their true features replace anything provisional. `features` holds one `[rows, hidden]` tensor a
    /// tap, packed in the order of `observed`.
    fn observe(&mut self, observed: &[Observed], features: Vec<Tensor<2>>);

    /// Proposes `length` tokens for each of `slots`, all of which were observed since their last change.
    fn draft(&mut self, slots: &[usize], length: usize, pick: Pick, uniform: &Uniform) -> Vec<Draft>;

    /// What is held for rounds of `length` drafted tokens.
    fn memory(&self, length: usize) -> DrafterMemory;

    /// Entries of `slot` that hold committed rows.
    fn committed(&self, slot: usize) -> usize;
}
