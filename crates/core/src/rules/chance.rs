//! Where a rule's randomness comes from.
//!
//! A rule never owns a generator. It names the random event it needs (a coin of known probability, a token of a known
//! distribution) and the caller decides it: the runtime from keyed uniform numbers, a test by walking through *every*
//! outcome with its exact probability. One code path is therefore both run and enumerated.

use crate::rng::{Key, Purpose, sample_index};

/// The address of one random event inside a round. No rule asks twice with the same address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ask {
    /// Depth of the node the event happens at: the root is 0, and the token decided on has depth `depth + 1`.
    pub depth: usize,
    /// What the event is for.
    pub purpose: Purpose,
    /// Distinguishes events of equal depth and purpose: siblings tried, leaves visited, tokens drafted.
    pub index: usize,
}

/// Decides random events.
pub trait Chance {
    /// A uniform number in `[0, 1)` for this event.
    fn uniform(&mut self, ask: Ask) -> f64;

    /// True with the given probability: `uniform < probability`, so 0 never and 1 always.
    fn accept(&mut self, ask: Ask, probability: f64) -> bool {
        self.uniform(ask) < probability
    }

    /// An index drawn from normalised `probabilities` that hold at least one positive entry.
    fn draw(&mut self, ask: Ask, probabilities: &[f64]) -> usize {
        sample_index(probabilities, self.uniform(ask))
    }
}

impl<F: FnMut(Ask) -> f64> Chance for F {
    fn uniform(&mut self, ask: Ask) -> f64 {
        self(ask)
    }
}

/// The runtime's source: draws keyed by seed, request and absolute position.
#[derive(Clone, Copy, Debug)]
pub struct Keyed {
    seed: u64,
    request: u64,
    root_position: usize,
}

/// The source of one round, whose root token stands at the absolute position `root_position`: an event at depth `d`
/// concerns the token at position `root_position + 1 + d`. The plain path draws position `t` by [`Key::race`] with
/// purpose [`Purpose::Target`](crate::rng::Purpose::Target), stream 0: the very draw that sampled-match makes there.
pub fn keyed(seed: u64, request: u64, root_position: usize) -> Keyed {
    Keyed { seed, request, root_position }
}

impl Keyed {
    fn key(&self, ask: Ask) -> Key {
        Key::new(self.seed, self.request, (self.root_position + 1 + ask.depth) as u64, ask.purpose)
    }
}

impl Chance for Keyed {
    fn uniform(&mut self, ask: Ask) -> f64 {
        self.key(ask).uniform_at(ask.index as u64)
    }

    fn draw(&mut self, ask: Ask, probabilities: &[f64]) -> usize {
        self.key(ask).race(ask.index as u64, probabilities)
    }
}
