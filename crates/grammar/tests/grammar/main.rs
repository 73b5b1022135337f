//! Grammars over the tiny target's vocabulary, against other matchers.
#![allow(clippy::unwrap_used)]

mod masks;
mod refusals;

use regex::Regex;
use serde_json::{Value, json};
use spectrain_core::constraint::{Constraint, ConstraintState};
use spectrain_core::rng::{Key, Purpose};
use spectrain_core::token_bytes::TokenBytes;
use spectrain_core::tokenizer::Tokenizer;
use spectrain_grammar::{Grammar, Spec};
use std::path::Path;
use std::sync::LazyLock;

pub const VOCABULARY: usize = 2048;
/// End of text and end of turn.
pub const END: [u32; 2] = [0, 2];
pub const DATE: &str = "(19|20)[0-9]{2}-[0-9]{2}-[0-9]{2}";

pub static BYTES: LazyLock<TokenBytes> = LazyLock::new(|| {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../checkpoints/tiny");
    Tokenizer::load(&dir).unwrap().token_bytes().unwrap()
});

pub fn schema() -> Value {
    json!({
        "type": "object", "additionalProperties": false, "required": ["name", "count"],
        "properties": { "name": { "type": "string", "maxLength": 6 }, "count": { "type": "integer" },
            "kind": { "enum": ["a", "bé"] } },
    })
}

pub fn compile(spec: Spec) -> Grammar {
    Grammar::compile(spec, &BYTES, &END, VOCABULARY).unwrap()
}

pub fn regex(pattern: &str) -> Grammar {
    compile(Spec::Regex(pattern.to_owned()))
}

pub fn text(ids: &[u32]) -> Vec<u8> {
    ids.iter().flat_map(|&id| BYTES.text(id)).copied().collect()
}

/// A random one of the tokens that may follow.
pub fn pick(state: &dyn ConstraintState, key: Key) -> u32 {
    let mask = state.mask().unwrap();
    let allowed: Vec<u32> = (0..).zip(&mask).filter(|(_, allowed)| **allowed).map(|(token, _)| token).collect();
    allowed[key.below_at(0, allowed.len())]
}

/// Random tokens that may follow each other, to an end token or so many.
fn walk(grammar: &Grammar, seed: u64, most: usize) -> Vec<u32> {
    let mut state = grammar.start();
    let mut ids: Vec<u32> = Vec::new();
    while ids.len() < most && ids.last().is_none_or(|id| !END.contains(id)) {
        let token = pick(state.as_ref(), Key::new(seed, 0, ids.len() as u64, Purpose::Noise));
        state.advance(token).unwrap();
        ids.push(token);
    }
    ids
}

#[test]
fn what_is_written_matches() {
    for pattern in [DATE, "[a-z]{3,6}( [a-zé€]{12})?", r"(?i)yes|\p{Greek}{2}|/\d{1,2}/"] {
        let whole = Regex::new(&format!("^(?:{pattern})$")).unwrap();
        let grammar = regex(pattern);
        for seed in 0..100 {
            let ids = walk(&grammar, seed, 99);
            assert!(END.contains(ids.last().unwrap()));
            let text = String::from_utf8(text(&ids)).unwrap();
            assert!(whole.is_match(&text), "{text:?}");
        }
    }
}

#[test]
fn documents_follow_the_schema() {
    let grammar = compile(Spec::JsonSchema(schema()));
    let mut ended = [0, 0];
    for seed in 0..200 {
        let ids = walk(&grammar, seed, 60);
        if !END.contains(ids.last().unwrap()) {
            continue;
        }
        ended[0] += 1;
        let document: Value = serde_json::from_slice(&text(&ids)).unwrap();
        let fields = document.as_object().unwrap();
        assert!(fields["name"].as_str().unwrap().chars().count() <= 6, "{document}");
        assert!(fields["count"].is_number() && fields["count"].as_f64().unwrap().fract() == 0.0, "{document}");
        assert!(fields.get("kind").is_none_or(|kind| kind == "a" || kind == "bé"), "{document}");
        assert!(fields.keys().all(|key| ["name", "count", "kind"].contains(&key.as_str())), "{document}");
        ended[1] += usize::from(fields.contains_key("kind"));
    }
    assert!(ended[0] > 50 && ended[1] > 5 && ended[1] < ended[0], "{ended:?}");
}
