//! Which conversations share an optimiser step.

use spectrain_core::rng::{Key, Purpose};

/// Conversations grouped under a budget of rows, in an order that depends on seed and epoch only.
#[derive(Debug, Clone)]
pub struct Batches {
    sizes: Vec<usize>,
    budget: usize,
    seed: u64,
}

impl Batches {
    /// `sizes[i]` rows of conversation `i`; conversations of size 0 are left out. A batch holds at most `budget` rows,
    /// or one larger conversation.
    pub fn new(sizes: Vec<usize>, budget: usize, seed: u64) -> Self {
        Self { sizes, budget, seed }
    }

    /// Batches of `epoch`: every conversation once.
    pub fn epoch(&self, epoch: usize) -> Vec<Vec<usize>> {
        let mut order: Vec<usize> = (0..self.sizes.len()).filter(|&i| self.sizes[i] > 0).collect();
        let key = Key::new(self.seed, epoch as u64, 0, Purpose::Data);
        for i in (1..order.len()).rev() {
            order.swap(i, key.below_at(i as u64, i + 1));
        }
        let mut batches: Vec<Vec<usize>> = Vec::new();
        let mut filled = usize::MAX;
        for i in order {
            if filled.saturating_add(self.sizes[i]) > self.budget {
                batches.push(Vec::new());
                filled = 0;
            }
            filled += self.sizes[i];
            batches.last_mut().expect("one was just pushed").push(i);
        }
        batches
    }

    /// Optimiser steps of `epochs` epochs.
    pub fn steps(&self, epochs: usize) -> usize {
        (0..epochs).map(|e| self.epoch(e).len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_conversation_once_an_epoch_within_the_budget() {
        let batches = Batches::new(vec![30, 0, 50, 20, 90, 10, 40], 100, 7);
        for epoch in 0..5 {
            let groups = batches.epoch(epoch);
            let mut seen: Vec<usize> = groups.concat();
            seen.sort_unstable();
            assert_eq!(seen, [0, 2, 3, 4, 5, 6]);
            let sizes = [30, 0, 50, 20, 90, 10, 40];
            assert!(groups.iter().all(|g| g.iter().map(|&i| sizes[i]).sum::<usize>() <= 100));
        }
        assert_ne!(batches.epoch(0), batches.epoch(1));
        assert_eq!(batches.epoch(3), batches.epoch(3));
    }
}
