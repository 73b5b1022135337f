//! Plain decoding of one request, on demand: for every line of prompt ids on standard input it decodes greedily and prints
//! one JSON line with the tokens and the seconds. `tests/bench/decoding.py` takes turns with it.
//!
//! usage: plain_decoding TARGET TOKENS
#![allow(clippy::unwrap_used)]

use burn::tensor::Device;
use spectrain_core::form::Form;
use spectrain_core::process::Processors;
use spectrain_model::{Decoder, Llama, Request};
use std::path::Path;
use std::time::Instant;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [target, tokens] = arguments.as_slice() else { panic!("usage: plain_decoding TARGET TOKENS") };
    let target = Llama::load(Path::new(target), &Device::flex()).unwrap();
    let max_new_tokens = tokens.parse().unwrap();
    // On a thread of the pool, as the command runs: another one would wait for it at every product.
    rayon::scope(|_| {
        for line in std::io::stdin().lines().map(Result::unwrap) {
            let prompt: Vec<u32> = line.split_whitespace().map(|id| id.parse().unwrap()).collect();
            let capacity = prompt.len() + max_new_tokens;
            let sampling = Processors::at(0.0);
            let request = Request { id: 0, prompt, max_new_tokens, sampling, seed: 0, form: Form::default() };
            let mut ids = Vec::new();
            let start = Instant::now();
            let decoder = Decoder { target: &target, stop: &[], batch: 1 };
            decoder.run([request], capacity, |c| ids = c.ids, |_| ()).unwrap();
            println!("{{\"seconds\": {}, \"ids\": {ids:?}}}", start.elapsed().as_secs_f64());
        }
    });
}
