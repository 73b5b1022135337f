//! What cannot be followed exactly is refused, with the reason.

use crate::{BYTES, END, VOCABULARY};
use serde_json::{Value, json};
use spectrain_grammar::{Grammar, GrammarError, Spec};

fn refusal(spec: Spec) -> String {
    Grammar::compile(spec, &BYTES, &END, VOCABULARY).unwrap_err().to_string()
}

#[test]
fn patterns() {
    for (pattern, reason) in [("a(", "unclosed group"), ("(?<=a)b", "look-around"), ("[^\\x00-\\x{10FFFF}]", "")] {
        let error = refusal(Spec::Regex(pattern.into()));
        assert!(error.contains("regular expression") && error.contains(reason), "{pattern}: {error}");
    }
}

#[test]
fn schemas() {
    let refused: [(Value, &str); 4] = [
        (json!({"type": "object", "not": {"required": ["a"]}}), "not"),
        (json!({"type": "wrong"}), "wrong"),
        (json!({"$ref": "https://example.org/other.json"}), "ref"),
        (json!({"type": "integer", "minimum": 3, "maximum": 2}), "minimum"),
    ];
    for (schema, reason) in refused {
        let error = refusal(Spec::JsonSchema(schema.clone()));
        assert!(error.contains("JSON schema") && error.contains(reason), "{schema}: {error}");
    }
}

#[test]
fn vocabularies() {
    let spec = || Spec::Regex("a".into());
    let error = Grammar::compile(spec(), &BYTES, &END, 7).unwrap_err();
    assert!(matches!(error, GrammarError::Vocabulary { tokens: VOCABULARY, vocabulary: 7 }), "{error}");
    for ends in [&[][..], &[5000]] {
        let error = Grammar::compile(spec(), &BYTES, ends, VOCABULARY).unwrap_err();
        assert!(matches!(error, GrammarError::NoEnd { .. }), "{error}");
    }
    // Padding rows of the model are never allowed.
    let padded = Grammar::compile(spec(), &BYTES, &END, VOCABULARY + 3).unwrap();
    let mask = spectrain_core::constraint::Constraint::start(&padded).mask().unwrap();
    assert_eq!((mask.len(), mask[VOCABULARY..].iter().any(|&a| a)), (VOCABULARY + 3, false));
}
