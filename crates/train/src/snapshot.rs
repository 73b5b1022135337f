//! Everything a run needs to go on as if it had never stopped: `state/` of a checkpoint.
//!
//! Order of the data and learning rate depend on the step alone, and nothing else is random, so weights, optimiser
//! state, the step and the sums since the last record are all there is. Sums are kept as bits: a decimal that is read
//! back one unit off would show in the metrics.

use crate::window::Window;
use burn::optim::{ModuleOptimizer, OptimizerRecord};
use serde::{Deserialize, Serialize};
use spectrain_data::weights::{WeightFile, write_atomically, write_safetensors};
use spectrain_draft::{Eagle3, Eagle3Config};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Directory of the state inside a checkpoint.
pub const DIR: &str = "state";
const WEIGHTS: &str = "weights.safetensors";
const OPTIMISER: &str = "optimizer.bpk";
const PROGRESS: &str = "progress.json";

/// A run between two optimiser steps.
pub struct Snapshot {
    /// Optimiser steps taken.
    pub step: usize,
    /// Weights as they are trained.
    pub weights: Eagle3,
    /// Moments of every parameter.
    pub optimiser: OptimizerRecord,
    /// Sums since the last record.
    pub(crate) window: Window,
}

/// Why a state could not be written or read.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub struct SnapshotError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: String,
}

fn error(path: &Path) -> impl Fn(&dyn std::fmt::Display) -> SnapshotError + '_ {
    |reason| SnapshotError { path: path.to_path_buf(), reason: reason.to_string() }
}

/// What is neither a weight nor a moment.
#[derive(Serialize, Deserialize)]
struct Progress {
    step: usize,
    window: Window,
}

/// Writes the state of a run to `dir/state`.
///
/// # Errors
/// When a file cannot be written.
pub(crate) fn save(
    dir: &Path,
    step: usize,
    weights: &Eagle3,
    config: &Eagle3Config,
    optimiser: &ModuleOptimizer,
    window: &Window,
) -> Result<(), SnapshotError> {
    let dir = dir.join(DIR);
    std::fs::create_dir_all(&dir).map_err(|e| error(&dir)(&e))?;
    let path = dir.join(WEIGHTS);
    write_safetensors(&path, &weights.to_named(config), &BTreeMap::new()).map_err(|e| error(&path)(&e))?;
    let path = dir.join(OPTIMISER);
    let bytes = optimiser.to_record().into_bytes().map_err(|e| error(&path)(&e))?;
    write_atomically(&path, |out| out.write_all(&bytes)).map_err(|e| error(&path)(&e))?;
    let path = dir.join(PROGRESS);
    let text = serde_json::to_string(&Progress { step, window: window.clone() }).map_err(|e| error(&path)(&e))?;
    write_atomically(&path, |out| out.write_all(text.as_bytes())).map_err(|e| error(&path)(&e))
}

impl Snapshot {
    /// Reads the state in the checkpoint directory `dir`; the weights come to `device`.
    ///
    /// # Errors
    /// Files that are missing, cut off or of another drafter.
    pub fn load(dir: &Path, config: &Eagle3Config, device: &burn::tensor::Device) -> Result<Self, SnapshotError> {
        let dir = dir.join(DIR);
        let path = dir.join(PROGRESS);
        let text = std::fs::read_to_string(&path).map_err(|e| error(&path)(&e))?;
        let Progress { step, window } = serde_json::from_str(&text).map_err(|e| error(&path)(&e))?;
        let path = dir.join(WEIGHTS);
        let file = WeightFile::open(&path).map_err(|e| error(&path)(&e))?;
        let weights = Eagle3::from_file(&file, config, device).map_err(|e| error(&path)(&e))?;
        let path = dir.join(OPTIMISER);
        let optimiser = OptimizerRecord::load(&path).map_err(|e| error(&path)(&e))?;
        Ok(Self { step, weights, optimiser, window })
    }
}
