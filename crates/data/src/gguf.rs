//! Reader of GGUF (versions 2 and 3, little-endian), the single-file format of llama.cpp: a header, key-value
//! metadata, tensor descriptions, then the tensors' data. The layout follows the format's public description in the
//! ggml repository (`docs/gguf.md`). The file is memory-mapped and every range is checked when it is opened.

mod block;
mod parse;

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::weights::{hex, map_file};
pub use block::BlockType;

/// Why a GGUF file could not be read.
#[derive(Debug, Error)]
pub enum GgufError {
    /// The file system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The first four bytes are not `GGUF`.
    #[error("{}: not a GGUF file (it does not begin with `GGUF`)", path.display())]
    Magic {
        /// The file.
        path: PathBuf,
    },
    /// A version other than 2 and 3, or a big-endian file.
    #[error("{}: GGUF version {version} is not supported, only little-endian 2 and 3", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// What the header says.
        version: u32,
    },
    /// The file ends inside something it announces.
    #[error("{}: truncated: {what} ends at byte {end}, the file has {found}", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// What is cut off.
        what: String,
        /// First byte past it.
        end: u64,
        /// Bytes in the file.
        found: u64,
    },
    /// Something in the header contradicts the format.
    #[error("{}: {what}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What and where.
        what: String,
    },
    /// A metadata key is missing or of another kind.
    #[error("{}: metadata key `{key}`: expected {expected}, found {found}", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// The kind asked for.
        expected: &'static str,
        /// What is there.
        found: &'static str,
    },
    /// No such tensor.
    #[error("{}: tensor `{tensor}` is missing (expected shape {expected:?})", path.display())]
    Missing {
        /// The file.
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
        /// The shape asked for, outermost dimension first.
        expected: Vec<usize>,
        /// The shape in the file, outermost dimension first.
        found: Vec<usize>,
    },
    /// The tensor is stored in a type this reader does not know.
    #[error("{}: tensor `{tensor}` has type {found}, supported are F32, F16, Q4_1, Q8_0", path.display())]
    Type {
        /// The file.
        path: PathBuf,
        /// The name.
        tensor: String,
        /// Name of the type where known, else its number.
        found: String,
    },
}

/// A metadata value; integers and floats are widened.
#[derive(Debug, Clone, PartialEq)]
pub enum GgufValue {
    /// Any unsigned integer.
    Uint(u64),
    /// Any signed integer.
    Int(i64),
    /// A 32-bit float (kept narrow: its shortest decimal is what was meant).
    F32(f32),
    /// A 64-bit float.
    F64(f64),
    /// A truth value.
    Bool(bool),
    /// UTF-8 text.
    Text(String),
    /// Values of one kind.
    Array(Vec<GgufValue>),
}

impl GgufValue {
    fn kind(&self) -> &'static str {
        match self {
            Self::Uint(_) | Self::Int(_) => "an integer",
            Self::F32(_) | Self::F64(_) => "a float",
            Self::Bool(_) => "a truth value",
            Self::Text(_) => "text",
            Self::Array(_) => "an array",
        }
    }

    /// The value as a non-negative integer.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Self::Uint(n) => Some(n),
            Self::Int(n) => n.try_into().ok(),
            _ => None,
        }
    }

    /// The value as a float: a 32-bit one by its shortest decimal, so that 1e-5 stays 1e-5.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Self::F32(x) => x.to_string().parse().ok(),
            Self::F64(x) => Some(x),
            _ => None,
        }
    }

    /// The value as text.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }
}

/// One tensor's description: type, shape and place.
#[derive(Debug, Clone)]
struct TensorPlace {
    /// Outermost dimension first (the file stores the innermost first).
    shape: Vec<usize>,
    kind: BlockType,
    /// Byte range in the file; empty for a type that is not supported.
    bytes: Range<usize>,
}

/// An opened GGUF file.
#[derive(Debug)]
pub struct Gguf {
    path: PathBuf,
    map: Mmap,
    values: BTreeMap<String, GgufValue>,
    tensors: BTreeMap<String, TensorPlace>,
}

impl Gguf {
    /// Maps a file and reads its metadata and tensor descriptions.
    ///
    /// # Errors
    /// [`GgufError`]: unreadable, no GGUF, another version, truncated, malformed. A tensor of an unsupported type is
    /// reported when it is read.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        let map = map_file(path).map_err(|source| GgufError::Io { path: path.to_owned(), source })?;
        let (values, tensors) = parse::parse(path, &map)?;
        Ok(Self { path: path.to_owned(), map, values, tensors })
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// SHA-256 (hex) of the whole file.
    pub fn sha256(&self) -> String {
        hex(&Sha256::digest(&self.map))
    }

    /// A metadata value, if the key is there.
    pub fn value(&self, key: &str) -> Option<&GgufValue> {
        self.values.get(key)
    }

    /// A non-negative integer.
    ///
    /// # Errors
    /// [`GgufError::Key`].
    pub fn uint(&self, key: &str) -> Result<u64, GgufError> {
        self.typed(key, "a non-negative integer", GgufValue::as_u64)
    }

    /// A float; a 32-bit one is read by its shortest decimal, so that 1e-5 stays 1e-5.
    ///
    /// # Errors
    /// [`GgufError::Key`].
    pub fn float(&self, key: &str) -> Result<f64, GgufError> {
        self.typed(key, "a float", GgufValue::as_f64)
    }

    /// Text.
    ///
    /// # Errors
    /// [`GgufError::Key`].
    pub fn text(&self, key: &str) -> Result<&str, GgufError> {
        self.typed(key, "text", GgufValue::as_str)
    }

    /// An array whose every element passes `read`.
    ///
    /// # Errors
    /// [`GgufError::Key`].
    pub fn array<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        read: impl Fn(&'a GgufValue) -> Option<T>,
    ) -> Result<Vec<T>, GgufError> {
        self.typed(key, expected, |value| match value {
            GgufValue::Array(items) => items.iter().map(read).collect(),
            _ => None,
        })
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        read: impl FnOnce(&'a GgufValue) -> Option<T>,
    ) -> Result<T, GgufError> {
        let value = self.values.get(key);
        value.and_then(read).ok_or_else(|| GgufError::Key {
            path: self.path.clone(),
            key: key.to_owned(),
            expected,
            found: value.map_or("nothing", GgufValue::kind),
        })
    }

    /// Tensor names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Shape of a tensor, outermost dimension first.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(|tensor| tensor.shape.as_slice())
    }

    /// A tensor's values in row-major order, dequantised to f32.
    ///
    /// # Errors
    /// [`GgufError::Missing`], [`GgufError::Shape`], [`GgufError::Type`]; each names the tensor and the file.
    pub fn tensor_f32(&self, name: &str, expected: &[usize]) -> Result<Vec<f32>, GgufError> {
        let tensor = self.check(name, expected)?;
        Ok(tensor.kind.dequantize(&self.map[tensor.bytes.clone()]))
    }

    /// Whether [`Gguf::tensor_f32`] would succeed, without reading any data.
    ///
    /// # Errors
    /// As [`Gguf::tensor_f32`].
    pub fn check_tensor(&self, name: &str, expected: &[usize]) -> Result<(), GgufError> {
        self.check(name, expected).map(|_| ())
    }

    fn check(&self, name: &str, expected: &[usize]) -> Result<&TensorPlace, GgufError> {
        let path = || self.path.clone();
        let Some(tensor) = self.tensors.get(name) else {
            return Err(GgufError::Missing { path: path(), tensor: name.to_owned(), expected: expected.to_vec() });
        };
        if tensor.shape != expected {
            return Err(GgufError::Shape {
                path: path(),
                tensor: name.to_owned(),
                expected: expected.to_vec(),
                found: tensor.shape.clone(),
            });
        }
        if let BlockType::Unsupported(number) = tensor.kind {
            let found = block::type_name(number);
            return Err(GgufError::Type { path: path(), tensor: name.to_owned(), found });
        }
        Ok(tensor)
    }
}
