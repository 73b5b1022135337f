//! Witness: the `speculators` library's own drafters give its logits here, and ours give ours there.
//!
//! `tests/witness/speculators.py` makes the fixture with that library, and has this module write what it exports and
//! computes to the directory that `SPECTRAIN_WITNESS` names.

use crate::support::{BOUND, assert_close, random_drafter, values, write_tokenizer};
use burn::tensor::{Device, Tensor, TensorData};
use spectrain_data::draft_vocab::DraftVocab;
use spectrain_data::weights::{F32Tensor, WeightFile, write_safetensors};
use spectrain_draft::checkpoint::Provenance;
use spectrain_draft::export::{Format, TargetDir, export, import};
use spectrain_draft::{Checkpoint, Eagle3, Eagle3Drafter, TrainBatch};
use spectrain_kernels::unroll_attention::{UnrollPlan, UnrollSegment};
use spectrain_model::Llama;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const STEPS: usize = 5;
const DRAFT_VOCAB: usize = 60;

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("witness/speculators")
}

/// The target that the fixture was made with, given a tokenizer.
fn target(dir: &Path) -> (Llama, TargetDir) {
    let original = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/model/fixtures/tiny_gqa4_f16");
    for file in ["config.json", "model.safetensors"] {
        fs::copy(original.join(file), dir.join(file)).unwrap();
    }
    write_tokenizer(dir, 97);
    (Llama::load(dir, &Device::flex()).unwrap(), TargetDir::open(dir).unwrap())
}

/// Rows as their forward reads them: features, the next token of each, and past the end token 0.
fn batch(expected: &WeightFile) -> TrainBatch {
    let rows = expected.shape("next").unwrap()[0];
    let next: Vec<u32> = expected.tensor_i64("next", &[rows]).unwrap().into_iter().map(|i| i as u32).collect();
    let shape = [rows, expected.shape("taps").unwrap()[1]];
    let taps = expected.tensor_f32("taps", &shape).unwrap();
    let device = Device::flex();
    TrainBatch {
        plan: Arc::new(UnrollPlan { segments: vec![UnrollSegment { keys: rows, first_query: 0, queries: rows }] }),
        tokens: (0..STEPS).map(|k| (0..rows).map(|t| next.get(t + k).copied().unwrap_or(0)).collect()).collect(),
        next,
        taps: Tensor::from_data(TensorData::new(taps, shape), &device),
        supervised: vec![Vec::new(); STEPS],
        target_hidden: Tensor::zeros([0, 0], &device),
        target_lse: Tensor::zeros([0], &device),
        labels: Vec::new(),
        requests: Vec::new(),
        number: 0,
        lengths: vec![rows; rows],
        noise: None,
        dropout: None,
    }
}

/// Logits `[steps · rows · draft vocabulary]`.
fn logits(drafter: &Eagle3Drafter, weights: &Eagle3, batch: &TrainBatch) -> Vec<f32> {
    let mut all = Vec::new();
    drafter.unroll(weights, batch, |_, hidden| all.extend(values(drafter.head.logits(hidden.without_autodiff()))));
    all
}

/// Their drafter of this name, imported.
fn theirs(name: &str, target: &Llama, opened: &TargetDir, work: &Path) -> (Eagle3Drafter, Eagle3) {
    let out = work.join(name);
    let found = import(&fixture().join(name), opened, &out).unwrap();
    assert!(found.own_head && found.own_embedding);
    Checkpoint::open(&out).unwrap().eagle3(target, &Device::flex()).unwrap()
}

/// A drafter of ours with either residual.
fn ours(norm_before_residual: bool, target: &Llama) -> (Eagle3Drafter, Eagle3) {
    let vocab = target.config().vocab_size;
    let (made, weights) = random_drafter(target, DRAFT_VOCAB, 9, &Device::flex());
    let counts: Vec<u64> = (0..vocab).map(|i| (i * 37 % vocab) as u64).collect();
    let mut config = made.config.clone();
    (config.taps, config.norm_before_residual) = (vec![1, 2, 4], norm_before_residual);
    let chosen = DraftVocab::from_counts(&counts, DRAFT_VOCAB).unwrap();
    (Eagle3Drafter { scale: made.scale, ..Eagle3Drafter::new(config, chosen, target) }, weights)
}

/// Writes what the script compares, if it asks.
fn leave(found: &BTreeMap<String, Vec<f32>>, opened: &TargetDir, drafters: &[(String, Eagle3Drafter, Eagle3)]) {
    let Some(dir) = std::env::var_os("SPECTRAIN_WITNESS").map(PathBuf::from) else { return };
    let provenance = Provenance {
        target_hash: opened.weights.content_hash().to_owned(),
        tokenizer_hash: opened.tokenizer_hash.clone(),
        ..Provenance::default()
    };
    for (name, drafter, weights) in drafters {
        let own = dir.join(format!("{name}.checkpoint"));
        fs::create_dir_all(&own).unwrap();
        Checkpoint::save(&own, weights, drafter, &provenance).unwrap();
        let (out, format) = (dir.join(name), Format::named("speculators").unwrap());
        let _ = fs::remove_dir_all(&out);
        export(&Checkpoint::open(&own).unwrap(), opened, format, &out).unwrap();
        // The script loads it after this place is gone.
        let original = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/model/fixtures/tiny_gqa4_f16");
        let config = fs::read_to_string(out.join("config.json")).unwrap();
        let (here, there) = (opened.location(), original.canonicalize().unwrap().display().to_string());
        fs::write(out.join("config.json"), config.replace(&here, &there)).unwrap();
    }
    let tensors: Vec<_> = found.iter().map(|(n, v)| (n.clone(), F32Tensor::new(&[v.len()], v.as_slice()))).collect();
    write_safetensors(&dir.join("rust.safetensors"), &tensors, &BTreeMap::new()).unwrap();
}

#[test]
fn speculators_and_we_give_the_same_logits() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("target");
    fs::create_dir(&at).unwrap();
    let (target, opened) = target(&at);
    let expected = WeightFile::open(&fixture().join("expected.safetensors")).unwrap();
    let batch = batch(&expected);
    let mut drafters = Vec::new();
    for (name, norm_before_residual) in [("ours-0", false), ("ours-1", true)] {
        let (drafter, weights) = ours(norm_before_residual, &target);
        drafters.push((name.to_owned(), drafter, weights));
    }
    let mut found: BTreeMap<String, Vec<f32>> =
        drafters.iter().map(|(n, drafter, weights)| (n.clone(), logits(drafter, weights, &batch))).collect();
    for name in ["random", "trained"] {
        let (drafter, weights) = theirs(name, &target, &opened, dir.path());
        found.insert(name.to_owned(), logits(&drafter, &weights, &batch));
    }
    leave(&found, &opened, &drafters);
    let shape = [STEPS, batch.next.len(), DRAFT_VOCAB];
    for (name, found) in &found {
        assert_close(name, found, &expected.tensor_f32(name, &shape).unwrap(), BOUND);
    }
}
