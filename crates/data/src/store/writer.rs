//! Writes a feature store row by row; memory is bounded by one row group and one row, whatever the size of the store.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_schema::Schema;
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::{EnabledStatistics, WriterProperties};

use super::schema::{check_row, feature_schema, to_batch};
use super::{AtomicFile, Dtypes, FORMAT, FeatureRow, MANIFEST, Manifest, Shard, StoreError, StoreMeta, shard_name};

/// Feature bytes after which a shard is closed.
const SHARD_BYTES: usize = 64 << 20;
/// Feature bytes of a row group: what a reader decodes to get at one row.
const GROUP_BYTES: usize = 4 << 20;
/// Parquet's page sizes are signed 32-bit.
const MAX_ROW_BYTES: usize = 1 << 30;

/// A store in the making: [`StoreWriter::push`] rows, then [`StoreWriter::finish`].
pub struct StoreWriter {
    dir: PathBuf,
    meta: StoreMeta,
    schema: Arc<Schema>,
    rows: usize,
    pending: Vec<FeatureRow>,
    pending_bytes: usize,
    open: Option<OpenShard>,
    shards: Vec<Shard>,
}

struct OpenShard {
    path: PathBuf,
    writer: ArrowWriter<AtomicFile>,
    bytes: usize,
    lens: Vec<usize>,
}

impl StoreWriter {
    /// Starts a store in `dir`, which is created if it is missing. Shards that an interrupted capture left there are
    /// removed.
    ///
    /// # Errors
    /// [`StoreError::Exists`] when `dir` holds a finished store; [`StoreError::Io`] when it cannot be written.
    pub fn create(dir: &Path, meta: StoreMeta) -> Result<Self, StoreError> {
        fs::create_dir_all(dir).map_err(StoreError::io(dir))?;
        if dir.join(MANIFEST).exists() {
            return Err(StoreError::Exists { path: dir.to_path_buf() });
        }
        remove_leftovers(dir)?;
        Ok(Self {
            dir: dir.to_path_buf(),
            meta,
            schema: Arc::new(feature_schema()),
            rows: 0,
            pending: Vec::new(),
            pending_bytes: 0,
            open: None,
            shards: Vec::new(),
        })
    }

    /// Adds a row.
    ///
    /// # Errors
    /// [`StoreError::Row`] when the row's sizes disagree with each other or with the store; errors of writing.
    pub fn push(&mut self, row: FeatureRow) -> Result<(), StoreError> {
        let bytes = 2 * (row.taps.len() + row.last_hidden.len());
        let fault = check_row(&row, &self.meta).err().or_else(|| {
            (bytes > MAX_ROW_BYTES).then(|| format!("{bytes} bytes of features, at most {MAX_ROW_BYTES} fit a row"))
        });
        if let Some(what) = fault {
            return Err(StoreError::Row { row: self.rows, request: row.request, what });
        }
        self.rows += 1;
        self.pending_bytes += bytes;
        self.pending.push(row);
        if self.pending_bytes >= GROUP_BYTES {
            self.write_group()?;
        }
        Ok(())
    }

    /// Closes the last shard and writes the manifest, which makes the store readable.
    ///
    /// # Errors
    /// Errors of writing; the directory then holds no manifest.
    pub fn finish(mut self) -> Result<Manifest, StoreError> {
        if !self.pending.is_empty() {
            self.write_group()?;
        }
        self.close_shard()?;
        let manifest = Manifest {
            format: FORMAT,
            meta: self.meta,
            dtypes: Dtypes::default(),
            rows: self.rows,
            tokens: self.shards.iter().flat_map(|s| &s.lens).sum(),
            shards: self.shards,
        };
        let path = self.dir.join(MANIFEST);
        let text = serde_json::to_vec(&manifest).map_err(StoreError::json(&path))?;
        let mut file = AtomicFile::create(&path)?;
        file.write_all(&text).map_err(StoreError::io(&path))?;
        file.commit()?;
        Ok(manifest)
    }

    fn write_group(&mut self) -> Result<(), StoreError> {
        let shard = match &mut self.open {
            Some(shard) => shard,
            None => {
                let path = self.dir.join(shard_name(self.shards.len()));
                self.open.insert(OpenShard::create(path, &self.schema)?)
            }
        };
        let batch = to_batch(&self.schema, &self.pending, &shard.path)?;
        shard.writer.write(&batch).map_err(StoreError::parquet(&shard.path))?;
        shard.writer.flush().map_err(StoreError::parquet(&shard.path))?;
        shard.lens.extend(self.pending.iter().map(|row| row.ids.len()));
        shard.bytes += self.pending_bytes;
        let full = shard.bytes >= SHARD_BYTES;
        self.pending.clear();
        self.pending_bytes = 0;
        if full {
            self.close_shard()?;
        }
        Ok(())
    }

    fn close_shard(&mut self) -> Result<(), StoreError> {
        if let Some(shard) = self.open.take() {
            let file = shard.writer.into_inner().map_err(StoreError::parquet(&shard.path))?;
            let (bytes, sha256) = file.commit()?;
            self.shards.push(Shard { file: shard_name(self.shards.len()), bytes, sha256, lens: shard.lens });
        }
        Ok(())
    }
}

impl OpenShard {
    fn create(path: PathBuf, schema: &Arc<Schema>) -> Result<Self, StoreError> {
        let properties = WriterProperties::builder()
            .set_compression(Compression::UNCOMPRESSED)
            .set_dictionary_enabled(false)
            .set_statistics_enabled(EnabledStatistics::None)
            .build();
        let file = AtomicFile::create(&path)?;
        let writer =
            ArrowWriter::try_new(file, schema.clone(), Some(properties)).map_err(StoreError::parquet(&path))?;
        Ok(Self { path, writer, bytes: 0, lens: Vec::new() })
    }
}

fn remove_leftovers(dir: &Path) -> Result<(), StoreError> {
    for entry in fs::read_dir(dir).map_err(StoreError::io(dir))? {
        let path = entry.map_err(StoreError::io(dir))?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let name = name.strip_suffix(".partial").unwrap_or(name);
        if name.starts_with("features-") && name.ends_with(".parquet") {
            fs::remove_file(&path).map_err(StoreError::io(&path))?;
        }
    }
    Ok(())
}
