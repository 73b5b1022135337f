//! Times training steps of an EAGLE-3 drafter with SmolLM2's sizes on random features: forward, loss, backward,
//! clipping and AdamW. Prints one JSON line: median milliseconds, tokens a second, peak memory, and the time that the
//! matrix products alone would take at the rate measured in the same run.
//!
//! usage: training_step TOKENS DRAFT_VOCAB STEPS [DOCUMENT [REPEATS]]
#![allow(clippy::unwrap_used)]

use burn::optim::GradientsParams;
use burn::tensor::{Device, Distribution, Tensor};
use half::bf16;
use spectrain_data::draft_vocab::DraftVocab;
use spectrain_data::store::FeatureRow;
use spectrain_draft::{Eagle3, Eagle3Config, Eagle3Drafter, Objective, TapScale, TrainBatch};
use spectrain_kernels::draft_loss::DraftLoss;
use spectrain_kernels::memory::keep_pages;
use spectrain_kernels::product::{Head, Projection};
use spectrain_kernels::rope::RopeTable;
use spectrain_train::{MatrixUpdate, OptimiserConfig, clip_global_norm, peak_memory_mib};
use std::sync::Arc;
use std::time::Instant;

const VOCABULARY: usize = 49_152;

fn config(draft_vocab: usize) -> Eagle3Config {
    Eagle3Config {
        hidden_size: 576,
        intermediate_size: 1536,
        num_attention_heads: 9,
        num_key_value_heads: 3,
        head_dim: 64,
        vocab_size: VOCABULARY,
        draft_vocab_size: draft_vocab,
        max_position_embeddings: 8192,
        rope_theta: 100_000.0,
        rms_norm_eps: 1e-5,
        taps: vec![2, 15, 27],
        norm_before_residual: true,
    }
}

fn drafter(config: Eagle3Config, device: &Device) -> Eagle3Drafter {
    let random = |rows: usize| Tensor::random([rows, config.hidden_size], Distribution::Normal(0.0, 0.05), device);
    let mut counts = vec![0; VOCABULARY];
    counts[..config.draft_vocab_size].fill(1);
    let vocab = DraftVocab::from_counts(&counts, config.draft_vocab_size).unwrap();
    let whole_head = Head::new(random(VOCABULARY));
    let head = whole_head.of_tokens(&vocab.d2t);
    Eagle3Drafter {
        embedding: random(VOCABULARY),
        target_head: head.clone(),
        whole_head,
        head,
        rope: Arc::new(RopeTable::new(config.max_position_embeddings, config.head_dim, config.rope_theta)),
        scale: TapScale::none(config.taps.len() * config.hidden_size),
        vocab,
        config,
    }
}

/// A conversation of `tokens` supervised rows.
fn document(tokens: usize, config: &Eagle3Config, seed: usize) -> FeatureRow {
    let n = tokens + 2;
    let noise = |count: usize, salt: usize| -> Vec<bf16> {
        let value = |i: usize| ((i * 7919 + salt * 104_729 + seed * 31) % 2003) as f32 / 1000.0 - 1.0;
        (0..count).map(|i| bf16::from_f32(value(i))).collect()
    };
    FeatureRow {
        request: seed as u64,
        ids: (0..n).map(|i| ((i * 613 + seed) % config.draft_vocab_size) as u32).collect(),
        loss_mask: (0..n).map(|i| i >= 2).collect(),
        taps: noise(n * config.taps.len() * config.hidden_size, 1),
        last_hidden: noise(n * config.hidden_size, 2),
        logsumexp: vec![12.0; n],
        temperature: 1.0,
        off_policy: false,
    }
}

/// Multiply-adds of a step, twice: those of the layer three times (forward, and back to inputs and weights), those of
/// the frozen head twice a step and once for the target.
fn operations(config: &Eagle3Config, tokens: usize, steps: usize) -> f64 {
    let (h, i) = (config.hidden_size, config.intermediate_size);
    let heads = config.heads();
    let fusion = config.taps.len() * h * h;
    let layer = 2 * h * (heads.query_width() + 2 * heads.key_width()) + heads.query_width() * h + 3 * h * i;
    let head = h * config.draft_vocab_size;
    // The taps need no gradient.
    let once = 2 * fusion + head;
    let each = 3 * layer + 2 * head;
    2.0 * tokens as f64 * (once + steps * each) as f64
}

/// Operations a second of the products themselves, on this machine, now.
fn rate(device: &Device) -> f64 {
    let random = |a: usize, b: usize| Tensor::<2>::random([a, b], Distribution::Uniform(-1.0, 1.0), device);
    let (x, w) = (random(512, 576), Projection::new(random(576, 3072)));
    let seconds = (0..20).map(|_| {
        let start = Instant::now();
        std::hint::black_box(w.apply(x.clone()));
        start.elapsed().as_secs_f64()
    });
    2.0 * (512 * 576 * 3072) as f64 / median(seconds.collect())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    keep_pages();
    let mut arguments = std::env::args().skip(1).map(|a| a.parse::<usize>().unwrap());
    let (tokens, draft_vocab, steps) =
        (arguments.next().unwrap(), arguments.next().unwrap(), arguments.next().unwrap());
    let (length, repeats) = (arguments.next().unwrap_or(tokens), arguments.next().unwrap_or(3));
    let device = Device::flex();
    let config = config(draft_vocab);
    let drafter = drafter(config.clone(), &device);
    let rows: Vec<FeatureRow> = (0..tokens / length).map(|i| document(length, &config, i)).collect();
    let final_norm = Tensor::ones([config.hidden_size], &device);
    let mut weights = Eagle3::init(&config, final_norm, &drafter.scale, 1, &device.clone().autodiff());
    let adamw = OptimiserConfig { matrices: MatrixUpdate::AdamW, betas: (0.9, 0.95), eps: 1e-8, weight_decay: 0.0 };
    let mut optimiser = adamw.init(&weights);
    let step_weights = vec![1.0; steps];
    let objective = Objective::new(DraftLoss::Kl, step_weights);
    let mut step = || {
        let start = Instant::now();
        let batch = TrainBatch::new(&rows.iter().collect::<Vec<_>>(), steps, &device).unwrap();
        let (loss, _) = drafter.loss(&weights, &batch, &objective);
        let mut grads = GradientsParams::from_grads(loss.backward(), &weights);
        clip_global_norm(&weights, &mut grads, 1.0);
        weights = optimiser.step(1e-4, weights.clone(), grads);
        start.elapsed().as_secs_f64()
    };
    step();
    let seconds = median((0..repeats).map(|_| step()).collect());
    let rate = rate(&device);
    let ceiling = operations(&config, tokens, steps) / rate;
    println!(
        "{{\"milliseconds\": {:.1}, \"tokens_per_second\": {:.1}, \"peak_mib\": {:.0}, \"products_gflops\": {:.0}, \
         \"of_ceiling\": {:.3}}}",
        seconds * 1e3,
        tokens as f64 / seconds,
        peak_memory_mib().unwrap_or(0.0),
        rate / 1e9,
        ceiling / seconds,
    );
}
