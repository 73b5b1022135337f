//! Writing safetensors: the same tensors give the same bytes, and a file appears whole or not at all.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use safetensors::tensor::TensorInfo;
use safetensors::{Dtype, View};
use serde_json::{Map, Value, json};

use super::{LENGTH_FIELD, WeightError};

/// An f32 tensor to be written, row-major.
#[derive(Debug, Clone)]
pub struct F32Tensor<'a> {
    shape: Vec<usize>,
    values: Cow<'a, [f32]>,
}

impl<'a> F32Tensor<'a> {
    /// A tensor of this shape.
    ///
    /// # Panics
    /// If the number of values is not the shape's product.
    pub fn new(shape: &[usize], values: impl Into<Cow<'a, [f32]>>) -> Self {
        let values = values.into();
        assert_eq!(shape.iter().product::<usize>(), values.len(), "values of shape {shape:?}");
        Self { shape: shape.to_vec(), values }
    }
}

impl View for F32Tensor<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        le_bytes(&self.values)
    }

    fn data_len(&self) -> usize {
        self.values.len() * size_of::<f32>()
    }
}

/// The values' bytes as safetensors wants them: little-endian.
pub(crate) fn le_bytes(values: &[f32]) -> Cow<'_, [u8]> {
    if cfg!(target_endian = "little") {
        Cow::Borrowed(bytemuck::cast_slice(values))
    } else {
        Cow::Owned(values.iter().flat_map(|v| v.to_le_bytes()).collect())
    }
}

/// Writes a safetensors file through [`write_atomically`]. Tensors are asked for their data one at a time, in the
/// file's order (widest type first, then by name); metadata is sorted, so equal input gives equal bytes.
///
/// # Errors
/// [`WeightError::Io`] and [`WeightError::Twice`]; the destination is then as it was.
pub fn write_safetensors<V: View>(
    path: &Path,
    tensors: &[(String, V)],
    metadata: &BTreeMap<String, String>,
) -> Result<(), WeightError> {
    let mut order: Vec<&(String, V)> = tensors.iter().collect();
    order.sort_by(|a, b| b.1.dtype().cmp(&a.1.dtype()).then_with(|| a.0.cmp(&b.0)));
    let mut header = Map::new();
    if !metadata.is_empty() {
        header.insert("__metadata__".into(), json!(metadata));
    }
    let mut offset = 0;
    for (name, tensor) in &order {
        let end = offset + tensor.data_len();
        let info = TensorInfo { dtype: tensor.dtype(), shape: tensor.shape().to_vec(), data_offsets: (offset, end) };
        if header.insert(name.clone(), json!(info)).is_some() {
            return Err(WeightError::Twice { path: path.to_owned(), tensor: name.clone() });
        }
        offset = end;
    }
    let mut header = Value::Object(header).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(LENGTH_FIELD), b' ');
    write_atomically(path, |out| {
        out.write_all(&(header.len() as u64).to_le_bytes())?;
        out.write_all(&header)?;
        order.iter().try_for_each(|(_, tensor)| out.write_all(&tensor.data()))
    })
    .map_err(WeightError::io(path))
}

/// Writes a file beside its destination, syncs it and renames it, so that the destination is either the old file or
/// the whole new one.
///
/// # Errors
/// Whatever the system or `fill` says; nothing is left behind then.
pub fn write_atomically(path: &Path, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy();
    let temporary = path.with_file_name(format!(".{name}.partial-{}", std::process::id()));
    let written = (|| {
        let mut out = BufWriter::with_capacity(1 << 20, File::create(&temporary)?);
        fill(&mut out)?;
        out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        fs::rename(&temporary, path)
    })();
    if written.is_err() {
        fs::remove_file(&temporary).ok();
    }
    written
}
