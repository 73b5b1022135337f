//! Text side: tokenizer and chat template against llama.cpp and Jinja2, and against small ones made here.
#![allow(clippy::unwrap_used)]

mod reference;
mod small;
mod stopping;
mod templates;
mod token_bytes;
