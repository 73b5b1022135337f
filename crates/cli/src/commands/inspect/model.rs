//! A model directory: sizes, weights, text side, and what a drafter would read of it.

use super::tensors;
use crate::exit::{Blame, Failure};
use serde_json::{Value, json};
use spectrain_core::chat::ChatTemplate;
use spectrain_core::recipe::Eagle3;
use spectrain_core::tokenizer::Tokenizer;
use spectrain_data::weights::{INDEX, SINGLE, WeightDir};
use spectrain_model::LlamaConfig;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Facts about the model in `dir`. What this build cannot run is told, not refused.
pub fn facts(dir: &Path) -> Result<Value, Failure> {
    let weights = WeightDir::open(dir).request()?;
    let config = weights.config_json();
    let sizes = LlamaConfig::from_json(config);
    let layers = config["num_hidden_layers"].as_u64().unwrap_or(0) as usize;
    Ok(json!({
        "kind": "model",
        "path": dir,
        "architecture": config["architectures"][0].as_str().or(config["model_type"].as_str()),
        "runs_here": sizes.as_ref().map_or_else(|e| format!("no: {e}"), |_| "yes".to_owned()),
        "layers": config["num_hidden_layers"],
        "hidden": config["hidden_size"],
        "intermediate": config["intermediate_size"],
        "heads": config["num_attention_heads"],
        "key_value_heads": config["num_key_value_heads"],
        "head_dim": sizes.as_ref().map_or(config["head_dim"].clone(), |s| s.heads.dim.into()),
        "vocab": config["vocab_size"],
        "positions": config["max_position_embeddings"],
        "rope_theta": sizes.as_ref().map_or(config["rope_theta"].clone(), |s| s.rope_theta.into()),
        "tied_head": config["tie_word_embeddings"].as_bool().unwrap_or(false),
        "weights": tensors::facts(&weight_files(dir))?,
        "hash": weights.content_hash(),
        "text": text(dir),
        "default_taps": Eagle3::default().taps_for(layers),
    }))
}

/// The files that hold the weights; the directory was opened, so they are there.
fn weight_files(dir: &Path) -> Vec<PathBuf> {
    let Ok(index) = std::fs::read_to_string(dir.join(INDEX)) else {
        return vec![dir.join(SINGLE)];
    };
    let index: Value = serde_json::from_str(&index).unwrap_or_default();
    let names = index["weight_map"].as_object().into_iter().flatten().filter_map(|(_, file)| file.as_str());
    names.collect::<BTreeSet<_>>().into_iter().map(|name| dir.join(name)).collect()
}

/// Tokenizer and chat template, or why there is none.
fn text(dir: &Path) -> Value {
    let tokenizer = match Tokenizer::load(dir) {
        Ok(tokenizer) => tokenizer,
        Err(error) => return json!({ "tokenizer": format!("none: {error}") }),
    };
    let template = match ChatTemplate::load(dir, &tokenizer) {
        Ok(template) => json!({
            "hash": template.content_hash(),
            "stop_tokens": template.stop_ids().into_iter().filter_map(|id| tokenizer.id_to_token(id)).collect::<Vec<_>>(),
        }),
        Err(error) => format!("none: {error}").into(),
    };
    json!({
        "tokenizer": { "hash": tokenizer.content_hash(), "tokens": tokenizer.vocab_size() },
        "chat_template": template,
    })
}
