//! Choosing a token from the target's logits: shared by the plain path and the verifier, so that both mean the same
//! distribution and, for the same key, the same token.

use spectrain_core::rng::Key;
use spectrain_kernels::softmax::probabilities;

/// Index of the largest logit; the lowest index among equals.
pub fn argmax(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (i, &l) in logits.iter().enumerate() {
        if l > logits[best] {
            best = i;
        }
    }
    best as u32
}

/// The token drawn from `logits` at `temperature` under `key`; temperature 0 takes the largest logit.
pub fn choose(logits: &[f32], temperature: f64, key: Key) -> u32 {
    if temperature == 0.0 {
        return argmax(logits);
    }
    key.race(0, &probabilities(logits, temperature)) as u32
}
