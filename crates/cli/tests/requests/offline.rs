//! `eval --offline`: what it refuses, and that checkpoints are told apart.

use crate::place::{Place, RECIPE};
use serde_json::Value;
use spectrain_data::store::{FeatureRow, StoreMeta, StoreReader, StoreWriter};
use std::fs;
use std::path::Path;

/// A place with a run of the small recipe.
fn fitted() -> Place {
    let place = Place::new();
    fs::write(place.path("recipe.toml"), RECIPE).unwrap();
    let fit = place.run(&["fit", "recipe.toml"]);
    assert!(fit.status.success(), "{}", String::from_utf8_lossy(&fit.stderr));
    place
}

/// Writes the run's store again, changed.
fn changed(place: &Place, name: &str, meta: impl Fn(&mut StoreMeta), row: impl Fn(&mut FeatureRow)) {
    let store = StoreReader::open(&place.path("runs/small/store")).unwrap();
    let mut new = store.meta().clone();
    meta(&mut new);
    let mut writer = StoreWriter::create(&place.path(name), new).unwrap();
    for mut stored in store.read_all().unwrap() {
        row(&mut stored);
        writer.push(stored).unwrap();
    }
    writer.finish().unwrap();
}

const BEST: &str = "runs/small/best";

#[test]
fn answers_that_tell_nothing_are_refused() {
    let place = fitted();
    let eval = |store: &'static str| ["eval", BEST, "--offline", "--store", store];
    changed(&place, "other", |meta| meta.target_hash = "0".repeat(64), |_| ());
    place.refused(&eval("other"), &["other", "another target", "leave --store out"]);
    changed(&place, "taps", |meta| meta.taps = vec![0, 1, 3], |_| ());
    place.refused(&eval("taps"), &["[0, 1, 3]", "[0, 1, 2]", "drafter.taps"]);
    changed(&place, "text", |_| (), |row| row.off_policy = true);
    place.refused(&eval("text"), &["off-policy", "spectrain generate"]);
    changed(&place, "packed", |_| (), |row| row.loss_mask[0] = true);
    place.refused(&eval("packed"), &["not one answer behind a prompt"]);
    let cold = [&eval("runs/small/store")[..], &["--temperature", "0.3"]].concat();
    place.refused(&cold, &["temperature 0.3", "the store has", "leave --store out"]);
    place.refused(&["eval", BEST, "--offline", "--store", "absent"], &["absent", "manifest.json"]);
    place.refused(&["eval", BEST, "--offline", "--rule", "block", "--temperature", "1"], &["block", "token"]);
    place.refused(&["eval", BEST, "--store", "text"], &["required arguments"]);
    place.refused(&["eval", "packed", "packed"], &["required arguments"]);
    let trained = place.run(&eval("runs/small/store"));
    assert!(String::from_utf8_lossy(&trained.stderr).contains("learned from this store"));
}

fn document(place: &Place, arguments: &[&str]) -> Value {
    let output = place.run(&[arguments, &["--json", "-"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_checkpoint_is_no_better_than_itself() {
    let place = fitted();
    fs::create_dir(place.path("copy")).unwrap();
    let file = Path::new("drafter.safetensors");
    fs::copy(place.path(BEST).join(file), place.path("copy").join(file)).unwrap();
    let arguments = ["eval", BEST, "copy", "--offline", "--length", "2", "--temperature", "0", "--temperature", "1"];
    let found = document(&place, &arguments);
    let estimates = found["estimates"].as_array().unwrap();
    assert_eq!(estimates.len(), 4, "two checkpoints at two temperatures");
    for e in estimates {
        let tau = e["lengths"][0]["tokens_per_target_call"]["estimate"].as_f64().unwrap();
        assert!((1.0..=3.0).contains(&tau), "{tau}");
    }
    for d in found["differences"].as_array().unwrap() {
        assert_eq!(d["difference"]["low"].as_f64(), Some(0.0));
        assert_eq!(d["difference"]["high"].as_f64(), Some(0.0));
    }
    // The store of the run gives the same target's answers at the temperatures it has.
    let stored = document(&place, &["eval", BEST, "--offline", "--store", "runs/small/store", "--length", "3"]);
    assert!(!stored["estimates"].as_array().unwrap().is_empty());
}

#[test]
fn costs_lie_beside_the_checkpoint_and_advice_reads_them() {
    let place = fitted();
    let arguments = ["eval", BEST, "--profile", "--advice", "--temperature", "0", "--length", "1", "--length", "2"];
    let output = place.run(&arguments);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for part in ["break-even", "predicted", "measured", "another length is faster: ", "not judged: "] {
        assert!(text.contains(part), "no {part}: {text}");
    }
    let table: Value = serde_json::from_slice(&fs::read(place.path(BEST).join("cost-table.json")).unwrap()).unwrap();
    let batches: Vec<u64> = table["batches"].as_array().unwrap().iter().map(|b| b["batch"].as_u64().unwrap()).collect();
    assert_eq!(batches, [1, 2, 4, 8]);
    assert_eq!(table["batches"][3]["lengths"][1]["nodes"], 24, "8 requests, a root and two drafts each");
    fs::write(place.path(BEST).join("cost-table.json"), "{}").unwrap();
    let damaged = place.run(&["eval", BEST, "--advice"]);
    assert!(String::from_utf8_lossy(&damaged.stderr).contains("measure anew with --profile"));
}
