//! What llama.cpp's `convert_hf_to_gguf.py` turns into a GGUF of its `eagle3` architecture (read in the source that
//! llama-cpp-python 0.3.36 carries).

use super::keys::Layer;
use super::{Format, llama_eagle3};
use serde_json::Value;

/// A directory for the converter.
pub const FORMAT: Format = Format {
    name: "llamacpp",
    reader: "llama.cpp",
    next: "python convert_hf_to_gguf.py DRAFTER --target-model-dir TARGET",
    layer: Layer::Midlayer,
    stores_shared_embedding: false,
    omits_full_maps: false,
    refuse: |p| {
        let taps = &p.config.taps;
        (taps.len() != 3).then(|| format!("it reads exactly 3 taps, the drafter has {taps:?}"))
    },
    config: |p| Value::Object(llama_eagle3::config(p, "LlamaForCausalLMEagle3")),
    read: llama_eagle3::read,
};
