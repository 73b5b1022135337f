//! A model directory small enough to write in a test: letters, digits, space, line break and a few special tokens.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};
use spectrain_core::tokenizer::{Tokenizer, TokenizerError};
use tempfile::TempDir;

/// The template of the fixtures: the turns of ChatML, without a default system prompt.
pub const CHATML: &str = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}\
    {% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

const SPECIALS: [&str; 2] = ["<|im_start|>", "<|im_end|>"];

/// A byte-level BPE whose one merge joins two line breaks.
pub fn tokenizer_json() -> Value {
    let letters = ('a'..='z').chain('0'..='9').map(String::from);
    let all = SPECIALS.iter().map(|s| (*s).to_owned()).chain(letters).chain(["Ġ", "Ċ", "ĊĊ"].map(str::to_owned));
    let vocab: Map<String, Value> = all.enumerate().map(|(id, token)| (token, json!(id))).collect();
    let added: Vec<Value> = SPECIALS
        .iter()
        .enumerate()
        .map(|(id, token)| {
            json!({ "id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true })
        })
        .collect();
    let byte_level =
        json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false });
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": byte_level, "post_processor": null, "decoder": byte_level,
        "model": { "type": "BPE", "vocab": vocab, "merges": [["Ċ", "Ċ"]] },
    })
}

/// Writes the three files of a model directory's text side.
pub fn directory(tokenizer: &Value, config: &Value, generation: &Value) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "tokenizer.json", tokenizer);
    write(dir.path(), "tokenizer_config.json", config);
    write(dir.path(), "generation_config.json", generation);
    dir
}

fn write(dir: &Path, name: &str, json: &Value) {
    fs::write(dir.join(name), json.to_string()).unwrap();
}

pub fn tokenizer() -> Tokenizer {
    Tokenizer::load(directory(&tokenizer_json(), &json!({}), &json!({})).path()).unwrap()
}

#[test]
fn a_tokenizer_must_fit_the_model() {
    let tokenizer = tokenizer();
    assert_eq!(tokenizer.vocab_size(), 41);
    tokenizer.fits(41).unwrap();
    tokenizer.fits(64).unwrap();
    let error = tokenizer.fits(40).unwrap_err();
    assert!(matches!(error, TokenizerError::DoesNotFit { id: 40, vocab: 40, .. }), "{error}");
    assert!(error.to_string().contains("`ĊĊ` has id 40"), "{error}");
}

#[test]
fn an_added_token_beyond_the_model_is_seen() {
    let mut json = tokenizer_json();
    let mut extra = json["added_tokens"][0].clone();
    extra["id"] = json!(41);
    extra["content"] = json!("<|pad|>");
    json["added_tokens"].as_array_mut().unwrap().push(extra);
    let tokenizer = Tokenizer::load(directory(&json, &json!({}), &json!({})).path()).unwrap();
    let error = tokenizer.fits(41).unwrap_err();
    assert!(matches!(error, TokenizerError::DoesNotFit { id: 41, .. }), "{error}");
}

#[test]
fn truncation_and_padding_of_the_file_are_off() {
    let mut json = tokenizer_json();
    json["truncation"] = json!({ "direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0 });
    json["padding"] = json!({ "strategy": { "Fixed": 8 }, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0,
        "pad_type_id": 0, "pad_token": "<|im_start|>" });
    let tokenizer = Tokenizer::load(directory(&json, &json!({}), &json!({})).path()).unwrap();
    assert_eq!(tokenizer.encode("abc").unwrap(), [2, 3, 4]);
}

#[test]
fn decoding_names_an_unknown_id_and_may_skip_specials() {
    let tokenizer = tokenizer();
    let ids = tokenizer.encode("<|im_start|>ab\n\nc<|im_end|>").unwrap();
    assert_eq!(ids, [0, 2, 3, 40, 4, 1]);
    assert_eq!(tokenizer.decode(&ids, false).unwrap(), "<|im_start|>ab\n\nc<|im_end|>");
    assert_eq!(tokenizer.decode(&ids, true).unwrap(), "ab\n\nc");
    assert!(matches!(tokenizer.decode(&[2, 41], false), Err(TokenizerError::UnknownId { id: 41 })));
    assert_eq!(tokenizer.token_to_id("<|im_end|>"), Some(1));
    assert_eq!(tokenizer.id_to_token(40).as_deref(), Some("ĊĊ"));
}

#[test]
fn a_broken_file_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let error = Tokenizer::load(dir.path()).unwrap_err();
    assert!(matches!(error, TokenizerError::Io { .. }) && error.to_string().contains("tokenizer.json"), "{error}");
    fs::write(dir.path().join("tokenizer.json"), "{\"version\": \"1.0\"").unwrap();
    let error = Tokenizer::load(dir.path()).unwrap_err();
    assert!(matches!(error, TokenizerError::Parse { .. }) && error.to_string().contains("tokenizer.json"), "{error}");
}

#[test]
fn the_hash_is_of_the_file() {
    let mut json = tokenizer_json();
    let first = tokenizer();
    assert_eq!(first.content_hash().len(), 64);
    assert_eq!(first.content_hash(), tokenizer().content_hash());
    json["model"]["merges"] = json!([]);
    let other = Tokenizer::load(directory(&json, &json!({}), &json!({})).path()).unwrap();
    assert_ne!(first.content_hash(), other.content_hash());
}
