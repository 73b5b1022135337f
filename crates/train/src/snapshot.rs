//! Everything a run needs to go on as if it had never stopped: `state/` of a checkpoint.
//!
//! Order of the data, learning rate, dropout and noise depend on the step alone, so weights, their average, optimiser
//! state, the step, and what the loop remembers (sums since the last record and of the epoch, recent losses, the best
//! length) are all there is. Numbers are kept as bits: a decimal that is read back one unit off would show.

use crate::state::{Progress, State};
use burn::module::Module;
use burn::optim::OptimizerRecord;
use serde::{Deserialize, Serialize};
use spectrain_data::weights::{WeightFile, write_atomically, write_safetensors};
use spectrain_draft::{Eagle3, Eagle3Config};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Directory of the state inside a checkpoint.
pub const DIR: &str = "state";
const WEIGHTS: &str = "weights.safetensors";
const AVERAGE: &str = "average.safetensors";
const OPTIMISER: &str = "optimizer.bpk";
const PROGRESS: &str = "progress.json";

/// A run between two optimiser steps.
pub struct Snapshot {
    /// Weights as they are trained.
    pub weights: Eagle3,
    /// Their average on a plain device, where the run has one.
    pub average: Option<Eagle3>,
    /// Moments of every parameter.
    pub optimiser: OptimizerRecord,
    pub(crate) progress: Progress,
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

/// The stored form of what is no tensor.
#[derive(Serialize, Deserialize)]
struct Stored {
    /// Whether there is an average of the weights beside them.
    average: bool,
    #[serde(flatten)]
    progress: Progress,
}

/// Writes the state of a run to `dir/state`.
///
/// # Errors
/// When a file cannot be written.
pub(crate) fn save(dir: &Path, state: &State, config: &Eagle3Config) -> Result<(), SnapshotError> {
    let dir = dir.join(DIR);
    std::fs::create_dir_all(&dir).map_err(|e| error(&dir)(&e))?;
    for (file, weights) in [(WEIGHTS, Some(&state.weights)), (AVERAGE, state.average.as_ref())] {
        let (path, Some(weights)) = (dir.join(file), weights) else { continue };
        write_safetensors(&path, &weights.to_named(config), &BTreeMap::new()).map_err(|e| error(&path)(&e))?;
    }
    let path = dir.join(OPTIMISER);
    let bytes = state.optimiser.to_record().into_bytes().map_err(|e| error(&path)(&e))?;
    write_atomically(&path, |out| out.write_all(&bytes)).map_err(|e| error(&path)(&e))?;
    let path = dir.join(PROGRESS);
    let stored = Stored { average: state.average.is_some(), progress: state.progress.clone() };
    let text = serde_json::to_string(&stored).map_err(|e| error(&path)(&e))?;
    write_atomically(&path, |out| out.write_all(text.as_bytes())).map_err(|e| error(&path)(&e))
}

impl Snapshot {
    /// Optimiser steps taken.
    pub fn step(&self) -> usize {
        self.progress.step
    }

    /// Reads the state in the checkpoint directory `dir`; the weights come to `device`.
    ///
    /// # Errors
    /// Files that are missing, cut off or of another drafter.
    pub fn load(dir: &Path, config: &Eagle3Config, device: &burn::tensor::Device) -> Result<Self, SnapshotError> {
        let dir = dir.join(DIR);
        let path = dir.join(PROGRESS);
        let text = std::fs::read_to_string(&path).map_err(|e| error(&path)(&e))?;
        let Stored { average, progress } = serde_json::from_str(&text).map_err(|e| error(&path)(&e))?;
        let read = |file: &str| {
            let path = dir.join(file);
            let file = WeightFile::open(&path).map_err(|e| error(&path)(&e))?;
            Eagle3::from_file(&file, config, device).map_err(|e| error(&path)(&e))
        };
        let weights = read(WEIGHTS)?;
        let average = if average { Some(read(AVERAGE)?.valid()) } else { None };
        let path = dir.join(OPTIMISER);
        let optimiser = OptimizerRecord::load(&path).map_err(|e| error(&path)(&e))?;
        Ok(Self { weights, average, optimiser, progress })
    }
}
