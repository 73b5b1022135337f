//! Models on disk: safetensors, GGUF, and the conversion of one into the other.
#![allow(clippy::unwrap_used)]

mod builder;
mod conversion;
mod gguf_file;
mod weight_files;
