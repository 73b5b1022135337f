//! Everything that can be refused, refused before any work; then the frozen target and what belongs to it.

use crate::exit::{Blame, Failure};
use anyhow::{Context, anyhow};
use burn::tensor::Device;
use serde::Serialize;
use spectrain_core::chat::ChatTemplate;
use spectrain_core::recipe::{Recipe, TargetFacts};
use spectrain_core::tokenizer::Tokenizer;
use spectrain_data::fetch::{FetchError, FetchReport, Hub, Source, fetch};
use spectrain_data::prompts::{Prompt, read_prompts};
use spectrain_data::weights::{WeightDir, write_atomically};
use spectrain_model::{Llama, LlamaConfig};
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Brings a target; a model on the hub is refused before its weights are downloaded if this build cannot run it.
pub fn bring_target(source: &Source, out: &Path) -> Result<FetchReport, Failure> {
    let hub = Hub::from_env(|config| LlamaConfig::from_json(config).map(drop).map_err(|e| e.to_string()));
    fetch(source, out, &hub, &mut |stage| eprintln!("fetch: {stage}")).map_err(|error| match error.is_request() {
        true => Failure::Request(error.into()),
        false => Failure::Work(error.into()),
    })
}

/// The directory of a target given as a directory or as a name that `fetch` takes, brought first when `may_fetch`
/// and absent.
pub fn locate_target(path: &str, may_fetch: bool) -> Result<PathBuf, Failure> {
    let directory = Path::new(path);
    if directory.is_dir() {
        return Ok(directory.to_path_buf());
    }
    let known = Source::parse(path).map_err(|error| match error {
        FetchError::Unknown { .. } => {
            anyhow!("target \"{path}\": no such directory, and no known name; `spectrain fetch --help` lists the names")
        }
        other => other.into(),
    });
    let source = known.request()?;
    let out = Path::new("checkpoints").join(source.directory());
    if !may_fetch && !out.is_dir() {
        return Err(anyhow!("target \"{path}\" is not here yet: run `spectrain fetch {path}` first")).request();
    }
    if may_fetch {
        bring_target(&source, &out)?;
    }
    Ok(out)
}

/// Where a run's files go, locked against a second run.
pub struct RunDir {
    path: PathBuf,
    /// Held as long as the run lasts; none for a run that is only looked at.
    _lock: Option<File>,
}

impl RunDir {
    /// The directory asked for, or `runs/NAME`; made, and tried for writing, before any work.
    pub fn create(asked: Option<PathBuf>, name: &str) -> Result<Self, Failure> {
        let dir = asked.unwrap_or_else(|| Path::new("runs").join(name));
        let probe = dir.join(".writable");
        let made_here = !dir.exists();
        let tried =
            fs::create_dir_all(&dir).and_then(|()| fs::write(&probe, b"")).and_then(|()| fs::remove_file(&probe));
        if tried.is_err() && made_here {
            fs::remove_dir(&dir).ok();
        }
        tried.with_context(|| format!("output directory {} cannot be written", dir.display())).request()?;
        let lock = File::create(dir.join(".lock")).with_context(|| dir.display().to_string()).work()?;
        if let Err(TryLockError::WouldBlock) = lock.try_lock() {
            let text =
                format!("another spectrain is at work in {}; wait for it or choose another --out", dir.display());
            return Err(anyhow!(text)).request();
        }
        clear_partial(&dir).with_context(|| dir.display().to_string()).work()?;
        Ok(Self { path: dir, _lock: Some(lock) })
    }

    /// A run that is only looked at.
    pub fn look(dir: &Path) -> Self {
        Self { path: dir.to_path_buf(), _lock: None }
    }

    /// The directory, for messages.
    pub fn display(&self) -> std::path::Display<'_> {
        self.path.display()
    }

    /// A path inside.
    pub fn join(&self, part: impl AsRef<Path>) -> PathBuf {
        self.path.join(part)
    }

    /// Writes a file inside, whole or not at all.
    pub fn write(&self, part: &str, text: &str) -> Result<(), Failure> {
        let path = self.join(part);
        let written = path.parent().map_or(Ok(()), fs::create_dir_all);
        written
            .and_then(|()| write_atomically(&path, |out| out.write_all(text.as_bytes())))
            .with_context(|| format!("{} cannot be written", path.display()))
            .work()
    }

    /// Writes a JSON file inside.
    pub fn write_json(&self, part: &str, value: &impl Serialize) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(value).work()?;
        self.write(part, &(text + "\n"))
    }
}

/// Removes what a killed run left half-written.
fn clear_partial(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let half = path.file_name().is_some_and(|n| n.to_string_lossy().contains(".partial"));
        match (half, path.is_dir()) {
            (true, true) => fs::remove_dir_all(&path)?,
            (true, false) => fs::remove_file(&path)?,
            (false, true) => clear_partial(&path)?,
            (false, false) => {}
        }
    }
    Ok(())
}

/// The frozen target with its tokenizer and chat template.
pub struct Setup {
    /// Directory of the target.
    pub dir: PathBuf,
    /// The model.
    pub target: Llama,
    /// Content hash of configuration and weights.
    pub target_hash: String,
    /// Its tokenizer.
    pub tokenizer: Tokenizer,
    /// Its chat template.
    pub template: ChatTemplate,
}

impl Setup {
    /// Loads the target in `dir`; `check` may refuse it before its weights are read.
    pub fn load(
        dir: PathBuf,
        device: &Device,
        check: impl FnOnce(&TargetFacts) -> anyhow::Result<()>,
    ) -> Result<Self, Failure> {
        let start = Instant::now();
        let weights = WeightDir::open(&dir).request()?;
        let config = LlamaConfig::from_json(weights.config_json()).request()?;
        check(&TargetFacts { layers: config.layers, vocab: config.vocab_size, hidden: config.hidden_size })
            .request()?;
        let tokenizer = Tokenizer::load(&dir).request()?;
        tokenizer.fits(config.vocab_size).request()?;
        let template = ChatTemplate::load(&dir, &tokenizer).request()?;
        let target = Llama::from_weights(&weights, device).request()?;
        let target_hash = weights.content_hash().to_string();
        eprintln!("target: {} loaded in {:.1} s", dir.display(), start.elapsed().as_secs_f64());
        Ok(Self { dir, target, target_hash, tokenizer, template })
    }

    /// Token ids of a prompt with its template.
    pub fn encode(&self, prompt: &Prompt) -> Result<Vec<u32>, Failure> {
        let encoded = self.template.encode_prompt(&prompt.messages, &self.tokenizer);
        encoded.with_context(|| format!("prompt {}", prompt.id)).request()
    }

    /// `provenance.json` of a run on the device of this name.
    pub fn provenance(&self, recipe: &Recipe, device: &str) -> Result<serde_json::Value, Failure> {
        let hash = |path: &Path| spectrain_data::store::sha256_file(path).request();
        Ok(serde_json::json!({
            "target": self.dir,
            "target_hash": self.target_hash,
            "tokenizer_hash": self.tokenizer.content_hash(),
            "template_hash": self.template.content_hash(),
            "prompts_hash": hash(&recipe.data.prompts)?,
            "eval_prompts_hash": hash(&recipe.eval.prompts)?,
            "seed": recipe.seed,
            "device": device,
            "spectrain_version": env!("CARGO_PKG_VERSION"),
        }))
    }
}

/// Prompts of the file that `key` names, refused with file and line when they are none.
pub fn read_questions(key: &str, path: &Path) -> Result<Vec<Prompt>, Failure> {
    let wanted = format!("{key} must be a file of prompts, one JSON object a line");
    read_prompts(path).with_context(|| wanted).request()
}
