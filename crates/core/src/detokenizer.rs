//! Ids to text while they come: what a stream may show is text that later ids can no longer change.
//!
//! A character may be spread over several tokens, so the text of the newest ids may end inside one; it is held back
//! until it is whole. Ids are decoded behind those shown last, since decoders drop a space at the start of a text. The
//! stream of the crate `tokenizers` works alike, but it fails where a decoder rewrites a text that it already gave (one
//! bad byte behind a whole character is enough), and what it holds back at the end is lost.

use std::mem::take;

use crate::tokenizer::{Tokenizer, TokenizerError};

/// Decodes one answer, id by id.
#[derive(Debug)]
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    skip_special: bool,
    /// Ids of the text given last.
    context: Vec<u32>,
    /// Ids whose text is held back.
    pending: Vec<u32>,
}

impl<'a> TextStream<'a> {
    /// A stream at the start of a text; special tokens are left out if `skip_special`.
    pub fn new(tokenizer: &'a Tokenizer, skip_special: bool) -> Self {
        Self { tokenizer, skip_special, context: Vec::new(), pending: Vec::new() }
    }

    /// The text that `id` completes: empty while a character is incomplete.
    ///
    /// # Errors
    /// As [`Tokenizer::decode`].
    pub fn push(&mut self, id: u32) -> Result<String, TokenizerError> {
        self.pending.push(id);
        let text = self.held()?;
        if text.ends_with(char::REPLACEMENT_CHARACTER) {
            return Ok(String::new());
        }
        // Ids without text are no context by themselves.
        if !text.is_empty() {
            self.context.clear();
        }
        self.context.append(&mut self.pending);
        Ok(text)
    }

    /// What is held back at the end of the text: replacement characters for what never became whole.
    ///
    /// # Errors
    /// As [`Tokenizer::decode`].
    pub fn finish(&mut self) -> Result<String, TokenizerError> {
        let text = self.held()?;
        self.context = take(&mut self.pending);
        Ok(text)
    }

    /// Text of the pending ids behind the context.
    fn held(&self) -> Result<String, TokenizerError> {
        let decode = |ids: &[u32]| self.tokenizer.decode(ids, self.skip_special);
        let all = decode(&[self.context.as_slice(), &self.pending].concat())?;
        match all.strip_prefix(decode(&self.context)?.as_str()) {
            Some(text) => Ok(text.to_owned()),
            // The pending ids rewrite the context, which is shown already: they speak for themselves.
            None => decode(&self.pending),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};
    use std::sync::LazyLock;

    /// A tokenizer with these tokens, the last of them special.
    fn tokenizer(tokens: &[String], decoder: &Value) -> Tokenizer {
        let vocab: serde_json::Map<String, Value> =
            tokens.iter().enumerate().map(|(id, t)| (t.clone(), id.into())).collect();
        let last = tokens.len() - 1;
        let json = json!({
            "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "pre_tokenizer": null,
            "added_tokens": [{ "id": last, "content": tokens[last], "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": true }],
            "post_processor": null, "decoder": decoder, "model": { "type": "BPE", "vocab": vocab, "merges": [] },
        });
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("tokenizer.json"), json.to_string()).unwrap();
        Tokenizer::load(dir.path()).unwrap()
    }

    /// Byte-level BPE without merges: id `b` is the byte `b`, id 256 is special.
    static BYTES: LazyLock<Tokenizer> = LazyLock::new(|| {
        let plain = |b: &u8| matches!(b, 33..=126 | 161..=172 | 174..=255);
        let others: Vec<u8> = (0..=255).filter(|b| !plain(b)).collect();
        let written = |b: u8| match others.iter().position(|&o| o == b) {
            Some(place) => char::from_u32(256 + place as u32).unwrap(),
            None => char::from(b),
        };
        let tokens: Vec<String> = (0..=255).map(|b| written(b).to_string()).chain(["<end>".to_owned()]).collect();
        let decoder =
            json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false });
        tokenizer(&tokens, &decoder)
    });

    fn pieces(tokenizer: &Tokenizer, ids: &[u32]) -> (Vec<String>, String) {
        let mut stream = TextStream::new(tokenizer, true);
        let pieces = ids.iter().map(|&id| stream.push(id).unwrap()).collect();
        (pieces, stream.finish().unwrap())
    }

    #[test]
    fn a_character_comes_out_whole() {
        let ids: Vec<u32> = "né€🙂!".bytes().map(u32::from).collect();
        let (pieces, rest) = pieces(&BYTES, &ids);
        assert_eq!(pieces, ["n", "", "é", "", "", "€", "", "", "", "🙂", "!"]);
        assert_eq!(rest, "");
    }

    #[test]
    fn what_never_becomes_whole_is_replaced_at_the_end() {
        assert_eq!(pieces(&BYTES, &[97, 0xE2, 0x82]), (vec!["a".into(), "".into(), "".into()], "\u{FFFD}".into()));
        // Before the end, when the next byte shows that it never will.
        assert_eq!(pieces(&BYTES, &[0xE2, 98]), (vec!["".into(), "\u{FFFD}b".into()], "".into()));
    }

    #[test]
    fn special_tokens_are_left_out_or_shown() {
        assert_eq!(pieces(&BYTES, &[97, 256, 98]).0, ["a", "", "b"]);
        let mut stream = TextStream::new(&BYTES, false);
        assert_eq!([stream.push(97).unwrap(), stream.push(256).unwrap()], ["a", "<end>"]);
    }

    /// The decoder of Llama 2: a space at the start is dropped, bytes are decoded a run at a time.
    #[test]
    fn spaces_stay_and_shown_text_is_never_rewritten() {
        let tokens = ["▁Hello", "▁world", "<0xC3>", "<0xA9>", "<0xFF>", "<end>"].map(str::to_owned);
        let decoder = json!({ "type": "Sequence", "decoders": [
            { "type": "Replace", "pattern": { "String": "▁" }, "content": " " }, { "type": "ByteFallback" },
            { "type": "Fuse" }, { "type": "Strip", "content": " ", "start": 1, "stop": 0 }] });
        let llama = tokenizer(&tokens, &decoder);
        assert_eq!(pieces(&llama, &[0, 1, 5, 1]).0, ["Hello", " world", "", " world"]);
        let (shown, rest) = pieces(&llama, &[0, 2, 3, 4]);
        assert_eq!((shown.concat().as_str(), rest.as_str()), ("Helloé", "\u{FFFD}"));
    }

    proptest! {
        #[test]
        fn the_pieces_are_the_text(ids in prop::collection::vec(0u32..257, 0..48)) {
            let (pieces, rest) = pieces(&BYTES, &ids);
            prop_assert_eq!(pieces.concat() + &rest, BYTES.decode(&ids, true).unwrap());
        }
    }
}
