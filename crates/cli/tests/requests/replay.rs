//! `eval --traces` and `fit --replay`: what they refuse, and the way from one to the other.

use crate::place::Place;
use serde_json::Value;
use spectrain_data::weights::WeightFile;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

const BEST: &str = "runs/small/best";
/// The file of a drafter in its directory.
const FILE: &str = "drafter.safetensors";

/// A place with a run of the small recipe on several prompts.
fn fitted() -> Place {
    let place = Place::new();
    let prompt = |i: usize| {
        format!("{{\"id\":\"p{i}\",\"task\":\"chat\",\"prompt\":\"w{} w{} w{}\"}}\n", i + 2, 2 * i + 3, i + 9)
    };
    fs::write(place.path("prompts.jsonl"), (0..16).map(prompt).collect::<String>()).unwrap();
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
    let before = fs::read(place.path(BEST).join(FILE)).unwrap();
    let fit = ["fit", "recipe.toml", "--replay", "t.jsonl", "--set", "train.anchor=0.1"];
    let told = done(&place, &[&fit[..], &["--set", "train.validation_share=0.3"]].concat());
    assert!(told.contains("replay: as served, T=1: accepted a round along the text"), "{told}");
    assert!(!told.contains("not conditioned"), "{told}");
    let after = fs::read(place.path(BEST).join(FILE)).unwrap();
    match told.contains("is not worse") {
        true => assert_ne!(before, after),
        false => assert!(told.contains("is worse") && before == after, "{told}"),
    }
    // Without prompts set aside nothing can say that it is not worse.
    let best = fs::read(place.path(BEST).join(FILE)).unwrap();
    let told = done(&place, &["fit", "recipe.toml", "--replay", "t.jsonl", "--set", "train.validation_share=0"]);
    assert!(told.contains("is kept beside"), "{told}");
    assert_eq!(fs::read(place.path(BEST).join(FILE)).unwrap(), best);
    // A run that was replayed may be fitted anew.
    done(&place, &["fit", "recipe.toml"]);
}

/// The file of traces that a run of the verifier leaves.
fn traced(place: &Place) {
    let eval = ["eval", BEST, "--temperature", "1", "--lengths", "2", "--no-reconcile", "--traces", "t.jsonl"];
    done(place, &eval);
}

/// The replay with `sets` overridden in the run `out`.
fn replayed(place: &Place, sets: &[&str]) -> String {
    let sets = sets.iter().flat_map(|set| ["--set", set]);
    done(place, &["fit", "recipe.toml", "--replay", "t.jsonl"].into_iter().chain(sets).collect::<Vec<_>>())
}

/// The directory that a replay in the run `out` makes.
fn replay_dir(place: &Place, out: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(place.path(out)).into_iter().flatten();
    entries.map(|e| e.unwrap().path()).find(|p| p.file_name().unwrap().to_string_lossy().starts_with("replay-"))
}

fn drafter(dir: &Path) -> Vec<u8> {
    fs::read(dir.join(FILE)).unwrap()
}

/// Records without what clock and memory say.
fn records(dir: &Path) -> Vec<Value> {
    let timeless = |line: &str| {
        let mut record: Value = serde_json::from_str(line).unwrap();
        for measured in ["tokens_per_second", "memory_mib"] {
            record.as_object_mut().unwrap().remove(measured);
        }
        record
    };
    fs::read_to_string(dir.join("metrics.jsonl")).unwrap().lines().map(timeless).collect()
}

#[test]
fn a_worse_drafter_is_kept_beside_and_a_better_one_becomes_the_best() {
    let place = fitted();
    traced(&place);
    let (best, good) = (place.path(BEST), place.path("good"));
    let before = drafter(&best);
    // Steps so long that nothing learned is left.
    let told = replayed(&place, &["train.learning_rate=3", "train.validation_share=0.3"]);
    assert!(told.contains("the drafter is worse: tokens per target call -"), "{told}");
    assert!(told.contains("/best is kept beside"), "{told}");
    let beside = replay_dir(&place, "runs/small").unwrap().join("best");
    let wreck = drafter(&beside);
    assert_ne!(wreck, before);
    assert!(drafter(&best) == before, "the best stays");
    // The wreck in its place, and the good one trained further.
    fs::create_dir(&good).unwrap();
    fs::copy(best.join(FILE), good.join(FILE)).unwrap();
    fs::copy(beside.join(FILE), best.join(FILE)).unwrap();
    let told = replayed(&place, &["train.start=good", "train.validation_share=0.3"]);
    assert!(told.contains("the drafter is not worse: tokens per target call +"), "{told}");
    let trained = drafter(&beside);
    assert!(trained != before && trained != wreck);
    assert!(drafter(&best) == trained, "the better one is the best now");
}

#[test]
fn both_sides_are_recorded() {
    let place = fitted();
    traced(&place);
    let told = replayed(&place, &["train.validation_share=0.3", "train.epochs=2"]);
    let records = records(&replay_dir(&place, "runs/small").unwrap());
    let traced: Vec<&Value> = records.iter().filter(|r| r["event"] == "traced").collect();
    let steps: Vec<&Value> = records.iter().filter(|r| r["event"] == "validation").map(|r| &r["step"]).collect();
    assert_eq!((traced.len(), steps.len()), (3, 2), "as served, and at both validations: {records:?}");
    assert_eq!((&traced[0]["step"], &traced[0]["served"]), (&0.into(), &true.into()));
    assert_eq!(records[0], *traced[0]);
    for (record, step) in traced[1..].iter().zip(steps) {
        assert_eq!((&record["step"], &record["served"]), (step, &false.into()));
    }
    let lines: Vec<&str> = told.lines().filter(|line| line.contains("T=1: accepted a round along the text")).collect();
    assert_eq!(lines.len(), traced.len(), "{told}");
    for (record, line) in traced.iter().zip(lines) {
        let figure = |value: &Value| format!("{:.3}", value.as_f64().unwrap());
        let (text, draft) = (figure(&record["text"]), figure(&record["draft"]));
        assert!(line.contains(&format!("along the text {text}, along the drafts {draft} (between")), "{line}");
        let [low, high] = [0, 1].map(|i| figure(&record["difference"][i]));
        assert!(line.contains(&format!("difference within [{low}, {high}], {} rounds", record["rounds"])), "{line}");
        let bounds = [0, 1].map(|i| record["draft_bounds"][i].as_f64().unwrap());
        assert!(bounds[0] <= bounds[1] && record["differ"] == false, "{record}");
    }
    assert!(fs::read_dir(replay_dir(&place, "runs/small").unwrap().join("tb")).unwrap().count() > 0);
}

/// `fit --replay` to the run `out`, long enough to be stopped, from the drafter of [`fitted`].
fn long(place: &Place, out: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spectrain"));
    command.current_dir(place.root()).args(["fit", "recipe.toml", "--replay", "t.jsonl", "--out", out]);
    let start = format!("train.start={BEST}");
    for set in [start.as_str(), "train.validation_share=0.3", "train.epochs=30", "train.checkpoint_every=1"] {
        command.args(["--set", set]);
    }
    for set in ["train.anchor=0.1", "train.ema=0.9", "train.dropout=0.1", "train.log_every=3"] {
        command.args(["--set", set]);
    }
    command
}

#[test]
fn a_stopped_replay_goes_on_to_the_same_weights() {
    let place = fitted();
    traced(&place);
    assert!(long(&place, "whole").output().unwrap().status.success());
    let mut child = long(&place, "parts").stderr(Stdio::piped()).spawn().unwrap();
    let reached = || replay_dir(&place, "parts").is_some_and(|dir| dir.join("checkpoints/step-4").exists());
    while !reached() && child.try_wait().unwrap().is_none() {
        sleep(Duration::from_millis(1));
    }
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && told.contains("stopped after step"), "{told}");
    assert!(told.contains("--replay t.jsonl") && told.trim_end().ends_with("--resume"), "{told}");
    // It is not thrown away unasked.
    let output = long(&place, "parts").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("add --resume to go on"));
    let output = long(&place, "parts").arg("--resume").output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && told.contains("train: going on from"), "{told}");
    let [whole, parts] = ["whole", "parts"].map(|out| replay_dir(&place, out).unwrap());
    assert!(drafter(&whole.join("best")) == drafter(&parts.join("best")), "the weights differ");
    assert_eq!(records(&whole), records(&parts));
    assert_eq!(place.path("whole/best").exists(), place.path("parts/best").exists());
}

/// Values of a drafter's file by tensor.
fn tensors(dir: &Path) -> Vec<(String, Vec<f32>)> {
    let file = WeightFile::open(&dir.join(FILE)).unwrap();
    let float = |name: &String| file.tensor_f32(name, file.shape(name).unwrap()).ok();
    let mut names = file.names();
    names.sort();
    names.into_iter().filter_map(|name| float(&name).map(|values| (name, values))).collect()
}

#[test]
fn an_anchor_keeps_a_replayed_drafter_near_where_it_began() {
    let place = fitted();
    traced(&place);
    let start = tensors(&place.path(BEST));
    let moved = |anchor: &str| -> Vec<f64> {
        // Nothing is set aside, so that the last weights are kept, and beside.
        let sets = [anchor, "train.validation_share=0", "train.epochs=8", "train.learning_rate=1e-3"];
        replayed(&place, &sets);
        let end = tensors(&replay_dir(&place, "runs/small").unwrap().join("best"));
        let distance =
            |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>().sqrt();
        start.iter().zip(&end).map(|((_, a), (_, b))| distance(a, b)).collect()
    };
    let (free, held) = (moved("train.anchor=0"), moved("train.anchor=100"));
    for (((name, _), free), held) in start.iter().zip(free).zip(held) {
        eprintln!("{name}: {free:.4} freely, {held:.4} anchored");
        assert!(free == 0.0 || held < 0.5 * free, "{name}: {free} freely, {held} anchored");
    }
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
