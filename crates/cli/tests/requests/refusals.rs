//! What cannot work is refused before any work: exit code 2, one line that names the cause, nothing written.

use crate::place::{Place, RECIPE};
use spectrain_data::weights::{F32Tensor, WeightDir, write_safetensors};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

#[test]
fn unknown_recipe_key_names_line_and_nearest_key() {
    let place = Place::new();
    fs::write(place.path("recipe.toml"), RECIPE.replace("epochs", "epoch")).unwrap();
    place.refused(&["fit", "recipe.toml"], &["recipe.toml:18", "train.epoch", "epochs"]);
    place.refused(&["fit", "recipe.toml", "--set", "lose.unroll=2"], &["--set", "lose", "loss"]);
}

#[test]
fn missing_target_is_named() {
    let place = Place::new();
    place.refused(&["fit", "recipe.toml", "--set", "target.path=nowhere"], &["nowhere", "no such directory"]);
    place.refused(&["fit", "absent.toml"], &["absent.toml"]);
    place.refused(&["eval", "absent"], &["absent"]);
}

#[cfg(not(feature = "cuda"))]
#[test]
fn several_devices_need_a_build_that_has_them() {
    let two = ["fit", "recipe.toml", "--set", "train.devices=2"];
    Place::new().refused(&two, &["train.devices is 2", "at most train.accumulate, 1"]);
    let shared = [&two[..], &["--set", "train.accumulate=2"]].concat();
    Place::new().refused(&shared, &["train.devices is 2", "this build has no cuda", "--features cuda"]);
}

/// Rewrites the header of the target's safetensors file.
fn edit_header(path: &Path, edit: impl FnOnce(String) -> String) {
    let bytes = fs::read(path).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header = edit(String::from_utf8(bytes[8..8 + length].to_vec()).unwrap());
    let mut changed = (header.len() as u64).to_le_bytes().to_vec();
    changed.extend_from_slice(header.as_bytes());
    changed.extend_from_slice(&bytes[8 + length..]);
    fs::write(path, changed).unwrap();
}

#[test]
fn missing_and_misshapen_tensors_are_named() {
    let name = "model.layers.1.mlp.up_proj.weight";
    let place = Place::new();
    edit_header(&place.path("target/model.safetensors"), |h| h.replace(name, "model.layers.1.mlp.xx_proj.weight"));
    place.refused(&["fit", "recipe.toml"], &[name]);

    let place = Place::new();
    let config = fs::read_to_string(place.path("target/config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&config).unwrap();
    config["intermediate_size"] = 7.into();
    fs::write(place.path("target/config.json"), config.to_string()).unwrap();
    place.refused(&["fit", "recipe.toml"], &["mlp.gate_proj.weight", "7"]);
}

/// Writes the target's `config.json` anew with `tie_word_embeddings`, and its weights with an output head that is
/// the embedding but for one value, which is larger by `head`; without one for `None`.
fn set_head(place: &Place, tied: Option<bool>, head: Option<f32>) {
    let config = fs::read_to_string(place.path("target/config.json")).unwrap();
    let mut config: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&config).unwrap();
    config.remove("tie_word_embeddings");
    config.extend(tied.map(|tied| ("tie_word_embeddings".to_owned(), tied.into())));
    let weights = WeightDir::open(&place.path("target")).unwrap();
    let read = |name: &str| {
        let shape = weights.shape(name).unwrap();
        (shape.to_vec(), weights.tensor_f32(name, shape).unwrap())
    };
    let mut tensors: Vec<(String, F32Tensor)> = Vec::new();
    for name in weights.names().filter(|name| *name != "lm_head.weight") {
        let (shape, values) = read(name);
        tensors.push((name.to_owned(), F32Tensor::new(&shape, values)));
    }
    if let Some(more) = head {
        let (shape, mut values) = read("model.embed_tokens.weight");
        values[5] += more;
        tensors.push(("lm_head.weight".to_owned(), F32Tensor::new(&shape, values)));
    }
    write_safetensors(&place.path("target/model.safetensors"), &tensors, &BTreeMap::new()).unwrap();
    fs::write(place.path("target/config.json"), serde_json::Value::Object(config).to_string()).unwrap();
}

#[test]
fn configuration_and_weights_must_agree_about_the_output_head() {
    let place = Place::new();
    for untied in [Some(false), None] {
        set_head(&place, untied, None);
        place.refused(&["fit", "recipe.toml"], &["tie_word_embeddings", "no tensor `lm_head.weight`"]);
    }
    set_head(&place, Some(true), Some(1.0));
    place.refused(&["fit", "recipe.toml"], &["tie_word_embeddings is true", "`lm_head.weight` is not equal"]);
    // What agrees runs: an own head, and a tied one that is stored all the same.
    for (tied, more) in [(false, 1.0), (true, 0.0)] {
        set_head(&place, Some(tied), Some(more));
        let output = place.run(&["generate", "recipe.toml"]);
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        fs::remove_dir_all(place.path("runs")).unwrap();
    }
}

#[test]
fn quantised_targets_are_refused_by_their_method() {
    let place = Place::new();
    let config = fs::read_to_string(place.path("target/config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&config).unwrap();
    config["quantization_config"] = serde_json::json!({ "quant_method": "fp8" });
    fs::write(place.path("target/config.json"), config.to_string()).unwrap();
    place.refused(&["fit", "recipe.toml"], &["quantization_config", "fp8", "BF16"]);
}

#[cfg(not(feature = "hub"))]
#[test]
fn a_build_without_the_hub_refuses_its_names() {
    let place = Place::new();
    let words = ["hf:org/model@main", "build with `--features hub`, or give a directory"];
    place.refused(&["fetch", "hf:org/model"], &words);
    place.refused(&["fit", "recipe.toml", "--set", "target.path=hf:org/model"], &words);
    place.refused(&["fit", "recipe.toml", "--set", "target.path=hf:model"], &["hf:model", "hf:ORG/NAME@REVISION"]);
}

#[test]
fn truncated_files_are_named() {
    let place = Place::new();
    let weights = place.path("target/model.safetensors");
    let bytes = fs::read(&weights).unwrap();
    fs::write(&weights, &bytes[..bytes.len() - 100]).unwrap();
    place.refused(&["fit", "recipe.toml"], &["model.safetensors"]);

    fs::write(place.path("model.gguf"), b"GGUF\x03\0\0\0\x10\0\0\0").unwrap();
    place.refused(&["fetch", "model.gguf", "--out", "made"], &["model.gguf"]);
}

#[test]
fn tokenizer_that_does_not_fit_is_refused() {
    let place = Place::new();
    place.tokenizer(120);
    place.refused(&["fit", "recipe.toml"], &["tokenizer", "97"]);
}

#[test]
fn taps_and_draft_vocabulary_must_fit_the_target() {
    let place = Place::new();
    place.refused(&["fit", "recipe.toml", "--set", "drafter.taps=[0, 1, 9]"], &["drafter.taps", "9"]);
    place.refused(&["fit", "recipe.toml", "--set", "drafter.taps=[0, 1, 1]"], &["drafter.taps", "repeated"]);
    place.refused(&["fit", "recipe.toml", "--set", "drafter.draft_vocab=98"], &["drafter.draft_vocab", "98", "97"]);
}

#[test]
fn unwritable_output_is_refused() {
    let place = Place::new();
    fs::write(place.path("taken"), b"").unwrap();
    place.refused(&["fit", "recipe.toml", "--out", "taken"], &["taken", "cannot be written"]);
    place.refused(&["fit", "recipe.toml", "--out", "taken/run"], &["taken/run", "cannot be written"]);
}

#[test]
fn other_wrong_requests() {
    let place = Place::new();
    place.refused(&["fit", "recipe.toml", "--device", "tpu"], &["--device", "flex", "cuda:N"]);
    // Without the feature it is the build that lacks it; with it, no machine has so many.
    place.refused(&["fit", "recipe.toml", "--device", "cuda:999"], &["--device cuda:999: "]);
    place.refused(&["eval", "runs/small/best", "--device", "wgpu:999"], &["--device wgpu:999: "]);
    place.refused(&["fit", "recipe.toml", "--set", "data.prompts=no.jsonl"], &["no.jsonl"]);
    place.refused(&["fit", "recipe.toml", "--set", "drafter.train_embeddings=true"], &["train_embeddings"]);
    place.refused(&["fit", "recipe.toml", "--set", "verifier.rule=typical"], &["verifier.rule", "sampled-match"]);
    place.refused(&["fetch", "no-such-model"], &["no-such-model", "smollm2-135m-instruct"]);
}

#[test]
fn the_recipe_runs_when_nothing_is_wrong() {
    let place = Place::new();
    let output = place.run(&["fit", "recipe.toml"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{error}");
    for file in [
        "recipe.toml",
        "provenance.json",
        "metrics.jsonl",
        "best/drafter.safetensors",
        "report.html",
        "eval/T0-K5.json",
        "eval/T1-K5.json",
    ] {
        assert!(place.path("runs/small").join(file).is_file(), "{file}");
    }
    // A drafter is bound to its target.
    edit_target(&place);
    place.refused(&["eval", "runs/small/best"], &["another target"]);
}

fn edit_target(place: &Place) {
    let path = place.path("target/model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(path, bytes).unwrap();
}

#[test]
fn nothing_to_train_on_fails_and_names_what_is_kept() {
    let place = Place::new();
    // Answers of one token leave no row that an unroll step could supervise once rows are cut to the shortest length.
    let sets = ["--set", "data.max_new_tokens=1", "--set", "train.max_seq=6", "--set", "loss.unroll=1"];
    fs::write(place.path("prompts.jsonl"), "{\"id\":\"a\",\"task\":\"chat\",\"prompt\":\"b c d e f g h i j k\"}\n")
        .unwrap();
    let output = place.run(&[&["fit", "recipe.toml"], sets.as_slice()].concat());
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("no supervised tokens") && error.contains("runs/small"), "{error}");
    assert!(
        place.path("runs/small/answers.parquet").is_file() && place.path("runs/small/store/manifest.json").is_file()
    );
}

#[test]
fn a_stopped_run_is_not_thrown_away_unasked() {
    let place = Place::new();
    let fit = |more: &[&str]| {
        let output = place.run(&[&["fit", "recipe.toml"], more].concat());
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        fs::read(place.path("runs/small/best/drafter.safetensors")).unwrap()
    };
    let whole = fit(&[]);
    assert_eq!(fit(&[]), whole, "a run that ended may be made again");
    // As if it had been stopped after its last checkpoint.
    fs::remove_dir_all(place.path("runs/small/best")).unwrap();
    place.refused(&["fit", "recipe.toml"], &["was stopped", "checkpoints/step-", "--resume", "runs/small/checkpoints"]);
    assert_eq!(fit(&["--resume"]), whole);
    // Another recipe is another run.
    fs::remove_dir_all(place.path("runs/small/best")).unwrap();
    assert_ne!(fit(&["--set", "train.learning_rate=0.01"]), whole);
}

#[test]
fn a_run_directory_is_locked_and_cleared_of_half_written_files() {
    let place = Place::new();
    let run = place.path("runs/small");
    fs::create_dir_all(run.join("checkpoints/.step-9.partial/state")).unwrap();
    fs::write(run.join(".answers.parquet.partial-7"), b"half").unwrap();
    let lock = fs::File::create(run.join(".lock")).unwrap();
    lock.lock().unwrap();
    place.refused(&["fit", "recipe.toml"], &["another spectrain is at work in runs/small", "--out"]);
    assert!(run.join(".answers.parquet.partial-7").exists(), "it may be the other's");
    drop(lock);
    let output = place.run(&["fit", "recipe.toml"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!run.join("checkpoints/.step-9.partial").exists() && !run.join(".answers.parquet.partial-7").exists());
}
