//! The bytes of tokens against the decoder that shows them.

use crate::small::directory;
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use spectrain_core::token_bytes::TokenBytes;
use spectrain_core::tokenizer::{Tokenizer, TokenizerError};
use std::sync::LazyLock;

/// A tokenizer with these tokens, the last of them special.
pub fn tokenizer(tokens: &[&str], decoder: &Value) -> Tokenizer {
    let vocab: Map<String, Value> = tokens.iter().enumerate().map(|(id, t)| ((*t).to_owned(), id.into())).collect();
    let last = tokens.len() - 1;
    let json = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "pre_tokenizer": null,
        "added_tokens": [{ "id": last, "content": tokens[last], "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true }],
        "post_processor": null, "decoder": decoder, "model": { "type": "BPE", "vocab": vocab, "merges": [] },
    });
    Tokenizer::load(directory(&json, &json!({}), &json!({})).path()).unwrap()
}

pub fn byte_level() -> Value {
    json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false })
}

/// The decoder of Llama 2.
pub fn byte_fallback() -> Value {
    json!({ "type": "Sequence", "decoders": [
        { "type": "Replace", "pattern": { "String": "▁" }, "content": " " }, { "type": "ByteFallback" },
        { "type": "Fuse" }, { "type": "Strip", "content": " ", "start": 1, "stop": 0 }] })
}

/// Every character that byte-level BPE writes a byte as, and a special token.
static BYTES: LazyLock<Tokenizer> = LazyLock::new(|| {
    let written = (33..=323).filter(|c| !(127..=160).contains(c) && *c != 173).filter_map(char::from_u32);
    let tokens: Vec<String> = written.map(String::from).chain(["<end>".to_owned()]).collect();
    tokenizer(&tokens.iter().map(String::as_str).collect::<Vec<_>>(), &byte_level())
});

fn text(bytes: &TokenBytes, ids: &[u32]) -> Vec<u8> {
    ids.iter().flat_map(|&id| bytes.text(id)).copied().collect()
}

fn refusal(decoder: &Value) -> String {
    let error = tokenizer(&["a", "<end>"], decoder).token_bytes().unwrap_err();
    assert!(matches!(error, TokenizerError::Bytes { .. }));
    error.to_string()
}

#[test]
fn byte_level_tokens_are_all_bytes() {
    let bytes = BYTES.token_bytes().unwrap();
    let mut all: Vec<u8> = text(&bytes, &(0..256).collect::<Vec<u32>>());
    all.sort_unstable();
    assert_eq!(all, (0..=255).collect::<Vec<u8>>());
    assert_eq!((bytes.text(256), bytes.special(256), bytes.special(0)), (&[][..], Some(&b"<end>"[..]), None));
    assert_eq!((bytes.len(), bytes.text(900)), (257, &[][..]));
}

#[test]
fn an_added_token_is_not_written_byte_by_byte() {
    let bytes = tokenizer(&["a b", "Ġé", "<end>"], &byte_level()).token_bytes().unwrap();
    assert_eq!((bytes.text(0), bytes.text(1)), (&b"a b"[..], &[b' ', 0xE9][..]));
}

#[test]
fn sentence_pieces_and_their_bytes() {
    let tokens = ["▁Hé", "<0xE2>", "<0x82>", "<0xAC>", "<0xE2", "<end>"];
    let fallback = tokenizer(&tokens, &byte_fallback());
    let bytes = fallback.token_bytes().unwrap();
    assert_eq!(text(&bytes, &[0, 1, 2, 3, 5, 0, 4]), " Hé€ Hé<0xE2".as_bytes());
    // The decoder strips a space at the start, and the bytes have it.
    assert_eq!(fallback.decode(&[0, 1, 2, 3, 5, 0, 4], true).unwrap(), "Hé€ Hé<0xE2");
    let metaspace = json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true });
    assert_eq!(tokenizer(&tokens, &metaspace).token_bytes().unwrap().text(0), " Hé".as_bytes());
}

#[test]
fn tokens_that_depend_on_each_other_are_refused() {
    assert!(refusal(&Value::Null).contains("joined by spaces"));
    assert!(refusal(&json!({ "type": "WordPiece", "prefix": "##", "cleanup": true })).contains("WordPiece"));
    let early = json!({ "type": "Sequence", "decoders": [
        { "type": "Strip", "content": " ", "start": 1, "stop": 0 }, { "type": "Fuse" }] });
    assert!(refusal(&early).contains("Strip"), "every token is stripped");
}

proptest! {
    #[test]
    fn the_bytes_are_what_the_decoder_shows(ids in prop::collection::vec(0u32..257, 0..48)) {
        let bytes = BYTES.token_bytes().unwrap();
        let read = text(&bytes, &ids);
        prop_assert_eq!(String::from_utf8_lossy(&read), BYTES.decode(&ids, true).unwrap());
    }
}
