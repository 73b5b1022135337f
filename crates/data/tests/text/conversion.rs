//! Fetching from a local GGUF: the converted directory, what is refused, and what an interruption leaves.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use spectrain_core::chat::{ChatTemplate, Message};
use spectrain_core::tokenizer::Tokenizer;
use spectrain_data::fetch::{FetchError, FetchReport, Hub, MANIFEST, Source, fetch};
use spectrain_data::weights::WeightDir;
use tempfile::TempDir;

use crate::builder::{Builder, HIDDEN, Meta, grid, tiny_llama};

/// A folder with `model.gguf`, fetched to `model`.
struct Place {
    dir: TempDir,
}

impl Place {
    fn new(gguf: &Builder) -> Self {
        let dir = tempfile::tempdir().unwrap();
        gguf.write(&dir.path().join("model.gguf"));
        Self { dir }
    }

    fn out(&self) -> PathBuf {
        self.dir.path().join("model")
    }

    fn fetch(&self) -> Result<FetchReport, FetchError> {
        self.fetch_to(&self.out())
    }

    fn fetch_to(&self, out: &Path) -> Result<FetchReport, FetchError> {
        let source = Source::parse(self.dir.path().join("model.gguf").to_str().unwrap())?;
        fetch(&source, out, &Hub::from_env(|_| Ok(())), &mut |_| {})
    }

    /// Names in the folder, sorted.
    fn entries(&self) -> Vec<String> {
        let names = fs::read_dir(self.dir.path()).unwrap();
        let mut names: Vec<String> = names.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn json(&self, name: &str) -> Value {
        serde_json::from_slice(&fs::read(self.out().join(name)).unwrap()).unwrap()
    }
}

/// Rows of `grid` in another order.
fn rows(order: &[usize]) -> Vec<f32> {
    let all = grid(order.len(), HIDDEN);
    order.iter().flat_map(|&r| all[r * HIDDEN..(r + 1) * HIDDEN].to_vec()).collect()
}

#[test]
fn a_llama_becomes_a_model_directory() {
    let place = Place::new(&tiny_llama());
    let report = place.fetch().unwrap();
    assert!(report.written);
    assert_eq!(place.entries(), ["model", "model.gguf"]);
    let weights = WeightDir::open(&place.out()).unwrap();
    let q = weights.tensor_f32("model.layers.0.self_attn.q_proj.weight", &[8, 8]).unwrap();
    assert_eq!(q, rows(&[0, 2, 1, 3, 4, 6, 5, 7]), "rows of each head in rotate-half order");
    let k = weights.tensor_f32("model.layers.0.self_attn.k_proj.weight", &[4, 8]).unwrap();
    assert_eq!(k, rows(&[0, 2, 1, 3]));
    let v = weights.tensor_f32("model.layers.0.self_attn.v_proj.weight", &[4, 8]).unwrap();
    assert_eq!(v, grid(4, 8), "v is stored as it is");
    assert_eq!(weights.tensor_f32("model.layers.0.mlp.down_proj.weight", &[8, 12]).unwrap(), grid(8, 12));
    assert_eq!(weights.tensor_f32("model.norm.weight", &[8]).unwrap(), [1.5; 8]);
    assert_eq!(weights.names().count(), 11);
    let config = weights.config_json();
    for (key, value) in [
        ("architectures", json!(["LlamaForCausalLM"])),
        ("rope_theta", json!(100_000.0)),
        ("rms_norm_eps", json!(1e-5)),
        ("num_attention_heads", json!(2)),
        ("num_key_value_heads", json!(1)),
        ("head_dim", json!(4)),
        ("intermediate_size", json!(12)),
        ("tie_word_embeddings", json!(true)),
        ("vocab_size", json!(8)),
        ("eos_token_id", json!(2)),
    ] {
        assert_eq!(config[key], value, "{key}");
    }
}

#[test]
fn the_text_side_loads() {
    let place = Place::new(&tiny_llama());
    place.fetch().unwrap();
    let tokenizer = Tokenizer::load(&place.out()).unwrap();
    assert_eq!(tokenizer.encode("ab\n\n1<|im_end|>").unwrap(), [3, 4, 7, 5, 2]);
    let template = ChatTemplate::load(&place.out(), &tokenizer).unwrap();
    assert_eq!(template.stop_ids(), [2]);
    assert_eq!(template.encode_prompt(&[Message::new("user", "ba")], &tokenizer).unwrap(), [4, 3]);
    assert_eq!(place.json("generation_config.json")["eos_token_id"], 2);
    let mut two_ends = tiny_llama();
    two_ends.meta("tokenizer.ggml.eot_token_id", Meta::U32(0));
    let place = Place::new(&two_ends);
    place.fetch().unwrap();
    assert_eq!(place.json("generation_config.json")["eos_token_id"], json!([2, 0]));
}

#[test]
fn an_output_head_unties_the_embeddings() {
    let mut gguf = tiny_llama();
    gguf.f32s("output.weight", &[8, 8], &[0.25; 64]);
    let place = Place::new(&gguf);
    place.fetch().unwrap();
    let weights = WeightDir::open(&place.out()).unwrap();
    assert_eq!(weights.config_json()["tie_word_embeddings"], false);
    assert_eq!(weights.tensor_f32("lm_head.weight", &[8, 8]).unwrap(), [0.25; 64]);
}

#[test]
fn what_is_complete_is_left_and_what_is_damaged_is_replaced() {
    let place = Place::new(&tiny_llama());
    let first = place.fetch().unwrap();
    let again = place.fetch().unwrap();
    assert_eq!((again.written, &again.files, &again.origin), (false, &first.files, &first.origin));
    let tokenizer = place.out().join("tokenizer.json");
    fs::write(&tokenizer, "{}").unwrap();
    assert!(place.fetch().unwrap().written);
    Tokenizer::load(&place.out()).unwrap();
    fs::remove_file(place.out().join("model.safetensors")).unwrap();
    assert!(place.fetch().unwrap().written);
    let mut manifest = place.json(MANIFEST);
    manifest["format"] = json!(0);
    fs::write(place.out().join(MANIFEST), manifest.to_string()).unwrap();
    assert!(place.fetch().unwrap().written, "files of an older conversion are replaced");
    assert_eq!(place.fetch().unwrap().files, first.files);
}

#[test]
fn what_is_not_ours_is_kept() {
    let place = Place::new(&tiny_llama());
    fs::create_dir(place.out()).unwrap();
    assert!(place.fetch().unwrap().written, "an empty directory may be filled");
    let mut other = tiny_llama();
    other.meta("general.name", Meta::Text("other"));
    other.write(&place.dir.path().join("model.gguf"));
    assert!(matches!(place.fetch(), Err(FetchError::OtherSource { .. })));
    let foreign = place.dir.path().join("foreign");
    fs::create_dir(&foreign).unwrap();
    fs::write(foreign.join("thesis.txt"), "mine").unwrap();
    assert!(matches!(place.fetch_to(&foreign), Err(FetchError::Occupied { .. })));
    assert!(matches!(place.fetch_to(&foreign.join("thesis.txt")), Err(FetchError::Occupied { .. })));
    assert_eq!(fs::read_to_string(foreign.join("thesis.txt")).unwrap(), "mine");
    assert_eq!(place.entries(), ["foreign", "model", "model.gguf"]);
}

#[test]
fn an_output_that_cannot_be_written_is_told() {
    let place = Place::new(&tiny_llama());
    let error = place.fetch_to(&place.dir.path().join("model.gguf/inside")).unwrap_err();
    assert!(matches!(error, FetchError::Io { .. }) && error.to_string().contains("inside"), "{error}");
    place.fetch_to(&place.dir.path().join("new/deeper/model")).unwrap();
}

#[test]
fn an_interrupted_fetch_is_cleared_away() {
    let place = Place::new(&tiny_llama());
    // No process has an id this large; a living one has ours.
    let (dead, living) = ("model.partial-4194999", format!("model.partial-{}", std::os::unix::process::parent_id()));
    for left in [dead, &living, "model.partial-notes"] {
        fs::create_dir(place.dir.path().join(left)).unwrap();
        fs::write(place.dir.path().join(left).join("config.json"), "{").unwrap();
    }
    place.fetch().unwrap();
    let mut expected = vec!["model", "model.gguf", living.as_str(), "model.partial-notes"];
    expected.sort_unstable();
    assert_eq!(place.entries(), expected);
}

/// The tiny Llama after a change.
fn changed(change: impl FnOnce(&mut Builder)) -> Builder {
    let mut gguf = tiny_llama();
    change(&mut gguf);
    gguf
}

#[test]
fn what_the_conversion_does_not_know_is_refused_and_leaves_nothing() {
    let refusals = [
        (
            changed(|g| {
                g.meta("general.architecture", Meta::Text("mamba"));
            }),
            "architecture `mamba`",
        ),
        (
            changed(|g| {
                g.meta("tokenizer.ggml.pre", Meta::Text("llama-bpe"));
            }),
            "pre-tokenizer `llama-bpe`",
        ),
        (
            changed(|g| {
                g.meta("tokenizer.ggml.model", Meta::Text("llama"));
            }),
            "tokenizer model `llama`",
        ),
        (
            changed(|g| {
                g.meta("tokenizer.ggml.add_bos_token", Meta::Bool(true));
            }),
            "add_bos_token",
        ),
        (
            changed(|g| {
                g.meta("tokenizer.ggml.eos_token_id", Meta::U32(8));
            }),
            "eos_token_id",
        ),
        (
            changed(|g| {
                g.meta("tokenizer.ggml.merges", Meta::Texts(vec!["ĊĊ".into()]));
            }),
            "tokenizer.ggml.merges",
        ),
        (
            changed(|g| {
                g.meta("tokenizer.ggml.merges", Meta::Texts(vec!["a b".into()]));
            }),
            "tokenizer.json",
        ),
        (
            changed(|g| {
                g.meta("tokenizer.ggml.token_type", Meta::I32s(vec![1; 7]));
            }),
            "7 token types",
        ),
        (
            changed(|g| {
                g.meta("llama.rope.scaling.type", Meta::Text("yarn"));
            }),
            "rope scaling",
        ),
        (
            changed(|g| {
                g.meta("llama.rope.dimension_count", Meta::U32(2));
            }),
            "rotary embedding over a part",
        ),
        (
            changed(|g| {
                g.meta("llama.attention.head_count_kv", Meta::U32(3));
            }),
            "2 heads of 4 over 3",
        ),
        (
            changed(|g| {
                g.f32s("rope_freqs.weight", &[2], &[1.0; 2]);
            }),
            "tensor `rope_freqs.weight`",
        ),
        (changed(|g| g.tensors.retain(|t| t.0 != "blk.0.attn_k.weight")), "tensor `blk.0.attn_k.weight` is missing"),
        (changed(|g| g.tensors[2].1 = vec![2, 16]), "`blk.0.attn_k.weight` has shape [2, 16], expected [4, 8]"),
        (changed(|g| g.tensors[2].2 = 12), "`blk.0.attn_k.weight` has type Q4_K"),
    ];
    for (gguf, words) in refusals {
        let place = Place::new(&gguf);
        let error = place.fetch().unwrap_err().to_string();
        assert!(error.contains(words), "{words}: {error}");
        assert_eq!(place.entries(), ["model.gguf"], "{words}");
    }
}

#[test]
fn a_truncated_file_writes_nothing() {
    let place = Place::new(&tiny_llama());
    let path = place.dir.path().join("model.gguf");
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() - 3]).unwrap();
    let error = place.fetch().unwrap_err().to_string();
    assert!(error.contains("model.gguf: truncated"), "{error}");
    assert_eq!(place.entries(), ["model.gguf"]);
}

#[test]
fn names_that_are_not_known_are_told_what_is() {
    assert!(matches!(Source::parse("smollm2-135m-instruct"), Ok(Source::Known(_))));
    let error = Source::parse("smollm2").unwrap_err().to_string();
    assert!(error.contains("`smollm2`") && error.contains("smollm2-135m-instruct"), "{error}");
}

#[test]
fn names_on_the_hub_have_a_repository_and_a_revision() {
    for (name, shown, directory) in [
        ("hf:org/My-Model.v1_2", "hf:org/My-Model.v1_2@main", "org--My-Model.v1_2"),
        ("hf:org/model@main", "hf:org/model@main", "org--model"),
        ("hf:org/model@v1.0", "hf:org/model@v1.0", "org--model@v1.0"),
        ("hf:org/model@refs/pr/7", "hf:org/model@refs/pr/7", "org--model@refs--pr--7"),
    ] {
        let source = Source::parse(name).unwrap();
        let Source::Hub(model) = &source else { panic!("{source:?}") };
        assert_eq!((model.to_string().as_str(), source.directory()), (shown, directory.into()));
    }
    for name in [
        "hf:",
        "hf:model",
        "hf:a/b/c",
        "hf:../b",
        "hf:a/..",
        "hf:a/b@",
        "hf:a/b@../x",
        "hf:a/b@/x",
        "hf:a b/c",
        "hf:a/b?x",
    ] {
        let error = Source::parse(name).unwrap_err();
        assert!(error.to_string().contains("hf:ORG/NAME") && error.is_request(), "{name}: {error}");
    }
}

#[cfg(not(feature = "hub"))]
#[test]
fn a_build_without_the_hub_says_how_to_have_it() {
    let dir = tempfile::tempdir().unwrap();
    let source = Source::parse("hf:org/model").unwrap();
    let error = fetch(&source, &dir.path().join("model"), &Hub::from_env(|_| Ok(())), &mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("build with `--features hub`, or give a directory"), "{error}");
    assert!(error.is_request());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}
