//! The choices that a recipe names by a word.

use std::fmt;

use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The training loss, against the target's distribution p; q is the drafter's and α = Σ min(p, q) their overlap. The
/// divergences take p renormalised on a reduced draft vocabulary, the others as the verifier has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LossKind {
    /// −log α, the acceptance probability of the token rule (LK^α).
    Lk,
    /// KL while α is low, 1 − α once it is high, mixed by exp(−eta·α) (LK^λ).
    LkLambda,
    /// 1 − α.
    Tv,
    /// KL(p‖q).
    Kl,
    /// Cross-entropy of q under p: the gradient of KL, another value.
    Ce,
    /// KL(q‖p).
    ReverseKl,
    /// Jensen–Shannon divergence.
    Jsd,
    /// 1 − length/steps with the length a product of the steps' overlaps: for a drafter that already overlaps.
    E2eTv,
    /// 1 − length/steps with the weights that make the length exact on text that the target sampled.
    ExactLength,
}

/// How the unroll steps of a row are weighed against one another, beside their fixed weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StepWeighting {
    /// All alike.
    Fixed,
    /// By the chance that the verifier gets so far, from the drafter's own overlaps.
    Accepted,
    /// D-PACE: by what the step and those behind it add to the accepted length, from the drafter's share of each token.
    DPace,
}

/// How the rows of a text are weighed against one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RowWeighting {
    /// All alike.
    All,
    /// By the probability that a round of the verifier starts there, from the drafter's own acceptance along the text.
    RoundStart,
}

/// What a loss reads of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TargetUse {
    /// Its distribution at every row.
    Distribution,
    /// The token that the text has there, as if the target were certain of it.
    Ids,
}

impl LossKind {
    /// Whether the unroll steps of a row are one loss, which weighs them itself.
    pub fn is_chain(self) -> bool {
        matches!(self, Self::E2eTv | Self::ExactLength)
    }

    /// Whether it stays finite where one distribution has tokens that the other leaves out.
    pub fn bears_truncation(self) -> bool {
        matches!(self, Self::Lk | Self::Tv | Self::Jsd | Self::E2eTv)
    }
}

/// How the drafter's matrices are updated. Norms are always AdamW's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Optimizer {
    /// Adam with decoupled weight decay.
    AdamW,
    /// Orthogonalised momentum, sized like an AdamW update, so that one learning rate suits both.
    Muon,
}

/// How the learning rate goes on after its linear warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScheduleShape {
    /// Half a cosine down to 0.
    Cosine,
    /// A straight line down to 0.
    Linear,
    /// Warm-up, stable, decay (Hu et al., 2024): the peak rate, and a straight line down to 0 at the end.
    Wsd,
    /// The peak rate to the end.
    Constant,
}

impl fmt::Display for LossKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// How many of the target's tokens the drafter can propose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DraftVocab {
    /// All of them. `"full"` or `0` in a recipe.
    Full,
    /// The most frequent ones in the supervised answers, this many.
    Top(usize),
}

impl DraftVocab {
    /// The number of tokens for a target of `vocab` tokens.
    pub fn size(self, vocab: usize) -> usize {
        match self {
            Self::Full => vocab,
            Self::Top(size) => size,
        }
    }
}

impl Serialize for DraftVocab {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Full => serializer.serialize_str("full"),
            Self::Top(size) => size.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for DraftVocab {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(DraftVocabVisitor)
    }
}

struct DraftVocabVisitor;

impl Visitor<'_> for DraftVocabVisitor {
    type Value = DraftVocab;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number of tokens or \"full\"")
    }

    fn visit_i64<E: Error>(self, size: i64) -> Result<DraftVocab, E> {
        match usize::try_from(size) {
            Ok(0) => Ok(DraftVocab::Full),
            Ok(size) => Ok(DraftVocab::Top(size)),
            Err(_) => Err(E::invalid_value(Unexpected::Signed(size), &self)),
        }
    }

    fn visit_str<E: Error>(self, word: &str) -> Result<DraftVocab, E> {
        match word {
            "full" => Ok(DraftVocab::Full),
            _ => Err(E::invalid_value(Unexpected::Str(word), &self)),
        }
    }
}
