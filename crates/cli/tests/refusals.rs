//! What cannot work is refused before any work: exit code 2, one line that names the cause, nothing written.
#![allow(clippy::unwrap_used)]

use spectrain_data::weights::{F32Tensor, WeightDir, write_safetensors};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// An empty directory with a tiny target, prompts and a recipe that would run.
struct Place {
    dir: TempDir,
}

const TARGET: &str = "tiny_gqa1_f32";

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let place = Self { dir };
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/fixtures").join(TARGET);
        fs::create_dir(place.path("target")).unwrap();
        for file in ["config.json", "model.safetensors"] {
            fs::copy(fixtures.join(file), place.path("target").join(file)).unwrap();
        }
        place.tokenizer(97);
        fs::write(place.path("prompts.jsonl"), "{\"id\":\"a\",\"task\":\"chat\",\"prompt\":\"b c d\"}\n").unwrap();
        fs::write(place.path("recipe.toml"), RECIPE).unwrap();
        place
    }

    fn path(&self, part: &str) -> PathBuf {
        self.dir.path().join(part)
    }

    /// A word-level tokenizer of `size` tokens with a minimal chat template.
    fn tokenizer(&self, size: usize) {
        let vocab: serde_json::Map<String, serde_json::Value> =
            (0..size).map(|i| (if i == 0 { "<end>".to_string() } else { format!("w{i}") }, i.into())).collect();
        let tokenizer = serde_json::json!({
            "version": "1.0", "truncation": null, "padding": null,
            "added_tokens": [{"id": 0, "content": "<end>", "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true}],
            "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
            "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "w1"},
        });
        fs::write(self.path("target/tokenizer.json"), tokenizer.to_string()).unwrap();
        let template = "{% for m in messages %}{{ m.content }}<end>{% endfor %}";
        let config = serde_json::json!({"chat_template": template, "eos_token": "<end>"});
        fs::write(self.path("target/tokenizer_config.json"), config.to_string()).unwrap();
    }

    fn run(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_spectrain")).args(arguments).current_dir(self.dir.path()).output().unwrap()
    }

    /// Names of the files in the directory: what a refused command must not change.
    fn listing(&self) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(self.dir.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn refused(&self, arguments: &[&str], parts: &[&str]) {
        let before = self.listing();
        let output = self.run(arguments);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        let lines: Vec<&str> = error.lines().filter(|l| l.starts_with("error: ")).collect();
        assert_eq!(lines.len(), 1, "{arguments:?}: {error}");
        for part in parts {
            assert!(lines[0].contains(part), "{arguments:?}: \"{}\" does not name {part}", lines[0]);
        }
        assert_eq!(self.listing(), before, "{arguments:?} wrote something");
    }
}

const RECIPE: &str = r#"name = "small"

[target]
path = "target"

[data]
prompts = "prompts.jsonl"
answer_tokens = 200
max_new_tokens = 12
max_prompt_tokens = 64
batch = 4

[drafter]
taps = [0, 1, 2]
draft_vocab = 50

[train]
epochs = 1
max_seq = 128
batch_tokens = 128

[eval]
prompts = "prompts.jsonl"
max_new_tokens = 8
"#;

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

/// Writes the target's `config.json` anew with `tie_word_embeddings`, and its weights with this output head.
fn set_head(place: &Place, tied: Option<bool>, head: Option<&dyn Fn(&mut Vec<f32>)>) {
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
    if let Some(change) = head {
        let (shape, mut values) = read("model.embed_tokens.weight");
        change(&mut values);
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
    set_head(&place, Some(true), Some(&|head| head[5] += 1.0));
    place.refused(&["fit", "recipe.toml"], &["tie_word_embeddings is true", "`lm_head.weight` is not equal"]);
    // What agrees runs: an own head, and a tied one that is stored all the same.
    for (tied, change) in [(false, 1.0), (true, 0.0)] {
        set_head(&place, Some(tied), Some(&|head| head[5] += change));
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
    place.refused(&["fit", "recipe.toml", "--device", "tpu"], &["--device", "flex"]);
    place.refused(&["fit", "recipe.toml", "--set", "data.prompts=no.jsonl"], &["no.jsonl"]);
    place.refused(&["fit", "recipe.toml", "--set", "loss.temperature=0.5"], &["loss.temperature"]);
    place.refused(&["fit", "recipe.toml", "--set", "verifier.rule=typical"], &["verifier.rule", "sampled-match"]);
    place.refused(&["fetch", "no-such-model"], &["no-such-model", "smollm2-135m-instruct"]);
}

#[test]
fn the_recipe_runs_when_nothing_is_wrong() {
    let place = Place::new();
    let output = place.run(&["fit", "recipe.toml"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{error}");
    for file in
        ["recipe.toml", "provenance.json", "metrics.jsonl", "best/drafter.safetensors", "eval/T0.json", "eval/T1.json"]
    {
        assert!(place.path("runs/small").join(file).is_file(), "{file}");
    }
    let again = place.run(&["eval", "runs/small/best", "--temperature", "0", "--json", "-"]);
    assert_eq!(again.status.code(), Some(0), "{}", String::from_utf8_lossy(&again.stderr));
    let json: serde_json::Value = serde_json::from_slice(&again.stdout).unwrap();
    assert_eq!((&json[0]["guarantee"], &json[0]["rule"]), (&"greedy".into(), &"greedy".into()));
    assert!(json[0]["tokens_per_target_call"].as_f64().unwrap() >= 1.0);
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
