//! The part of a Hugging Face `config.json` that a Llama-architecture target needs, checked before any work.

use crate::ModelError;
use serde::Deserialize;
use spectrain_kernels::cached_attention::Heads;

/// Sizes and constants of a Llama-architecture model.
#[derive(Debug, Clone, PartialEq)]
pub struct LlamaConfig {
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the gated feed-forward layer.
    pub intermediate_size: usize,
    /// Decoder layers.
    pub layers: usize,
    /// Attention heads.
    pub heads: Heads,
    /// Tokens of the vocabulary.
    pub vocab_size: usize,
    /// Longest sequence the model was trained for; positions beyond it are refused.
    pub max_positions: usize,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Term under the root of the normalisations.
    pub rms_norm_eps: f64,
    /// Whether the output head is the embedding matrix.
    pub tied: bool,
}

#[derive(Deserialize)]
struct Raw {
    model_type: Option<String>,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    vocab_size: usize,
    max_position_embeddings: usize,
    rms_norm_eps: f64,
    rope_theta: Option<f64>,
    rope_scaling: Option<serde_json::Value>,
    rope_parameters: Option<RopeParameters>,
    #[serde(default)]
    tie_word_embeddings: bool,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    hidden_act: Option<String>,
    quantization_config: Option<serde_json::Value>,
}

/// Where newer `transformers` versions keep the rotary settings.
#[derive(Deserialize)]
struct RopeParameters {
    rope_theta: Option<f64>,
    rope_type: Option<String>,
}

impl LlamaConfig {
    /// Reads and checks a `config.json`.
    ///
    /// # Errors
    /// [`ModelError::Config`] names the key that is missing or that this build cannot run.
    pub fn from_json(json: &serde_json::Value) -> Result<Self, ModelError> {
        let raw: Raw = serde_json::from_value(json.clone()).map_err(|e| ModelError::Config(e.to_string()))?;
        raw.refuse_unsupported()?;
        let head_dim = raw.head_dim.unwrap_or(raw.hidden_size / raw.num_attention_heads.max(1));
        let heads = Heads {
            query: raw.num_attention_heads,
            key: raw.num_key_value_heads.unwrap_or(raw.num_attention_heads),
            dim: head_dim,
        };
        if heads.key == 0 || !heads.query.is_multiple_of(heads.key) || heads.dim == 0 || !heads.dim.is_multiple_of(2) {
            return Err(ModelError::Config(format!(
                "num_attention_heads {} must be a multiple of num_key_value_heads {}, and head_dim {} even",
                heads.query, heads.key, heads.dim
            )));
        }
        let nested = raw.rope_parameters.as_ref().and_then(|r| r.rope_theta);
        Ok(Self {
            hidden_size: raw.hidden_size,
            intermediate_size: raw.intermediate_size,
            layers: raw.num_hidden_layers,
            heads,
            vocab_size: raw.vocab_size,
            max_positions: raw.max_position_embeddings,
            rope_theta: raw.rope_theta.or(nested).unwrap_or(10_000.0),
            rms_norm_eps: raw.rms_norm_eps,
            tied: raw.tie_word_embeddings,
        })
    }
}

impl Raw {
    fn refuse_unsupported(&self) -> Result<(), ModelError> {
        let refuse = |what: String| Err(ModelError::Config(what));
        match self.model_type.as_deref() {
            None | Some("llama") => {}
            Some(other) => {
                return refuse(format!("model_type \"{other}\" is not supported; this build runs \"llama\""));
            }
        }
        if let Some(quantized) = self.quantization_config.as_ref().filter(|q| !q.is_null()) {
            let method = quantized["quant_method"].as_str().unwrap_or("unknown");
            return refuse(format!(
                "quantization_config (\"{method}\") is not supported; take the model in F32, F16 or BF16"
            ));
        }
        if let Some(act) = self.hidden_act.as_deref().filter(|a| *a != "silu") {
            return refuse(format!("hidden_act \"{act}\" is not supported; this build runs \"silu\""));
        }
        if self.attention_bias || self.mlp_bias {
            return refuse("attention_bias and mlp_bias must be false".into());
        }
        if self.rope_scaling.as_ref().is_some_and(|s| !s.is_null()) {
            return refuse("rope_scaling is not supported; only plain rotary embeddings are".into());
        }
        if let Some(kind) =
            self.rope_parameters.as_ref().and_then(|r| r.rope_type.as_deref()).filter(|k| *k != "default")
        {
            return refuse(format!("rope_parameters.rope_type \"{kind}\" is not supported; only \"default\" is"));
        }
        Ok(())
    }
}
