//! `best` is the checkpoint that was measured longest, wherever in the run it lies; the records tell all of it.

use crate::kills::fit;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Stdio;

/// Trains in `dir` at a rate that soon does harm; returns what it said.
fn trained(dir: &Path, sets: &[&str]) -> String {
    let mut command = fit(dir);
    for set in ["train.epochs=5", "train.learning_rate=0.2", "train.schedule=constant", "train.validation_share=0.3"] {
        command.args(["--set", set]);
    }
    command.args(sets.iter().flat_map(|set| ["--set", set]));
    let output = command.stdout(Stdio::null()).stderr(Stdio::piped()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}");
    text
}

fn records(dir: &Path) -> Vec<Value> {
    let text = fs::read_to_string(dir.join("metrics.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Step and expected length of each validation.
fn lengths(records: &[Value]) -> Vec<(u64, f64)> {
    let validations = records.iter().filter(|r| r["event"] == "validation");
    validations.map(|r| (r["step"].as_u64().unwrap(), r["expected_length"].as_f64().unwrap())).collect()
}

/// Step that the checkpoint in `dir` says it is of.
fn step(dir: &Path) -> u64 {
    let bytes = fs::read(dir.join("drafter.safetensors")).unwrap();
    let size = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + size]).unwrap();
    let provenance: Value = serde_json::from_str(header["__metadata__"]["provenance"].as_str().unwrap()).unwrap();
    provenance["step"].as_u64().unwrap()
}

#[test]
fn the_best_checkpoint_is_the_one_that_was_measured_longest() {
    let work = tempfile::tempdir().unwrap();
    let dir = work.path().join("run");
    let said = trained(&dir, &[]);
    let found = lengths(&records(&dir));
    assert_eq!(found.len(), 5);
    let longest = found.iter().map(|(_, length)| *length).fold(0.0, f64::max);
    let best = found.iter().find(|(_, length)| *length == longest).unwrap().0;
    assert!(found.iter().all(|(_, length)| (1.0..=5.0).contains(length)), "{found:?}");
    assert!(best < found[4].0, "the rate does harm, so that the last is not the best: {found:?}");
    assert_eq!(step(&dir.join("best")), best, "{found:?}");
    assert!(said.contains(", the best so far\n") && said.contains(": over-training: "), "{said}");
    let measured: Vec<u64> =
        records(&dir).iter().filter(|r| r["event"] == "measured").map(|r| r["step"].as_u64().unwrap()).collect();
    assert_eq!(measured, [best, best], "the drafter that is evaluated is the best one, at two temperatures");
    // Going on from the end changes nothing.
    let bytes = |part: &str| fs::read(dir.join(part)).unwrap();
    let (before, lines) = (bytes("best/drafter.safetensors"), records(&dir).len());
    trained(&dir, &[]);
    assert_eq!((bytes("best/drafter.safetensors"), records(&dir).len()), (before, lines));
    // With patience the run ends soon after it.
    let dir = work.path().join("patient");
    let said = trained(&dir, &["train.patience=1"]);
    assert!(said.contains(": train.patience is used up\n"), "{said}");
    let patient = lengths(&records(&dir));
    let first_worse = found.windows(2).position(|pair| pair[1].1 <= pair[0].1).unwrap() + 1;
    assert_eq!(patient, found[..=first_worse]);
    assert_eq!(step(&dir.join("best")), found[first_worse - 1].0);
}

#[test]
fn a_run_goes_on_from_another_ones_weights() {
    let work = tempfile::tempdir().unwrap();
    let (first, second, third) = (work.path().join("first"), work.path().join("second"), work.path().join("third"));
    let slow = ["train.epochs=2", "train.learning_rate=0.003"];
    trained(&first, &slow);
    let start = format!("train.start={}", first.join("best").display());
    // One step so small that the weights stay what they were.
    let still = ["train.epochs=1", "train.learning_rate=1e-9", start.as_str()];
    trained(&second, &still);
    let last = lengths(&records(&first)).last().unwrap().1;
    let best = lengths(&records(&first)).iter().map(|l| l.1).fold(0.0, f64::max);
    let kept = lengths(&records(&second))[0].1;
    assert!((kept - best).abs() < 2e-3, "{kept} for {best} (last {last})");
    // Another drafter is refused.
    let mut command = fit(&third);
    command.args(["--set", &start, "--set", "drafter.draft_vocab=40"]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("is another drafter"));
}
