//! Wrong invocations and what the user reads: each ends with exit code 2 and a message that names cause and cure.
//!
//! The messages lie in `wrong.txt`, to be read as a user would read them. `UPDATE_SNAPSHOT=1 cargo test` writes it anew.

use crate::place::Place;
use std::fs;
use std::path::Path;

const INVOCATIONS: [&[&str]; 32] = [
    &["fit"],
    &["fitt", "recipe.toml"],
    &["fit", "absent.toml"],
    &["fit", "recipe.toml", "--sett", "train.epochs=1"],
    &["fit", "recipe.toml", "--set", "train.epochs"],
    &["fit", "recipe.toml", "--set", "train.epoch=1"],
    &["fit", "recipe.toml", "--set", "train.epochs=many"],
    &["fit", "recipe.toml", "--set", "train.epochs=0"],
    &["fit", "recipe.toml", "--set", "loss.kind=mse"],
    &["fit", "recipe.toml", "--set", "drafter.kind=eagle9"],
    &["fit", "recipe.toml", "--set", "drafter.taps=[0, 1, 9]"],
    &["fit", "recipe.toml", "--set", "drafter.draft_vocab=98"],
    &["fit", "recipe.toml", "--set", "verifier.rule=typical"],
    &["fit", "recipe.toml", "--set", "verifier.rule=greedy"],
    &["fit", "recipe.toml", "--set", "train.batch_tokens=100"],
    &["fit", "recipe.toml", "--set", "data.prompts=no.jsonl"],
    &["fit", "recipe.toml", "--set", "target.path=nowhere"],
    &["fit", "recipe.toml", "--device", "tpu"],
    &["fit", "recipe.toml", "--device", "cuda:0"],
    &["fit", "recipe.toml", "--out", "taken"],
    &["generate", "bad.jsonl"],
    &["eval", "absent"],
    &["chat", "absent"],
    &["eval", "absent", "--length", "0"],
    &["eval", "absent", "--temperature=-1"],
    &["eval", "absent", "--top-p", "0"],
    &["eval", "absent", "--offline", "--top-k", "5"],
    &["chat", "absent", "--repetition-penalty", "-1"],
    &["fetch", "no-such-model"],
    &["export", "absent", "--format", "gguf", "--out", "x"],
    &["export", "absent", "--format", "llamacpp", "--out", "x"],
    &["import", "target", "--out", "x", "--target", "target"],
];

#[test]
fn messages_are_as_they_were_reviewed() {
    let place = Place::new();
    fs::write(place.path("taken"), b"").unwrap();
    fs::write(place.path("bad.jsonl"), b"{\"id\": 1}\n").unwrap();
    let mut found = String::new();
    for arguments in INVOCATIONS {
        let before = place.listing();
        let output = place.run(arguments);
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {message}");
        assert_eq!(place.listing(), before, "{arguments:?} wrote something");
        // Loading times differ from run to run.
        let lines: Vec<&str> = message.lines().filter(|l| !l.starts_with("target: ")).collect();
        assert!(lines[0].starts_with("error: "), "{arguments:?}: {message}");
        found += &format!("$ spectrain {}\n{}\n\n", arguments.join(" "), lines.join("\n").trim_end());
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/requests/wrong.txt");
    if std::env::var_os("UPDATE_SNAPSHOT").is_some() {
        fs::write(&path, &found).unwrap();
    }
    let reviewed = fs::read_to_string(&path).unwrap();
    assert!(found == reviewed, "wrong.txt differs from what is said now:\n{found}");
}
