//! Drafters in the formats of other runtimes, out and in: one module a format, one line each in [`FORMATS`].
//!
//! A loader that meets a name or a setting it does not know mostly goes on with a default, and the drafter then proposes
//! nonsense at full speed. So everything a format leaves silent is written, names are checked both ways, what a runtime
//! cannot express is refused before anything is written, and what was written is read again before it gets its name.

mod directory;
mod error;
mod import;
mod keys;
mod llama_eagle3;
mod llamacpp;
mod portable;
mod sglang;
mod speculators;
mod target;
mod tensor;
mod vllm;

pub use directory::{Exported, MANIFEST, export};
pub use error::ExportError;
pub use import::{Imported, import};
pub use target::TargetDir;

use crate::eagle3::Eagle3Config;
use keys::Layer;
use portable::Portable;
use serde_json::Value;
use std::path::Path;

/// Every format.
pub const FORMATS: [&Format; 4] = [&speculators::FORMAT, &sglang::FORMAT, &vllm::FORMAT, &llamacpp::FORMAT];

/// One runtime's directory format.
pub struct Format {
    /// What it is called on the command line.
    pub name: &'static str,
    /// Who reads it.
    pub reader: &'static str,
    /// The command that uses a directory DRAFTER of it with the target TARGET.
    next: &'static str,
    /// Name of the decoder layer in tensor names.
    layer: Layer,
    /// Whether the embedding is stored even where it is the target's.
    stores_shared_embedding: bool,
    /// Whether the vocabulary's maps are left out where the draft vocabulary is the target's.
    omits_full_maps: bool,
    /// What the runtime cannot express of a drafter.
    refuse: fn(&Portable) -> Option<String>,
    /// The whole `config.json`.
    config: fn(&Portable) -> Value,
    /// The drafter's sizes from a `config.json`; says what cannot be used.
    read: fn(&Value, &TargetDir) -> Result<Eagle3Config, String>,
}

impl Format {
    /// The format of this name.
    ///
    /// # Errors
    /// Names the formats there are.
    pub fn named(name: &str) -> Result<&'static Self, String> {
        let known = || FORMATS.map(|format| format.name).join(", ");
        FORMATS.into_iter().find(|format| format.name == name).ok_or_else(|| format!("formats are {}", known()))
    }

    /// The command that uses the exported directory `drafter` with `target`.
    pub fn next(&self, drafter: &Path, target: &Path) -> String {
        let words = [("DRAFTER", drafter), ("TARGET", target)];
        words.iter().fold(self.next.to_owned(), |text, (word, path)| text.replace(word, &path.display().to_string()))
    }
}

impl std::fmt::Debug for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// Why a runtime that collects taps as its layers run cannot serve `taps`, of which it takes exactly three.
fn three_ascending(taps: &[usize]) -> Option<String> {
    if taps.len() != 3 {
        return Some(format!("it reads exactly 3 taps, the drafter has {taps:?}"));
    }
    let ascending = taps.is_sorted_by(|a, b| a < b);
    (!ascending).then(|| format!("it hands over taps in the order of the layers, the drafter reads {taps:?}"))
}
