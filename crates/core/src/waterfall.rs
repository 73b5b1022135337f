//! Where the tokens went that a round could have committed: a perfect drafter commits the draft's length and one more
//! in every round, the real one less, and the difference is a sum of losses with one cause each.

use crate::rules::Rule;
use serde::{Deserialize, Serialize};

/// What tokens are lost to. Each is the step from one imagined drafter to the next, more real one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// The last round of an answer reaches past its end, whoever drafts.
    TextEnd,
    /// Words outside the draft vocabulary end a draft, whoever drafts.
    Vocabulary,
    /// The drafter is not its target, even where it reads the target's features.
    Capacity,
    /// Behind its first token it reads its own hidden states.
    Exposure,
    /// Its most likely token is drafted instead of one drawn from its distribution.
    SamplingMode,
    /// The verifier measured other than the text says: chance where temperatures are above zero, rounding, faults.
    Runtime,
}

impl Cause {
    /// In the order of the chart.
    pub const ALL: [Self; 6] =
        [Self::TextEnd, Self::Vocabulary, Self::Capacity, Self::Exposure, Self::SamplingMode, Self::Runtime];

    /// Name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::TextEnd => "text end",
            Self::Vocabulary => "vocabulary",
            Self::Capacity => "capacity",
            Self::Exposure => "exposure",
            Self::SamplingMode => "sampling mode",
            Self::Runtime => "runtime",
        }
    }
}

/// One part of the difference.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Loss {
    /// What they were lost to.
    pub cause: Cause,
    /// Tokens per target call; below zero for a gain.
    pub tokens: f64,
}

/// The chart of one temperature and draft length.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Waterfall {
    /// Sampling temperature.
    pub temperature: f64,
    /// Rule.
    pub rule: Rule,
    /// Drafted tokens per round.
    pub length: usize,
    /// Measured tokens per target call.
    pub tokens_per_target_call: f64,
    /// The losses in the order of [`Cause::ALL`]; with the measured tokens they add up to `length + 1`.
    pub losses: Vec<Loss>,
}

impl Waterfall {
    /// The chart of a drafter whose imagined forms commit `imagined` tokens per target call: a perfect one on the same
    /// text, the best that its vocabulary allows, itself led by the target at every step, itself as it drafts, itself
    /// with the tokens that are really drafted. `measured` is the verifier's figure.
    pub fn new((temperature, rule, length): (f64, Rule, usize), imagined: [f64; 5], measured: f64) -> Self {
        let mut before = (length + 1) as f64;
        let steps = imagined.into_iter().chain([measured]);
        let loss = |(cause, after): (Cause, f64)| {
            let tokens = before - after;
            before = after;
            Loss { cause, tokens }
        };
        let losses = Cause::ALL.into_iter().zip(steps).map(loss).collect();
        Self { temperature, rule, length, tokens_per_target_call: measured, losses }
    }
}
