//! `inspect`, `chat` and `completions` on a small run that a test makes: a tiny random target, a barely trained drafter.

use crate::place::Place;
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;

const RECIPE: &str = r#"name = "small"
target.path = "target"
data = { prompts = "prompts.jsonl", answer_tokens = 200, max_new_tokens = 12, max_prompt_tokens = 64, batch = 4 }
drafter = { taps = [0, 1, 2], draft_vocab = 50 }
train = { epochs = 1, max_seq = 128, batch_tokens = 128 }
eval = { prompts = "prompts.jsonl", max_new_tokens = 8 }
"#;

/// A place with the complete run `runs/small`; made once, read by all tests.
static PLACE: LazyLock<Place> = LazyLock::new(|| {
    let place = Place::new();
    let prompts = "{\"id\":\"a\",\"task\":\"chat\",\"prompt\":\"w2 w3 w4\"}\n{\"id\":\"b\",\"task\":\"code\",\"prompt\":\"w5\"}\n";
    fs::write(place.path("prompts.jsonl"), prompts).unwrap();
    fs::write(place.path("recipe.toml"), RECIPE).unwrap();
    let fit = place.run(&["fit", "recipe.toml"]);
    assert!(fit.status.success(), "{}", String::from_utf8_lossy(&fit.stderr));
    place
});

/// Runs the command with `input` on its standard input.
fn run_in(dir: &Path, arguments: &[&str], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spectrain"));
    command.args(arguments).current_dir(dir).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A command that does not read its input may have ended.
    child.stdin.take().unwrap().write_all(input.as_bytes()).ok();
    child.wait_with_output().unwrap()
}

/// Standard output and error of a command that succeeds.
fn run(arguments: &[&str], input: &str) -> (String, String) {
    let output = run_in(PLACE.root(), arguments, input);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {error}");
    (String::from_utf8(output.stdout).unwrap(), error)
}

fn text(path: &str) -> String {
    run(&["inspect", path], "").0
}

fn json(arguments: &[&str]) -> Value {
    let all = [&["inspect", "--json", "-"], arguments].concat();
    serde_json::from_str(&run(&all, "").0).unwrap()
}

/// Asserts that the shown facts have this one, whatever the alignment.
fn has(shown: &str, key: &str, value: &str) {
    let line = |line: &str| line.strip_prefix(key).is_some_and(|rest| rest.starts_with("  ") && rest.trim() == value);
    assert!(shown.lines().any(line), "no `{key}  {value}` in\n{shown}");
}

fn refused(arguments: &[&str], parts: &[&str]) {
    let output = run_in(PLACE.root(), arguments, "");
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
    assert!(error.lines().count() == 1 && error.starts_with("error: "), "{arguments:?}: {error}");
    for part in parts {
        assert!(error.contains(part), "{arguments:?}: \"{error}\" does not name {part}");
    }
}

#[test]
fn recipe_is_shown_resolved_and_checked() {
    let shown = text("recipe.toml");
    has(&shown, "kind", "recipe");
    has(&shown, "check", "fits the target in target");
    has(&shown, "drafter.taps", "0, 1, 2");
    has(&shown, "train.clip_norm", "0.5");
    has(&shown, "data.answers", "none");
    let other = PLACE.path("other.toml");
    fs::write(&other, RECIPE.replace("[0, 1, 2]", "[0, 1, 9]")).unwrap();
    refused(&["inspect", "other.toml"], &["other.toml:4", "drafter.taps", "9"]);
    fs::write(&other, RECIPE.replace("\"target\"", "\"smollm2-135m-instruct\"")).unwrap();
    has(&text("other.toml"), "check", "not checked: the target is not here");
    fs::remove_file(other).unwrap();
}

#[test]
fn answers_and_their_rows() {
    let path = "runs/small/answers.parquet";
    let facts = json(&[path]);
    let rows = facts["rows"].as_u64().unwrap();
    assert!(rows > 1);
    let of = |key: &str| facts["finish"][key].as_u64().unwrap();
    assert_eq!((of("stop") + of("length"), &facts["prompts"]), (rows, &2.into()));
    assert!(facts["answer_tokens"]["total"].as_u64().unwrap() >= 200);
    assert!((0.0..=1.0).contains(&facts["greedy_share"].as_f64().unwrap()));
    has(&text(path), "rows", &rows.to_string());

    // A row: the prompt of "a" is w2 w3 w4 <end>; all that follows is supervised.
    let first = json(&[path, "--row", "0"]);
    let ids: Vec<u64> = first["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
    assert_eq!(ids[..4], [2, 3, 4, 0]);
    let mask: Vec<bool> = first["loss_mask"].as_array().unwrap().iter().map(|m| m.as_bool().unwrap()).collect();
    assert_eq!(mask, (0..ids.len()).map(|i| i >= 4).collect::<Vec<_>>());
    assert!(first["text"].as_str().unwrap().starts_with("w2 w3 w4 <end> "), "{first}");
    let shown = run(&["inspect", path, "--row", "0"], "").0;
    assert!(shown.contains("\nw2 w3 w4 <end>⟦") && shown.contains("\n 2 3 4 0⟦") && shown.ends_with("⟧\n"), "{shown}");
    assert!(!shown.contains('\x1b'), "colour without a terminal");
    refused(&["inspect", path, "--row", &rows.to_string()], &["--row", &rows.to_string()]);

    // The feature row of the same answer has the same tokens and mask.
    let stored = json(&["runs/small/store", "--row", "0"]);
    for key in ["ids", "loss_mask", "text", "temperature", "supervised"] {
        assert_eq!(stored[key], first[key], "{key}");
    }
}

#[test]
fn answers_away_from_their_run_are_shown_as_ids() {
    let elsewhere = tempfile::tempdir().unwrap();
    fs::copy(PLACE.path("runs/small/answers.parquet"), elsewhere.path().join("a.parquet")).unwrap();
    let output = run_in(elsewhere.path(), &["inspect", "a.parquet", "--row", "0"], "");
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(shown.contains("not decoded") && shown.contains("\n 2 3 4 0⟦") && !shown.contains("w2"), "{shown}");
}

#[test]
fn prompts_and_their_rows() {
    let shown = text("prompts.jsonl");
    has(&shown, "rows", "2");
    has(&shown, "tasks.code", "1");
    has(&shown, "characters.max", "8");
    let (row, _) = run(&["inspect", "prompts.jsonl", "--row", "1"], "");
    assert!(row.ends_with("\nuser:\nw5\n"), "{row}");
    refused(&["inspect", "prompts.jsonl", "--row", "2"], &["--row 2", "2 rows"]);
}

#[test]
fn store_checkpoint_and_model() {
    let (store, answers) = (json(&["runs/small/store"]), json(&["runs/small/answers.parquet"]));
    assert_eq!(store["rows"], answers["rows"]);
    let tokens = |key: &str| answers[key]["total"].as_u64().unwrap();
    assert_eq!(store["tokens"], tokens("prompt_tokens") + tokens("answer_tokens"));
    assert_eq!(store["taps"], serde_json::json!([0, 1, 2]));

    let model = json(&["target"]);
    assert_eq!((&model["kind"], &model["vocab"], &model["runs_here"]), (&"model".into(), &97.into(), &"yes".into()));
    assert_eq!((&model["hash"], &model["default_taps"]), (&store["target_hash"], &Value::Null));
    assert_eq!(model["text"]["chat_template"]["stop_tokens"], serde_json::json!(["<end>"]));
    let weights = fs::metadata(PLACE.path("target/model.safetensors")).unwrap().len();
    assert_eq!(model["weights"]["bytes"], weights);
    // f32: four bytes a parameter, and the header.
    let parameters = model["weights"]["parameters"].as_u64().unwrap();
    assert!(weights > 4 * parameters && weights < 4 * parameters + 8192, "{parameters} parameters, {weights} bytes");
    assert!(model["weights"]["tensors_of_dtype"]["F32"].as_u64().unwrap() > 10);

    let best = json(&["runs/small/best"]);
    assert_eq!((&best["kind"], &best["drafter"]["kind"]), (&"checkpoint".into(), &"eagle3".into()));
    assert_eq!((&best["draft_vocab"]["tokens"], &best["guarantee"]), (&50.into(), &"target-sampling".into()));
    assert_eq!(best["provenance"]["target_hash"], model["hash"]);
    assert_eq!(best["weights"]["tensors_of_dtype"].as_object().unwrap().keys().collect::<Vec<_>>(), ["F32"]);
    assert!(best["state"].as_str().unwrap().starts_with("absent"));
    let file = json(&["runs/small/best/drafter.safetensors"]);
    assert_eq!(file["weights"], best["weights"]);
}

#[test]
fn run_tells_what_is_complete() {
    let facts = json(&["runs/small"]);
    let step = &facts["best"]["step"];
    assert!(step.as_u64().unwrap() > 0);
    assert_eq!(facts["checkpoints"], serde_json::json!([{ "step": step, "state": true }]));
    assert_eq!(facts["metrics"]["validation"]["step"], *step);
    assert_eq!(facts["evaluations"].as_array().unwrap().len(), 2);
    has(&text("runs/small"), "checkpoints", &format!("step {step}, state true"));
    let newest = format!("runs/small/checkpoints/step-{step}");
    assert!(json(&[&newest])["state"].as_str().unwrap().starts_with("present"));

    let fresh = PLACE.path("fresh");
    fs::create_dir(&fresh).unwrap();
    fs::copy(PLACE.path("recipe.toml"), fresh.join("recipe.toml")).unwrap();
    let shown = text("fresh");
    for key in ["answers", "store", "checkpoints", "best", "evaluations"] {
        has(&shown, key, "none");
    }
}

#[test]
fn anything_else_is_refused() {
    refused(&["inspect", "nowhere"], &["nowhere", "no such file", "a model directory"]);
    fs::write(PLACE.path("notes.txt"), "x").unwrap();
    fs::create_dir(PLACE.path("empty")).unwrap();
    for path in ["notes.txt", "empty"] {
        refused(&["inspect", path], &[path, "a recipe (.toml)", "a feature store", "a run directory"]);
    }
    refused(&["inspect", "target", "--row", "0"], &["--row", "target", "no rows"]);
    refused(&["inspect", "target/model.safetensors"], &["model.safetensors", "metadata"]);
    refused(&["inspect", "runs/small/store/features-00000.parquet"], &["not an answers file"]);
}

#[test]
fn facts_go_to_a_file() {
    let shown = run(&["inspect", "prompts.jsonl", "--json", "facts.json"], "").0;
    has(&shown, "kind", "prompts");
    let written: Value = serde_json::from_str(&fs::read_to_string(PLACE.path("facts.json")).unwrap()).unwrap();
    assert_eq!(written, json(&["prompts.jsonl"]));
}

const CHAT: [&str; 6] = ["chat", "runs/small/best", "--temperature", "0", "--max-new-tokens", "24"];

#[test]
fn chat_answers_once_with_the_targets_text() {
    let answer = |length| run(&[&CHAT, ["--prompt", "w2 w3", "--length", length].as_slice()].concat(), "");
    let (text, error) = answer("5");
    assert!(text.trim().starts_with('w') && text.ends_with('\n') && !text.contains('\x1b'), "{text:?}");
    assert!(!text.contains("<end>"), "{text}");
    assert!(error.contains(" tokens per target call, ") && error.contains(" tokens/s"), "{error}");
    assert!(!error.contains('\x1b'), "{error:?}");
    // Greedy text is the target's, whatever is drafted.
    assert_eq!(answer("1").0, text);
    for tree in ["dynamic:7", "static:3,2"] {
        assert_eq!(run(&[&CHAT, ["--prompt", "w2 w3", "--tree", tree].as_slice()].concat(), "").0, text, "{tree}");
    }
}

#[test]
fn chat_takes_a_turn_a_line_and_ends_at_an_empty_one() {
    let (text, error) = run(&CHAT, "w2 w3\nw4\n\nw5\n");
    assert_eq!(text.lines().count(), 2, "{text}");
    assert_eq!(error.lines().filter(|line| line.contains("tokens/s")).count(), 2, "{error}");
    let (alone, _) = run(&[&CHAT, ["--prompt", "w4"].as_slice()].concat(), "");
    assert_ne!(text.lines().nth(1), alone.lines().next(), "the second answer knows nothing of the first turn");
    assert_eq!(run(&CHAT, "").0, "");
}

#[test]
fn chat_refuses_what_cannot_work() {
    refused(&["chat", "absent"], &["absent"]);
    refused(&["chat", "runs/small/best", "--rule", "greedy", "--temperature", "1"], &["greedy", "temperature 0"]);
    refused(&["chat", "runs/small/best", "--target", "nowhere"], &["nowhere", "no such directory"]);
    let tree = ["chat", "runs/small/best", "--rule", "token", "--temperature", "1", "--tree"];
    refused(&[tree.as_slice(), &["dynamic:8"]].concat(), &["token", "dynamic:8", "take sampled-match"]);
    refused(&[tree.as_slice(), &["sequoia:8"]].concat(), &["sequoia:8", "dynamic"]);
    // The words of this target's tokenizer are joined by spaces, so no token has bytes of its own.
    refused(&["chat", "runs/small/best", "--stop", "w3"], &["tokenizer.json", "joined by spaces"]);
    refused(&["chat", "runs/small/best", "--json-schema", "absent.json"], &["absent.json"]);
    refused(&["chat", "runs/small/best", "--json-schema", "prompts.jsonl"], &["prompts.jsonl is no JSON"]);
}

#[test]
fn completions_know_the_commands() {
    for shell in ["bash", "zsh", "fish"] {
        let (script, _) = run(&["completions", shell], "");
        for word in ["spectrain", "inspect", "completions", "max-new-tokens"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
}
