//! The reference test of one drafted token, every precondition checked.
//!
//! The other rules are compared with it; it is what "accept with `min(1, p/q)`, else draw from the residual" means
//! down to the edge cases (Leviathan et al. 2023, algorithm 1; requirements V1 to V8).

use super::residual::{ZeroResidual, residual};
use super::{Proposal, RuleError};

/// How far a distribution's sum may lie from one.
pub const SUM_TOLERANCE: f64 = 1e-6;

/// Which of the two distributions an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The target's.
    Target,
    /// The draft's.
    Draft,
}

/// A violated precondition of [`verify_candidate`].
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CandidateError {
    /// The distributions are empty or of different length.
    #[error("target has {target} entries and draft {draft}: both must cover one vocabulary of at least one token")]
    Misaligned {
        /// Target entries.
        target: usize,
        /// Draft entries.
        draft: usize,
    },
    /// An entry is negative or not finite.
    #[error("{side:?} entry {token} is {value}: probabilities must be finite and non-negative")]
    NotProbability {
        /// Which distribution.
        side: Side,
        /// Where.
        token: usize,
        /// The entry.
        value: f64,
    },
    /// A distribution does not sum to one.
    #[error("{side:?} sums to {sum}, not to one")]
    NotNormalised {
        /// Which distribution.
        side: Side,
        /// Its sum.
        sum: f64,
    },
    /// The token lies outside the vocabulary.
    #[error("token {token} is outside the shared vocabulary of {vocabulary}")]
    Token {
        /// The token.
        token: usize,
        /// Vocabulary size.
        vocabulary: usize,
    },
    /// The uniform number lies outside `[0, 1)`.
    #[error("uniform number {0} is outside [0, 1)")]
    Uniform(f64),
    /// The draft gives the token no mass.
    #[error("the draft cannot have sampled token {0}: its probability there is zero")]
    ImpossibleDraft(usize),
    /// A rejection without residual mass, in strict mode.
    #[error("the rejection has no residual mass")]
    NoResidual,
}

/// The outcome for one drafted token.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// Kept.
    Accepted,
    /// Replaced by a draw from `residual`.
    Rejected {
        /// Non-negative, sums to one.
        residual: Vec<f64>,
        /// The residual had no mass and is the target itself.
        fallback: bool,
    },
}

/// Probability that a drafted token is kept: `min(1, p/q)`. `q` must be positive.
pub fn acceptance_probability(p: f64, q: f64) -> f64 {
    (p / q).min(1.0)
}

/// Judges one drafted token: kept iff `uniform < min(1, target[token] / draft[token])`.
///
/// `target` and `draft` are distributions over one vocabulary, after all processors; `draft` is the one the token was
/// really drawn from.
///
/// # Errors
/// A [`CandidateError`] names the first violated precondition.
pub fn verify_candidate(
    target: &[f64],
    draft: &[f64],
    token: usize,
    uniform: f64,
    mode: ZeroResidual,
) -> Result<Decision, CandidateError> {
    if target.is_empty() || target.len() != draft.len() {
        return Err(CandidateError::Misaligned { target: target.len(), draft: draft.len() });
    }
    check_distribution(Side::Target, target)?;
    check_distribution(Side::Draft, draft)?;
    if token >= target.len() {
        return Err(CandidateError::Token { token, vocabulary: target.len() });
    }
    if !(0.0..1.0).contains(&uniform) {
        return Err(CandidateError::Uniform(uniform));
    }
    if draft[token] == 0.0 {
        return Err(CandidateError::ImpossibleDraft(token));
    }
    if uniform < acceptance_probability(target[token], draft[token]) {
        return Ok(Decision::Accepted);
    }
    match (residual(1.0, target, Proposal::Sampled(draft), token as u32), mode) {
        (Some(residual), _) => Ok(Decision::Rejected { residual, fallback: false }),
        (None, ZeroResidual::FallBack) => Ok(Decision::Rejected { residual: target.to_vec(), fallback: true }),
        (None, ZeroResidual::Strict) => Err(CandidateError::NoResidual),
    }
}

/// Checks entries and sum.
fn check_distribution(side: Side, row: &[f64]) -> Result<(), CandidateError> {
    if let Some(token) = row.iter().position(|&mass| !(mass >= 0.0 && mass.is_finite())) {
        return Err(CandidateError::NotProbability { side, token, value: row[token] });
    }
    let sum: f64 = row.iter().sum();
    if (sum - 1.0).abs() > SUM_TOLERANCE { Err(CandidateError::NotNormalised { side, sum }) } else { Ok(()) }
}

/// The acceptance probability of a node as the runtime rules use it, with the two entries checked.
pub(super) fn checked_acceptance(scale: f64, p: f64, q: f64, node: usize, token: u32) -> Result<f64, RuleError> {
    let proper = |entry: f64| entry >= 0.0 && entry.is_finite();
    if !proper(p) || !proper(q) {
        return Err(RuleError::NotProbabilities { node });
    }
    if q == 0.0 {
        return Err(RuleError::ImpossibleDraft { node, token });
    }
    Ok(acceptance_probability(scale * p, q))
}
