//! Small targets, drafters and comparisons that several tests share.

use burn::tensor::{Device, Tensor};
use spectrain_core::form::Form;
use spectrain_core::process::Processors;
use spectrain_core::recipe::ScheduleShape;
use spectrain_core::rng::{Key, Purpose};
use spectrain_data::draft_vocab::DraftVocab;
use spectrain_data::weights::{F32Tensor, write_safetensors};
use spectrain_draft::proposer::{Plan, Wanted};
use spectrain_draft::{Eagle3, Eagle3Config, Eagle3Drafter, TapScale};
use spectrain_model::{Llama, Prefix, Request};
use spectrain_train::{MatrixUpdate, OptimiserConfig, TrainConfig};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Relative bound on logits and hidden states: passes of different width round differently (design, decision 13).
pub const BOUND: f64 = 2e-5;

/// The reference target's directory; `None`, said aloud, where it is absent. In CI it must be there.
pub fn smollm2() -> Option<PathBuf> {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../checkpoints/smollm2-135m-instruct");
    let dir = std::env::var_os("SPECTRAIN_SMOLLM2").map_or(default, PathBuf::from);
    if dir.is_dir() {
        return Some(dir);
    }
    assert!(std::env::var_os("CI").is_none(), "the reference target is not at {}", dir.display());
    eprintln!("skipped: no reference target at {}; `spectrain fetch smollm2-135m-instruct` brings it", dir.display());
    None
}

/// Asserts that `found` lies within `bound` of `expected`, in parts of the range of `expected`.
pub fn assert_close(what: &str, found: &[f32], expected: &[f32], bound: f64) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let low = expected.iter().copied().fold(f32::INFINITY, f32::min);
    let high = expected.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let range = f64::from(high - low);
    for (i, (f, e)) in found.iter().zip(expected).enumerate() {
        let off = f64::from((f - e).abs()) / range;
        assert!(off <= bound, "{what}[{i}]: {f} against {e}, {off:.1e} of the range {range}");
    }
}

/// A run without anything special: AdamW under a cosine, every record, no validation.
pub fn train_config() -> TrainConfig {
    TrainConfig {
        epochs: 3,
        batch_tokens: 200,
        accumulate: 1,
        replicas: Vec::new(),
        recompute: false,
        learning_rate: 5e-3,
        warmup_ratio: 0.05,
        schedule: ScheduleShape::Cosine,
        decay_share: 0.2,
        dropout: 0.0,
        feature_noise: 0.0,
        ema: 0.0,
        spike: 0.0,
        anchor: None,
        optimiser: OptimiserConfig { matrices: MatrixUpdate::AdamW, betas: (0.9, 0.95), eps: 1e-8, weight_decay: 0.0 },
        clip_norm: 1.0,
        validation_share: 0.0,
        patience: 0,
        log_every: 1,
        checkpoint_every: 0,
        seed: 1,
    }
}

/// A request whose text no drafter needs: for drafts that are asked for without a decoder.
pub fn request(id: u64, seed: u64) -> Request {
    Request { id, prompt: vec![0], max_new_tokens: 1, sampling: Processors::at(1.0), seed, form: Form::default() }
}

/// All of `plan` in `slot` behind the prompt of `request`.
pub fn wanted<'a>(slot: usize, plan: &'a Plan, request: &'a Request) -> Wanted<'a> {
    let prefix = Prefix { request, answer: &[], end_tokens: &[], state: None, script: None };
    Wanted::whole(slot, plan, prefix)
}

/// Values of a float tensor.
pub fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_to_vec().unwrap()
}

/// Normal-looking noise, the same everywhere.
pub fn noise(seed: u64, stream: u64, n: usize, scale: f64) -> Vec<f32> {
    let key = Key::new(seed, stream, 0, Purpose::Init);
    let sum = |i: usize| (0..4).map(|j| key.uniform_at((4 * i + j) as u64) - 0.5).sum::<f64>();
    (0..n).map(|i| (sum(i) * scale * 3.0_f64.sqrt()) as f32).collect()
}

/// Writes a random Llama checkpoint of `vocab` tokens and three layers and loads it. Its distributions are far from
/// uniform.
pub fn random_target(dir: &Path, vocab: usize, seed: u64) -> Llama {
    random_target_of(dir, vocab, 3, seed)
}

/// As [`random_target`], of so many layers.
pub fn random_target_of(dir: &Path, vocab: usize, layers: usize, seed: u64) -> Llama {
    random_target_with(dir, vocab, layers, (4, 2), seed)
}

/// As [`random_target_of`], with so many query and key heads.
pub fn random_target_with(dir: &Path, vocab: usize, layers: usize, (heads, kv): (usize, usize), seed: u64) -> Llama {
    let (h, dim, inter) = (32, 8, 48);
    let config = serde_json::json!({
        "model_type": "llama", "hidden_size": h, "intermediate_size": inter, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": dim, "vocab_size": vocab,
        "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false,
    });
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    let mut tensors = Vec::new();
    let mut add = |name: String, shape: &[usize], scale: f64| {
        let n = shape.iter().product();
        let stream = tensors.len() as u64;
        let values = if scale == 0.0 { vec![1.0; n] } else { noise(seed, stream, n, scale) };
        tensors.push((name, F32Tensor::new(shape, values)));
    };
    add("model.embed_tokens.weight".into(), &[vocab, h], 1.0);
    add("lm_head.weight".into(), &[vocab, h], 0.35);
    add("model.norm.weight".into(), &[h], 0.0);
    for i in 0..layers {
        let name = |part: &str| format!("model.layers.{i}.{part}.weight");
        add(name("input_layernorm"), &[h], 0.0);
        add(name("post_attention_layernorm"), &[h], 0.0);
        add(name("self_attn.q_proj"), &[heads * dim, h], 0.3);
        add(name("self_attn.k_proj"), &[kv * dim, h], 0.3);
        add(name("self_attn.v_proj"), &[kv * dim, h], 0.3);
        add(name("self_attn.o_proj"), &[h, heads * dim], 0.3);
        add(name("mlp.gate_proj"), &[inter, h], 0.3);
        add(name("mlp.up_proj"), &[inter, h], 0.3);
        add(name("mlp.down_proj"), &[h, inter], 0.3);
    }
    write_safetensors(&dir.join("model.safetensors"), &tensors, &BTreeMap::new()).unwrap();
    Llama::load(dir, &Device::flex()).unwrap()
}

/// Gives the model directory `dir` a tokenizer of `size` words.
pub fn write_tokenizer(dir: &Path, size: usize) {
    let vocab: serde_json::Map<String, serde_json::Value> = (0..size).map(|i| (format!("w{i}"), i.into())).collect();
    let tokenizer = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "w0"},
    });
    std::fs::write(dir.join("tokenizer.json"), tokenizer.to_string()).unwrap();
}

/// An untrained EAGLE-3 drafter of `target` that can propose the first `draft_vocab` tokens.
pub fn random_drafter(target: &Llama, draft_vocab: usize, seed: u64, device: &Device) -> (Eagle3Drafter, Eagle3) {
    let config = Eagle3Config::for_target(target, vec![0, 1, 2], draft_vocab, false);
    let mut counts = vec![0; target.config().vocab_size];
    counts[..draft_vocab].fill(1);
    let vocab = DraftVocab::from_counts(&counts, draft_vocab).unwrap();
    // Sizes far from one, so that a forgotten fold would show.
    let sizes = (0..3 * config.hidden_size).map(|i| [0.5, 2.0, 1.0][i % 3]).collect();
    let scale = TapScale::new(sizes);
    let weights = Eagle3::init(&config, target.norm().clone(), &scale, seed, device);
    (Eagle3Drafter { scale, ..Eagle3Drafter::new(config, vocab, target) }, weights)
}
