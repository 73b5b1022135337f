//! Suffix matching: the most frequent continuation of the longest suffix that occurred before, in the slot's own text
//! or, if that is asked for, in the answers that the run has finished.
//!
//! As SuffixDecoding (Oliaro et al. 2024) without its tree of branches: a chain grows while the share of the occurrences
//! that went this way stays above a floor.

use super::automaton::Automaton;
use super::text::Source;

/// Least share of the matches that went on as the draft does.
const SHARE: f64 = 0.25;
/// Longest match with finished answers, in tokens.
const LOOK_BACK: usize = 32;
/// Stands between finished answers; no token has this id.
const END: u32 = u32::MAX;

/// Suffix matching.
#[derive(Default)]
pub struct Suffixes {
    /// Finished answers; none to keep requests apart.
    finished: Option<Automaton>,
}

/// A text and its substrings.
#[derive(Default)]
pub struct SuffixIndex {
    own: Automaton,
    /// The last [`LOOK_BACK`] tokens.
    tail: Vec<u32>,
}

impl Suffixes {
    /// Over the slot's own text and, if `shared`, the finished answers of the run.
    pub fn new(shared: bool) -> Self {
        Self { finished: shared.then(Automaton::default) }
    }
}

impl Source for Suffixes {
    type Index = SuffixIndex;

    fn index(&self) -> SuffixIndex {
        SuffixIndex::default()
    }

    fn push(&self, index: &mut SuffixIndex, token: u32) {
        index.own.push(token);
        if index.tail.len() == LOOK_BACK {
            index.tail.remove(0);
        }
        index.tail.push(token);
    }

    /// The longer match wins, the own text's among equals.
    fn propose(&self, index: &SuffixIndex, length: usize) -> Vec<u32> {
        let (state, matched) = index.own.earlier();
        if let Some(finished) = &self.finished {
            let (other, found) = finished.matching(&index.tail);
            if found > matched {
                return walk(finished, other, length);
            }
        }
        if matched == 0 { Vec::new() } else { walk(&index.own, state, length) }
    }

    fn finished(&mut self, answer: &[u32]) {
        if let Some(finished) = &mut self.finished {
            answer.iter().chain([&END]).for_each(|&token| finished.push(token));
        }
    }

    fn reset(&mut self) {
        *self = Self::new(self.finished.is_some());
    }
}

/// Up to `length` most frequent tokens behind `state`.
fn walk(automaton: &Automaton, mut state: usize, length: usize) -> Vec<u32> {
    let mut tokens = Vec::new();
    let mut share = 1.0;
    while tokens.len() < length && state != Automaton::ROOT {
        let Some((token, next, part)) = automaton.likeliest(state) else {
            // The match has reached the end of the text: a shorter one goes on.
            state = automaton.shorter(state);
            continue;
        };
        share *= part;
        if share < SHARE || token == END {
            break;
        }
        tokens.push(token);
        state = next;
    }
    tokens
}
