//! Which weights of a run are kept: those that were measured to commit most tokens a target call. The training loss does
//! not tell: it goes on falling long after acceptance has turned (measured by peers on Qwen3: best at epoch 4.6 of 10).

use crate::bits::Bits;
use serde::{Deserialize, Serialize};

/// What the validations so far have found.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Selection {
    /// Largest expected length so far.
    best: Option<Bits>,
    /// Training loss of the epoch, and expected length, at the validation before.
    before: Option<(Bits, Bits)>,
    /// Validations since the best.
    since: usize,
}

/// What one validation means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// Whether no validation before was as good.
    pub best: bool,
    /// Whether the training loss fell while the expected length fell.
    pub over_training: bool,
}

impl Selection {
    /// Takes in the training loss of the epoch and the expected length at its end.
    pub fn judge(&mut self, loss: f64, length: f64) -> Verdict {
        let over_training = self.before.is_some_and(|(l, e)| loss < l.0 && length < e.0);
        let best = self.best.is_none_or(|best| length > best.0);
        if best {
            self.best = Some(Bits(length));
        }
        self.since = if best { 0 } else { self.since + 1 };
        self.before = Some((Bits(loss), Bits(length)));
        Verdict { best, over_training }
    }

    /// Whether `patience` validations in a row were no better than one before; never for a patience of 0.
    pub fn exhausted(&self, patience: usize) -> bool {
        patience > 0 && self.since >= patience
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_is_best_and_a_falling_length_under_a_falling_loss_is_over_training() {
        let mut selection = Selection::default();
        let mut told = Vec::new();
        for (loss, length) in [(3.0, 1.5), (2.0, 1.8), (1.5, 1.7), (1.6, 1.6), (1.2, 1.75), (1.0, 1.8), (0.9, 1.9)] {
            let Verdict { best, over_training } = selection.judge(loss, length);
            told.push((best, over_training, selection.exhausted(2), selection.exhausted(0)));
        }
        let expected = [
            (true, false, false, false),
            (true, false, false, false),
            (false, true, false, false),
            (false, false, true, false), // the loss rose: not called over-training
            (false, false, true, false),
            (false, false, true, false), // as long as the best, and later
            (true, false, false, false),
        ];
        assert_eq!(told, expected);
    }
}
