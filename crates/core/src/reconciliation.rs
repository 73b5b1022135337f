//! What the reconciliation gate found, as it is written to JSON and told in one line.

use crate::stats::Interval;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Training and run time held against each other.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Reconciliation {
    /// Prompts that were drafted behind.
    pub prompts: usize,
    /// Rounds.
    pub rounds: usize,
    /// Draft steps whose logits were compared.
    pub steps: usize,
    /// Largest difference of a step's logits, in parts of their range.
    pub largest: f64,
    /// Largest difference that rounding explains.
    pub bound: f64,
    /// Prompts that the drafter learned from and that were rendered again.
    pub renderings: usize,
    /// Offline's figures against the verifier's.
    pub figures: Vec<Figure>,
    /// What differs; none where everything agrees.
    pub fault: Option<String>,
}

/// Offline's tokens per target call against the verifier's at one point of a curve.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// Sampling temperature.
    pub temperature: f64,
    /// Drafted tokens a round.
    pub length: usize,
    /// What offline predicts on the target's own answers.
    pub offline: f64,
    /// What the verifier measured of the same questions.
    pub verifier: f64,
    /// Offline less verifier, with its interval by question, widened for small samples.
    pub difference: Interval,
    /// Level of the interval: all figures together hold at 99 %.
    pub level: f64,
    /// Whether the interval holds 0, but for the rounding of stored features.
    pub agrees: bool,
}

impl fmt::Display for Reconciliation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(fault) = &self.fault {
            return f.write_str(fault);
        }
        if self.steps == 0 {
            return f.write_str("no draft step was compared with training");
        }
        let Self { prompts, rounds, steps, largest, .. } = self;
        write!(
            f,
            "training and run time agree: {steps} draft steps in {rounds} rounds behind {prompts} prompts, logits within {largest:.0e} of their range"
        )?;
        if self.renderings > 0 {
            write!(f, "; {} stored prompts are rendered as before", self.renderings)?;
        }
        let apart = |figure: &Figure| (figure.offline / figure.verifier - 1.0).abs();
        match self.figures.iter().map(apart).max_by(f64::total_cmp) {
            None => Ok(()),
            Some(most) => {
                let figures = self.figures.len();
                write!(f, "; offline and verifier agree ({figures} compared, at most {:.1} % apart)", 100.0 * most)
            }
        }
    }
}
