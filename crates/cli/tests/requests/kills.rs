//! `fit` killed at random moments and resumed: the outcome is that of a run that was left alone.
//!
//! A few kills in every test run; `SPECTRAIN_KILLS=200` for the long one.

use serde_json::Value;
use spectrain_core::rng::{Key, Purpose};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

const KILLS: usize = 5;

/// `fit` on the tiny target in `dir`, small, with a checkpoint at every second step.
pub fn fit(dir: &Path) -> Command {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut command = Command::new(env!("CARGO_BIN_EXE_spectrain"));
    command.args(["fit", "recipes/quickstart.toml", "--resume", "--out"]).arg(dir).current_dir(root);
    for set in [
        "data.answer_tokens=1500",
        "data.max_new_tokens=24",
        "data.batch=16",
        "train.epochs=2",
        "train.max_seq=256",
        "train.batch_tokens=256",
        "train.checkpoint_every=2",
        "train.log_every=3",
        "eval.limit=2",
        "eval.max_new_tokens=8",
        "eval.curve=[]",
    ] {
        command.args(["--set", set]);
    }
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// Starts it anew, or lets it go on; `true` when it ended by itself within `limit`.
fn run_for(dir: &Path, limit: Duration) -> bool {
    let mut child: Child = fit(dir).spawn().unwrap();
    let start = Instant::now();
    while start.elapsed() < limit {
        if let Some(status) = child.try_wait().unwrap() {
            let output = child.wait_with_output().unwrap();
            assert!(status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            return true;
        }
        sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    false
}

/// What a run leaves that does not depend on clock or memory: weights, answers, records.
fn outcome(dir: &Path) -> (Vec<u8>, Vec<u8>, Vec<Value>) {
    let read = |file: &str| fs::read(dir.join(file)).unwrap();
    let text = String::from_utf8(read("metrics.jsonl")).unwrap();
    let timeless = |line: &str| {
        let mut record: Value = serde_json::from_str(line).unwrap();
        for measured in ["tokens_per_second", "memory_mib"] {
            record.as_object_mut().unwrap().remove(measured);
        }
        record
    };
    (read("best/drafter.safetensors"), read("answers.parquet"), text.lines().map(timeless).collect())
}

/// Files that a kill may leave behind and a later run must clear away.
fn leftovers(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap().map(|e| e.unwrap()) {
        let path = entry.path();
        if entry.file_name().to_string_lossy().contains(".partial") {
            found.push(path);
        } else if path.is_dir() {
            found.extend(leftovers(&path));
        }
    }
    found
}

#[test]
fn a_killed_run_ends_like_one_that_was_left_alone() {
    let kills: usize = std::env::var("SPECTRAIN_KILLS").map_or(KILLS, |n| n.parse().unwrap());
    let (whole, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let start = Instant::now();
    assert!(run_for(&whole.path().join("run"), Duration::from_secs(600)), "the run takes minutes");
    let (duration, expected) = (start.elapsed(), outcome(&whole.path().join("run")));
    let dir = parts.path().join("run");
    let key = Key::new(u64::from(std::process::id()), 0, 0, Purpose::Data);
    let (mut killed, mut ended, mut tries) = (0, 0, 0);
    while killed < kills {
        tries += 1;
        if run_for(&dir, duration.mul_f64(1.1 * key.uniform_at(tries))) {
            assert_eq!(outcome(&dir), expected, "after {killed} kills");
            fs::remove_dir_all(&dir).unwrap();
            ended += 1;
        } else {
            killed += 1;
        }
    }
    assert!(run_for(&dir, Duration::from_secs(600)));
    assert_eq!(outcome(&dir), expected, "after {killed} kills");
    assert_eq!(leftovers(&dir), Vec::<PathBuf>::new());
    eprintln!("{killed} kills, {} complete runs, all with the same outcome", ended + 1);
}
