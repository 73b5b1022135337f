//! What the verifier makes of logits before it compares them: the part of the processors that a loss can follow.
//!
//! Temperature, top-k, top-p and min-p depend on the position alone, and a server applies them to target and drafter
//! alike. The overlap that it pays for is that of the processed distributions, not of the raw ones.

use super::{Gradient, Loss, LossError, Row, Temperature};
use crate::process::{Context, ProcessError, Processors};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Temperature, then top-k, top-p and min-p, in the order and with the ties of [`Processors`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Policy {
    /// Logits are divided by this.
    pub temperature: f64,
    /// Only this many most probable tokens stay; 0 is off.
    pub top_k: usize,
    /// Only the fewest most probable tokens whose mass reaches this stay; 1 is off.
    pub top_p: f64,
    /// Only tokens of at least this fraction of the largest probability stay; 0 is off.
    pub min_p: f64,
}

impl Default for Policy {
    fn default() -> Self {
        let Processors { temperature, top_k, top_p, min_p, .. } = Processors::default();
        Self { temperature, top_k, top_p, min_p }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "temperature {}", self.temperature)?;
        let none = Self::default();
        if self.top_k != none.top_k {
            write!(f, ", top-k {}", self.top_k)?;
        }
        if self.top_p != none.top_p {
            write!(f, ", top-p {}", self.top_p)?;
        }
        if self.min_p != none.min_p {
            write!(f, ", min-p {}", self.min_p)?;
        }
        Ok(())
    }
}

impl Policy {
    /// A temperature alone.
    pub fn at(temperature: f64) -> Self {
        Self { temperature, ..Self::default() }
    }

    /// Whether it leaves every distribution as it is.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Whether tokens are left out.
    pub fn truncates(&self) -> bool {
        *self != Self::at(self.temperature)
    }

    /// What is wrong with the first setting outside its range, and where it must lie.
    ///
    /// # Errors
    /// That setting.
    pub fn validate(&self) -> Result<(), ProcessError> {
        let Self { temperature, .. } = *self;
        if temperature == 0.0 {
            let (name, range) = ("temperature", "above 0: of greedy decoding a loss has no gradient");
            return Err(ProcessError::Setting { name, value: temperature, range });
        }
        self.processors().validate()
    }

    fn processors(&self) -> Processors {
        let Self { temperature, top_k, top_p, min_p } = *self;
        Processors { temperature, top_k, top_p, min_p, ..Processors::default() }
    }

    /// Writes to `kept` the masses of the tokens of a row of logits that stay, and 0 for the others. A row without any
    /// finite logit keeps none.
    ///
    /// # Errors
    /// A setting outside its range, or a logit that is none.
    pub fn keep(&self, logits: impl Iterator<Item = f64>, kept: &mut Vec<f64>) -> Result<(), LossError> {
        kept.clear();
        kept.extend(logits);
        let applied = self.processors().apply(kept, &Context::default());
        applied.map(|_| ()).map_err(|error| LossError::Policy { reason: error.to_string() })
    }

    /// `logits` with minus infinity for all that does not stay.
    fn truncated(&self, logits: &[f64]) -> Result<Vec<f64>, LossError> {
        if !self.truncates() {
            return Ok(logits.to_vec());
        }
        let mut kept = Vec::new();
        self.keep(logits.iter().copied(), &mut kept)?;
        let stay = |(logit, mass): (&f64, &f64)| if *mass > 0.0 { *logit } else { f64::NEG_INFINITY };
        Ok(logits.iter().zip(&kept).map(stay).collect())
    }
}

impl Row {
    /// As [`Row::new`], of the distributions that `policy` makes of both. Gradients hold the kept sets fixed: the
    /// membership of a token has no derivative.
    ///
    /// # Errors
    /// As [`Row::new`], and as [`Policy::keep`].
    pub fn under(
        policy: &Policy,
        target: &[f64],
        draft: &[f64],
        vocabulary: Option<&[usize]>,
    ) -> Result<Self, LossError> {
        Self::new(
            &policy.truncated(target)?,
            &policy.truncated(draft)?,
            vocabulary,
            Temperature::Both(policy.temperature),
        )
    }
}

impl Loss {
    /// Value and gradient at one position under `policy`.
    ///
    /// Where the two kept sets share no token, `-ln alpha` is infinite and has no gradient; the loss then reads the
    /// drafter's whole distribution, which pulls it into the target's set. The row's acceptance is 0 all the same.
    ///
    /// # Errors
    /// As [`Loss::evaluate`] and [`Row::under`].
    pub fn evaluate_under(
        &self,
        policy: &Policy,
        target: &[f64],
        draft: &[f64],
        vocabulary: Option<&[usize]>,
    ) -> Result<Gradient, LossError> {
        let row = Row::under(policy, target, draft, vocabulary)?;
        if *self == Self::LkAlpha && row.overlap().log_alpha == f64::NEG_INFINITY {
            let whole = Row::new(&policy.truncated(target)?, draft, vocabulary, Temperature::Both(policy.temperature))?;
            return self.evaluate(&whole);
        }
        self.evaluate(&row)
    }
}
