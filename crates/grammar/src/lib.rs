//! Answers that match a regular expression or a JSON schema, through the crate `llguidance`.
//!
//! A grammar is compiled once for a tokenizer. Each answer has its own state, which can be forked at any token, so a
//! verifier follows drafts on forks and has nothing to roll back. States read bytes: every way to split a text that
//! matches into tokens is allowed, and which tokens may follow depends on the bytes so far alone.
#![warn(missing_docs)]

mod state;

use llguidance::api::TopLevelGrammar;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::Value;
use spectrain_core::constraint::{Constraint, ConstraintState};
use spectrain_core::token_bytes::TokenBytes;
use state::State;
use std::fmt;
use std::sync::Arc;

/// Longer tokens are never allowed: the trie of the tokens is not made for them.
const LONGEST_TOKEN: usize = 1000;

/// What the answers are to match.
#[derive(Debug, Clone, PartialEq)]
pub enum Spec {
    /// A regular expression that the whole answer matches, in the syntax of the crate `regex`, without look-around.
    Regex(String),
    /// A JSON schema: the answer is one document that it allows.
    JsonSchema(Value),
}

/// Why there is no grammar.
#[derive(Debug, thiserror::Error)]
pub enum GrammarError {
    /// It cannot be compiled.
    #[error("the {what} cannot be followed: {why}")]
    Compile {
        /// Regular expression or JSON schema.
        what: &'static str,
        /// Where and why.
        why: String,
    },
    /// Nothing matches it.
    #[error("nothing that this tokenizer can write matches the {what}")]
    Nothing {
        /// Regular expression or JSON schema.
        what: &'static str,
    },
    /// Without an end token no answer that the grammar could continue would end.
    #[error(
        "the target has no end token within its vocabulary of {vocabulary}: an answer under a grammar could not end"
    )]
    NoEnd {
        /// Entries of the vocabulary.
        vocabulary: usize,
    },
    /// The tokenizer has more tokens than the model.
    #[error("the tokenizer has {tokens} ids and the target's vocabulary {vocabulary} entries")]
    Vocabulary {
        /// Ids of the tokenizer.
        tokens: usize,
        /// Entries of the vocabulary.
        vocabulary: usize,
    },
}

/// A compiled grammar, for one tokenizer.
#[derive(Clone)]
pub struct Grammar {
    spec: Spec,
    start: Matcher,
    tokens: Arc<Tokens>,
}

/// What a grammar's states know of the tokens.
#[derive(Debug)]
struct Tokens {
    end: Vec<u32>,
    vocabulary: usize,
}

impl Spec {
    fn what(&self) -> &'static str {
        match self {
            Self::Regex(_) => "regular expression",
            Self::JsonSchema(_) => "JSON schema",
        }
    }

    fn grammar(&self) -> TopLevelGrammar {
        match self {
            Self::Regex(pattern) => TopLevelGrammar::from_regex(pattern),
            Self::JsonSchema(schema) => TopLevelGrammar::from_json_schema(schema.clone()),
        }
    }
}

impl Grammar {
    /// Compiles `spec` for a target with a vocabulary of `vocabulary` entries, whose answers `end_tokens` end.
    ///
    /// # Errors
    /// [`GrammarError`]: what cannot be followed exactly is refused.
    pub fn compile(
        spec: Spec,
        bytes: &TokenBytes,
        end_tokens: &[u32],
        vocabulary: usize,
    ) -> Result<Self, GrammarError> {
        if bytes.len() > vocabulary {
            return Err(GrammarError::Vocabulary { tokens: bytes.len(), vocabulary });
        }
        let end: Vec<u32> = end_tokens.iter().copied().filter(|&token| (token as usize) < vocabulary).collect();
        let environment = environment(bytes, &end, vocabulary).ok_or(GrammarError::NoEnd { vocabulary })?;
        let what = spec.what();
        let refuse = |why: String| GrammarError::Compile { what, why };
        // Sets of tokens that are allowed together where the rest of a string is free: the same masks, sooner.
        let mut factory =
            ParserFactory::new(&environment, InferenceCapabilities::default(), &SlicedBiasComputer::general_slices())
                .map_err(|e| refuse(e.to_string()))?;
        factory.quiet().limits_mut().verbose_errors = false;
        let parser = factory.create_parser(spec.grammar()).map_err(|e| refuse(readable(&e.to_string())))?;
        let grammar = Self { start: Matcher::new(Ok(parser)), spec, tokens: Arc::new(Tokens { end, vocabulary }) };
        match grammar.start().mask() {
            Ok(mask) if mask.contains(&true) => Ok(grammar),
            Ok(_) => Err(GrammarError::Nothing { what }),
            Err(e) => Err(refuse(e.to_string())),
        }
    }

    /// What it was compiled from.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }
}

impl fmt::Debug for Grammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grammar").field("spec", &self.spec).finish_non_exhaustive()
    }
}

impl Constraint for Grammar {
    fn start(&self) -> Box<dyn ConstraintState> {
        // With its own lexer: requests run in parallel, and forks of one request share it.
        Box::new(State::new(self.start.deep_clone(), self.tokens.clone()))
    }
}

/// The tokens as the parser knows them; `None` without an end token.
fn environment(bytes: &TokenBytes, end: &[u32], vocabulary: usize) -> Option<TokEnv> {
    let word = |id: u32| match bytes.special(id) {
        // No text holds the marker's byte, so no special token is ever taken for text.
        Some(name) => [&[TokTrie::SPECIAL_TOKEN_MARKER], name].concat(),
        None => bytes.text(id).to_vec(),
    };
    let words: Vec<Vec<u8>> =
        (0..vocabulary as u32).map(word).map(|w| if w.len() > LONGEST_TOKEN { vec![] } else { w }).collect();
    let info = TokRxInfo::new(vocabulary as u32, *end.first()?);
    Some(Arc::new(ApproximateTokEnv::new(TokTrie::from(&info, &words).with_eos_tokens(end))))
}

/// The parser's words without what is for its authors.
fn readable(why: &str) -> String {
    why.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && *line != "<non-verbose/>")
        .collect::<Vec<_>>()
        .join("; ")
}
