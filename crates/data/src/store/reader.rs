//! Reads a feature store: any row by its number, or all of them in order.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use super::schema::from_batch;
use super::{FORMAT, FeatureRow, MANIFEST, Manifest, StoreError, StoreMeta, sha256_file, shard_name};

/// An open store. It holds the manifest; features are read when asked for.
pub struct StoreReader {
    dir: PathBuf,
    manifest: Manifest,
    lens: Vec<usize>,
    /// Number of the first row of each shard.
    starts: Vec<usize>,
}

impl StoreReader {
    /// Opens the store in `dir`: the manifest must agree with itself and every shard must have its size. Contents are
    /// checked by [`StoreReader::verify`].
    ///
    /// # Errors
    /// [`StoreError::NoManifest`], [`StoreError::Json`], or [`StoreError::Corrupt`] when a shard is missing, truncated
    /// or the manifest contradicts itself.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        let path = dir.join(MANIFEST);
        let text = match fs::read(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return Err(StoreError::NoManifest { path: dir.to_path_buf() });
            }
            other => other.map_err(StoreError::io(&path))?,
        };
        let manifest: Manifest = serde_json::from_slice(&text).map_err(StoreError::json(&path))?;
        if manifest.format != FORMAT {
            let what = format!("store format {}, this version reads {FORMAT}", manifest.format);
            return Err(StoreError::corrupt(&path, what));
        }
        let mut lens = Vec::with_capacity(manifest.rows);
        let mut starts = Vec::with_capacity(manifest.shards.len());
        for (index, shard) in manifest.shards.iter().enumerate() {
            if shard.file != shard_name(index) {
                return Err(StoreError::corrupt(&path, format!("shard {index} is named `{}`", shard.file)));
            }
            let file = dir.join(&shard.file);
            let bytes = fs::metadata(&file).map_err(StoreError::io(&file))?.len();
            if bytes != shard.bytes {
                let what = format!("{bytes} bytes, the manifest says {}: truncated or replaced", shard.bytes);
                return Err(StoreError::corrupt(&file, what));
            }
            starts.push(lens.len());
            lens.extend(&shard.lens);
        }
        if lens.len() != manifest.rows || lens.iter().sum::<usize>() != manifest.tokens {
            return Err(StoreError::corrupt(&path, "rows and tokens are not the sums over the shards"));
        }
        Ok(Self { dir: dir.to_path_buf(), manifest, lens, starts })
    }

    /// Compares every shard with its SHA-256.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] names the first shard that differs.
    pub fn verify(&self) -> Result<(), StoreError> {
        for shard in &self.manifest.shards {
            let path = self.dir.join(&shard.file);
            if sha256_file(&path)? != shard.sha256 {
                return Err(StoreError::corrupt(&path, "contents differ from the manifest's SHA-256"));
            }
        }
        Ok(())
    }

    /// What the store was made from.
    pub fn meta(&self) -> &StoreMeta {
        &self.manifest.meta
    }

    /// The whole manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.lens.len()
    }

    /// Whether the store has no rows.
    pub fn is_empty(&self) -> bool {
        self.lens.is_empty()
    }

    /// Tokens of each row.
    pub fn lens(&self) -> &[usize] {
        &self.lens
    }

    /// Row `i`; decodes the row group that it lies in.
    ///
    /// # Errors
    /// [`StoreError::OutOfRange`]; errors of reading.
    pub fn read(&self, i: usize) -> Result<FeatureRow, StoreError> {
        let out_of_range = StoreError::OutOfRange { row: i, rows: self.len() };
        if i >= self.len() {
            return Err(out_of_range);
        }
        let shard = self.starts.partition_point(|&start| start <= i) - 1;
        let (path, builder) = self.shard(shard)?;
        let mut offset = i - self.starts[shard];
        for group in 0..builder.metadata().num_row_groups() {
            let rows = builder.metadata().row_group(group).num_rows() as usize;
            if offset < rows {
                let one = builder.with_row_groups(vec![group]).with_offset(offset).with_limit(1);
                return self.decode(one, i, &path)?.pop().ok_or(out_of_range);
            }
            offset -= rows;
        }
        Err(StoreError::corrupt(&path, "fewer rows than the manifest says"))
    }

    /// The rows of shard `shard`, in order (about 64 MB of features).
    ///
    /// # Errors
    /// Errors of reading.
    ///
    /// # Panics
    /// If there is no such shard.
    pub fn read_shard(&self, shard: usize) -> Result<Vec<FeatureRow>, StoreError> {
        let (path, builder) = self.shard(shard)?;
        let rows = self.decode(builder, self.starts[shard], &path)?;
        if rows.len() != self.manifest.shards[shard].lens.len() {
            return Err(StoreError::corrupt(&path, "not as many rows as the manifest says"));
        }
        Ok(rows)
    }

    /// Every row, in order: the whole store in memory.
    ///
    /// # Errors
    /// Errors of reading.
    pub fn read_all(&self) -> Result<Vec<FeatureRow>, StoreError> {
        let mut rows = Vec::with_capacity(self.len());
        for shard in 0..self.manifest.shards.len() {
            rows.extend(self.read_shard(shard)?);
        }
        Ok(rows)
    }

    fn shard(&self, shard: usize) -> Result<(PathBuf, ParquetRecordBatchReaderBuilder<File>), StoreError> {
        let path = self.dir.join(&self.manifest.shards[shard].file);
        let file = File::open(&path).map_err(StoreError::io(&path))?;
        let builder = ParquetRecordBatchReaderBuilder::try_new(file).map_err(StoreError::parquet(&path))?;
        Ok((path, builder))
    }

    /// Decodes what `builder` selects; the first row of it is row `first` of the store.
    fn decode(
        &self,
        builder: ParquetRecordBatchReaderBuilder<File>,
        first: usize,
        path: &Path,
    ) -> Result<Vec<FeatureRow>, StoreError> {
        let batches = builder.with_batch_size(8).build().map_err(StoreError::parquet(path))?;
        let mut rows = Vec::new();
        for batch in batches {
            let batch = batch.map_err(StoreError::arrow(path))?;
            rows.extend(from_batch(&batch, self.meta(), path)?);
        }
        for (i, row) in rows.iter().enumerate() {
            if self.lens.get(first + i) != Some(&row.ids.len()) {
                let what = format!("row {} has {} tokens, not what the manifest says", first + i, row.ids.len());
                return Err(StoreError::corrupt(path, what));
            }
        }
        Ok(rows)
    }
}
