//! Where a file of a run comes from: the run's provenance, and the target's directory if it is still there.

use crate::stage;
use serde_json::Value;
use spectrain_core::recipe::Recipe;
use spectrain_core::tokenizer::Tokenizer;
use std::path::{Path, PathBuf, absolute};

/// Levels above a file where its run's directory is looked for: `run/checkpoints/step-N/drafter.safetensors`.
const LEVELS: usize = 4;

/// The run that a path belongs to.
pub struct Origin {
    dir: PathBuf,
    provenance: Value,
}

impl Origin {
    /// The nearest directory at or above `path` that holds a resolved recipe.
    pub fn of(path: &Path) -> Option<Self> {
        let path = absolute(path).ok()?;
        let dir = path.ancestors().take(LEVELS).find(|dir| dir.join("recipe.toml").is_file())?.to_path_buf();
        let provenance = std::fs::read_to_string(dir.join("provenance.json")).unwrap_or_default();
        Some(Self { dir, provenance: serde_json::from_str(&provenance).unwrap_or_default() })
    }

    /// A string of `provenance.json`.
    pub fn provenance(&self, key: &str) -> Option<&str> {
        self.provenance[key].as_str()
    }

    /// Directory of the run's target. A relative one is looked for from here and from above the run, whose own place
    /// it was relative to.
    pub fn target(&self) -> Option<PathBuf> {
        if let Some(path) = self.provenance("target") {
            let above = self.dir.ancestors().skip(1).map(|dir| dir.join(path));
            if let Some(found) = std::iter::once(PathBuf::from(path)).chain(above).find(|dir| dir.is_dir()) {
                return Some(found);
            }
        }
        let recipe = Recipe::load(&self.dir.join("recipe.toml"), &[]).ok()?;
        stage::locate_target(&recipe.target.path, false).ok()
    }

    /// The target's tokenizer, if it is the one with this hash.
    pub fn tokenizer(&self, hash: &str) -> Option<Tokenizer> {
        Tokenizer::load(&self.target()?).ok().filter(|tokenizer| tokenizer.content_hash() == hash)
    }
}
