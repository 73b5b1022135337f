//! vLLM's own EAGLE-3 class. It reads layer ids at the top level, as inputs of layers, and shares the target's
//! embedding where none is stored.

use super::keys::Layer;
use super::{Format, llama_eagle3, three_ascending};
use serde_json::Value;

/// A directory for `--speculative-config` with method `eagle3`.
pub const FORMAT: Format = Format {
    name: "vllm",
    reader: "vLLM",
    next: "vllm serve TARGET --speculative-config '{\"method\": \"eagle3\", \"model\": \"DRAFTER\", \"num_speculative_tokens\": 5}'",
    layer: Layer::Midlayer,
    stores_shared_embedding: false,
    omits_full_maps: false,
    refuse: |p| three_ascending(&p.config.taps),
    config: |p| Value::Object(llama_eagle3::config(p, "Eagle3LlamaForCausalLM")),
    read: llama_eagle3::read,
};
