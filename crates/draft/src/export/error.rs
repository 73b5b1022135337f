//! Why a drafter could not be exported or imported.

use crate::checkpoint::CheckpointError;
use spectrain_core::tokenizer::TokenizerError;
use spectrain_data::draft_vocab::DraftVocabError;
use spectrain_data::weights::WeightError;
use spectrain_model::ModelError;
use std::path::PathBuf;

/// Why a drafter could not be exported or imported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The runtime cannot express this drafter.
    #[error("{format}: {reader} cannot run this drafter: {why}")]
    Refused {
        /// The format.
        format: &'static str,
        /// Who reads it.
        reader: &'static str,
        /// What it cannot express.
        why: String,
    },
    /// Something lies where the output should go.
    #[error("{}: exists and is not empty; choose another --out or remove it", out.display())]
    Occupied {
        /// The output.
        out: PathBuf,
    },
    /// The output cannot be made.
    #[error("output directory {} cannot be written: {source}", out.display())]
    Unwritable {
        /// The output.
        out: PathBuf,
        /// Why.
        source: WeightError,
    },
    /// The configuration is of no known format.
    #[error("{}: no drafter that can be imported: {why}", path.display())]
    Unknown {
        /// The file.
        path: PathBuf,
        /// What is known.
        why: String,
    },
    /// The configuration holds something that this build cannot run, or lacks something.
    #[error("{}: {why}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// What and what would help.
        why: String,
    },
    /// The tensors are not those of such a drafter.
    #[error("{}: {}", path.display(), lists(missing, unknown))]
    Names {
        /// The directory.
        path: PathBuf,
        /// Names that should be there.
        missing: Vec<String>,
        /// Names that nothing here would read.
        unknown: Vec<String>,
    },
    /// The vocabulary's maps are none.
    #[error("{}: draft vocabulary: {why}", path.display())]
    Vocab {
        /// The directory.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// What was written does not read as what was meant.
    #[error("{}: what was written is read back with another {what}", path.display())]
    Unfaithful {
        /// The file.
        path: PathBuf,
        /// What differs.
        what: String,
    },
    /// A file cannot be read or written.
    #[error(transparent)]
    Weights(#[from] WeightError),
    /// The checkpoint cannot be read, or belongs to another target.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The target is not one this build can run.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The target's tokenizer cannot be read.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}

impl ExportError {
    /// Whether what was asked for is wrong, rather than the work.
    pub fn is_request(&self) -> bool {
        !matches!(
            self,
            Self::Unfaithful { .. }
                | Self::Weights(WeightError::Io { .. })
                | Self::Checkpoint(CheckpointError::Weights(WeightError::Io { .. }))
        )
    }

    /// For `map_err`: the directory whose maps are wrong.
    pub(super) fn vocab(path: &std::path::Path) -> impl Fn(DraftVocabError) -> Self + '_ {
        move |error| Self::Vocab { path: path.to_owned(), why: error.to_string() }
    }
}

fn lists(missing: &[String], unknown: &[String]) -> String {
    let told = |what: &str, names: &[String]| (!names.is_empty()).then(|| format!("{what}: {}", names.join(", ")));
    let parts = [told("missing tensors", missing), told("unknown tensors", unknown)];
    parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
}
