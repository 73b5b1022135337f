//! EAGLE-3 (Li et al., 2025): one decoder layer over fused target features, unrolled on its own hidden states.
//!
//! The layer reads `[embedding of the next token | hidden]`, twice the model's width; at step 0 the hidden is the
//! fusion of three taps of the target, later it is the drafter's own output. Embedding and output head are the
//! target's, frozen; the head keeps the rows of the draft vocabulary. A drafter trained elsewhere may bring its own.

mod layer;
pub mod names;
mod recompute;
mod runtime;
mod unroll;

pub use layer::{Layer, Matrix};
pub use runtime::Eagle3Proposer;

use crate::batch::TrainBatch;
use crate::numbered::numbered;
use crate::objective::{Evaluated, Objective, OutputHeads, StepLoss};
use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, TensorData};
use serde::{Deserialize, Serialize};
use spectrain_core::rng::{Key, Purpose};
use spectrain_data::draft_vocab::DraftVocab;
use spectrain_kernels::cached_attention::Heads;
use spectrain_kernels::rope::{RopeTable, indices};
use spectrain_model::{Head, Llama, bytes};
use std::sync::Arc;

/// Sizes and conventions of an EAGLE-3 drafter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Eagle3Config {
    /// Width, that of the target.
    pub hidden_size: usize,
    /// Width of the feed-forward layer.
    pub intermediate_size: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key heads.
    pub num_key_value_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Tokens of the target's vocabulary.
    pub vocab_size: usize,
    /// Tokens of the draft vocabulary.
    pub draft_vocab_size: usize,
    /// Longest sequence.
    pub max_position_embeddings: usize,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Term under the root of the normalisations.
    pub rms_norm_eps: f64,
    /// Taps of the target: tap `i` is the hidden state that enters layer `i`.
    pub taps: Vec<usize>,
    /// Whether the residual is taken after the hidden norm (speculators) or before it (SafeAILab, SGLang).
    pub norm_before_residual: bool,
}

impl Eagle3Config {
    /// Attention sizes.
    pub fn heads(&self) -> Heads {
        Heads { query: self.num_attention_heads, key: self.num_key_value_heads, dim: self.head_dim }
    }

    /// A drafter with the layer sizes of `target`.
    pub fn for_target(target: &Llama, taps: Vec<usize>, draft_vocab_size: usize, norm_before_residual: bool) -> Self {
        let c = target.config();
        Self {
            hidden_size: c.hidden_size,
            intermediate_size: c.intermediate_size,
            num_attention_heads: c.heads.query,
            num_key_value_heads: c.heads.key,
            head_dim: c.heads.dim,
            vocab_size: c.vocab_size,
            draft_vocab_size,
            max_position_embeddings: c.max_positions,
            rope_theta: c.rope_theta,
            rms_norm_eps: c.rms_norm_eps,
            taps,
            norm_before_residual,
        }
    }
}

/// The trained weights. Matrices are `[input, output]`.
#[derive(Module, Debug)]
pub struct Eagle3 {
    /// Fusion of the taps, `[taps · hidden, hidden]`.
    pub fc: Param<Tensor<2>>,
    /// Norm of the embedding.
    pub input_layernorm: Param<Tensor<1>>,
    /// Norm of the hidden state.
    pub hidden_norm: Param<Tensor<1>>,
    /// Queries, `[2 · hidden, query width]`.
    pub q: Param<Tensor<2>>,
    /// Keys and values, `[2 · hidden, k | v]`.
    pub kv: Param<Tensor<2>>,
    /// Attention output, `[query width, hidden]`.
    pub o: Param<Tensor<2>>,
    /// Norm before the feed-forward layer.
    pub post_attention_layernorm: Param<Tensor<1>>,
    /// `[hidden, gate | up]`.
    pub gate_up: Param<Tensor<2>>,
    /// `[intermediate, hidden]`.
    pub down: Param<Tensor<2>>,
    /// Norm before the head.
    pub norm: Param<Tensor<1>>,
    /// The drafter's own head, `[draft vocabulary, hidden]`, where it does not share its target's.
    pub head: Option<Param<Tensor<2>>>,
}

/// Typical size of every tapped dimension.
///
/// A few dimensions of a model's hidden states are hundreds of times larger than the rest. Training divides by the
/// size, so that no dimension rules the fusion and one learning rate suits all; the division is folded into the stored
/// fusion, which reads the taps as they are.
#[derive(Debug, Clone)]
pub struct TapScale(Vec<f32>);

impl TapScale {
    /// One size a dimension, `[taps · hidden]`, all positive.
    pub fn new(sizes: Vec<f32>) -> Self {
        Self(sizes)
    }

    /// No scaling for `width` dimensions.
    pub fn none(width: usize) -> Self {
        Self(vec![1.0; width])
    }

    /// The sizes as `[1, taps · hidden]`.
    fn sizes(&self, device: &Device) -> Tensor<2> {
        Tensor::from_data(TensorData::new(self.0.clone(), [1, self.0.len()]), device)
    }
}

/// What the drafter shares with its target, on a plain device.
#[derive(Clone)]
pub struct Eagle3Drafter {
    /// Sizes and conventions.
    pub config: Eagle3Config,
    /// Draft vocabulary.
    pub vocab: DraftVocab,
    /// Embedding `[vocabulary, hidden]`, the target's unless the drafter brought its own.
    pub embedding: Tensor<2>,
    /// Head for the draft vocabulary: rows of the target's, or the drafter's own.
    pub head: Head,
    /// The target's rows of the draft vocabulary: what the target says, whatever the drafter's head is.
    pub target_head: Head,
    /// The target's whole head.
    pub whole_head: Head,
    /// Rotary table, as far as the target's.
    pub rope: Arc<RopeTable>,
    /// What taps are divided by in training.
    pub scale: TapScale,
}

/// Size of the layer's output matrices at the start, beside `1/√inputs`.
const LAYER_SHARE: f64 = 0.1;
/// Size of the fusion's random part at the start, beside `1/√inputs`.
const FUSION_NOISE: f64 = 0.1;

impl Eagle3 {
    /// Fresh weights.
    ///
    /// The fusion starts as the last tap, shrunk to unit size, plus noise, and the final norm as `final_norm`, the
    /// target's own: the residual stream then speaks the language that the frozen head reads, and what is left to learn
    /// is the step to the next token. The layer starts small beside it. Everything else is uniform in `±1/√inputs`.
    pub fn init(config: &Eagle3Config, final_norm: Tensor<1>, scale: &TapScale, seed: u64, device: &Device) -> Self {
        let h = config.hidden_size;
        let heads = config.heads();
        let random = |index: u64, input: usize, output: usize, size: f64| {
            let bound = size / (input as f64).sqrt();
            let key = Key::new(seed, index, 0, Purpose::Init);
            let value = |i: usize| ((2.0 * key.uniform_at(i as u64) - 1.0) * bound) as f32;
            (0..input * output).map(value).collect::<Vec<f32>>()
        };
        let param = |values: Vec<f32>, output: usize| {
            let input = values.len() / output;
            Param::from_data(TensorData::new(values, [input, output]), device)
        };
        let matrix = |index, input, output| param(random(index, input, output, 1.0), output);
        let small = |index, input, output| param(random(index, input, output, LAYER_SHARE), output);
        let ones = || Param::from_tensor(Tensor::<1>::ones([h], device));
        let mut fusion = random(0, config.taps.len() * h, h, FUSION_NOISE);
        let first = (config.taps.len() - 1) * h;
        let last_tap = &scale.0[first..];
        let size = (last_tap.iter().map(|s| s * s).sum::<f32>() / h as f32).sqrt();
        for (i, s) in last_tap.iter().enumerate() {
            fusion[(first + i) * h + i] += s / size;
        }
        numbered(Self {
            fc: param(fusion, h),
            input_layernorm: ones(),
            hidden_norm: ones(),
            q: matrix(1, 2 * h, heads.query_width()),
            kv: matrix(2, 2 * h, 2 * heads.key_width()),
            o: small(3, heads.query_width(), h),
            post_attention_layernorm: ones(),
            gate_up: matrix(4, h, 2 * config.intermediate_size),
            down: small(5, config.intermediate_size, h),
            norm: Param::from_data(final_norm.into_data(), device),
            head: None,
        })
    }

    /// These weights with a head of their own, which starts as `rows [draft vocabulary, hidden]`; weights that have one
    /// keep it.
    pub fn with_head(self, rows: &Tensor<2>) -> Self {
        let device = self.fc.val().device();
        let start = || Param::from_data(rows.clone().into_data(), &device);
        numbered(Self { head: Some(self.head.clone().unwrap_or_else(start)), ..self })
    }

    /// The head of their own, without a tape.
    fn own_head(&self) -> Option<Head> {
        self.head.as_ref().map(|head| Head::new(head.val().without_autodiff()))
    }

    /// Bytes of the weights.
    pub fn bytes(&self) -> usize {
        let vectors = [&self.input_layernorm, &self.hidden_norm, &self.post_attention_layernorm, &self.norm];
        let matrices = [&self.fc, &self.q, &self.kv, &self.o, &self.gate_up, &self.down];
        vectors.map(|p| bytes(&p.val())).iter().chain(&matrices.map(|p| bytes(&p.val()))).sum()
    }

    /// These weights for taps as the target gives them, when they were trained on taps divided by `scale`.
    pub fn folded(&self, scale: &TapScale) -> Self {
        let sizes = scale.sizes(&self.fc.val().device());
        Self { fc: self.fc.clone().map(|fc| fc / sizes.transpose()), ..self.clone() }
    }

    /// The way back from [`Self::folded`], for weights that training goes on with.
    pub fn unfolded(&self, scale: &TapScale) -> Self {
        let plain = self.fc.val().without_autodiff();
        let sizes = scale.sizes(&plain.device());
        let fc = (plain * sizes.transpose()).into_data();
        numbered(Self { fc: Param::from_data(fc, &self.fc.val().device()), ..self.clone() })
    }
}

impl Eagle3Drafter {
    /// Binds a configuration to its target.
    pub fn new(config: Eagle3Config, vocab: DraftVocab, target: &Llama) -> Self {
        let (whole_head, target_head) = (target.head().clone(), target.head().of_tokens(&vocab.d2t));
        let head = target_head.clone();
        let scale = TapScale::none(config.taps.len() * config.hidden_size);
        let (of, dim, theta) = (target.config(), config.head_dim, config.rope_theta);
        let shared = (of.heads.dim, of.rope_theta) == (dim, theta);
        let own = || Arc::new(RopeTable::new(of.max_positions, dim, theta));
        let rope = if shared { target.rope().clone() } else { own() };
        Self { embedding: target.embedding().clone(), head, target_head, whole_head, rope, config, vocab, scale }
    }

    /// This drafter with the head that `weights` have, where they have one: as it serves them.
    pub fn serving(&self, weights: &Eagle3) -> Self {
        let head = weights.own_head().unwrap_or_else(|| self.head.clone());
        Self { head, ..self.clone() }
    }

    /// The heads that the loss of `weights` needs.
    fn heads(&self, weights: &Eagle3) -> OutputHeads<'_> {
        let (target, whole, ids) = (&self.target_head, &self.whole_head, &self.vocab.d2t);
        OutputHeads { target, whole, ids, own: weights.own_head() }
    }

    /// Embeddings `[tokens, hidden]`, plain.
    pub fn embed(&self, tokens: &[u32]) -> Tensor<2> {
        self.embedding.clone().select(0, indices(tokens.iter().map(|&t| t as usize), &self.embedding.device()))
    }

    /// The draft vocabulary's entry for the token that each target row of `batch` predicts.
    fn labels(&self, batch: &TrainBatch) -> Vec<Option<u32>> {
        let t2d = self.vocab.t2d();
        batch.labels.iter().map(|&token| t2d[token as usize]).collect()
    }

    /// Loss of a batch: a scalar on the tape whose gradient is that of the mean loss, and each step's sums.
    pub fn loss(&self, weights: &Eagle3, batch: &TrainBatch, objective: &Objective) -> (Tensor<1>, Vec<StepLoss>) {
        let mut steps = Vec::new();
        self.unroll(weights, batch, |_, hidden| steps.push(hidden));
        let plain = steps.iter().map(|h| h.clone().without_autodiff()).collect();
        let Evaluated { steps: found, head } =
            objective.evaluate(plain, batch, self.heads(weights), self.labels(batch));
        let mut total = Tensor::<1>::zeros([1], &weights.fc.val().device());
        let mut sums = Vec::new();
        for (hidden, (gradient, step)) in steps.into_iter().zip(found) {
            total = total + (hidden * gradient).sum();
            sums.push(step);
        }
        (total + head_surrogate(weights, head), sums)
    }
}

/// A scalar on the tape whose gradient with respect to the drafter's own head is `gradient`; 0 without one.
fn head_surrogate(weights: &Eagle3, gradient: Option<Tensor<2>>) -> Tensor<1> {
    match (&weights.head, gradient) {
        (Some(head), Some(gradient)) => (head.val() * gradient).sum(),
        _ => Tensor::zeros([1], &weights.fc.val().device()),
    }
}
