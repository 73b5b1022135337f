//! The source of a round's random events: the keyed numbers, or a script that decides each event itself.
//!
//! A script lets the whole runtime be enumerated: drafter, tree, batched passes, verdict and commit, not the rules alone.

use super::chance::{Ask, Chance, Keyed};
use crate::rng::sample_index;

/// Decides the events of one request.
pub trait Script: std::fmt::Debug + Sync {
    /// The outcome, one of the entries of `probabilities`, of the event `ask` in the round whose root stands at the
    /// absolute position `root`.
    fn decide(&self, root: usize, ask: Ask, probabilities: &[f64]) -> usize;
}

/// The source of one round.
#[derive(Clone, Copy, Debug)]
pub enum Draws<'a> {
    /// Numbers keyed by seed, request and position.
    Keyed(Keyed),
    /// Outcomes that a script names.
    Scripted {
        /// The request's script.
        script: &'a dyn Script,
        /// Absolute position of the root.
        root: usize,
    },
}

impl Draws<'_> {
    /// An index drawn from `probabilities` by inverting their sum: as [`Chance::draw`], but of another draw of the
    /// keyed numbers.
    pub fn invert(&mut self, ask: Ask, probabilities: &[f64]) -> usize {
        match self {
            Self::Keyed(keyed) => sample_index(probabilities, keyed.uniform(ask)),
            Self::Scripted { script, root } => script.decide(*root, ask, probabilities),
        }
    }
}

impl Chance for Draws<'_> {
    /// # Panics
    /// Under a script: it decides events and has no numbers.
    fn uniform(&mut self, ask: Ask) -> f64 {
        match self {
            Self::Keyed(keyed) => keyed.uniform(ask),
            Self::Scripted { .. } => panic!("{ask:?}: a script decides events, not numbers"),
        }
    }

    fn accept(&mut self, ask: Ask, probability: f64) -> bool {
        match self {
            Self::Keyed(keyed) => keyed.accept(ask, probability),
            Self::Scripted { script, root } => {
                // As `uniform < probability`: what is no number is a no.
                let yes = if probability > 0.0 { probability.min(1.0) } else { 0.0 };
                script.decide(*root, ask, &[1.0 - yes, yes]) == 1
            }
        }
    }

    fn draw(&mut self, ask: Ask, probabilities: &[f64]) -> usize {
        match self {
            Self::Keyed(keyed) => keyed.draw(ask, probabilities),
            Self::Scripted { script, root } => script.decide(*root, ask, probabilities),
        }
    }
}
