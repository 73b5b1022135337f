//! The `llama` architecture: GGUF metadata to `config.json`, GGUF tensors to Hugging Face names and row order.

use std::borrow::Cow;

use safetensors::{Dtype, View};
use serde_json::{Value, json};

use super::FetchError;
use super::tokenizer::Specials;
use crate::gguf::Gguf;
use crate::weights::le_bytes;

/// Token embedding in GGUF; its shape [vocab, hidden] gives the vocabulary.
const EMBEDDING: &str = "token_embd.weight";
/// Output head in GGUF; absent where embeddings are tied.
const HEAD: &str = "output.weight";

/// A Llama model inside a GGUF, its shapes checked.
pub(super) struct Llama<'a> {
    gguf: &'a Gguf,
    vocab: usize,
    hidden: usize,
    intermediate: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    context: usize,
    rope_theta: f64,
    rms_norm_eps: f64,
    tied: bool,
}

impl<'a> Llama<'a> {
    /// Reads the sizes and checks that every tensor is there with the right shape and a readable type, and that no
    /// tensor is left over (a leftover would be a part of the model that the conversion drops).
    pub fn read(gguf: &'a Gguf) -> Result<Self, FetchError> {
        let refuse = |what: String| FetchError::Unsupported { path: gguf.path().to_owned(), what };
        let architecture = gguf.text("general.architecture")?;
        if architecture != "llama" {
            return Err(refuse(format!("architecture `{architecture}` is not supported, only `llama`")));
        }
        let size = |key: &str| gguf.uint(&format!("llama.{key}")).map(|n| n as usize);
        let hidden = size("embedding_length")?;
        let heads = size("attention.head_count")?;
        let kv_heads = match gguf.value("llama.attention.head_count_kv") {
            Some(_) => size("attention.head_count_kv")?,
            None => heads,
        };
        let head_dim = match gguf.value("llama.attention.key_length") {
            Some(_) => size("attention.key_length")?,
            None => hidden / heads.max(1),
        };
        if heads == 0 || kv_heads == 0 || heads % kv_heads != 0 || head_dim == 0 || head_dim % 2 != 0 {
            return Err(refuse(format!(
                "{heads} heads of {head_dim} over {kv_heads} key-value heads do not fit together"
            )));
        }
        if gguf.value("llama.rope.dimension_count").is_some_and(|d| d.as_u64() != Some(head_dim as u64)) {
            return Err(refuse(format!(
                "rotary embedding over a part of the {head_dim} head dimensions is not supported"
            )));
        }
        if let Some(scaling) = gguf.value("llama.rope.scaling.type").filter(|s| s.as_str() != Some("none")) {
            return Err(refuse(format!("rope scaling {scaling:?} is not supported")));
        }
        let model = Self {
            gguf,
            vocab: gguf.shape(EMBEDDING).and_then(|shape| shape.first().copied()).unwrap_or(0),
            hidden,
            intermediate: size("feed_forward_length")?,
            layers: size("block_count")?,
            heads,
            kv_heads,
            head_dim,
            context: size("context_length")?,
            rope_theta: gguf
                .value("llama.rope.freq_base")
                .map_or(Ok(10_000.0), |_| gguf.float("llama.rope.freq_base"))?,
            rms_norm_eps: gguf.float("llama.attention.layer_norm_rms_epsilon")?,
            tied: gguf.shape(HEAD).is_none(),
        };
        let tensors = model.tensors();
        for (_, tensor) in &tensors {
            gguf.check_tensor(&tensor.source, &tensor.shape)?;
        }
        if let Some(extra) = gguf.names().find(|name| !tensors.iter().any(|(_, tensor)| tensor.source == *name)) {
            return Err(refuse(format!("tensor `{extra}` is no part of the llama architecture known here")));
        }
        Ok(model)
    }

    /// Rows of the embedding.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Longest context in tokens.
    pub fn context(&self) -> usize {
        self.context
    }

    /// The `config.json`.
    pub fn config(&self, specials: &Specials) -> Value {
        json!({
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "attention_bias": false,
            "attention_dropout": 0.0,
            "bos_token_id": specials.bos,
            "eos_token_id": specials.eos,
            "pad_token_id": specials.pad,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "hidden_size": self.hidden,
            "initializer_range": 0.02,
            "intermediate_size": self.intermediate,
            "max_position_embeddings": self.context,
            "mlp_bias": false,
            "num_attention_heads": self.heads,
            "num_hidden_layers": self.layers,
            "num_key_value_heads": self.kv_heads,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_scaling": null,
            "rope_theta": self.rope_theta,
            "tie_word_embeddings": self.tied,
            "torch_dtype": "float32",
            "use_cache": true,
            "vocab_size": self.vocab,
        })
    }

    /// Every tensor under its Hugging Face name; data is read when it is written.
    pub fn tensors(&self) -> Vec<(String, LlamaTensor<'a>)> {
        let (h, i) = (self.hidden, self.intermediate);
        let (q, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let tensor = |source: String, shape: Vec<usize>, heads| LlamaTensor { gguf: self.gguf, source, shape, heads };
        let mut tensors = vec![
            ("model.embed_tokens.weight".to_owned(), tensor(EMBEDDING.into(), vec![self.vocab, h], None)),
            ("model.norm.weight".to_owned(), tensor("output_norm.weight".into(), vec![h], None)),
        ];
        if !self.tied {
            tensors.push(("lm_head.weight".to_owned(), tensor(HEAD.into(), vec![self.vocab, h], None)));
        }
        for layer in 0..self.layers {
            for (name, source, shape, heads) in [
                ("input_layernorm", "attn_norm", vec![h], None),
                ("self_attn.q_proj", "attn_q", vec![q, h], Some(self.heads)),
                ("self_attn.k_proj", "attn_k", vec![kv, h], Some(self.kv_heads)),
                ("self_attn.v_proj", "attn_v", vec![kv, h], None),
                ("self_attn.o_proj", "attn_output", vec![h, q], None),
                ("post_attention_layernorm", "ffn_norm", vec![h], None),
                ("mlp.gate_proj", "ffn_gate", vec![i, h], None),
                ("mlp.up_proj", "ffn_up", vec![i, h], None),
                ("mlp.down_proj", "ffn_down", vec![h, i], None),
            ] {
                let source = format!("blk.{layer}.{source}.weight");
                tensors.push((format!("model.layers.{layer}.{name}.weight"), tensor(source, shape, heads)));
            }
        }
        tensors
    }
}

/// A tensor of the converted model, read from the GGUF on demand.
pub(super) struct LlamaTensor<'a> {
    gguf: &'a Gguf,
    source: String,
    shape: Vec<usize>,
    /// Heads whose rows are stored for interleaved RoPE (q and k only).
    heads: Option<usize>,
}

impl View for LlamaTensor<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let stored = self.gguf.tensor_f32(&self.source, &self.shape).expect("Llama::read has checked every tensor");
        let values = match self.heads {
            Some(heads) => rotate_half_rows(&stored, self.shape[0], heads),
            None => stored,
        };
        Cow::Owned(le_bytes(&values).into_owned())
    }

    fn data_len(&self) -> usize {
        self.shape.iter().product::<usize>() * size_of::<f32>()
    }
}

/// Undoes the row order that GGUF gives q and k. There, the two coordinates that RoPE turns together are neighbours
/// (per head `[d/2, 2]`); rotate-half RoPE wants them half a head apart (`[2, d/2]`).
fn rotate_half_rows(stored: &[f32], rows: usize, heads: usize) -> Vec<f32> {
    let columns = stored.len() / rows;
    let head_dim = rows / heads;
    let half = head_dim / 2;
    let mut out = Vec::with_capacity(stored.len());
    for head in 0..heads {
        for within in 0..head_dim {
            let (side, pair) = (within / half, within % half);
            let row = head * head_dim + 2 * pair + side;
            out.extend_from_slice(&stored[row * columns..(row + 1) * columns]);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The order a GGUF writer gives the rows: per head, `[2, d/2]` to `[d/2, 2]`.
    fn interleave(rows: &[f32], heads: usize) -> Vec<f32> {
        let half = rows.len() / heads / 2;
        rows.chunks(2 * half).flat_map(|head| (0..half).flat_map(|i| [head[i], head[half + i]])).collect()
    }

    #[test]
    fn rows_return_to_rotate_half_order() {
        let rows: Vec<f32> = (0..24u8).map(f32::from).collect();
        for heads in [1, 2, 3] {
            let stored = interleave(&rows, heads);
            assert_ne!(stored, rows, "the writer's order differs, or this test shows nothing");
            assert_eq!(rotate_half_rows(&stored, 24, heads), rows, "{heads} heads");
        }
    }

    #[test]
    fn whole_rows_move_together() {
        // Two heads of dimension 4, two columns: row r is (r, 10 + r).
        let stored: Vec<f32> = (0..8u8).flat_map(|r| [f32::from(r), f32::from(r) + 10.0]).collect();
        let moved = rotate_half_rows(&stored, 8, 2);
        let first: Vec<f32> = moved.iter().step_by(2).copied().collect();
        assert_eq!(first, [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]);
        assert!(moved.chunks(2).all(|row| row[1] == row[0] + 10.0));
    }
}
