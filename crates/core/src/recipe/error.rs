//! What can be wrong with a recipe. Each message is one line: where, what, and what would be right.

use std::path::PathBuf;

/// A recipe that cannot be used as it is written.
#[derive(Debug, thiserror::Error)]
pub enum RecipeError {
    /// The file cannot be read.
    #[error("cannot read the recipe {}; give a TOML file such as recipes/quickstart.toml", path.display())]
    Read {
        /// The recipe's file.
        path: PathBuf,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// The text is not TOML.
    #[error("{place}: not valid TOML: {message}")]
    Syntax {
        /// File and line.
        place: String,
        /// What the TOML parser says.
        message: String,
    },
    /// An override that is not of the form `table.key=value`.
    #[error("--set {set}: {message}")]
    Set {
        /// The override as it was given.
        set: String,
        /// What is wrong with it.
        message: String,
    },
    /// A key that no table of this name has.
    #[error("{place}: unknown key {key}; the nearest key of {table} is {nearest}")]
    UnknownKey {
        /// File and line, or the override.
        place: String,
        /// The key with its table, as in `train.epoch`.
        key: String,
        /// The table in words, as in `[train]`.
        table: String,
        /// The known key that is most like it.
        nearest: &'static str,
    },
    /// A key without a default that is not there.
    #[error("{origin}: {key} is missing; it must be {right}")]
    Missing {
        /// The recipe's file.
        origin: String,
        /// The key with its table.
        key: &'static str,
        /// What would be right.
        right: &'static str,
    },
    /// A value of the wrong type or out of range.
    #[error(transparent)]
    Value(#[from] PlanError),
}

/// A key whose value cannot be right, by itself or for this target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {key} {message}")]
pub struct PlanError {
    /// File and line, the override, or the file alone if the value is a default.
    pub place: String,
    /// The key with its table, as in `loss.unroll`.
    pub key: String,
    /// What it is, and what it must be.
    pub message: String,
}
