//! Reading a drafter that was trained elsewhere and writing it as a checkpoint of this program.

use super::directory::begin;
use super::error::ExportError;
use super::keys::compare;
use super::target::TargetDir;
use super::tensor::{D2T, T2D};
use super::{Format, sglang, speculators};
use crate::checkpoint::{Checkpoint, FILE, Provenance};
use crate::eagle3::Eagle3Config;
use crate::eagle3::names::{EMBEDDING, HEAD, shapes};
use serde_json::Value;
use spectrain_data::draft_vocab::DraftVocab;
use spectrain_data::weights::{CONFIG, F32Tensor, WeightDir};
use std::path::Path;

/// What was imported.
#[derive(Debug)]
pub struct Imported {
    /// The format it was in.
    pub format: &'static Format,
    /// Its sizes and conventions.
    pub config: Eagle3Config,
    /// Whether it brings its own output head.
    pub own_head: bool,
    /// Whether it brings its own embedding.
    pub own_embedding: bool,
}

/// Reads the drafter in `dir` and writes it to the directory `out` as a checkpoint for `target`.
///
/// # Errors
/// A format, a setting or a tensor that is not known here, a target that does not fit, an output that is taken.
pub fn import(dir: &Path, target: &TargetDir, out: &Path) -> Result<Imported, ExportError> {
    if !dir.is_dir() {
        let why = "there is no such directory".to_owned();
        return Err(ExportError::Unknown { path: dir.to_owned(), why });
    }
    let found = WeightDir::open(dir)?;
    let path = dir.join(CONFIG);
    let format = recognise(found.config_json()).map_err(|why| ExportError::Unknown { path: path.clone(), why })?;
    let config = (format.read)(found.config_json(), target).map_err(|why| ExportError::Config { path, why })?;
    let names: Vec<String> = found.names().map(str::to_owned).collect();
    let shares_head = found.config_json().get("draft_vocab_size").is_none_or(Value::is_null);
    let full = config.draft_vocab_size == config.vocab_size;
    let optional = [Some(EMBEDDING), Some(T2D), full.then_some(D2T), shares_head.then_some(HEAD)];
    let optional: Vec<&str> = optional.into_iter().flatten().collect();
    let (missing, unknown) = compare(&format.layer.table(&config), &names, &optional);
    if !missing.is_empty() || !unknown.is_empty() {
        return Err(ExportError::Names { path: dir.to_owned(), missing, unknown });
    }
    let vocab = vocabulary(&found, &config)?;
    let mut tensors = Vec::new();
    for (name, shape) in shapes(&config) {
        let values = found.tensor_f32(&format.layer.theirs(&name), &shape)?;
        tensors.push((name, F32Tensor::new(&shape, values)));
    }
    // What equals the target's is shared with it.
    let mut keep = |name: &str, rows: usize, shared: Vec<f32>| -> Result<bool, ExportError> {
        let shape = [rows, config.hidden_size];
        let own = found.has(name).then(|| found.tensor_f32(name, &shape)).transpose()?.filter(|own| *own != shared);
        let kept = own.is_some();
        tensors.extend(own.map(|values| (name.to_owned(), F32Tensor::new(&shape, values))));
        Ok(kept)
    };
    let own_head = keep(HEAD, config.draft_vocab_size, target.head(&vocab.d2t)?)?;
    let own_embedding = keep(EMBEDDING, config.vocab_size, target.embedding()?)?;
    let partial = begin(out)?;
    Checkpoint::write(partial.path(), &config, &vocab, &tensors, &provenance(format, target))?;
    reopen(partial.path(), &config, &vocab, &tensors)?;
    partial.commit(out)?;
    Ok(Imported { format, config, own_head, own_embedding })
}

/// The format that a `config.json` is in.
fn recognise(json: &Value) -> Result<&'static Format, String> {
    if json.get(speculators::TYPE).is_some() {
        return Ok(&speculators::FORMAT);
    }
    let named = json.get("architectures").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    let eagle3 = named.into_iter().any(|name| name.contains("Eagle3"));
    let plain = json.get("draft_vocab_size").is_some() && json["num_hidden_layers"] == 1;
    (eagle3 || plain).then_some(&sglang::FORMAT).ok_or_else(|| {
        format!("it needs {}, an EAGLE-3 architecture, or draft_vocab_size and one layer", speculators::TYPE)
    })
}

/// The draft vocabulary, its two maps checked against each other.
fn vocabulary(found: &WeightDir, config: &Eagle3Config) -> Result<DraftVocab, ExportError> {
    let (dir, draft, all) = (found.dir(), config.draft_vocab_size, config.vocab_size);
    let vocab = match found.has(D2T) {
        true => DraftVocab::from_offsets(&found.tensor_i64(D2T, &[draft])?, all),
        false => DraftVocab::full(all),
    };
    let vocab = vocab.map_err(ExportError::vocab(dir))?;
    if found.has(T2D) && !found.tensor_bool(T2D, &[all])?.into_iter().eq(vocab.t2d().iter().map(Option::is_some)) {
        return Err(ExportError::Vocab { path: dir.to_owned(), why: format!("{D2T} and {T2D} name different tokens") });
    }
    Ok(vocab)
}

/// What is known of a drafter that was trained elsewhere.
fn provenance(format: &Format, target: &TargetDir) -> Provenance {
    Provenance {
        target_hash: target.weights.content_hash().to_owned(),
        tokenizer_hash: target.tokenizer_hash.clone(),
        target: target.weights.dir().display().to_string(),
        rule: "unknown".to_owned(),
        guarantee: "unknown".to_owned(),
        loss: format!("unknown (imported, {} format)", format.name),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..Provenance::default()
    }
}

/// Reads the checkpoint again and compares every value.
fn reopen(
    dir: &Path,
    config: &Eagle3Config,
    vocab: &DraftVocab,
    tensors: &[(String, F32Tensor)],
) -> Result<(), ExportError> {
    use safetensors::View;
    let unfaithful = |what: String| ExportError::Unfaithful { path: dir.join(FILE), what };
    let checkpoint = Checkpoint::open(dir)?;
    let crate::checkpoint::DrafterConfig::Eagle3(found) = &checkpoint.config;
    if found != config || checkpoint.vocab != *vocab {
        return Err(unfaithful("configuration".to_owned()));
    }
    for (name, tensor) in tensors {
        let bytes: Vec<u8> = checkpoint.tensor(name, tensor.shape())?.iter().flat_map(|v| v.to_le_bytes()).collect();
        if bytes != tensor.data().as_ref() {
            return Err(unfaithful(format!("tensor `{name}`")));
        }
    }
    Ok(())
}
