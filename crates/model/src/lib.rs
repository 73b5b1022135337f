//! Frozen target models: configuration, weights, key/value cache, features, and the plain decoding path.
//!
//! A target lives on a plain device, so no gradient can reach it.

mod cache;
pub mod config;
mod decode;
pub mod llama;
pub mod sample;

pub use cache::{KvCache, NoPages, Pages, ParentOrder, SlotRows, bytes};
pub use config::LlamaConfig;
pub use decode::{Completion, Decoder, Finish, Request, host_rows};
pub use llama::{Features, Llama};
pub use sample::Prefix;

/// Why a target model could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The weights could not be read, or do not have the shape the configuration asks for.
    #[error(transparent)]
    Weights(#[from] spectrain_data::weights::WeightError),
    /// The configuration is not one this build can run.
    #[error("config.json: {0}")]
    Config(String),
}
pub use spectrain_kernels::product::Head;
