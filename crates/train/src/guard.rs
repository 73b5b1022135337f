//! Losses that no step should be taken from.

use crate::bits::Bits;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Losses that the median is taken over.
const REMEMBERED: usize = 64;
/// Losses before which there is no judgement.
const ENOUGH: usize = 8;

/// The losses of the latest steps, skipped ones among them: where the level itself has changed, the median follows and
/// training goes on.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Guard {
    recent: VecDeque<Bits>,
}

impl Guard {
    /// Remembers `loss`. Returns the median of the losses before if `loss` is above `factor` times that median; a
    /// `factor` of 0 does neither.
    pub fn spike(&mut self, loss: f64, factor: f64) -> Option<f64> {
        if factor == 0.0 {
            return None;
        }
        let median = (self.recent.len() >= ENOUGH).then(|| self.median());
        if self.recent.len() == REMEMBERED {
            self.recent.pop_front();
        }
        self.recent.push_back(Bits(loss));
        median.filter(|median| loss > factor * median)
    }

    /// Upper median.
    fn median(&self) -> f64 {
        let mut sorted: Vec<f64> = self.recent.iter().map(|loss| loss.0).collect();
        sorted.sort_by(f64::total_cmp);
        sorted[sorted.len() / 2]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spike_is_above_the_factor_and_a_new_level_is_learned() {
        let mut guard = Guard::default();
        assert!((0..ENOUGH).all(|i| guard.spike(1.0 + i as f64 / 100.0, 2.0).is_none()), "too few to judge");
        assert_eq!(guard.spike(2.0, 2.0), None);
        assert_eq!(guard.spike(2.2, 2.0), Some(1.04), "the fifth of 1.00 to 1.07 and 2.0");
        assert_eq!(guard.spike(9.0, 0.0), None, "factor 0 judges nothing");
        let spikes = (0..200).filter(|_| guard.spike(5.0, 2.0).is_some()).count();
        assert!(0 < spikes && spikes < REMEMBERED, "{spikes} of 200 steps on a new level were skipped");
    }
}
