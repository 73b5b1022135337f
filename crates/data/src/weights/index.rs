//! The index of a sharded model directory: which file holds which tensor.
//!
//! An index comes from elsewhere, so it is believed in nothing: a file must be one of its own directory (`../x` and
//! `/x` are refused), and no tensor may be listed twice (a plain JSON map would silently keep the last).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Value;

use super::WeightError;

/// Names of the tensors of each shard, in the order of the shards' names.
#[derive(Debug, PartialEq, Eq)]
pub struct ShardIndex(pub BTreeMap<String, BTreeSet<String>>);

#[derive(Deserialize)]
struct Raw {
    weight_map: Pairs,
}

/// A JSON object with its keys as they stand, repeated ones included.
struct Pairs(Vec<(String, Value)>);

impl ShardIndex {
    /// Reads an index; `path` is for messages only.
    ///
    /// # Errors
    /// [`WeightError::Json`] and [`WeightError::Index`].
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Self, WeightError> {
        let wrong = |why: String| WeightError::Index { path: path.to_owned(), why };
        let raw: Raw =
            serde_json::from_slice(bytes).map_err(|source| WeightError::Json { path: path.to_owned(), source })?;
        let mut shards: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let mut seen = BTreeSet::new();
        for (tensor, file) in raw.weight_map.0 {
            let Some(file) = file.as_str().filter(|f| is_file_name(f)) else {
                return Err(wrong(format!(
                    "tensor `{tensor}` is given {file}; it must be the name of a file of this directory"
                )));
            };
            if !seen.insert(tensor.clone()) {
                return Err(wrong(format!("tensor `{tensor}` is listed twice")));
            }
            shards.entry(file.to_owned()).or_default().insert(tensor);
        }
        if shards.is_empty() {
            return Err(wrong("`weight_map` lists no tensor".into()));
        }
        Ok(Self(shards))
    }
}

/// Whether this names a file of a directory, and cannot lead out of it on any system.
fn is_file_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains(['/', '\\', ':', '\0'])
}

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;

        impl<'de> Visitor<'de> for Collect {
            type Value = Pairs;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("`weight_map` as an object of tensor names and file names")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }

        deserializer.deserialize_map(Collect)
    }
}
