//! Drafters out to other formats and in again: nothing is lost, and what does not fit is refused by name.

use crate::support::{random_drafter, random_target_of, values, write_tokenizer};
use burn::tensor::Device;
use serde_json::{Value, json};
use spectrain_data::weights::{F32Tensor, WeightDir, write_safetensors};
use spectrain_draft::checkpoint::{FILE, Provenance};
use spectrain_draft::export::{FORMATS, Format, TargetDir, export, import};
use spectrain_draft::{Checkpoint, Eagle3};
use spectrain_model::Llama;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const VOCABULARY: usize = 40;

/// A target and a drafter's checkpoint for it.
struct Pair {
    dir: TempDir,
    target: Llama,
    opened: TargetDir,
    trained: Eagle3,
}

impl Pair {
    /// A drafter of `draft_vocab` tokens that reads `taps`.
    fn new(draft_vocab: usize, taps: [usize; 3], norm_before_residual: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("target");
        fs::create_dir(&at).unwrap();
        let target = random_target_of(&at, VOCABULARY, 6, 3);
        write_tokenizer(&at, VOCABULARY);
        let opened = TargetDir::open(&at).unwrap();
        let (mut drafter, trained) = random_drafter(&target, draft_vocab, 5, &Device::flex());
        drafter.config.taps = taps.to_vec();
        drafter.config.norm_before_residual = norm_before_residual;
        let provenance = Provenance {
            target_hash: opened.weights.content_hash().to_owned(),
            tokenizer_hash: opened.tokenizer_hash.clone(),
            ..Provenance::default()
        };
        fs::create_dir(dir.path().join("own")).unwrap();
        Checkpoint::save(&dir.path().join("own"), &trained, &drafter, &provenance).unwrap();
        let trained = trained.folded(&drafter.scale);
        Self { dir, target, opened, trained }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn checkpoint(&self, name: &str) -> Checkpoint {
        Checkpoint::open(&self.path(name)).unwrap()
    }

    fn export(&self, name: &str, format: &'static Format, out: &str) -> Result<(), String> {
        export(&self.checkpoint(name), &self.opened, format, &self.path(out)).map(drop).map_err(|e| e.to_string())
    }

    fn import(&self, from: &str, out: &str) -> Result<[bool; 2], String> {
        let found = import(&self.path(from), &self.opened, &self.path(out)).map_err(|e| e.to_string())?;
        Ok([found.own_head, found.own_embedding])
    }

    /// Names in the whole place: what a refusal must not change.
    fn listing(&self) -> Vec<String> {
        let names = fs::read_dir(self.dir.path()).unwrap();
        let mut names: Vec<String> = names.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn named(name: &str) -> &'static Format {
    Format::named(name).unwrap()
}

fn config_of(dir: &Path) -> Value {
    serde_json::from_slice(&fs::read(dir.join("config.json")).unwrap()).unwrap()
}

#[test]
fn every_format_brings_back_what_it_was_given() {
    for draft_vocab in [25, VOCABULARY] {
        let pair = Pair::new(draft_vocab, [2, 3, 5], false);
        for format in FORMATS {
            let (out, back) = (format!("{}-out", format.name), format!("{}-back", format.name));
            pair.export("own", format, &out).unwrap();
            let mut files: Vec<_> = fs::read_dir(pair.path(&out)).unwrap().map(|e| e.unwrap().file_name()).collect();
            files.sort();
            assert_eq!(files, ["config.json", "model.safetensors", "spectrain.json"]);
            assert_eq!(pair.import(&out, &back).unwrap(), [false, false], "{}", format.name);
            let (own, found) = (pair.checkpoint("own"), pair.checkpoint(&back));
            assert_eq!((&found.config, &found.vocab), (&own.config, &own.vocab));
            let (_, weights) = found.eagle3(&pair.target, &Device::flex()).unwrap();
            let named = |w: &Eagle3| {
                format!(
                    "{:?}",
                    w.to_named(&match &own.config {
                        spectrain_draft::checkpoint::DrafterConfig::Eagle3(c) => c.clone(),
                    })
                )
            };
            assert_eq!(named(&weights), named(&pair.trained), "{}", format.name);
        }
        assert!(pair.listing().iter().all(|name| !name.contains("partial")));
    }
}

#[test]
fn nothing_is_left_to_a_readers_default() {
    let pair = Pair::new(25, [2, 3, 5], false);
    let decoder = [
        "model_type",
        "hidden_act",
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "num_hidden_layers",
        "vocab_size",
        "max_position_embeddings",
        "rms_norm_eps",
        "rope_theta",
        "rope_parameters",
        "attention_bias",
        "mlp_bias",
        "tie_word_embeddings",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "dtype",
    ];
    let drafter =
        ["architectures", "draft_vocab_size", "eagle_aux_hidden_state_layer_ids", "norm_before_residual", "dtype"];
    for format in FORMATS {
        let out = format!("{}-out", format.name);
        pair.export("own", format, &out).unwrap();
        let config = config_of(&pair.path(&out));
        let layer = if format.name == "speculators" { &config["transformer_layer_config"] } else { &config };
        for (json, keys) in [(layer, &decoder[..]), (&config, &drafter[..])] {
            keys.iter().for_each(|key| assert!(json.get(key).is_some(), "{}: {key}", format.name));
        }
        assert_eq!(config["eagle_aux_hidden_state_layer_ids"], json!([2, 3, 5]));
    }
    // SGLang counts layers by their output.
    let eagle = &config_of(&pair.path("sglang-out"))["eagle_config"];
    assert_eq!(eagle["eagle_aux_hidden_state_layer_ids"], json!([1, 2, 4]));
}

#[test]
fn a_runtime_gets_no_drafter_that_it_cannot_express() {
    let plain = Pair::new(25, [2, 3, 5], true);
    let early = Pair::new(25, [1, 3, 5], false);
    let late = Pair::new(25, [2, 3, 6], false);
    let unordered = Pair::new(25, [3, 2, 5], false);
    for (pair, format, reason) in [
        (&plain, "sglang", "residual"),
        (&early, "sglang", "first tap is 2"),
        (&late, "sglang", "below 6"),
        (&late, "llamacpp", "below 6"),
        (&unordered, "vllm", "order of the layers"),
        (&unordered, "speculators", "order of the layers"),
    ] {
        let before = pair.listing();
        let error = pair.export("own", named(format), "out").unwrap_err();
        assert!(error.contains(reason) && error.starts_with(&format!("{format}: ")), "{error}");
        assert_eq!(pair.listing(), before);
    }
    unordered.export("own", named("llamacpp"), "out").unwrap();
    let error = unordered.export("own", named("llamacpp"), "out").unwrap_err();
    assert!(error.contains("out: exists and is not empty"), "{error}");
    let other = Pair::new(25, [2, 3, 5], false);
    fs::write(other.path("target/config.json"), config_of(&other.path("target")).to_string() + " ").unwrap();
    let opened = TargetDir::open(&other.path("target")).unwrap();
    let error = export(&other.checkpoint("own"), &opened, named("vllm"), &other.path("out")).unwrap_err();
    assert!(error.is_request() && error.to_string().contains("another target"), "{error}");
}

/// Rewrites the weights of an exported directory.
fn edit_weights(dir: &Path, edit: impl FnOnce(&mut BTreeMap<String, (Vec<usize>, Vec<f32>)>)) {
    let found = WeightDir::open(dir).unwrap();
    let floats = found.names().filter(|name| !["d2t", "t2d"].contains(name));
    let mut tensors: BTreeMap<_, _> = floats
        .map(|name| {
            let shape = found.shape(name).unwrap().to_vec();
            let values = found.tensor_f32(name, &shape).unwrap();
            (name.to_owned(), (shape, values))
        })
        .collect();
    edit(&mut tensors);
    let named: Vec<_> =
        tensors.iter().map(|(n, (shape, v))| (n.clone(), F32Tensor::new(shape, v.as_slice()))).collect();
    write_safetensors(&dir.join("model.safetensors"), &named, &BTreeMap::new()).unwrap();
}

#[test]
fn a_drafter_may_bring_its_own_head_and_embedding() {
    let pair = Pair::new(VOCABULARY, [2, 3, 5], false);
    pair.export("own", named("speculators"), "theirs").unwrap();
    edit_weights(&pair.path("theirs"), |tensors| {
        tensors.get_mut("lm_head.weight").unwrap().1[7] += 1.0;
        tensors.get_mut("embed_tokens.weight").unwrap().1[11] -= 1.0;
    });
    assert_eq!(pair.import("theirs", "back").unwrap(), [true, true]);
    let (drafter, _) = pair.checkpoint("back").eagle3(&pair.target, &Device::flex()).unwrap();
    let theirs = WeightDir::open(&pair.path("theirs")).unwrap();
    let table = |name| theirs.tensor_f32(name, &[VOCABULARY, 32]).unwrap();
    assert_eq!(values(drafter.head.rows().clone()), table("lm_head.weight"));
    assert_eq!(values(drafter.embedding), table("embed_tokens.weight"));
    // Out again: whole where the runtime can take it, refused where it cannot.
    pair.export("back", named("vllm"), "again").unwrap();
    let again = WeightDir::open(&pair.path("again")).unwrap();
    for name in ["lm_head.weight", "embed_tokens.weight"] {
        assert_eq!(again.tensor_f32(name, &[VOCABULARY, 32]).unwrap(), table(name));
    }
    let error = pair.export("back", named("sglang"), "sglang").unwrap_err();
    assert!(error.contains("embedding"), "{error}");
}

#[test]
fn what_cannot_be_imported_is_named() {
    let pair = Pair::new(VOCABULARY, [2, 3, 5], false);
    let cases: [(&str, &str, Value, &str); 12] = [
        ("speculators", "/norm_before_residual", Value::Null, "norm_before_residual is missing"),
        ("speculators", "/norm_output", json!(true), "norm_output is true"),
        ("speculators", "/fc_norm", json!(true), "fc_norm is true"),
        ("speculators", "/speculators_model_type", json!("dflash"), "\"dflash\""),
        ("speculators", "/transformer_layer_config/num_hidden_layers", json!(2), "num_hidden_layers is 2"),
        ("speculators", "/transformer_layer_config/model_type", json!("qwen3"), "qwen3"),
        ("speculators", "/transformer_layer_config/vocab_size", json!(41), "vocab_size is 41, the target's is 40"),
        ("speculators", "/eagle_aux_hidden_state_layer_ids", json!([2, 3, 9]), "[2, 3, 9] do not fit"),
        ("speculators", "/eagle_aux_hidden_state_layer_ids", Value::Null, "has no default for a target of 6 layers"),
        ("sglang", "/rope_scaling", json!({"type": "linear", "factor": 2.0}), "rope_scaling"),
        ("sglang", "/target_hidden_size", json!(64), "target_hidden_size is 64"),
        ("sglang", "/eagle_aux_hidden_state_layer_ids", json!([1, 2, 4]), "[2, 3, 5] in eagle_config"),
    ];
    for (i, (format, pointer, value, reason)) in cases.into_iter().enumerate() {
        let out = format!("{i}");
        pair.export("own", named(format), &out).unwrap();
        let mut config = config_of(&pair.path(&out));
        *config.pointer_mut(pointer).unwrap() = value;
        fs::write(pair.path(&out).join("config.json"), config.to_string()).unwrap();
        let before = pair.listing();
        let error = pair.import(&out, "back").unwrap_err();
        assert!(error.contains(reason) && error.contains("config.json"), "{pointer}: {error}");
        assert_eq!(pair.listing(), before);
    }
    pair.export("own", named("speculators"), "theirs").unwrap();
    edit_weights(&pair.path("theirs"), |tensors| {
        let moved = tensors.remove("norm.weight").unwrap();
        tensors.insert("final_norm.weight".to_owned(), moved);
    });
    let error = pair.import("theirs", "back").unwrap_err();
    assert!(error.contains("missing tensors: norm.weight; unknown tensors: final_norm.weight"), "{error}");
    let error = pair.import("target", "back").unwrap_err();
    assert!(error.contains("no drafter that can be imported"), "{error}");
}

#[test]
fn maps_that_disagree_are_refused() {
    let pair = Pair::new(25, [2, 3, 5], false);
    pair.export("own", named("sglang"), "theirs").unwrap();
    let path = pair.path("theirs/model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let file = WeightDir::open(&pair.path("theirs")).unwrap();
    assert_eq!(file.tensor_bool("t2d", &[VOCABULARY]).unwrap().iter().filter(|b| **b).count(), 25);
    // The truth values are the narrowest type, so they end the file.
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&path, bytes).unwrap();
    let error = pair.import("theirs", "back").unwrap_err();
    assert!(error.contains("d2t and t2d name different tokens"), "{error}");
    assert!(!pair.path("back").join(FILE).exists());
}
