//! Proposers that need no training, by name.

pub mod automaton;
pub mod model;
pub mod ngram;
pub mod suffix;
pub mod text;

use crate::proposer::Proposer;
use model::DraftModelProposer;
use ngram::Ngrams;
use spectrain_core::stats::lookup::Lookup;
use spectrain_core::tokenizer::{Tokenizer, TokenizerError};
use spectrain_model::{Llama, ModelError};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use suffix::Suffixes;

/// Prompt lookup over n-grams.
pub type NgramProposer = text::TextProposer<Ngrams>;
/// Suffix matching.
pub type SuffixProposer = text::TextProposer<Suffixes>;

/// Shortest and longest match of `ngram` without numbers.
const NGRAM: Lookup = Lookup { min_match: 2, max_match: 4 };
/// Longest match that can be asked for.
const LONGEST: usize = 64;

/// Makes a kind of what stands behind its name and a colon.
type Constructor = fn(Option<&str>) -> Option<ProposerKind>;

/// The registry: every kind by name, how it is written, and what makes it. A new kind is a line here and an arm in
/// [`ProposerKind::proposer`].
const KINDS: [(&str, &str, Constructor); 3] = [
    ("ngram", "ngram or ngram:MIN,MAX with 1 ≤ MIN ≤ MAX ≤ 64", ngram),
    ("suffix", "suffix or suffix:shared", suffix),
    ("model", "model:DIR", |dir| dir.filter(|dir| !dir.is_empty()).map(|dir| ProposerKind::Model(dir.into()))),
];

/// A proposer that needs no training.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProposerKind {
    /// `ngram:MIN,MAX`: prompt lookup of matches of so many tokens.
    Ngram(Lookup),
    /// `suffix`, or `suffix:shared` over the run's finished answers, too.
    Suffix {
        /// Whether finished answers are read.
        shared: bool,
    },
    /// `model:DIR`: a smaller model.
    Model(PathBuf),
}

fn ngram(bounds: Option<&str>) -> Option<ProposerKind> {
    let Some(bounds) = bounds else { return Some(ProposerKind::Ngram(NGRAM)) };
    let (min, max) = bounds.split_once(',')?;
    let (min_match, max_match) = (min.parse().ok()?, max.parse().ok()?);
    let fits = 1 <= min_match && min_match <= max_match && max_match <= LONGEST;
    fits.then_some(ProposerKind::Ngram(Lookup { min_match, max_match }))
}

fn suffix(reach: Option<&str>) -> Option<ProposerKind> {
    let shared = reach.is_some();
    reach.is_none_or(|reach| reach == "shared").then_some(ProposerKind::Suffix { shared })
}

/// Why a proposer cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum ProposerError {
    /// The draft model cannot be loaded.
    #[error("draft model {dir}: {source}")]
    Model {
        /// Its directory.
        dir: String,
        /// What is wrong.
        source: ModelError,
    },
    /// Its tokenizer cannot be loaded.
    #[error("draft model: {0}")]
    Tokenizer(#[from] TokenizerError),
    /// Its tokens are other ones.
    #[error("draft model {dir} has another {what} than the target: {found}, not {target}; tokens would be other words")]
    OtherTokens {
        /// Its directory.
        dir: String,
        /// What differs.
        what: &'static str,
        /// The draft model's.
        found: String,
        /// The target's.
        target: String,
    },
}

impl ProposerKind {
    /// The proposer for `target`, whose tokenizer has the content hash `tokenizer_hash`.
    ///
    /// # Errors
    /// [`ProposerError`] if a draft model cannot be read or has other tokens.
    pub fn proposer(&self, target: &Llama, tokenizer_hash: &str) -> Result<Box<dyn Proposer>, ProposerError> {
        let dir = match self {
            Self::Ngram(lookup) => return Ok(Box::new(NgramProposer::new(Ngrams(*lookup)))),
            Self::Suffix { shared } => return Ok(Box::new(SuffixProposer::new(Suffixes::new(*shared)))),
            Self::Model(dir) => dir,
        };
        let name = dir.display().to_string();
        let same = |what, found: String, target: String| match found == target {
            true => Ok(()),
            false => Err(ProposerError::OtherTokens { dir: name.clone(), what, found, target }),
        };
        let hash = Tokenizer::load(dir)?.content_hash().to_owned();
        same("tokenizer", hash, tokenizer_hash.to_owned())?;
        let model = Llama::load(dir, target.device());
        let model = model.map_err(|source| ProposerError::Model { dir: name.clone(), source })?;
        let sizes = [&model, target].map(|model| format!("{} tokens", model.config().vocab_size));
        let [found, expected] = sizes;
        same("vocabulary", found, expected)?;
        Ok(Box::new(DraftModelProposer::new(model)))
    }
}

impl FromStr for ProposerKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, rest) = text.split_once(':').map_or((text, None), |(name, rest)| (name, Some(rest)));
        match KINDS.iter().find(|(known, ..)| *known == name) {
            Some((_, form, make)) => make(rest).ok_or_else(|| format!("`{text}`: it is written {form}")),
            None => {
                let names: Vec<&str> = KINDS.iter().map(|(name, ..)| *name).collect();
                Err(format!("unknown proposer `{name}`; proposers are {}", names.join(", ")))
            }
        }
    }
}

impl fmt::Display for ProposerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ngram(Lookup { min_match, max_match }) => write!(f, "ngram:{min_match},{max_match}"),
            Self::Suffix { shared: false } => f.write_str("suffix"),
            Self::Suffix { shared: true } => f.write_str("suffix:shared"),
            Self::Model(dir) => write!(f, "model:{}", dir.display()),
        }
    }
}
