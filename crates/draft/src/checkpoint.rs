//! A trained drafter on disk: one safetensors file whose metadata says what it is and which target it belongs to.

use crate::eagle3::names::EMBEDDING;
use crate::eagle3::{Eagle3, Eagle3Config, Eagle3Drafter, Eagle3Proposer};
use crate::proposer::Proposer;
use burn::tensor::{Device, Tensor, TensorData};
use serde::{Deserialize, Serialize};
use spectrain_data::draft_vocab::{DraftVocab, DraftVocabError};
use spectrain_data::weights::{F32Tensor, WeightError, WeightFile, write_safetensors};
use spectrain_model::Llama;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// File name inside a checkpoint directory.
pub const FILE: &str = "drafter.safetensors";

/// Kind of drafter with its sizes: the registry. A new kind is one line here and one arm in [`Checkpoint::proposer`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum DrafterConfig {
    /// EAGLE-3.
    Eagle3(Eagle3Config),
}

/// Where a drafter comes from.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Provenance {
    /// Content hash of the target's configuration and weights.
    pub target_hash: String,
    /// Content hash of the tokenizer.
    pub tokenizer_hash: String,
    /// Where the target was found in training; a hint for later commands.
    pub target: String,
    /// Rule of the declared verifier.
    pub rule: String,
    /// Guarantee of the declared rule.
    pub guarantee: String,
    /// Loss and its temperature, as in the recipe.
    pub loss: String,
    /// Optimiser steps taken.
    pub step: usize,
    /// Hash of everything that the weights depend on beside the step: a run with another one cannot go on from here.
    #[serde(default)]
    pub run: String,
    /// Version of this program.
    pub version: String,
}

/// Why a checkpoint could not be written, read or used.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The file cannot be read, or a tensor does not fit.
    #[error(transparent)]
    Weights(#[from] WeightError),
    /// The metadata lacks an entry or holds one that does not parse.
    #[error("{}: metadata entry \"{key}\": {reason}", path.display())]
    Metadata {
        /// The file.
        path: PathBuf,
        /// The entry.
        key: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The draft vocabulary is not one.
    #[error("{}: draft vocabulary: {source}", path.display())]
    Vocab {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: DraftVocabError,
    },
    /// The drafter belongs to another target.
    #[error("the drafter was trained for another target: its {what} is {trained}, that of {target} is {found}")]
    OtherTarget {
        /// What differs.
        what: &'static str,
        /// The drafter's value.
        trained: String,
        /// The directory of the target at hand.
        target: String,
        /// The target's value.
        found: String,
    },
}

/// A drafter's file, opened: what it is, and its weights when asked for.
pub struct Checkpoint {
    /// Kind and sizes.
    pub config: DrafterConfig,
    /// Draft vocabulary.
    pub vocab: DraftVocab,
    /// Origin.
    pub provenance: Provenance,
    file: WeightFile,
}

impl Checkpoint {
    /// Opens the checkpoint in `dir` (or the safetensors file itself).
    ///
    /// # Errors
    /// Unreadable or truncated files, metadata that is missing or does not parse.
    pub fn open(dir: &Path) -> Result<Self, CheckpointError> {
        let path = if dir.is_file() { dir.to_path_buf() } else { dir.join(FILE) };
        let file = WeightFile::open(&path)?;
        let metadata = file.metadata();
        let entry = |key: &'static str| {
            let missing = || CheckpointError::Metadata { path: path.clone(), key, reason: "missing".into() };
            metadata.get(key).ok_or_else(missing)
        };
        fn parse<T: serde::de::DeserializeOwned>(
            path: &Path,
            key: &'static str,
            text: &str,
        ) -> Result<T, CheckpointError> {
            let wrong =
                |e: serde_json::Error| CheckpointError::Metadata { path: path.into(), key, reason: e.to_string() };
            serde_json::from_str(text).map_err(wrong)
        }
        let config: DrafterConfig = parse(&path, "config", entry("config")?)?;
        let offsets: Vec<i64> = parse(&path, "d2t", entry("d2t")?)?;
        let DrafterConfig::Eagle3(sizes) = &config;
        let vocab = DraftVocab::from_offsets(&offsets, sizes.vocab_size)
            .map_err(|source| CheckpointError::Vocab { path: path.clone(), source })?;
        let provenance = parse(&path, "provenance", entry("provenance")?)?;
        Ok(Self { config, vocab, provenance, file })
    }

    /// Writes an EAGLE-3 drafter to `dir`, whole or not at all; the scale of the taps is folded into its fusion.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn save(
        dir: &Path,
        weights: &Eagle3,
        drafter: &Eagle3Drafter,
        provenance: &Provenance,
    ) -> Result<(), CheckpointError> {
        let tensors = weights.folded(&drafter.scale).to_named(&drafter.config);
        Self::write(dir, &drafter.config, &drafter.vocab, &tensors, provenance)
    }

    /// Writes an EAGLE-3 drafter given as named tensors, its own head or embedding among them if it has them.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(crate) fn write(
        dir: &Path,
        sizes: &Eagle3Config,
        vocab: &DraftVocab,
        tensors: &[(String, F32Tensor)],
        provenance: &Provenance,
    ) -> Result<(), CheckpointError> {
        let config = DrafterConfig::Eagle3(sizes.clone());
        let metadata = BTreeMap::from([
            ("format".to_string(), "spectrain".to_string()),
            ("kind".into(), "eagle3".into()),
            ("config".into(), json(&config)),
            ("d2t".into(), json(&vocab.offsets())),
            ("provenance".into(), json(provenance)),
            ("guarantee".into(), provenance.guarantee.clone()),
        ]);
        Ok(write_safetensors(&dir.join(FILE), tensors, &metadata)?)
    }

    /// Refuses a target that the drafter was not trained for.
    ///
    /// # Errors
    /// [`CheckpointError::OtherTarget`] names what differs.
    pub fn check_target(&self, hash: &str, tokenizer_hash: &str, target: &Path) -> Result<(), CheckpointError> {
        let pairs = [
            ("weight hash", &self.provenance.target_hash, hash),
            ("tokenizer hash", &self.provenance.tokenizer_hash, tokenizer_hash),
        ];
        for (what, trained, found) in pairs {
            if trained != found {
                let (trained, found, target) = (trained.clone(), found.to_string(), target.display().to_string());
                return Err(CheckpointError::OtherTarget { what, trained, target, found });
            }
        }
        Ok(())
    }

    /// The EAGLE-3 weights on `device`.
    ///
    /// # Errors
    /// Tensors that are missing or misshapen, named.
    pub fn eagle3(&self, target: &Llama, device: &Device) -> Result<(Eagle3Drafter, Eagle3), CheckpointError> {
        let DrafterConfig::Eagle3(config) = &self.config;
        let weights = Eagle3::from_file(&self.file, config, device)?;
        let mut drafter = Eagle3Drafter::new(config.clone(), self.vocab.clone(), target).serving(&weights);
        let shape = [config.vocab_size, config.hidden_size];
        if let Some(embedding) = self.own(EMBEDDING, &shape)? {
            drafter.embedding = Tensor::from_data(TensorData::new(embedding, shape), target.device());
        }
        Ok((drafter, weights))
    }

    /// The drafter's own `name`, its head or embedding; `None` where it shares its target's.
    pub(crate) fn own(&self, name: &str, shape: &[usize]) -> Result<Option<Vec<f32>>, WeightError> {
        self.file.has(name).then(|| self.file.tensor_f32(name, shape)).transpose()
    }

    /// A trained weight.
    pub(crate) fn tensor(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, WeightError> {
        self.file.tensor_f32(name, shape)
    }

    /// The drafter, ready to propose for `target`.
    ///
    /// # Errors
    /// As [`Self::eagle3`].
    pub fn proposer(&self, target: &Llama) -> Result<Box<dyn Proposer>, CheckpointError> {
        match &self.config {
            DrafterConfig::Eagle3(_) => {
                let (drafter, weights) = self.eagle3(target, target.device())?;
                Ok(Box::new(Eagle3Proposer::new(drafter, &weights)))
            }
        }
    }
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("plain data has a JSON form")
}
