//! Drafters from elsewhere and for elsewhere, at the command line.

use crate::place::Place;
use std::fs;
use std::path::Path;

/// A place with a drafter of the `speculators` library and its target.
fn with_theirs() -> Place {
    let place = Place::with_target("tiny_gqa4_f16");
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/witness/speculators/random");
    fs::create_dir(place.path("theirs")).unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(fixture.join(file), place.path("theirs").join(file)).unwrap();
    }
    place
}

/// What a command that must succeed prints.
fn done(place: &Place, arguments: &[&str]) -> String {
    let output = place.run(arguments);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_drafter_of_speculators_is_imported_measured_and_exported_again() {
    let place = with_theirs();
    let told = done(&place, &["import", "theirs", "--out", "drafter", "--target", "target"]);
    assert!(
        told.contains("speculators format") && told.contains("its own head") && told.contains("60 of 97"),
        "{told}"
    );
    let eval =
        ["eval", "drafter", "--prompts", "prompts.jsonl", "--length", "3", "--max-new-tokens", "8", "--json", "-"];
    let measured: serde_json::Value = serde_json::from_str(&done(&place, &eval)).unwrap();
    let drafted = |row: &&serde_json::Value| row["length"] == 3 && row["task"].is_null();
    let row = measured["rows"].as_array().unwrap().iter().find(drafted).unwrap();
    let calls = row["tokens_per_target_call"].as_f64().unwrap();
    assert!((1.0..=4.0).contains(&calls), "{measured}");
    let next = done(&place, &["export", "drafter", "--format", "speculators", "--out", "again"]);
    assert!(next.contains("vllm serve again"), "{next}");
    done(&place, &["import", "again", "--out", "same", "--target", "target"]);
    let weights = |dir: &str| fs::read(place.path(dir).join("drafter.safetensors")).unwrap();
    assert_eq!(weights("drafter"), weights("same"));
    let next = done(&place, &["export", "drafter", "--format", "vllm", "--out", "for-vllm"]);
    assert!(next.contains("vllm serve target") && next.contains("for-vllm"), "{next}");
    let output = place.run(&["export", "drafter", "--format", "llamacpp", "--out", "for-llamacpp"]);
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains("reads what enters layers, all below 4, the drafter reads [1, 2, 4]"), "{told}");
    assert!(!place.path("for-llamacpp").exists());
}

#[test]
fn what_cannot_be_exchanged_is_refused_with_the_reason() {
    let place = with_theirs();
    done(&place, &["import", "theirs", "--out", "drafter", "--target", "target"]);
    let import = |from: &str, reasons: &[&str]| {
        place.refused(&["import", from, "--out", "new", "--target", "target"], reasons);
    };
    import("nowhere", &["nowhere", "no such directory"]);
    import("target", &["target/config.json", "no drafter", "speculators_model_type"]);
    place.refused(&["import", "theirs", "--out", "drafter", "--target", "target"], &["drafter", "not empty", "--out"]);
    place.refused(&["import", "theirs", "--out", "new", "--target", "absent"], &["absent"]);
    let export = |format: &str, out: &str, reasons: &[&str]| {
        place.refused(&["export", "drafter", "--format", format, "--out", out], reasons);
    };
    export("sglang", "new", &["SGLang", "embedding"]);
    export("vllm", "theirs", &["theirs", "not empty", "--out"]);
    export("vllm", "prompts.jsonl/new", &["prompts.jsonl/new", "cannot be written"]);
    export("gguf", "new", &["speculators, sglang, vllm, llamacpp"]);
    // Another target: the same sizes, other weights.
    let path = place.path("target/model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, bytes).unwrap();
    export("vllm", "new", &["another target"]);
    // Truncated weights and unknown settings of theirs.
    let config = fs::read_to_string(place.path("theirs/config.json")).unwrap();
    let set =
        |text: &str| fs::write(place.path("theirs/config.json"), config.replace("\"fc_norm\": false", text)).unwrap();
    set("\"fc_norm\": true");
    import("theirs", &["theirs/config.json", "fc_norm is true"]);
    set("\"fc_norm\": 3");
    import("theirs", &["fc_norm is 3; it must be true or false"]);
    set("\"fc_norm\": false");
    let path = place.path("theirs/model.safetensors");
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() - 9]).unwrap();
    import("theirs", &["theirs/model.safetensors", "truncated"]);
}
