//! Model weights in the Hugging Face layout: `config.json` beside one `model.safetensors`, or beside shards with
//! `model.safetensors.index.json`. Files are memory-mapped, so that opening a model costs its headers only and a
//! wrong file is refused before any tensor is read.

mod index;
mod integers;
mod partial;
mod write;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use half::{bf16, f16};
use memmap2::Mmap;
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest, Sha256};
use thiserror::Error;

pub use index::ShardIndex;
pub use partial::PartialDir;
pub(crate) use write::le_bytes;
pub use write::{F32Tensor, write_atomically, write_safetensors};

/// Configuration file of a model directory.
pub const CONFIG: &str = "config.json";
/// Weight file of a model directory that is not sharded.
pub const SINGLE: &str = "model.safetensors";
/// Index of a sharded model directory.
pub const INDEX: &str = "model.safetensors.index.json";
/// The types that are read as f32.
const FLOATS: &str = "F32, F16 or BF16";
/// Bytes of the length field in front of a safetensors header.
const LENGTH_FIELD: usize = 8;

/// Why weights could not be read or written.
#[derive(Debug, Error)]
pub enum WeightError {
    /// The file system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// File or directory.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A directory that is no model directory.
    #[error("{}: no {need}{instead}: not a model directory in the Hugging Face layout", dir.display())]
    NotAModel {
        /// The directory.
        dir: PathBuf,
        /// The file it lacks.
        need: &'static str,
        /// What is there in its place, and what would help; may be empty.
        instead: String,
    },
    /// A JSON file that does not parse.
    #[error("{}: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
    /// The file is shorter or longer than its header says.
    #[error("{}: {}: the header asks for {expected} bytes, the file has {found}", path.display(),
        if found < expected { "truncated" } else { "too long" })]
    Length {
        /// The file.
        path: PathBuf,
        /// Bytes by the header.
        expected: u64,
        /// Bytes in the file.
        found: u64,
    },
    /// The header is not a safetensors header.
    #[error("{}: not a safetensors file: {why}", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Index and shards disagree.
    #[error("{}: {why}", path.display())]
    Index {
        /// The index file.
        path: PathBuf,
        /// The disagreement.
        why: String,
    },
    /// No such tensor.
    #[error("{}: tensor `{tensor}` is missing (expected shape {expected:?})", path.display())]
    Missing {
        /// The file or directory searched.
        path: PathBuf,
        /// The name.
        tensor: String,
        /// The shape it should have had.
        expected: Vec<usize>,
    },
    /// The tensor has another shape.
    #[error("{}: tensor `{tensor}` has shape {found:?}, expected {expected:?}", path.display())]
    Shape {
        /// The file.
        path: PathBuf,
        /// The name.
        tensor: String,
        /// The shape asked for.
        expected: Vec<usize>,
        /// The shape in the file.
        found: Vec<usize>,
    },
    /// The tensor's element type is not one that can be read here.
    #[error("{}: tensor `{tensor}` has type {found}, expected {expected}", path.display())]
    Dtype {
        /// The file.
        path: PathBuf,
        /// The name.
        tensor: String,
        /// The types that are read.
        expected: &'static str,
        /// The type in the file.
        found: String,
    },
    /// Two tensors to be written have one name.
    #[error("{}: tensor `{tensor}` is given twice", path.display())]
    Twice {
        /// The file to be written.
        path: PathBuf,
        /// The name.
        tensor: String,
    },
}

impl WeightError {
    /// For `map_err`: the path that an I/O error belongs to.
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        move |source| Self::Io { path: path.to_owned(), source }
    }
}

/// Maps a file for reading; an empty file gives an empty map.
///
/// # Errors
/// Whatever the system says on opening or mapping.
#[allow(unsafe_code)]
pub(crate) fn map_file(path: &Path) -> io::Result<Mmap> {
    let file = File::open(path)?;
    // SAFETY: the map is read-only and private to this process. Everything that writes weights here writes a new
    // file and renames it, so a mapped file is never shortened under the map.
    unsafe { Mmap::map(&file) }
}

/// One safetensors file, memory-mapped, its header checked against its length.
#[derive(Debug)]
pub struct WeightFile {
    path: PathBuf,
    map: Mmap,
    meta: Metadata,
    data: usize,
}

impl WeightFile {
    /// Maps the file and checks its header: offsets without gaps, sizes equal to shape times type, and the file
    /// exactly as long as they say.
    ///
    /// # Errors
    /// [`WeightError::Io`], [`WeightError::Header`], [`WeightError::Length`].
    pub fn open(path: &Path) -> Result<Self, WeightError> {
        let map = map_file(path).map_err(WeightError::io(path))?;
        let found = map.len() as u64;
        let length = |expected: u64| WeightError::Length { path: path.to_owned(), expected, found };
        let first: [u8; LENGTH_FIELD] = match map.get(..LENGTH_FIELD).map(TryInto::try_into) {
            Some(Ok(bytes)) => bytes,
            _ => return Err(length(LENGTH_FIELD as u64)),
        };
        let header = u64::from_le_bytes(first);
        let data = header.saturating_add(LENGTH_FIELD as u64);
        if data > found {
            return Err(length(data));
        }
        let data = data as usize;
        let header = &map[LENGTH_FIELD..data];
        let meta: Metadata = serde_json::from_slice(header).map_err(|e| header_error(path, header, &e))?;
        let expected = data as u64 + meta.data_len() as u64;
        if expected != found {
            return Err(length(expected));
        }
        Ok(Self { path: path.to_owned(), map, meta, data })
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Tensor names, sorted.
    pub fn names(&self) -> Vec<String> {
        let mut names = self.meta.offset_keys();
        names.sort_unstable();
        names
    }

    /// Whether the file holds this tensor.
    pub fn has(&self, name: &str) -> bool {
        self.meta.info(name).is_some()
    }

    /// Shape of a tensor, if it is there.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.meta.info(name).map(|info| info.shape.as_slice())
    }

    /// The free `__metadata__` strings of the header.
    pub fn metadata(&self) -> BTreeMap<String, String> {
        self.meta.metadata().iter().flatten().map(|(k, v)| (k.clone(), v.clone())).collect()
    }

    /// A tensor in row-major order, as f32.
    ///
    /// # Errors
    /// [`WeightError::Missing`], [`WeightError::Shape`], [`WeightError::Dtype`]; each names the tensor and the file.
    pub fn tensor_f32(&self, name: &str, expected: &[usize]) -> Result<Vec<f32>, WeightError> {
        self.tensor(name, expected, FLOATS, floats)
    }

    /// A tensor of this shape, its bytes read by `read`, which knows the types `types` only.
    fn tensor<T>(
        &self,
        name: &str,
        expected: &[usize],
        types: &'static str,
        read: impl FnOnce(&[u8], Dtype) -> Option<T>,
    ) -> Result<T, WeightError> {
        let Some(info) = self.meta.info(name) else {
            return Err(WeightError::Missing {
                path: self.path.clone(),
                tensor: name.to_owned(),
                expected: expected.to_vec(),
            });
        };
        if info.shape != expected {
            return Err(WeightError::Shape {
                path: self.path.clone(),
                tensor: name.to_owned(),
                expected: expected.to_vec(),
                found: info.shape.clone(),
            });
        }
        read(self.bytes(info), info.dtype).ok_or_else(|| WeightError::Dtype {
            path: self.path.clone(),
            tensor: name.to_owned(),
            expected: types,
            found: info.dtype.to_string(),
        })
    }

    fn bytes(&self, info: &TensorInfo) -> &[u8] {
        let (start, end) = info.data_offsets;
        &self.map[self.data + start..self.data + end]
    }
}

/// Why a header does not parse. A type that this build has never heard of is told with its tensor.
fn header_error(path: &Path, header: &[u8], error: &serde_json::Error) -> WeightError {
    let json: Value = serde_json::from_slice(header).unwrap_or_default();
    let unknown = json.as_object().into_iter().flatten().find_map(|(tensor, info)| {
        let found = info.get("dtype")?.as_str()?;
        let known = Dtype::deserialize(&info["dtype"]).is_ok();
        let (path, tensor, found) = (path.to_owned(), tensor.clone(), found.to_owned());
        (!known).then_some(WeightError::Dtype { path, tensor, expected: FLOATS, found })
    });
    unknown.unwrap_or_else(|| WeightError::Header { path: path.to_owned(), why: error.to_string() })
}

/// Little-endian elements to f32; `None` for a type that is not a plain float.
fn floats(bytes: &[u8], dtype: Dtype) -> Option<Vec<f32>> {
    let pairs = || bytes.as_chunks::<2>().0.iter();
    Some(match dtype {
        Dtype::F32 => bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        Dtype::F16 => pairs().map(|b| f16::from_le_bytes(*b).to_f32()).collect(),
        Dtype::BF16 => pairs().map(|b| bf16::from_le_bytes(*b).to_f32()).collect(),
        _ => return None,
    })
}

/// A model directory: its configuration and its weights, sharded or not.
#[derive(Debug)]
pub struct WeightDir {
    dir: PathBuf,
    config_bytes: Vec<u8>,
    config: Value,
    files: Vec<WeightFile>,
    places: BTreeMap<String, usize>,
    hash: OnceLock<String>,
}

impl WeightDir {
    /// Opens a directory; reads the configuration and every header, no tensor.
    ///
    /// An index is checked both ways: every name it lists is in the shard it names, and every tensor of a shard is
    /// listed. A weight file that the index does not name is no part of the model: published directories often hold
    /// the same weights a second time in another layout (`consolidated.safetensors`), so it is ignored. Only
    /// [`SINGLE`] beside an index that does not name it is refused: other loaders would take it, not the index.
    ///
    /// # Errors
    /// [`WeightError`]: unreadable or missing files, JSON that does not parse, a truncated weight file, an index that
    /// disagrees with its shards.
    pub fn open(dir: &Path) -> Result<Self, WeightError> {
        fs::read_dir(dir).map_err(WeightError::io(dir))?;
        let config_path = dir.join(CONFIG);
        if !config_path.exists() {
            return Err(WeightError::NotAModel { dir: dir.to_owned(), need: CONFIG, instead: String::new() });
        }
        let config_bytes = fs::read(&config_path).map_err(WeightError::io(&config_path))?;
        let config = parse_json(&config_path, &config_bytes)?;
        let (files, places) = if dir.join(INDEX).exists() {
            open_shards(dir)?
        } else if dir.join(SINGLE).exists() {
            let file = WeightFile::open(&dir.join(SINGLE))?;
            let places = file.names().into_iter().map(|name| (name, 0)).collect();
            (vec![file], places)
        } else {
            return Err(WeightError::NotAModel { dir: dir.to_owned(), need: SINGLE, instead: other_weights(dir) });
        };
        Ok(Self { dir: dir.to_owned(), config_bytes, config, files, places, hash: OnceLock::new() })
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The parsed `config.json`.
    pub fn config_json(&self) -> &Value {
        &self.config
    }

    /// Tensor names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.places.keys().map(String::as_str)
    }

    /// Whether some file holds this tensor.
    pub fn has(&self, name: &str) -> bool {
        self.places.contains_key(name)
    }

    /// Shape of a tensor, if it is there.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.places.get(name).and_then(|&place| self.files[place].shape(name))
    }

    /// A tensor in row-major order, as f32.
    ///
    /// # Errors
    /// [`WeightError::Missing`], [`WeightError::Shape`], [`WeightError::Dtype`]; each names the tensor and the file.
    pub fn tensor_f32(&self, name: &str, expected: &[usize]) -> Result<Vec<f32>, WeightError> {
        self.file(name, expected)?.tensor_f32(name, expected)
    }

    /// The file that holds a tensor; `expected` is the shape it should have, for the message.
    fn file(&self, name: &str, expected: &[usize]) -> Result<&WeightFile, WeightError> {
        let missing =
            || WeightError::Missing { path: self.dir.clone(), tensor: name.to_owned(), expected: expected.to_vec() };
        self.places.get(name).map(|&place| &self.files[place]).ok_or_else(missing)
    }

    /// SHA-256 (hex) over the configuration and every weight file, each with its name and length. Computed once.
    pub fn content_hash(&self) -> &str {
        self.hash.get_or_init(|| {
            let mut sha = Sha256::new();
            let mut part = |name: &str, bytes: &[u8]| {
                sha.update(format!("{name}\0{}\0", bytes.len()));
                sha.update(bytes);
            };
            part(CONFIG, &self.config_bytes);
            for file in &self.files {
                part(&file.path.file_name().unwrap_or_default().to_string_lossy(), &file.map);
            }
            hex(&sha.finalize())
        })
    }
}

/// Opens the shards of an index in name order and checks index and shards against each other.
fn open_shards(dir: &Path) -> Result<(Vec<WeightFile>, BTreeMap<String, usize>), WeightError> {
    let path = dir.join(INDEX);
    let wrong = |why: String| WeightError::Index { path: path.clone(), why };
    let ShardIndex(shards) = ShardIndex::parse(&path, &fs::read(&path).map_err(WeightError::io(&path))?)?;
    if dir.join(SINGLE).exists() && !shards.contains_key(SINGLE) {
        return Err(wrong(format!("{SINGLE} lies beside it and is not named by it: remove the one that is not meant")));
    }
    let mut files = Vec::new();
    let mut places = BTreeMap::new();
    for (name, tensors) in shards {
        if !dir.join(&name).exists() {
            return Err(wrong(format!("shard {name} is missing")));
        }
        let file = WeightFile::open(&dir.join(&name))?;
        if let Some(lost) = tensors.iter().find(|tensor| !file.has(tensor)) {
            return Err(wrong(format!("tensor `{lost}` is not in {name}, where the index puts it")));
        }
        if let Some(extra) = file.names().into_iter().find(|tensor| !tensors.contains(tensor)) {
            return Err(wrong(format!("tensor `{extra}` of {name} is not listed there by the index")));
        }
        places.extend(tensors.into_iter().map(|tensor| (tensor, files.len())));
        files.push(file);
    }
    Ok((files, places))
}

/// The weights of a directory that has neither [`SINGLE`] nor [`INDEX`], and what to do with them, for a message.
fn other_weights(dir: &Path) -> String {
    let names = fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.file_name().to_string_lossy().into_owned());
    let mut names: Vec<_> = names.collect();
    names.sort_unstable();
    let first = |ends: &str| names.iter().find(|name| name.ends_with(ends));
    if let Some(shard) = first(".safetensors") {
        return format!(" and no {INDEX} to say what {shard} is");
    }
    first(".bin").or_else(|| first(".pth")).map_or_else(String::new, |pickle| {
        format!(" but {pickle}, a pickle, which is not read: convert it to safetensors")
    })
}

fn parse_json(path: &Path, bytes: &[u8]) -> Result<Value, WeightError> {
    serde_json::from_slice(bytes).map_err(|source| WeightError::Json { path: path.to_owned(), source })
}

/// Lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
