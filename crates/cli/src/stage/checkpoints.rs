//! The checkpoints of a run: `checkpoints/step-N`, each whole or absent, the newest with the state to go on from, and
//! `checkpoints/best`, the best so far. `best` beside them says that the run has ended.

use super::setup::RunDir;
use spectrain_data::weights::write_atomically;
use spectrain_draft::{Checkpoint, checkpoint};
use spectrain_train::snapshot;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Where they lie in a run directory.
pub const DIR: &str = "checkpoints";

/// The best checkpoint so far, in [`DIR`].
const BEST: &str = "best";

/// `e` with the path that it befell.
fn told(path: &Path) -> impl Fn(io::Error) -> String {
    let path = path.to_path_buf();
    move |e| format!("{}: {e}", path.display())
}

/// Writes the directory `name` of [`DIR`] with `fill`, which gets a directory to write to.
fn place(run: &RunDir, name: &str, fill: impl FnOnce(&Path) -> Result<(), String>) -> Result<(), String> {
    let dir = run.join(DIR).join(name);
    let partial = run.join(DIR).join(format!(".{name}.partial"));
    remove(&partial).map_err(told(&partial))?;
    fs::create_dir_all(&partial).map_err(told(&partial))?;
    fill(&partial)?;
    remove(&dir).and_then(|()| fs::rename(&partial, &dir)).map_err(told(&dir))
}

/// Writes the best checkpoint so far with `fill`, which gets a directory to write to. A run that goes on from before it
/// comes to the same one again.
pub fn write_best(run: &RunDir, fill: impl FnOnce(&Path) -> Result<(), String>) -> Result<(), String> {
    place(run, BEST, fill)
}

/// Makes the best checkpoint so far the run's; returns whether there was one.
pub fn settle_best(run: &RunDir) -> Result<bool, String> {
    let from = run.join(DIR).join(BEST);
    if !from.join(checkpoint::FILE).is_file() {
        return Ok(false);
    }
    copy_drafter(&from, &run.join("best")).map(|()| true)
}

/// Writes checkpoint `step` with `fill`, which gets a directory to write to; older ones lose their state.
pub fn write(run: &RunDir, step: usize, fill: impl FnOnce(&Path) -> Result<(), String>) -> Result<(), String> {
    place(run, &format!("step-{step}"), fill)?;
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

/// Makes the drafter in `from` the run's best. What an earlier training could go on from is left without its state: it
/// has ended, and would not come to this drafter.
pub fn replace_best(run: &RunDir, from: &Path) -> Result<(), String> {
    for (_, path) in list(run) {
        remove(&path.join(snapshot::DIR)).map_err(told(&path))?;
    }
    copy_drafter(from, &run.join("best"))
}

/// Copies a drafter's file between checkpoint directories, whole or not at all.
fn copy_drafter(from: &Path, to: &Path) -> Result<(), String> {
    fs::create_dir_all(to).map_err(told(to))?;
    let to = to.join(checkpoint::FILE);
    let copied =
        fs::read(from.join(checkpoint::FILE)).and_then(|bytes| write_atomically(&to, |out| out.write_all(&bytes)));
    copied.map_err(told(&to))
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
