//! A drafter with all that it shares with its target: what a format writes.

use super::error::ExportError;
use super::target::TargetDir;
use crate::checkpoint::{Checkpoint, DrafterConfig};
use crate::eagle3::Eagle3Config;
use crate::eagle3::names::{EMBEDDING, HEAD, shapes};
use spectrain_data::draft_vocab::DraftVocab;
use spectrain_data::weights::F32Tensor;

/// A drafter that stands alone.
pub struct Portable<'a> {
    /// Sizes and conventions.
    pub config: Eagle3Config,
    /// Draft vocabulary.
    pub vocab: DraftVocab,
    /// All weights under our names, head and embedding included.
    pub tensors: Vec<(String, F32Tensor<'static>)>,
    /// Whether the embedding is the drafter's own.
    pub own_embedding: bool,
    /// Its target.
    pub target: &'a TargetDir,
}

impl<'a> Portable<'a> {
    /// The drafter of `checkpoint` with what it shares with `target`, which must be the one it was trained for.
    pub fn collect(checkpoint: &Checkpoint, target: &'a TargetDir) -> Result<Self, ExportError> {
        let DrafterConfig::Eagle3(config) = checkpoint.config.clone();
        let vocab = checkpoint.vocab.clone();
        let mut tensors = Vec::new();
        for (name, shape) in shapes(&config) {
            let values = checkpoint.tensor(&name, &shape)?;
            tensors.push((name, F32Tensor::new(&shape, values)));
        }
        let shape = [vocab.d2t.len(), config.hidden_size];
        let head = checkpoint.own(HEAD, &shape)?.map_or_else(|| target.head(&vocab.d2t), Ok)?;
        tensors.push((HEAD.to_owned(), F32Tensor::new(&shape, head)));
        let shape = [config.vocab_size, config.hidden_size];
        let own = checkpoint.own(EMBEDDING, &shape)?;
        let own_embedding = own.is_some();
        let embedding = own.map_or_else(|| target.embedding(), Ok)?;
        tensors.push((EMBEDDING.to_owned(), F32Tensor::new(&shape, embedding)));
        Ok(Self { config, vocab, tensors, own_embedding, target })
    }
}
