//! The configuration that SGLang, vLLM and llama.cpp read: a Llama configuration with the drafter's keys added
//! (Li et al.'s published drafters have the same form).

use super::portable::Portable;
use super::target::TargetDir;
use crate::eagle3::Eagle3Config;
use serde_json::{Map, Value, json};
use spectrain_model::LlamaConfig;

/// The keys of a Llama decoder of one layer with the drafter's sizes.
pub fn decoder(p: &Portable) -> Map<String, Value> {
    let c = &p.config;
    let keys = json!({
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": c.hidden_size,
        "intermediate_size": c.intermediate_size,
        "num_attention_heads": c.num_attention_heads,
        "num_key_value_heads": c.num_key_value_heads,
        "head_dim": c.head_dim,
        "num_hidden_layers": 1,
        "vocab_size": c.vocab_size,
        "max_position_embeddings": c.max_position_embeddings,
        "rms_norm_eps": c.rms_norm_eps,
        "rope_theta": c.rope_theta,
        "rope_parameters": { "rope_theta": c.rope_theta, "rope_type": "default" },
        "rope_scaling": null,
        "attention_bias": false,
        "attention_dropout": 0.0,
        "mlp_bias": false,
        "initializer_range": 0.02,
        "use_cache": true,
        "tie_word_embeddings": false,
        "bos_token_id": p.target.key("bos_token_id"),
        "eos_token_id": p.target.key("eos_token_id"),
        "pad_token_id": p.target.key("pad_token_id"),
        "torch_dtype": "float32",
        "dtype": "float32",
    });
    into_map(keys)
}

/// The whole configuration, with `architecture` as its class. Layer ids count as the taps do: id `i` enters layer `i`.
pub fn config(p: &Portable, architecture: &str) -> Map<String, Value> {
    let c = &p.config;
    let mut keys = into_map(json!({ "architectures": [architecture] }));
    keys.extend(decoder(p));
    keys.extend(into_map(json!({
        "bias": false,
        "draft_vocab_size": c.draft_vocab_size,
        "target_hidden_size": c.hidden_size,
        "eagle_aux_hidden_state_layer_ids": c.taps,
        "norm_before_residual": c.norm_before_residual,
        "norm_before_fc": false,
        "fc_norm": false,
        "norm_output": false,
    })));
    keys
}

/// Reads such a configuration.
pub fn read(json: &Value, target: &TargetDir) -> Result<Eagle3Config, String> {
    let taps = match taps(json)? {
        Some(taps) => taps,
        None => default_taps(target)?,
    };
    let norm_before_residual = flag(json, "norm_before_residual")?.unwrap_or(false);
    sizes(json, json, target, taps, norm_before_residual)
}

/// The taps of a configuration, if it names them. At the top level ids count as taps do. Inside `eagle_config` a list
/// that begins with 1 counts layers by their output, any other by their input, as SGLang reads it.
fn taps(json: &Value) -> Result<Option<Vec<usize>>, String> {
    const KEY: &str = "eagle_aux_hidden_state_layer_ids";
    let top = list(json, KEY)?;
    let nested = json.get("eagle_config").map_or(Ok(None), |eagle| list(eagle, KEY))?;
    let nested = nested.map(|ids| {
        let shift = usize::from(ids.first() == Some(&1));
        ids.into_iter().map(|id| id + shift).collect::<Vec<_>>()
    });
    match (top, nested) {
        (Some(top), Some(nested)) if top != nested => {
            Err(format!("{KEY} means the inputs of layers {top:?} at the top level and of {nested:?} in eagle_config"))
        }
        (top, nested) => Ok(top.or(nested)),
    }
}

/// The taps of a drafter that does not name them.
pub fn default_taps(target: &TargetDir) -> Result<Vec<usize>, String> {
    let n = target.config.layers;
    let defined = (n >= 8).then(|| vec![2, n / 2, n - 3]);
    defined.ok_or_else(|| {
        format!("eagle_aux_hidden_state_layer_ids is missing, and has no default for a target of {n} layers: add it")
    })
}

/// The sizes of a drafter: `decoder` holds the keys of its layer, `json` those of the drafter.
pub fn sizes(
    json: &Value,
    decoder: &Value,
    target: &TargetDir,
    taps: Vec<usize>,
    norm_before_residual: bool,
) -> Result<Eagle3Config, String> {
    for key in ["norm_before_fc", "fc_norm", "norm_output", "bias"] {
        if flag(json, key)? == Some(true) {
            return Err(format!("{key} is true, which this build does not run"));
        }
    }
    let llama = LlamaConfig::from_json(decoder).map_err(|e| e.to_string())?;
    let of = &target.config;
    let same = |key: &str, found: usize, right: usize| match found == right {
        true => Ok(()),
        false => Err(format!("{key} is {found}, the target's is {right}; give the drafter's own target by --target")),
    };
    same("hidden_size", llama.hidden_size, of.hidden_size)?;
    same("vocab_size", llama.vocab_size, of.vocab_size)?;
    same("target_hidden_size", number(json, "target_hidden_size")?.unwrap_or(of.hidden_size), of.hidden_size)?;
    if llama.layers != 1 {
        return Err(format!("num_hidden_layers is {}; only drafters of 1 layer run here", llama.layers));
    }
    if taps.is_empty() || taps.iter().any(|&tap| tap > of.layers) {
        return Err(format!("layer ids {taps:?} do not fit a target of {} layers", of.layers));
    }
    Ok(Eagle3Config {
        hidden_size: llama.hidden_size,
        intermediate_size: llama.intermediate_size,
        num_attention_heads: llama.heads.query,
        num_key_value_heads: llama.heads.key,
        head_dim: llama.heads.dim,
        vocab_size: llama.vocab_size,
        draft_vocab_size: number(json, "draft_vocab_size")?.unwrap_or(llama.vocab_size),
        max_position_embeddings: llama.max_positions,
        rope_theta: llama.rope_theta,
        rms_norm_eps: llama.rms_norm_eps,
        taps,
        norm_before_residual,
    })
}

/// A truth value, `None` where it is absent or null.
pub fn flag(json: &Value, key: &str) -> Result<Option<bool>, String> {
    typed(json, key, Value::as_bool, "true or false")
}

/// A list of whole numbers, `None` where it is absent or null.
pub fn list(json: &Value, key: &str) -> Result<Option<Vec<usize>>, String> {
    let read = |v: &Value| v.as_array()?.iter().map(|id| Some(id.as_u64()? as usize)).collect();
    typed(json, key, read, "a list of whole numbers")
}

fn number(json: &Value, key: &str) -> Result<Option<usize>, String> {
    typed(json, key, |v| v.as_u64().map(|n| n as usize), "a whole number")
}

fn typed<T>(json: &Value, key: &str, read: impl Fn(&Value) -> Option<T>, kind: &str) -> Result<Option<T>, String> {
    let found = json.get(key).filter(|value| !value.is_null());
    found.map(|value| read(value).ok_or_else(|| format!("{key} is {value}; it must be {kind}"))).transpose()
}

fn into_map(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}
