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

/// The source of one round, whose root token stands at the absolute position `root_position`.
///
/// The target's own draws are addressed by the position of the token they decide, so that they do not depend on where
/// rounds begin: the plain path draws position `t` by [`Key::race`] with purpose [`Purpose::Target`], stream 0, the very
/// draw that sampled-match makes there. All other draws are addressed by the round. A position may be drafted and
/// judged again in the next round, and a rule whose verdict depends on tokens behind the accepted ones (block) would be
/// biased if it met a number there that it has already used.
pub fn keyed(seed: u64, request: u64, root_position: usize) -> Keyed {
    Keyed { seed, request, root_position }
}

/// Draws a round may make at one depth for one purpose: siblings, leaves.
const DRAWS_PER_DEPTH: u64 = 1 << 20;

impl Keyed {
    /// Key and stream of an event.
    fn address(&self, ask: Ask) -> (Key, u64) {
        let key = |position: usize| Key::new(self.seed, self.request, position as u64, ask.purpose);
        match ask.purpose {
            Purpose::Target => (key(self.root_position + 1 + ask.depth), ask.index as u64),
            _ => (key(self.root_position), ask.depth as u64 * DRAWS_PER_DEPTH + ask.index as u64),
        }
    }
}

impl Chance for Keyed {
    fn uniform(&mut self, ask: Ask) -> f64 {
        let (key, stream) = self.address(ask);
        key.uniform_at(stream)
    }

    fn draw(&mut self, ask: Ask, probabilities: &[f64]) -> usize {
        let (key, stream) = self.address(ask);
        key.race(stream, probabilities)
    }
}
