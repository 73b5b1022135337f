//! The choices that a recipe names by a word.

use std::fmt;

use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The training loss of each unroll step, against the target's distribution p.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LossKind {
    /// −log α with α = Σ min(p, q), the acceptance probability of the token rule; p is not renormalised on a reduced
    /// draft vocabulary.
    Lk,
    /// KL(p‖q) with p renormalised on the draft vocabulary.
    Kl,
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
