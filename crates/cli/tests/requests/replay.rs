//! `eval --traces` and `fit --replay`: what they refuse, and the way from one to the other.

use crate::place::{Place, RECIPE};
use std::fs;

const BEST: &str = "runs/small/best";

/// A place with a run of the small recipe on several prompts.
fn fitted() -> Place {
    let place = Place::new();
    let prompt = |i: usize| {
        format!("{{\"id\":\"p{i}\",\"task\":\"chat\",\"prompt\":\"w{} w{} w{}\"}}\n", i + 2, 2 * i + 3, i + 9)
    };
    fs::write(place.path("prompts.jsonl"), (0..16).map(prompt).collect::<String>()).unwrap();
    fs::write(place.path("recipe.toml"), RECIPE).unwrap();
    done(&place, &["fit", "recipe.toml"]);
    place
}

/// What a command that succeeds says.
fn done(place: &Place, arguments: &[&str]) -> String {
    let output = place.run(arguments);
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{told}");
    told
}

#[test]
fn a_drafter_learns_from_its_traces() {
    let place = fitted();
    let eval = ["eval", BEST, "--temperature", "1", "--lengths", "2", "--no-reconcile"];
    let told = done(&place, &[&eval[..], &["--traces", "t.jsonl", "--traces-top", "4"]].concat());
    assert!(told.contains("16 requests"), "{told}");
    let before = fs::read(place.path(BEST).join("drafter.safetensors")).unwrap();
    let fit = ["fit", "recipe.toml", "--replay", "t.jsonl", "--set", "train.anchor=0.1"];
    let told = done(&place, &[&fit[..], &["--set", "train.validation_share=0.3"]].concat());
    assert!(told.contains("replay: as served, T=1: accepted a round along the text"), "{told}");
    assert!(!told.contains("not conditioned"), "{told}");
    let after = fs::read(place.path(BEST).join("drafter.safetensors")).unwrap();
    match told.contains("is not worse") {
        true => assert_ne!(before, after),
        false => assert!(told.contains("is worse") && before == after, "{told}"),
    }
    // Without prompts set aside nothing can say that it is not worse.
    let best = fs::read(place.path(BEST).join("drafter.safetensors")).unwrap();
    let told = done(&place, &["fit", "recipe.toml", "--replay", "t.jsonl", "--set", "train.validation_share=0"]);
    assert!(told.contains("is kept beside"), "{told}");
    assert_eq!(fs::read(place.path(BEST).join("drafter.safetensors")).unwrap(), best);
    // A run that was replayed may be fitted anew.
    done(&place, &["fit", "recipe.toml"]);
}

#[test]
fn what_does_not_fit_is_refused() {
    let place = Place::new();
    place.refused(&["fit", "recipe.toml", "--replay", "t.jsonl"], &["runs/small/best", "train.start"]);
    place.refused(&["fit", "recipe.toml", "--set", "train.anchor=0.1"], &["train.anchor", "train.start"]);
    let place = fitted();
    let eval = ["eval", BEST, "--traces", "t.jsonl", "--temperature", "1"];
    place.refused(&[&eval[..], &["--tree", "dynamic:8"]].concat(), &["--traces", "chains", "dynamic:8"]);
    place.refused(&[&eval[..], &["--top-k", "3"]].concat(), &["--traces", "top_k"]);
    done(&place, &[&eval[..], &["--lengths", "2", "--no-reconcile"]].concat());
    let text = fs::read_to_string(place.path("t.jsonl")).unwrap();
    let (header, rest) = text.split_once('\n').unwrap();
    let header: serde_json::Value = serde_json::from_str(header).unwrap();
    let changed = |key: &str, value: serde_json::Value| {
        let mut header = header.clone();
        header[key] = value;
        fs::write(place.path("other.jsonl"), format!("{header}\n{rest}")).unwrap();
    };
    let fit = ["fit", "recipe.toml", "--replay", "other.jsonl"];
    for (key, value, what) in [
        ("target_hash", "0".into(), "another target"),
        ("tokenizer_hash", "0".into(), "another tokenizer"),
        ("vocabulary", 98.into(), "another vocabulary"),
        ("requests", 3.into(), "16 of the 3 requests"),
    ] {
        changed(key, value);
        place.refused(&fit, &["other.jsonl", what]);
    }
}
