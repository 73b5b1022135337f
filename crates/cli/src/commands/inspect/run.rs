//! A run directory: which stages are complete, the last metrics, what was measured.

use crate::exit::{Blame, Failure};
use crate::stage::{self, RunDir};
use serde_json::{Value, json};
use spectrain_core::recipe::Recipe;
use spectrain_data::answers::read_answers;
use spectrain_data::store::StoreReader;
use spectrain_draft::Checkpoint;
use spectrain_train::{Record, read_records, snapshot};
use std::fs;
use std::path::{Path, PathBuf};

/// Facts about the run in `dir`. A stage that is not complete has no facts.
pub fn facts(dir: &Path) -> Result<Value, Failure> {
    let run = RunDir::look(dir);
    let recipe = Recipe::load(&run.join("recipe.toml"), &[]).request()?;
    Ok(json!({
        "kind": "run",
        "path": dir,
        "name": recipe.name,
        "provenance": json_file(&run.join("provenance.json")),
        "answers": answers(&stage::answers(&recipe, &run)),
        "store": store(&stage::store_dir(&recipe, &run)),
        "checkpoints": checkpoints(&run.join("checkpoints")),
        "best": Checkpoint::open(&run.join("best")).ok().map(|c| json!({ "step": c.provenance.step })),
        "metrics": metrics(&run.join("metrics.jsonl"))?,
        "evaluations": evaluations(&run.join("eval")),
        "reconciliation": json_file(&run.join("reconciliation.json")),
        "seconds": json_file(&run.join("seconds.json")),
    }))
}

fn answers(path: &Path) -> Option<Value> {
    let (_, rows) = read_answers(path).ok()?;
    let tokens: usize = rows.iter().map(|a| a.answer_ids.len()).sum();
    Some(json!({ "path": path, "rows": rows.len(), "answer_tokens": tokens }))
}

fn store(dir: &Path) -> Option<Value> {
    let store = StoreReader::open(dir).ok()?;
    Some(json!({ "path": dir, "rows": store.len(), "tokens": store.manifest().tokens }))
}

/// The checkpoints by step, and which of them has the state to go on from.
fn checkpoints(dir: &Path) -> Vec<Value> {
    let step = |path: &PathBuf| {
        Some((path.file_name()?.to_str()?.strip_prefix("step-")?.parse::<usize>().ok()?, path.clone()))
    };
    let mut found: Vec<_> = entries(dir).iter().filter_map(step).collect();
    found.sort();
    let state = |path: PathBuf| path.join(snapshot::DIR).is_dir();
    found.into_iter().map(|(step, path)| json!({ "step": step, "state": state(path) })).collect()
}

/// The newest record of each kind.
fn metrics(path: &Path) -> Result<Value, Failure> {
    let records = read_records(path).request()?;
    let last = |kind: fn(&Record) -> bool| records.iter().rev().find(|r| kind(r));
    Ok(json!({
        "step": last(|r| matches!(r, Record::Step { .. })),
        "validation": last(|r| matches!(r, Record::Validation { .. })),
    }))
}

/// The headline of each evaluation, one a file.
fn evaluations(dir: &Path) -> Vec<Value> {
    let results = entries(dir).into_iter().filter_map(|path| json_file(&path));
    let headline = |e: Value| {
        json!({
            "temperature": e["temperature"], "rule": e["rule"], "length": e["length"],
            "tokens_per_target_call": e["tokens_per_target_call"],
            "interval": [e["interval"]["low"], e["interval"]["high"]],
            "speedup": e["speedup"],
        })
    };
    results.map(headline).collect()
}

/// What is in a directory, sorted; nothing if it is not there.
fn entries(dir: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path()).collect();
    found.sort();
    found
}

fn json_file(path: &Path) -> Option<Value> {
    serde_json::from_str(&fs::read_to_string(path).ok()?).ok()
}
