//! Walks through every outcome of every random event a round asks for.

use crate::model::Model;
use spectrain_core::rules::{Ask, Chance, RuleError, Verdict};
use std::collections::BTreeMap;

/// Largest deviation allowed between exact laws computed in f64.
pub const TOLERANCE: f64 = 1e-12;

/// One run through a round: replays its decisions up to the last event and takes new ones after it.
#[derive(Default)]
pub struct Walk {
    decided: Vec<Event>,
    next: usize,
    asked: Vec<Ask>,
    fell_back: bool,
}

struct Event {
    taken: usize,
    outcomes: Vec<(usize, f64)>,
}

impl Walk {
    fn choose(&mut self, ask: Ask, outcomes: impl Iterator<Item = (usize, f64)>) -> usize {
        assert!(!self.asked.contains(&ask), "{ask:?} is asked twice: two events would share one random number");
        self.asked.push(ask);
        if self.next == self.decided.len() {
            let outcomes: Vec<_> = outcomes.filter(|&(_, probability)| probability > 0.0).collect();
            assert!(!outcomes.is_empty(), "{ask:?} has no possible outcome");
            self.decided.push(Event { taken: 0, outcomes });
        }
        let event = &self.decided[self.next];
        self.next += 1;
        event.outcomes[event.taken].0
    }

    /// Unwraps a verdict and remembers whether it fell back for want of residual mass.
    pub fn judged(&mut self, verdict: Result<Verdict, RuleError>) -> Verdict {
        let verdict = verdict.unwrap();
        self.fell_back |= verdict.fallbacks > 0;
        verdict
    }

    fn probability(&self) -> f64 {
        self.decided.iter().map(|event| event.outcomes[event.taken].1).product()
    }

    /// Moves to the next run; false after the last.
    fn advance(&mut self) -> bool {
        self.next = 0;
        self.fell_back = false;
        self.asked.clear();
        while let Some(event) = self.decided.last_mut() {
            event.taken += 1;
            if event.taken < event.outcomes.len() {
                return true;
            }
            self.decided.pop();
        }
        false
    }
}

impl Chance for Walk {
    fn uniform(&mut self, ask: Ask) -> f64 {
        panic!("{ask:?}: a rule asks for events, not for numbers")
    }

    fn accept(&mut self, ask: Ask, probability: f64) -> bool {
        assert!((0.0..=1.0).contains(&probability), "{ask:?} has probability {probability}");
        self.choose(ask, [(1, probability), (0, 1.0 - probability)].into_iter()) == 1
    }

    fn draw(&mut self, ask: Ask, probabilities: &[f64]) -> usize {
        let sum: f64 = probabilities.iter().sum();
        assert!((sum - 1.0).abs() < TOLERANCE, "{ask:?} draws from a row of sum {sum}");
        assert!(probabilities.iter().all(|&entry| entry >= 0.0), "{ask:?} draws from {probabilities:?}");
        self.choose(ask, probabilities.iter().copied().enumerate())
    }
}

/// What a round emits: accepted tokens and the extra one.
#[derive(Debug, Default)]
pub struct Law {
    pub emitted: BTreeMap<Vec<u32>, f64>,
    /// Probability of falling back: rejections that exist by rounding only.
    pub fallback: f64,
}

/// The exact law of `round`.
pub fn law(mut round: impl FnMut(&mut Walk) -> Vec<u32>) -> Law {
    let mut law = Law::default();
    let mut walk = Walk::default();
    loop {
        let emitted = round(&mut walk);
        let probability = walk.probability();
        law.fallback += if walk.fell_back { probability } else { 0.0 };
        *law.emitted.entry(emitted).or_default() += probability;
        if !walk.advance() {
            return law;
        }
    }
}

impl Law {
    /// Expected number of emitted tokens.
    pub fn length(&self) -> f64 {
        self.emitted.iter().map(|(tokens, mass)| tokens.len() as f64 * mass).sum()
    }

    pub fn mass(&self) -> f64 {
        self.emitted.values().sum()
    }

    /// Law of texts of `depth + 1` tokens: what was emitted, continued by the target itself.
    pub fn completed(&self, model: &Model) -> Vec<f64> {
        let mut completed = vec![0.0; model.vocabulary.pow(model.depth as u32 + 1)];
        for (tokens, &mass) in &self.emitted {
            model.complete(tokens, mass, &mut completed);
        }
        completed
    }

    /// Largest deviation of a text's probability from the target's own.
    pub fn error(&self, model: &Model) -> f64 {
        self.completed(model).iter().zip(model.target_law()).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
    }

    /// Total variation between completed texts and the target's own.
    pub fn distance(&self, model: &Model) -> f64 {
        self.completed(model).iter().zip(model.target_law()).map(|(a, b)| (a - b).abs()).sum::<f64>() / 2.0
    }

    /// Fails unless the law is a law and the target's.
    pub fn assert_exact(&self, model: &Model, what: &str) {
        assert!((self.mass() - 1.0).abs() < TOLERANCE, "{what}: total mass {}", self.mass());
        assert!(self.fallback < TOLERANCE, "{what}: falls back with probability {}", self.fallback);
        let error = self.error(model);
        assert!(error < TOLERANCE, "{what}: off the target's law by {error:e} on {model:?}");
    }
}

/// Law of the first emitted token.
pub fn first_token(law: &Law, vocabulary: usize) -> Vec<f64> {
    let mut first = vec![0.0; vocabulary];
    law.emitted.iter().for_each(|(tokens, mass)| first[tokens[0] as usize] += mass);
    first
}

/// Fails unless two rows agree.
pub fn assert_close(found: &[f64], expected: &[f64], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (a, b) in found.iter().zip(expected) {
        assert!((a - b).abs() < TOLERANCE, "{what}: {found:?}, expected {expected:?}");
    }
}
