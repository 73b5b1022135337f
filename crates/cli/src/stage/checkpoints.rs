//! The checkpoints of a run: `checkpoints/step-N`, each whole or absent, the newest with the state to go on from.

use super::setup::RunDir;
use spectrain_draft::Checkpoint;
use spectrain_train::snapshot;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Where they lie in a run directory.
pub const DIR: &str = "checkpoints";

/// Writes checkpoint `step` with `fill`, which gets a directory to write to; older ones lose their state.
pub fn write(run: &RunDir, step: usize, fill: impl FnOnce(&Path) -> Result<(), String>) -> Result<(), String> {
    let dir = run.join(DIR).join(format!("step-{step}"));
    let partial = run.join(DIR).join(format!(".step-{step}.partial"));
    let told = |path: &Path| {
        let path = path.to_path_buf();
        move |e: io::Error| format!("{}: {e}", path.display())
    };
    remove(&partial).map_err(told(&partial))?;
    fs::create_dir_all(&partial).map_err(told(&partial))?;
    fill(&partial)?;
    remove(&dir).and_then(|()| fs::rename(&partial, &dir)).map_err(told(&dir))?;
    for (other, path) in list(run) {
        if other != step {
            remove(&path.join(snapshot::DIR)).map_err(told(&path))?;
        }
    }
    Ok(())
}

/// The newest checkpoint that a run with this hash can go on from.
pub fn newest(run: &RunDir, hash: &str) -> Option<PathBuf> {
    let fits = |path: &PathBuf| {
        path.join(snapshot::DIR).is_dir() && Checkpoint::open(path).is_ok_and(|c| c.provenance.run == hash)
    };
    list(run).into_iter().rev().map(|(_, path)| path).find(fits)
}

/// Whether a run with this hash ended: its drafter was written to `best`.
pub fn ended(run: &RunDir, hash: &str) -> bool {
    Checkpoint::open(&run.join("best")).is_ok_and(|c| c.provenance.run == hash)
}

/// Removes all checkpoints, before a run that starts afresh.
pub fn clear(run: &RunDir) -> io::Result<()> {
    remove(&run.join(DIR))
}

/// Whole checkpoints by step.
fn list(run: &RunDir) -> Vec<(usize, PathBuf)> {
    let entries = fs::read_dir(run.join(DIR)).into_iter().flatten().flatten();
    let step = |e: fs::DirEntry| {
        let step = e.file_name().to_str()?.strip_prefix("step-")?.parse().ok()?;
        Some((step, e.path()))
    };
    let mut found: Vec<_> = entries.filter_map(step).collect();
    found.sort();
    found
}

fn remove(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}
