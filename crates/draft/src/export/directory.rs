//! Writing a drafter as a directory of another runtime's format, whole or not at all, and reading it again.

use super::Format;
use super::error::ExportError;
use super::keys::compare;
use super::portable::Portable;
use super::target::TargetDir;
use super::tensor::{D2T, T2D, Tensor};
use crate::checkpoint::{Checkpoint, Provenance};
use crate::eagle3::names::EMBEDDING;
use safetensors::View;
use serde::Serialize;
use serde_json::Value;
use spectrain_data::store::sha256_file;
use spectrain_data::weights::{
    CONFIG, PartialDir, SINGLE, WeightDir, WeightError, write_atomically, write_safetensors,
};
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;

/// The side file that says where an exported drafter comes from; runtimes do not read it.
pub const MANIFEST: &str = "spectrain.json";

/// The content of [`MANIFEST`].
#[derive(Debug, Serialize)]
pub struct Exported {
    /// The format's name.
    pub format: &'static str,
    /// Version of this program.
    pub spectrain_version: &'static str,
    /// Where the drafter comes from.
    pub provenance: Provenance,
    /// SHA-256 (hex) of each file.
    pub files: BTreeMap<String, String>,
}

/// Writes the drafter of `checkpoint` to the directory `out` in `format`.
///
/// # Errors
/// A drafter that the runtime cannot express, another target than the drafter's, an output that is taken: before
/// anything is written. Afterwards what cannot be written, or is read back as something else; nothing is left then.
pub fn export(
    checkpoint: &Checkpoint,
    target: &TargetDir,
    format: &'static Format,
    out: &Path,
) -> Result<Exported, ExportError> {
    checkpoint.check_target(target.weights.content_hash(), &target.tokenizer_hash, target.weights.dir())?;
    let drafter = Portable::collect(checkpoint, target)?;
    if let Some(why) = (format.refuse)(&drafter) {
        return Err(ExportError::Refused { format: format.name, reader: format.reader, why });
    }
    let partial = begin(out)?;
    let (dir, config) = (partial.path(), (format.config)(&drafter));
    write_json(&dir.join(CONFIG), &config)?;
    let tensors = theirs(&drafter, format);
    write_safetensors(&dir.join(SINGLE), &tensors, &BTreeMap::from([("format".to_owned(), "pt".to_owned())]))?;
    reopen(dir, &drafter, format, &config, &tensors)?;
    let hash = |name: &str| Ok::<_, ExportError>((name.to_owned(), hash(&dir.join(name))?));
    let files = [CONFIG, SINGLE].into_iter().map(hash).collect::<Result<_, _>>()?;
    let provenance = checkpoint.provenance.clone();
    let told = Exported { format: format.name, spectrain_version: env!("CARGO_PKG_VERSION"), provenance, files };
    write_json(&dir.join(MANIFEST), &told)?;
    partial.commit(out)?;
    Ok(told)
}

/// The directory to fill; an output that holds something or cannot be made is refused.
pub(super) fn begin(out: &Path) -> Result<PartialDir, ExportError> {
    let free = !out.exists() || fs::read_dir(out).is_ok_and(|mut entries| entries.next().is_none());
    if !free {
        return Err(ExportError::Occupied { out: out.to_owned() });
    }
    PartialDir::create(out).map_err(|source| ExportError::Unwritable { out: out.to_owned(), source })
}

/// The tensors that the format stores, under its names.
fn theirs<'a>(drafter: &'a Portable, format: &Format) -> Vec<(String, Tensor<'a>)> {
    let stored = |name: &str| name != EMBEDDING || drafter.own_embedding || format.stores_shared_embedding;
    let floats = drafter.tensors.iter().filter(|(name, _)| stored(name));
    let mut tensors: Vec<_> = floats.map(|(n, t)| (format.layer.theirs(n), Tensor::Floats(t))).collect();
    let full = drafter.vocab.d2t.len() == drafter.vocab.target_vocab;
    if !(full && format.omits_full_maps) {
        tensors.extend(Tensor::maps(&drafter.vocab));
    }
    tensors
}

/// Reads what was written as an importer would, and compares every value.
fn reopen(
    dir: &Path,
    drafter: &Portable,
    format: &Format,
    config: &Value,
    tensors: &[(String, Tensor)],
) -> Result<(), ExportError> {
    let unfaithful = |file: &str, what: String| ExportError::Unfaithful { path: dir.join(file), what };
    let found = WeightDir::open(dir)?;
    if found.config_json() != config {
        return Err(unfaithful(CONFIG, "value".to_owned()));
    }
    let sizes = (format.read)(found.config_json(), drafter.target);
    if sizes.as_ref() != Ok(&drafter.config) {
        return Err(unfaithful(CONFIG, format!("meaning: {sizes:?}")));
    }
    let names: Vec<String> = found.names().map(str::to_owned).collect();
    let optional = [EMBEDDING, D2T, T2D];
    let (missing, unknown) = compare(&format.layer.table(&drafter.config), &names, &optional);
    if !missing.is_empty() || !unknown.is_empty() || names.len() != tensors.len() {
        return Err(ExportError::Names { path: dir.join(SINGLE), missing, unknown });
    }
    for (name, tensor) in tensors {
        if !same(&found, name, tensor)? {
            return Err(unfaithful(SINGLE, format!("tensor `{name}`")));
        }
    }
    Ok(())
}

/// Whether the file holds `tensor` under `name`, bit for bit.
fn same(found: &WeightDir, name: &str, tensor: &Tensor) -> Result<bool, WeightError> {
    let shape = tensor.shape();
    Ok(match tensor {
        Tensor::Floats(_) => {
            let values = found.tensor_f32(name, shape)?;
            let bytes = tensor.data();
            let written = bytes.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b));
            values.iter().map(|v| v.to_bits()).eq(written)
        }
        Tensor::Offsets(offsets, _) => found.tensor_i64(name, shape)? == *offsets,
        Tensor::Flags(flags, _) => {
            found.tensor_bool(name, shape)?.iter().map(|f| u8::from(*f)).eq(flags.iter().copied())
        }
    })
}

fn hash(path: &Path) -> Result<String, ExportError> {
    let unread =
        |e: spectrain_data::store::StoreError| ExportError::Unfaithful { path: path.to_owned(), what: e.to_string() };
    sha256_file(path).map_err(unread)
}

fn write_json(path: &Path, value: &impl Serialize) -> Result<(), WeightError> {
    let fill = |out: &mut dyn Write| {
        serde_json::to_writer_pretty(&mut *out, value)?;
        out.write_all(b"\n")
    };
    write_atomically(path, fill).map_err(|source| WeightError::Io { path: path.to_owned(), source })
}
