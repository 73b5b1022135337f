//! The target of a drafter, as far as formats name it and drafters share with it: opened, not loaded.

use super::error::ExportError;
use serde_json::Value;
use spectrain_core::tokenizer::Tokenizer;
use spectrain_data::weights::{WeightDir, WeightError};
use spectrain_model::LlamaConfig;
use spectrain_model::llama::{EMBEDDING, HEAD};
use std::path::Path;

/// A target's directory.
pub struct TargetDir {
    /// Its weights, unread.
    pub weights: WeightDir,
    /// Its sizes.
    pub config: LlamaConfig,
    /// Content hash of its tokenizer.
    pub tokenizer_hash: String,
}

impl TargetDir {
    /// Opens the model directory `dir`.
    ///
    /// # Errors
    /// What is no model directory, a model this build cannot run, a tokenizer that does not fit it.
    pub fn open(dir: &Path) -> Result<Self, ExportError> {
        let weights = WeightDir::open(dir)?;
        let config = LlamaConfig::from_json(weights.config_json())?;
        let tokenizer = Tokenizer::load(dir)?;
        tokenizer.fits(config.vocab_size)?;
        Ok(Self { weights, config, tokenizer_hash: tokenizer.content_hash().to_owned() })
    }

    /// A key of its `config.json`, null where it is absent.
    pub fn key(&self, name: &str) -> Value {
        self.weights.config_json().get(name).cloned().unwrap_or_default()
    }

    /// Where it lies, for other programs: absolute.
    pub fn location(&self) -> String {
        let dir = self.weights.dir();
        dir.canonicalize().unwrap_or_else(|_| dir.to_owned()).display().to_string()
    }

    /// The embedding, `[vocabulary, hidden]`.
    pub fn embedding(&self) -> Result<Vec<f32>, WeightError> {
        self.table(EMBEDDING)
    }

    /// Rows of the output head, `[rows, hidden]`.
    pub fn head(&self, rows: &[u32]) -> Result<Vec<f32>, WeightError> {
        let head = self.table(if self.config.tied { EMBEDDING } else { HEAD })?;
        let width = self.config.hidden_size;
        Ok(rows.iter().flat_map(|&row| &head[row as usize * width..][..width]).copied().collect())
    }

    fn table(&self, name: &str) -> Result<Vec<f32>, WeightError> {
        self.weights.tensor_f32(name, &[self.config.vocab_size, self.config.hidden_size])
    }
}
