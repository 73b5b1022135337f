//! SGLang's EAGLE-3 class. It reads layer ids in `eagle_config` only, and adds one to them if the first is 1 (versions
//! before May 2026 always do): a list that means the same to all of them must begin with 1, for a first tap of 2.

use super::keys::Layer;
use super::portable::Portable;
use super::{Format, llama_eagle3, three_ascending};
use serde_json::{Value, json};

/// A directory for `--speculative-draft-model-path`.
pub const FORMAT: Format = Format {
    name: "sglang",
    reader: "SGLang",
    next: "python -m sglang.launch_server --model-path TARGET --speculative-algorithm EAGLE3 --speculative-draft-model-path DRAFTER",
    layer: Layer::Midlayer,
    stores_shared_embedding: false,
    omits_full_maps: false,
    refuse,
    config,
    read: llama_eagle3::read,
};

fn refuse(p: &Portable) -> Option<String> {
    let taps = &p.config.taps;
    if p.config.norm_before_residual {
        return Some(
            "its residual is always taken before the norm; train with drafter.norm_before_residual = false".into(),
        );
    }
    if p.own_embedding {
        return Some("it always takes the target's embedding, and the drafter has its own".into());
    }
    three_ascending(taps).or_else(|| {
        let odd = taps[0] != 2 || taps[2] >= p.target.config.layers;
        odd.then(|| {
            let layers = p.target.config.layers;
            format!("its versions agree on layer ids only if the first tap is 2 and the last below {layers}, the drafter reads {taps:?}")
        })
    })
}

fn config(p: &Portable) -> Value {
    let mut keys = llama_eagle3::config(p, "LlamaForCausalLMEagle3");
    let outputs: Vec<usize> = p.config.taps.iter().map(|tap| tap - 1).collect();
    let eagle = json!({
        "eagle_aux_hidden_state_layer_ids": outputs,
        "use_aux_hidden_state": true,
        "use_input_layernorm_in_first_layer": true,
        "use_last_layernorm": true,
        "use_mtp_layernorm": false,
        "next_layer_regular": true,
    });
    keys.insert("eagle_config".to_owned(), eagle);
    Value::Object(keys)
}
