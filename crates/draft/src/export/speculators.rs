//! The `speculators` library's EAGLE-3 (0.9.0), which vLLM serves as it is. The library takes the residual before the
//! norm where `norm_before_residual` is absent, vLLM after it, so the key is always written, and never guessed.

use super::keys::Layer;
use super::llama_eagle3::{decoder, default_taps, flag, list, sizes};
use super::portable::Portable;
use super::target::TargetDir;
use super::{Format, three_ascending};
use crate::eagle3::Eagle3Config;
use serde_json::{Value, json};

/// A directory that `SpeculatorModel.from_pretrained` and vLLM load.
pub const FORMAT: Format = Format {
    name: "speculators",
    reader: "speculators with vLLM",
    next: "vllm serve DRAFTER",
    layer: Layer::First,
    stores_shared_embedding: true,
    omits_full_maps: true,
    refuse: |p| three_ascending(&p.config.taps),
    config,
    read,
};

/// The key by which this format is known.
pub const TYPE: &str = "speculators_model_type";
/// Drafted tokens a round that a server starts with.
const DRAFTED: usize = 5;

fn config(p: &Portable) -> Value {
    let c = &p.config;
    json!({
        "architectures": ["Eagle3Speculator"],
        TYPE: "eagle3",
        "speculators_version": "0.9.0",
        "has_no_defaults_at_init": false,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{
                "proposal_type": "greedy",
                "speculative_tokens": DRAFTED,
                "verifier_accept_k": 1,
                "accept_tolerance": 0.0,
            }],
            "verifier": {
                "name_or_path": p.target.location(),
                "architectures": p.target.key("architectures"),
            },
        },
        "transformer_layer_config": decoder(p),
        "draft_vocab_size": c.draft_vocab_size,
        "target_hidden_size": null,
        "eagle_aux_hidden_state_layer_ids": c.taps,
        "norm_before_residual": c.norm_before_residual,
        "norm_before_fc": false,
        "fc_norm": false,
        "norm_output": false,
        "embed_requires_grad": false,
        "tie_word_embeddings": false,
        "torch_dtype": "float32",
        "dtype": "float32",
    })
}

fn read(json: &Value, target: &TargetDir) -> Result<Eagle3Config, String> {
    let kind = json.get(TYPE).and_then(Value::as_str).unwrap_or_default();
    if kind != "eagle3" {
        return Err(format!("{TYPE} is \"{kind}\"; this build imports \"eagle3\""));
    }
    let Some(norm_before_residual) = flag(json, "norm_before_residual")? else {
        let text = "norm_before_residual is missing: speculators takes it for false and vLLM for true; add the value \
                    that the drafter was trained with";
        return Err(text.to_owned());
    };
    let decoder = json.get("transformer_layer_config").ok_or("transformer_layer_config is missing")?;
    let taps = list(json, "eagle_aux_hidden_state_layer_ids")?.map_or_else(|| default_taps(target), Ok)?;
    sizes(json, decoder, target, taps, norm_before_residual)
}
