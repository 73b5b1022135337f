//! What llama.cpp's `convert_hf_to_gguf.py` turns into a GGUF of its `eagle3` architecture (read in the source that
//! llama-cpp-python 0.3.36 carries).

use super::keys::Layer;
use super::portable::Portable;
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
    refuse,
    config: |p| Value::Object(llama_eagle3::config(p, "LlamaForCausalLMEagle3")),
    read: llama_eagle3::read,
};

fn refuse(p: &Portable) -> Option<String> {
    let (taps, layers) = (&p.config.taps, p.target.config.layers);
    if taps.len() != 3 {
        return Some(format!("it reads exactly 3 taps, the drafter has {taps:?}"));
    }
    // It takes such an id, and hands over a buffer that its graph of Llama models never fills.
    let unfilled = taps.contains(&layers);
    unfilled.then(|| {
        format!("of Llama targets it reads what enters layers, all below {layers}, the drafter reads {taps:?}")
    })
}
