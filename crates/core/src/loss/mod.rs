//! What a drafter is trained on: value and closed-form gradient of every loss, in f64.
//!
//! These are the references that the tensor and kernel forms are checked against. Gradients are with respect to the
//! draft logits `z` over the draft vocabulary, where `q = softmax(z / T)`; the target is constant. All arithmetic is on
//! logarithms, so a cold start over a vocabulary of 10^5 tokens keeps its gradient. At ties `q_v = p_v` the overlap has
//! no derivative; a token counts as under-covered iff `q_v < p_v`, strictly, in every form of a loss.
//!
//! On a reduced draft vocabulary the cross-entropy family (CE, KL, reverse KL, JSD) compares with the target
//! renormalised there; TV, LK, coverage and the chain losses use the target's true probabilities, because the verifier
//! does.

mod confidence;
mod coverage;
mod cross_entropy;
mod dspark;
mod end_to_end_tv;
mod exact_length;
mod jensen_shannon;
mod kl;
mod lk_alpha;
mod lk_lambda;
pub mod log_space;
mod markov_head;
mod policy;
mod reverse_kl;
mod row;
mod smooth_l1;
mod total_variation;

pub use confidence::{Confidence, confidence_bce};
pub use coverage::{coverage, log_coverage, top_tokens};
pub use cross_entropy::{cross_entropy, token_cross_entropy};
pub use dspark::{DsparkLoss, DsparkTerms, DsparkWeights, block_weights, dspark};
pub use end_to_end_tv::{LengthProduct, end_to_end_tv, length_product};
pub use exact_length::{ChainStep, exact_length, length_of_draft_sample, length_of_target_sample};
pub use jensen_shannon::jensen_shannon;
pub use kl::kl;
pub use lk_alpha::lk_alpha;
pub use lk_lambda::{lk_lambda, mixing_weight};
pub use markov_head::markov_logits;
pub use policy::Policy;
pub use reverse_kl::reverse_kl;
pub use row::{Overlap, Row, Temperature};
pub use smooth_l1::smooth_l1;
pub use total_variation::total_variation;

/// Why a loss has no value or no gradient.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum LossError {
    /// An argument has no entries.
    #[error("{what} is empty")]
    Empty {
        /// The argument.
        what: &'static str,
    },
    /// Two arguments that belong together differ in length.
    #[error("{what} has {found} entries where {expected} belong")]
    Length {
        /// The argument that does not fit.
        what: &'static str,
        /// Entries that were expected.
        expected: usize,
        /// Entries that were found.
        found: usize,
    },
    /// A logit is NaN or positive infinity, or all are negative infinity.
    #[error("{what} are no logits: an entry is NaN or +inf, or none is finite")]
    NotLogits {
        /// The argument.
        what: &'static str,
    },
    /// A temperature, weight or size is outside its range.
    #[error("{what} is {value}, which is outside its range")]
    Range {
        /// The argument.
        what: &'static str,
        /// Its value.
        value: f64,
    },
    /// A policy's setting is outside its range, or a row that it reads holds what is no logit.
    #[error("the processors refuse the row: {reason}")]
    Policy {
        /// What they say.
        reason: String,
    },
    /// The draft vocabulary is not a strictly rising list of target ids.
    #[error("draft vocabulary entry {index} is not above the one before it, or not a target id")]
    Vocabulary {
        /// The offending entry.
        index: usize,
    },
    /// The target has no mass on the draft vocabulary (or on what was asked of it), so the loss is infinite.
    #[error("the target has no mass where the loss needs it; the row has a metric but no gradient")]
    NoTargetMass,
    /// One distribution has mass where the other has none, so the divergence is infinite.
    #[error("the divergence is infinite: one distribution has mass where the other has none")]
    Unbounded,
}

/// A loss and its gradient with respect to the draft logits.
#[derive(Clone, Debug, PartialEq)]
pub struct Gradient {
    /// The loss, in nats for the logarithmic ones.
    pub value: f64,
    /// `d value / d z`, `[draft vocabulary]`.
    pub logits: Vec<f64>,
}

/// A loss of several unroll steps and its gradient with respect to each step's draft logits.
#[derive(Clone, Debug, PartialEq)]
pub struct ChainGradient {
    /// The loss.
    pub value: f64,
    /// `d value / d z_i`, `[steps][draft vocabulary]`.
    pub logits: Vec<Vec<f64>>,
}

/// The losses of one position, by name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Loss {
    /// Soft cross-entropy.
    CrossEntropy,
    /// Forward KL.
    Kl,
    /// Reverse KL.
    ReverseKl,
    /// Jensen–Shannon divergence.
    JensenShannon,
    /// Total variation, one less the acceptance probability.
    TotalVariation,
    /// Negative logarithm of the acceptance probability.
    LkAlpha,
    /// KL and TV, mixed by the acceptance probability of this position.
    LkLambda {
        /// How fast KL fades as acceptance rises.
        eta: f64,
    },
    /// Negative logarithm of the target's mass on the drafter's `k` likeliest tokens.
    Coverage {
        /// Tokens covered.
        k: usize,
    },
}

impl Loss {
    /// The name in recipes and reports.
    pub fn name(&self) -> &'static str {
        match self {
            Self::CrossEntropy => "ce",
            Self::Kl => "kl",
            Self::ReverseKl => "reverse_kl",
            Self::JensenShannon => "jsd",
            Self::TotalVariation => "tv",
            Self::LkAlpha => "lk_alpha",
            Self::LkLambda { .. } => "lk_lambda",
            Self::Coverage { .. } => "coverage",
        }
    }

    /// Value and gradient at one position.
    ///
    /// # Errors
    /// See the function of the loss.
    pub fn evaluate(&self, row: &Row) -> Result<Gradient, LossError> {
        match *self {
            Self::CrossEntropy => cross_entropy(row),
            Self::Kl => kl(row),
            Self::ReverseKl => reverse_kl(row),
            Self::JensenShannon => jensen_shannon(row),
            Self::TotalVariation => Ok(total_variation(row)),
            Self::LkAlpha => lk_alpha(row),
            Self::LkLambda { eta } => lk_lambda(row, mixing_weight(eta, row.overlap().alpha())),
            Self::Coverage { k } => coverage(row, k),
        }
    }
}
