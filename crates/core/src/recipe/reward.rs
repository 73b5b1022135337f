//! What the declared verifier pays for, and what follows from it: the default loss and the logged metric.

use super::LossKind;
use crate::loss::{LossError, Row, log_coverage};
use crate::rules::Rule;

/// The chance that a drafted token is accepted, as a function of both distributions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reward {
    /// `Σ min(p, q)`: the draft is sampled, and tested against its own distribution.
    Overlap,
    /// `p(argmax q)`: the draft is the drafter's likeliest token, whatever its share.
    TargetOnly,
}

impl Reward {
    /// What `rule` pays for at the temperature of service.
    pub fn of(rule: Rule, temperature: f64) -> Self {
        match rule {
            Rule::Greedy | Rule::SampledMatch => Self::TargetOnly,
            _ if temperature == 0.0 => Self::TargetOnly,
            _ => Self::Overlap,
        }
    }

    /// The loss that raises it.
    pub fn loss(self) -> LossKind {
        match self {
            Self::Overlap => LossKind::Lk,
            Self::TargetOnly => LossKind::Ce,
        }
    }

    /// Its value at one position.
    ///
    /// # Errors
    /// If the row has no tokens.
    pub fn evaluate(self, row: &Row) -> Result<f64, LossError> {
        match self {
            Self::Overlap => Ok(row.overlap().alpha()),
            Self::TargetOnly => log_coverage(row, 1).map(f64::exp),
        }
    }
}
