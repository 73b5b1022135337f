//! Where an answer ends: end tokens, stop strings and the length cap.
//!
//! [`Stopping`] says it, [`Progress`] follows one answer and is advanced by committed tokens only, so nothing of it has
//! to be rolled back. The text is read byte by byte, so a stop string is found across tokens, rounds and the parts of a
//! character, and how the tokens are split into rounds makes no difference. The match that is complete first ends the
//! answer; of those complete at the same byte, the longest. At the same token an end token or a stop string wins over
//! the length cap.

use crate::stats::Finish;
use crate::token_bytes::TokenBytes;
use std::ops::Range;
use std::sync::Arc;

/// Strings that end an answer; the text is cut before them.
#[derive(Debug, Clone, Default)]
pub struct StopStrings {
    strings: Arc<[String]>,
    /// `None` without strings: then the text is not read.
    bytes: Option<Arc<TokenBytes>>,
}

/// A stop string without a character would end every answer before it begins.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a stop string is empty: give the text that ends an answer")]
pub struct EmptyStopString;

impl StopStrings {
    /// These strings, for answers of a model with such tokens.
    ///
    /// # Errors
    /// [`EmptyStopString`].
    pub fn new(strings: &[String], bytes: Arc<TokenBytes>) -> Result<Self, EmptyStopString> {
        if strings.iter().any(String::is_empty) {
            return Err(EmptyStopString);
        }
        Ok(Self { strings: strings.into(), bytes: (!strings.is_empty()).then_some(bytes) })
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.strings.is_empty()
    }

    /// Where the first stop string of `text` stands that is complete at byte `from` or later.
    fn find(&self, text: &[u8], from: usize) -> Option<Range<usize>> {
        (from..=text.len()).find_map(|end| {
            let ending = self.strings.iter().filter(|s| text[..end].ends_with(s.as_bytes()));
            ending.map(String::len).max().map(|length| end - length..end)
        })
    }

    /// How many bytes at the end of `text` may be the beginning of a stop string.
    fn open(&self, text: &[u8]) -> usize {
        let begun = |s: &String| (1..s.len()).rev().find(|&n| text.ends_with(&s.as_bytes()[..n]));
        self.strings.iter().filter_map(begun).max().unwrap_or(0)
    }
}

/// What ends an answer.
#[derive(Debug, Clone, Default)]
pub struct Stopping {
    /// Strings that end it.
    pub strings: StopStrings,
    /// Tokens that end it.
    pub end_tokens: Vec<u32>,
    /// Most tokens.
    pub max_tokens: usize,
    /// Tokens before the one that may be an end token or complete a stop string; earlier ones are text.
    pub min_tokens: usize,
}

/// What became of a block of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// How many stay, from the first on.
    pub kept: usize,
    /// Tokens up to and including the first that is an end token or completes a stop string; it may lie behind the cap.
    pub stop: Option<usize>,
    /// Why the answer ends with the last that stays; `None` if it goes on.
    pub finish: Option<Finish>,
}

/// One answer as far as it is committed.
#[derive(Debug, Clone)]
pub struct Progress {
    stopping: Stopping,
    tokens: usize,
    text: Vec<u8>,
    /// Bytes of the text that were released.
    shown: usize,
    /// Where the stop string stands that ended the answer.
    cut: Option<usize>,
    ended: bool,
}

impl Progress {
    /// An answer without tokens.
    pub fn new(stopping: Stopping) -> Self {
        Self { stopping, tokens: 0, text: Vec::new(), shown: 0, cut: None, ended: false }
    }

    /// Committed tokens.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Commits what may stay of `tokens`; nothing stays behind the end of an answer.
    pub fn advance(&mut self, tokens: &[u32]) -> Outcome {
        if self.ended {
            return Outcome { kept: 0, stop: None, finish: None };
        }
        let room = self.stopping.max_tokens.saturating_sub(self.tokens);
        let mut text = std::mem::take(&mut self.text);
        let mut kept_text = text.len();
        let mut stop = None;
        for (i, &token) in tokens.iter().enumerate() {
            let before = text.len();
            text.extend_from_slice(self.bytes(token));
            if i < room {
                kept_text = text.len();
            }
            if self.tokens + i < self.stopping.min_tokens {
                continue;
            }
            let found = self.stopping.strings.find(&text, before + 1);
            if found.is_some() || self.stopping.end_tokens.contains(&token) {
                stop = Some(i + 1);
                if i < room {
                    self.cut = found.map(|range| range.start);
                }
                break;
            }
        }
        text.truncate(kept_text);
        self.text = text;
        let kept = stop.unwrap_or(tokens.len()).min(room);
        self.tokens += kept;
        let stopped = stop.is_some_and(|stop| stop <= room);
        let finish = if stopped { Some(Finish::Stop) } else { (kept == room).then_some(Finish::Length) };
        self.ended |= finish.is_some();
        Outcome { kept, stop, finish }
    }

    fn bytes(&self, token: u32) -> &[u8] {
        self.stopping.strings.bytes.as_ref().map_or(&[], |bytes| bytes.text(token))
    }

    /// The text so far, without the stop string that ended it; empty where there are no stop strings, since the text is
    /// not read then.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.text[..self.cut.unwrap_or(self.text.len())]).into_owned()
    }

    /// Text that may be shown and was not released before: what may still become a stop string or a character is held
    /// back until the answer has ended.
    pub fn release(&mut self) -> String {
        let end = match self.cut {
            Some(cut) => cut,
            None if self.ended => self.text.len(),
            None => whole(&self.text[..self.text.len() - self.stopping.strings.open(&self.text)]),
        };
        let text = String::from_utf8_lossy(&self.text[self.shown..end]).into_owned();
        self.shown = end;
        text
    }

    /// As [`Self::release`], where the answer was stopped from outside: nothing is held back.
    pub fn finish(&mut self) -> String {
        self.ended = true;
        self.release()
    }
}

/// Bytes of `text` without an incomplete character at its end.
fn whole(text: &[u8]) -> usize {
    let rest = text.utf8_chunks().last().map_or(&[][..], |chunk| chunk.invalid());
    let incomplete = std::str::from_utf8(rest).is_err_and(|e| e.error_len().is_none());
    text.len() - if incomplete { rest.len() } else { 0 }
}
