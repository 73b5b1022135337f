//! The feature store: what `capture` writes once and training reads many times.
//!
//! A store is a directory of Parquet shards (`features-00000.parquet`, …) and a `manifest.json` that is written last, so
//! a directory without a manifest is an interrupted capture and never a short data set. Features are kept instead of
//! logits: the distribution over the whole vocabulary is recomputed from the last hidden state and the stored
//! normaliser, at a small part of the size.
//!
//! bf16 features are stored as one little-endian blob a row (Parquet `BYTE_ARRAY`), plain-encoded and uncompressed: zstd
//! at level 1 saves a fifth of such bytes, and reads take three times as long, writes a third longer.

mod atomic;
mod reader;
mod schema;
mod writer;

use std::path::{Path, PathBuf};

use half::bf16;
use serde::{Deserialize, Serialize};
use thiserror::Error;

pub(crate) use atomic::AtomicFile;
pub use atomic::{sha256, sha256_file};
pub use reader::StoreReader;
pub(crate) use schema::{column, elements, u32_lists};
pub use writer::StoreWriter;

/// Version of the directory layout; a reader refuses any other.
pub const FORMAT: u32 = 1;

/// Name of the file that makes a directory a complete store.
pub const MANIFEST: &str = "manifest.json";

/// One captured conversation of `n` tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct FeatureRow {
    /// The request that the answer was generated under; it keys the sampler's random numbers.
    pub request: u64,
    /// Prompt and answer tokens, `[n]`, exactly as they were generated.
    pub ids: Vec<u32>,
    /// `[n]`: whether token `i` is supervised, that is, predicted under the loss.
    pub loss_mask: Vec<bool>,
    /// `[n, k * hidden]` row-major: the `k` tapped hidden states of each token, side by side.
    pub taps: Vec<bf16>,
    /// `[n, hidden]` row-major: the input of the target's head, after the final norm.
    pub last_hidden: Vec<bf16>,
    /// `[n]`: natural log of the sum of exponentials of the target's logits at row `i` over the full vocabulary, at
    /// temperature 1; NaN where it was not computed.
    pub logsumexp: Vec<f32>,
    /// Temperature that the answer was sampled at; 0 is greedy.
    pub temperature: f32,
    /// The ids came from text, so they are no sample of the target.
    pub off_policy: bool,
}

/// What a store was made from; fixed when the store is created.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreMeta {
    /// Hash of the target's weights and configuration.
    pub target_hash: String,
    /// Hash of the answers file that was captured.
    pub answers_hash: String,
    /// Layers tapped, in the order of their columns in [`FeatureRow::taps`].
    pub taps: Vec<usize>,
    /// Width of one hidden state.
    pub hidden: usize,
    /// Size of the target's vocabulary.
    pub target_vocab: usize,
    /// Version of spectrain that captured the store.
    pub spectrain_version: String,
}

/// Element types of the columns, written out for readers in other languages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dtypes {
    /// Type of [`FeatureRow::taps`].
    pub taps: String,
    /// Type of [`FeatureRow::last_hidden`].
    pub last_hidden: String,
    /// Type of [`FeatureRow::logsumexp`].
    pub logsumexp: String,
}

impl Default for Dtypes {
    fn default() -> Self {
        Self { taps: "bf16".into(), last_hidden: "bf16".into(), logsumexp: "f32".into() }
    }
}

/// One Parquet file of a store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// File name inside the store's directory.
    pub file: String,
    /// File size in bytes.
    pub bytes: u64,
    /// SHA-256 of the file, lower-case hexadecimal.
    pub sha256: String,
    /// Tokens of each row, in row order.
    pub lens: Vec<usize>,
}

/// Contents of `manifest.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Layout version, [`FORMAT`].
    pub format: u32,
    /// Where the features came from.
    #[serde(flatten)]
    pub meta: StoreMeta,
    /// Element types.
    pub dtypes: Dtypes,
    /// Rows in all shards.
    pub rows: usize,
    /// Tokens in all rows.
    pub tokens: usize,
    /// The shards in row order.
    pub shards: Vec<Shard>,
}

/// Why a store or an answers file could not be written or read.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The operating system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// File or directory.
        path: PathBuf,
        /// What it said.
        source: std::io::Error,
    },
    /// Parquet could not read or write the file: truncated, damaged or no Parquet.
    #[error("{}: {source}", path.display())]
    Parquet {
        /// The file.
        path: PathBuf,
        /// What the library said.
        source: parquet::errors::ParquetError,
    },
    /// Arrow could not assemble or decode a batch.
    #[error("{}: {source}", path.display())]
    Arrow {
        /// The file.
        path: PathBuf,
        /// What the library said.
        source: arrow_schema::ArrowError,
    },
    /// Metadata is no JSON of the expected form.
    #[error("{}: metadata: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What the library said.
        source: serde_json::Error,
    },
    /// No manifest: the capture did not finish, or the directory is no store.
    #[error("{}: no {MANIFEST}: not a feature store, or its capture did not finish", path.display())]
    NoManifest {
        /// The directory.
        path: PathBuf,
    },
    /// A finished store is never overwritten.
    #[error("{}: already holds a complete feature store", path.display())]
    Exists {
        /// The directory.
        path: PathBuf,
    },
    /// The file is not what its metadata says.
    #[error("{}: {what}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        what: String,
    },
    /// A row given to the writer does not fit the store.
    #[error("row {row} (request {request}): {what}")]
    Row {
        /// Rows pushed before it.
        row: usize,
        /// Its request.
        request: u64,
        /// What does not fit.
        what: String,
    },
    /// A row number past the end was asked for.
    #[error("row {row} of a store of {rows} rows")]
    OutOfRange {
        /// The row asked for.
        row: usize,
        /// Rows there are.
        rows: usize,
    },
}

impl StoreError {
    pub(crate) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self + use<> {
        let path = path.to_path_buf();
        move |source| Self::Io { path, source }
    }

    pub(crate) fn parquet(path: &Path) -> impl FnOnce(parquet::errors::ParquetError) -> Self + use<> {
        let path = path.to_path_buf();
        move |source| Self::Parquet { path, source }
    }

    pub(crate) fn arrow(path: &Path) -> impl FnOnce(arrow_schema::ArrowError) -> Self + use<> {
        let path = path.to_path_buf();
        move |source| Self::Arrow { path, source }
    }

    pub(crate) fn json(path: &Path) -> impl FnOnce(serde_json::Error) -> Self + use<> {
        let path = path.to_path_buf();
        move |source| Self::Json { path, source }
    }

    pub(crate) fn corrupt(path: &Path, what: impl Into<String>) -> Self {
        Self::Corrupt { path: path.to_path_buf(), what: what.into() }
    }
}

/// Name of shard `index` inside a store.
fn shard_name(index: usize) -> String {
    format!("features-{index:05}.parquet")
}
