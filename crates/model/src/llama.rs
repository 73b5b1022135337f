//! The Llama architecture on packed ragged rows.

use crate::{Head, KvCache, LlamaConfig, ModelError, Pages, SlotRows, bytes};
use burn::tensor::{Device, Tensor, TensorData};
use spectrain_data::weights::WeightDir;
use spectrain_kernels::cached_attention::{CachedPlan, cached_attention};
use spectrain_kernels::product::Projection;
use spectrain_kernels::rms_norm::rms_norm;
use spectrain_kernels::rope::{RopeTable, indices};
use spectrain_kernels::swiglu::swiglu;
use std::path::Path;
use std::sync::Arc;

/// The embedding matrix, which is the output head too where they are tied.
pub const EMBEDDING: &str = "model.embed_tokens.weight";
/// The output head.
pub const HEAD: &str = "lm_head.weight";

/// A frozen Llama-architecture model in f32.
pub struct Llama {
    config: LlamaConfig,
    device: Device,
    rope: Arc<RopeTable>,
    /// `[vocabulary, hidden]`
    embedding: Tensor<2>,
    layers: Vec<Layer>,
    norm: Tensor<1>,
    head: Head,
}

struct Layer {
    input_norm: Tensor<1>,
    /// Joint projection `[hidden, q | k | v]`.
    qkv: Projection,
    out: Projection,
    post_norm: Tensor<1>,
    /// Joint projection `[hidden, gate | up]`.
    gate_up: Projection,
    down: Projection,
}

impl Layer {
    fn bytes(&self) -> usize {
        let norms = bytes(&self.input_norm) + bytes(&self.post_norm);
        norms + [&self.qkv, &self.out, &self.gate_up, &self.down].map(Projection::bytes).iter().sum::<usize>()
    }
}

/// What a forward pass leaves for the packed rows.
pub struct Features {
    /// Hidden states at the asked taps, `[rows, hidden]` each: tap `i < layers` enters layer `i`; tap `layers` is the
    /// last hidden state before the final norm.
    pub taps: Vec<Tensor<2>>,
    /// Last hidden state after the final norm, the head's input, `[rows, hidden]`.
    pub hidden: Tensor<2>,
}

impl Llama {
    /// Loads a Hugging-Face-layout directory onto `device` in f32.
    ///
    /// # Errors
    /// Unsupported configurations; missing, misshapen or truncated tensors, named.
    pub fn load(dir: &Path, device: &Device) -> Result<Self, ModelError> {
        Self::from_weights(&WeightDir::open(dir)?, device)
    }

    /// Builds the model from an opened directory.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn from_weights(weights: &WeightDir, device: &Device) -> Result<Self, ModelError> {
        let config = LlamaConfig::from_json(weights.config_json())?;
        let (h, heads) = (config.hidden_size, config.heads);
        let vector = |name: &str| -> Result<Tensor<1>, ModelError> {
            Ok(Tensor::from_data(TensorData::new(weights.tensor_f32(name, &[h])?, [h]), device))
        };
        let joint = |names: &[(String, usize)], input: usize| joint_projection(weights, names, input, device);
        let layer = |i: usize| -> Result<Layer, ModelError> {
            let name = |part: &str| format!("model.layers.{i}.{part}.weight");
            let attention = |part: &str, width| (name(&format!("self_attn.{part}_proj")), width);
            let (qw, kw) = (heads.query_width(), heads.key_width());
            let mlp = |part: &str| (name(&format!("mlp.{part}_proj")), config.intermediate_size);
            Ok(Layer {
                input_norm: vector(&name("input_layernorm"))?,
                qkv: joint(&[attention("q", qw), attention("k", kw), attention("v", kw)], h)?,
                out: joint(&[attention("o", h)], qw)?,
                post_norm: vector(&name("post_attention_layernorm"))?,
                gate_up: joint(&[mlp("gate"), mlp("up")], h)?,
                down: joint(&[(name("mlp.down_proj"), h)], config.intermediate_size)?,
            })
        };
        let shape = [config.vocab_size, h];
        let table = |name: &str| -> Result<Tensor<2>, ModelError> {
            Ok(Tensor::from_data(TensorData::new(weights.tensor_f32(name, &shape)?, shape), device))
        };
        check_head(weights, &config)?;
        let embedding = table(EMBEDDING)?;
        let head = if config.tied { embedding.clone() } else { table(HEAD)? };
        Ok(Self {
            device: device.clone(),
            rope: Arc::new(RopeTable::new(config.max_positions, heads.dim, config.rope_theta)),
            embedding,
            layers: (0..config.layers).map(layer).collect::<Result<_, _>>()?,
            norm: vector("model.norm.weight")?,
            head: Head::new(head),
            config,
        })
    }

    /// The model's sizes.
    pub fn config(&self) -> &LlamaConfig {
        &self.config
    }

    /// Where the weights live.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Rotary table, shared with drafters.
    pub fn rope(&self) -> &Arc<RopeTable> {
        &self.rope
    }

    /// Embedding matrix `[vocabulary, hidden]`.
    pub fn embedding(&self) -> &Tensor<2> {
        &self.embedding
    }

    /// Output head over the whole vocabulary.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// Weight of the final norm `[hidden]`.
    pub fn norm(&self) -> &Tensor<1> {
        &self.norm
    }

    /// Bytes of the weights; a head that is tied to the embedding is no second matrix.
    pub fn bytes(&self) -> usize {
        let head = if self.config.tied { 0 } else { self.head.bytes() };
        bytes(&self.embedding)
            + head
            + self.head.copies()
            + bytes(&self.norm)
            + self.layers.iter().map(Layer::bytes).sum::<usize>()
    }

    /// A cache for `slots` requests of up to `capacity` tokens.
    pub fn cache(&self, slots: usize, capacity: usize) -> KvCache {
        self.cache_of(slots, capacity, Pages::full(slots, capacity))
    }

    /// A cache for `slots` requests of up to `capacity` tokens, which share `pages`.
    pub fn cache_of(&self, slots: usize, capacity: usize, pages: Pages) -> KvCache {
        KvCache::paged(self.config.layers, (slots, capacity), pages, self.config.heads, &self.device)
    }

    /// Runs the packed rows `ids` of `plan`, writing their keys and values to `cache` (committed by the caller).
    pub fn forward(&self, ids: &[u32], plan: &Arc<CachedPlan>, cache: &mut KvCache, taps: &[usize]) -> Features {
        let mut x = self.embedding.clone().select(0, indices(ids.iter().map(|&i| i as usize), &self.device));
        let mut tapped = vec![None; taps.len()];
        let mut tap = |layer: usize, x: &Tensor<2>| {
            taps.iter().zip(&mut tapped).filter(|(t, _)| **t == layer).for_each(|(_, slot)| *slot = Some(x.clone()));
        };
        let eps = self.config.rms_norm_eps;
        for (i, layer) in self.layers.iter().enumerate() {
            tap(i, &x);
            let qkv = layer.qkv.apply(rms_norm(x.clone(), layer.input_norm.clone(), eps));
            let attended = cache.with_layer(i, |c| cached_attention(qkv, c, self.config.heads, &self.rope, plan));
            x = x + layer.out.apply(attended);
            let gated = swiglu(layer.gate_up.apply(rms_norm(x.clone(), layer.post_norm.clone(), eps)));
            x = x + layer.down.apply(gated);
        }
        tap(self.layers.len(), &x);
        let taps = tapped.into_iter().map(|t| t.expect("taps were checked against the layers")).collect();
        Features { taps, hidden: rms_norm(x, self.norm.clone(), eps) }
    }

    /// Runs whole sequences without keeping a cache; rows are packed in the order of `sequences`.
    pub fn forward_full(&self, sequences: &[&[u32]], taps: &[usize]) -> Features {
        let capacity = sequences.iter().map(|s| s.len()).max().unwrap_or(0);
        let mut scratch = KvCache::new(1, sequences.len(), capacity, self.config.heads, &self.device);
        let rows: Vec<_> = sequences.iter().enumerate().map(|(slot, s)| SlotRows::chain(slot, s.len())).collect();
        let plan = scratch.plan(&rows);
        self.forward(&sequences.concat(), &plan, &mut scratch, taps)
    }

    /// Logits `[rows, vocabulary]` of head inputs `[rows, hidden]`.
    pub fn logits(&self, hidden: Tensor<2>) -> Tensor<2> {
        self.head.logits(hidden)
    }
}

/// Refuses a model whose configuration and weights disagree about its output head: loaders differ in which of the two
/// they believe, and a wrong head still gives fluent logits. A tied head that is stored all the same must be equal.
fn check_head(weights: &WeightDir, config: &LlamaConfig) -> Result<(), ModelError> {
    if !config.tied && !weights.has(HEAD) {
        return Err(ModelError::Config(format!(
            "tie_word_embeddings is not true, but there is no tensor `{HEAD}`; it must be true if the head is `{EMBEDDING}`"
        )));
    }
    let shape = [config.vocab_size, config.hidden_size];
    let differs = |head: Vec<f32>| Ok::<_, ModelError>(head != weights.tensor_f32(EMBEDDING, &shape)?);
    if config.tied && weights.has(HEAD) && differs(weights.tensor_f32(HEAD, &shape)?)? {
        return Err(ModelError::Config(format!(
            "tie_word_embeddings is true, but tensor `{HEAD}` is not equal to `{EMBEDDING}`; it must be false if \
             `{HEAD}` is the head"
        )));
    }
    Ok(())
}

/// Reads `[out, input]` matrices and joins them along the output: `input` to `Σ out`.
fn joint_projection(
    weights: &WeightDir,
    names: &[(String, usize)],
    input: usize,
    device: &Device,
) -> Result<Projection, ModelError> {
    let mut joined = Vec::new();
    for (name, out) in names {
        joined.extend(weights.tensor_f32(name, &[*out, input])?);
    }
    let out = joined.len() / input;
    Ok(Projection::of_rows(Tensor::from_data(TensorData::new(joined, [out, input]), device)))
}
