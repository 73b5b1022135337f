//! The bytes behind every token, for what reads an answer byte by byte: stop strings and grammars.
//!
//! Text is decoded id by id, but a token may hold a part of a character, so that only bytes say exactly where in an
//! answer something begins and ends. Which bytes a token stands for follows from the tokenizer's decoder.

use serde_json::Value;

/// How the vocabulary writes bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Writing {
    /// Byte-level BPE: one character a byte.
    ByteLevel,
    /// Text in which one string stands for another (`▁` for a space); `<0xE2>` is a byte if `fallback`.
    Text { replaced: Vec<(String, String)>, fallback: bool },
}

/// The bytes of every token of a vocabulary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenBytes {
    tokens: Vec<Token>,
}

/// One entry of a vocabulary.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Token {
    bytes: Vec<u8>,
    special: bool,
}

impl TokenBytes {
    /// From the decoder of a `tokenizer.json` and its tokens `(id, as written, special)`.
    ///
    /// # Errors
    /// Why the bytes cannot be told.
    pub(crate) fn new(decoder: &Value, tokens: impl Iterator<Item = (u32, String, bool)>) -> Result<Self, String> {
        let writing = Writing::of(decoder)?;
        let mut all = Vec::new();
        for (id, written, special) in tokens {
            let id = id as usize;
            if id >= all.len() {
                all.resize(id + 1, Token::default());
            }
            let bytes = if special { written.into_bytes() } else { writing.bytes(&written) };
            all[id] = Token { bytes, special };
        }
        Ok(Self { tokens: all })
    }

    /// The bytes that a token adds to a text: none for special tokens and unused ids.
    pub fn text(&self, id: u32) -> &[u8] {
        self.tokens.get(id as usize).filter(|token| !token.special).map_or(&[], |token| &token.bytes)
    }

    /// The name of a special token.
    pub fn special(&self, id: u32) -> Option<&[u8]> {
        self.tokens.get(id as usize).filter(|token| token.special).map(|token| token.bytes.as_slice())
    }

    /// One more than the largest id.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there is no token.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }
}

impl Writing {
    /// The writing that a decoder undoes. A strip at the very start of a text is left out: what it strips is part of
    /// the answer's bytes.
    fn of(decoder: &Value) -> Result<Self, String> {
        let one = [decoder.clone()];
        let parts = decoder["decoders"].as_array().map_or(one.as_slice(), Vec::as_slice);
        let (mut replaced, mut fallback, mut fused) = (Vec::new(), false, false);
        for part in parts {
            let string = |value: &Value| value.as_str().map(str::to_owned);
            match part["type"].as_str() {
                Some("ByteLevel") if parts.len() == 1 => return Ok(Self::ByteLevel),
                Some("Replace") => match (string(&part["pattern"]["String"]), string(&part["content"])) {
                    (Some(from), Some(to)) => replaced.push((from, to)),
                    _ => return Err("its decoder replaces a pattern that is no plain string".into()),
                },
                Some("Metaspace") => {
                    let from = string(&part["replacement"]).ok_or("its Metaspace decoder names no replacement")?;
                    replaced.push((from, " ".into()));
                }
                Some("ByteFallback") => fallback = true,
                Some("Fuse") => fused = true,
                Some("Strip") if fused => {}
                Some(other) => return Err(format!("its decoder has a part `{other}` here")),
                None => return Err("it has no decoder, so its words are joined by spaces".into()),
            }
        }
        Ok(Self::Text { replaced, fallback })
    }

    fn bytes(&self, written: &str) -> Vec<u8> {
        match self {
            // Added tokens are not written byte by byte; a decoder leaves them as they are.
            Self::ByteLevel => written.chars().map(byte_of).collect::<Option<_>>().unwrap_or_else(|| written.into()),
            Self::Text { replaced, fallback } => {
                let byte = written.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
                let byte =
                    byte.filter(|hex| *fallback && hex.len() == 2).and_then(|hex| u8::from_str_radix(hex, 16).ok());
                let text = || replaced.iter().fold(written.to_owned(), |text, (from, to)| text.replace(from, to));
                byte.map_or_else(|| text().into_bytes(), |byte| vec![byte])
            }
        }
    }
}

/// The byte that byte-level BPE writes as `c`: printable Latin-1 as itself, the others from U+0100 on, in order.
fn byte_of(c: char) -> Option<u8> {
    let byte = match u32::from(c) {
        c @ (33..=126 | 161..=172 | 174..=255) => c,
        c @ 256..=288 => c - 256,
        c @ 289..=322 => c - 289 + 127,
        323 => 173,
        _ => return None,
    };
    u8::try_from(byte).ok()
}
