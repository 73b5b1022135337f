//! Downloads what a model directory needs, smallest first, and checks each file before the next one is asked for.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;
use spectrain_core::tokenizer::Tokenizer;

use super::client::{Client, Listing};
use super::{Hub, HubError, HubModel};
use crate::fetch::{FetchError, at};
use crate::weights::{CONFIG, INDEX, SINGLE, ShardIndex, WeightDir};

/// The text file that every model must have, beside [`CONFIG`].
const TOKENIZER: &str = "tokenizer.json";
/// Text files that are taken where they are.
const TAKEN: [&str; 3] = ["generation_config.json", "tokenizer_config.json", "chat_template.jinja"];

/// A model being downloaded.
struct Download<'a> {
    model: &'a HubModel,
    client: Client<'a>,
    listing: Listing,
    dir: &'a Path,
    /// SHA-256 of what is there.
    files: BTreeMap<String, String>,
}

/// Fills `dir` with the model's files; returns the commit that its revision stands for, and the files' hashes.
pub fn bring(
    model: &HubModel,
    hub: &Hub,
    dir: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<(String, BTreeMap<String, String>), FetchError> {
    progress(&format!("asking {} for {model}", hub.endpoint));
    let client = Client::new(hub, model);
    let listing = client.list()?;
    progress(&format!("{model} is commit {}", listing.commit));
    let mut download = Download { model, client, listing, dir, files: BTreeMap::new() };
    download.must_list(TOKENIZER)?;
    download.take(CONFIG)?;
    let config: Value = download.json(CONFIG)?;
    (hub.supported)(&config).map_err(|why| download.unsupported(why))?;
    let weights = download.weight_files()?;
    download.take(TOKENIZER)?;
    for name in TAKEN {
        if download.listing.find(name).is_some() {
            download.take(name)?;
        }
    }
    let tokenizer = Tokenizer::load(dir)?;
    if let Some(vocab) = config["vocab_size"].as_u64() {
        tokenizer.fits(vocab as usize)?;
    }
    for (i, name) in weights.iter().enumerate() {
        let size = download.listing.find(name).and_then(|file| file.size);
        let size = size.map_or_else(String::new, |bytes| format!("{} MB, ", bytes.div_ceil(1_000_000)));
        progress(&format!("downloading {name} ({size}{} of {})", i + 1, weights.len()));
        download.take(name)?;
    }
    progress("checking the weights");
    WeightDir::open(dir)?;
    Ok((download.listing.commit, download.files))
}

impl Download<'_> {
    fn unsupported(&self, why: String) -> HubError {
        HubError::Unsupported { model: self.model.clone(), why }
    }

    fn must_list(&self, name: &str) -> Result<(), HubError> {
        match self.listing.find(name) {
            Some(_) => Ok(()),
            None => Err(self.unsupported(format!("the repository has no {name}"))),
        }
    }

    /// Downloads a file of the listing; its name must be one of a directory.
    fn take(&mut self, name: &str) -> Result<(), FetchError> {
        self.must_list(name)?;
        if let Some(file) = self.listing.find(name) {
            let hash = self.client.download(&self.listing, file, &self.dir.join(name))?;
            self.files.insert(name.to_owned(), hash);
        }
        Ok(())
    }

    fn json(&self, name: &str) -> Result<Value, FetchError> {
        let path = self.dir.join(name);
        let bytes = fs::read(&path).map_err(at(&path))?;
        Ok(serde_json::from_slice(&bytes).map_err(|e| self.unsupported(format!("{name}: {e}")))?)
    }

    /// Names of the weight files, the index read first where there is one.
    fn weight_files(&mut self) -> Result<Vec<String>, FetchError> {
        if self.listing.find(INDEX).is_none() {
            if self.listing.find(SINGLE).is_some() {
                return Ok(vec![SINGLE.to_owned()]);
            }
            let other = [".safetensors", ".bin", ".gguf"].iter().find_map(|end| self.listing.ending(end));
            let other = other.map_or_else(String::new, |name| format!(", only {name}"));
            return Err(self.unsupported(format!("the repository has neither {SINGLE} nor {INDEX}{other}")).into());
        }
        self.take(INDEX)?;
        let path = self.dir.join(INDEX);
        let ShardIndex(shards) = ShardIndex::parse(&path, &fs::read(&path).map_err(at(&path))?)?;
        if self.listing.find(SINGLE).is_some() && !shards.contains_key(SINGLE) {
            let why = format!("the repository has {SINGLE} and an {INDEX} of other files: two models in one");
            return Err(self.unsupported(why).into());
        }
        shards.keys().try_for_each(|shard| self.must_list(shard))?;
        Ok(shards.into_keys().collect())
    }
}
