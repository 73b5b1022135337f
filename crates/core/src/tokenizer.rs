//! Text to ids and back: the `tokenizer.json` of a model directory, read once and hashed.
//!
//! Ids are those of the file alone. Nothing is added in front or behind: beginning-of-sequence tokens belong to the
//! chat template, which writes them as text. Special tokens that stand in the text become their ids.

use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::token_bytes::TokenBytes;
use sha2::{Digest, Sha256};
use thiserror::Error;

/// The file a tokenizer is read from.
pub const TOKENIZER: &str = "tokenizer.json";

/// Why text and ids could not be turned into each other.
#[derive(Debug, Error)]
pub enum TokenizerError {
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The file is no tokenizer.
    #[error("{}: not a tokenizer: {why}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Where and why.
        why: String,
    },
    /// The tokenizer has ids that the model has no embedding for.
    #[error("{}: token `{token}` has id {id}, but the model's vocabulary has {vocab} entries: not this model's tokenizer",
        path.display())]
    DoesNotFit {
        /// The tokenizer's file.
        path: PathBuf,
        /// The token with the largest id.
        token: String,
        /// Its id.
        id: u32,
        /// Entries of the model's vocabulary.
        vocab: usize,
    },
    /// The bytes of its tokens cannot be told.
    #[error("{}: which bytes its tokens stand for is not known: {why}", path.display())]
    Bytes {
        /// The tokenizer's file.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// Text could not be encoded.
    #[error("cannot encode text: {0}")]
    Encode(String),
    /// Ids could not be decoded.
    #[error("cannot decode ids: {0}")]
    Decode(String),
    /// An id that stands for nothing.
    #[error("cannot decode ids: {id} is not an id of this tokenizer")]
    UnknownId {
        /// The id.
        id: u32,
    },
}

/// Ids with the bytes of the text that each comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Spanned {
    pub ids: Vec<u32>,
    /// One per id; a token that holds a part of a character has the whole character's bytes.
    pub spans: Vec<Range<usize>>,
}

/// A model's tokenizer.
#[derive(Debug)]
pub struct Tokenizer {
    path: PathBuf,
    inner: tokenizers::Tokenizer,
    hash: String,
    /// The largest id and its token.
    last: (u32, String),
}

impl Tokenizer {
    /// Reads `tokenizer.json` of a model directory. Truncation and padding that the file may ask for are switched
    /// off: they would change ids silently.
    ///
    /// # Errors
    /// [`TokenizerError::Io`], [`TokenizerError::Parse`].
    pub fn load(dir: &Path) -> Result<Self, TokenizerError> {
        let path = dir.join(TOKENIZER);
        let bytes = fs::read(&path).map_err(|source| TokenizerError::Io { path: path.clone(), source })?;
        let parse = |why: String| TokenizerError::Parse { path: path.clone(), why };
        let mut inner = tokenizers::Tokenizer::from_bytes(&bytes).map_err(|e| parse(e.to_string()))?;
        inner.with_padding(None).with_truncation(None).map_err(|e| parse(e.to_string()))?;
        let last = inner.get_vocab(true).into_iter().map(|(token, id)| (id, token)).max();
        let last = last.ok_or_else(|| parse("its vocabulary is empty".into()))?;
        let hash = Sha256::digest(&bytes).iter().map(|b| format!("{b:02x}")).collect();
        Ok(Self { path, inner, hash, last })
    }

    /// Checks that every id has a row in a vocabulary of `vocab` entries. A model may have more (padding rows).
    ///
    /// # Errors
    /// [`TokenizerError::DoesNotFit`].
    pub fn fits(&self, vocab: usize) -> Result<(), TokenizerError> {
        let (id, token) = &self.last;
        if (*id as usize) < vocab {
            return Ok(());
        }
        Err(TokenizerError::DoesNotFit { path: self.path.clone(), token: token.clone(), id: *id, vocab })
    }

    /// Ids of a text. No special token is added; those that stand in the text are recognised.
    ///
    /// # Errors
    /// [`TokenizerError::Encode`].
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let encoding = self.inner.encode_fast(text, false).map_err(|e| TokenizerError::Encode(e.to_string()))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// As [`Tokenizer::encode`], with the bytes that each id comes from.
    pub(crate) fn encode_spanned(&self, text: &str) -> Result<Spanned, TokenizerError> {
        let encoding = self.inner.encode(text, false).map_err(|e| TokenizerError::Encode(e.to_string()))?;
        let spans = encoding.get_offsets().iter().map(|&(start, end)| start..end).collect();
        Ok(Spanned { ids: encoding.get_ids().to_vec(), spans })
    }

    /// Text of ids. Bytes that are no UTF-8 (an answer cut inside a character) become replacement characters.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownId`], [`TokenizerError::Decode`].
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, TokenizerError> {
        if let Some(&id) = ids.iter().find(|id| self.id_to_token(**id).is_none()) {
            return Err(TokenizerError::UnknownId { id });
        }
        self.inner.decode(ids, skip_special).map_err(|e| TokenizerError::Decode(e.to_string()))
    }

    /// The bytes that every token stands for.
    ///
    /// # Errors
    /// [`TokenizerError::Bytes`] for a decoder whose tokens depend on each other or whose writing is not known here.
    pub fn token_bytes(&self) -> Result<TokenBytes, TokenizerError> {
        let refuse = |why: String| TokenizerError::Bytes { path: self.path.clone(), why };
        let decoder = serde_json::to_value(self.inner.get_decoder()).map_err(|e| refuse(e.to_string()))?;
        let added = self.inner.get_added_tokens_decoder();
        let special = |id: u32| added.get(&id).is_some_and(|token| token.special);
        let tokens = self.inner.get_vocab(true).into_iter().map(|(token, id)| (id, token, special(id)));
        TokenBytes::new(&decoder, tokens).map_err(refuse)
    }

    /// Number of tokens, added ones included.
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// Id of a token as it is written in the vocabulary.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// A token as it is written in the vocabulary (byte-level BPE writes a space as `Ġ`).
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// SHA-256 (hex) of `tokenizer.json`.
    pub fn content_hash(&self) -> &str {
        &self.hash
    }
}
