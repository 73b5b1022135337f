//! A model on the hub: `hf:ORG/NAME@REVISION`.
//!
//! What is named is refused as early as can be told: the repository by its listing, the architecture by its
//! `config.json`, the layout by its index, and only then are gigabytes downloaded. The name and the errors are part
//! of every build, so that a build without the feature `hub` says what it lacks.

#[cfg(feature = "hub")]
mod bring;
#[cfg(feature = "hub")]
mod client;

use std::fmt;
use std::path::PathBuf;

use serde_json::Value;
use thiserror::Error;

#[cfg(feature = "hub")]
pub(super) use bring::bring;
#[cfg(not(feature = "hub"))]
pub(super) use without::bring;

/// What a name on the hub begins with.
pub const PREFIX: &str = "hf:";
/// The public hub, unless `HF_ENDPOINT` names another.
const ENDPOINT: &str = "https://huggingface.co";
/// The revision of a name that has none.
const REVISION: &str = "main";

/// A repository of the hub at a branch, tag or commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubModel {
    repository: String,
    revision: String,
}

impl HubModel {
    /// Parses `hf:ORG/NAME` or `hf:ORG/NAME@REVISION`.
    ///
    /// # Errors
    /// [`HubError::Name`].
    pub fn parse(text: &str) -> Result<Self, HubError> {
        let name = text.strip_prefix(PREFIX).unwrap_or(text);
        let (repository, revision) = name.split_once('@').unwrap_or((name, REVISION));
        let word = |word: &str| {
            !word.starts_with(['.', '-'])
                && !word.is_empty()
                && word.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
        };
        let valid = repository.split('/').count() == 2 && repository.split('/').all(word);
        if !valid || !revision.split('/').all(word) {
            return Err(HubError::Name { text: text.to_owned() });
        }
        Ok(Self { repository: repository.to_owned(), revision: revision.to_owned() })
    }

    /// `ORG/NAME`.
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// Branch, tag or commit.
    pub fn revision(&self) -> &str {
        &self.revision
    }

    /// The name as one part of a path: `ORG--NAME`, with `@REVISION` where it is not the default one.
    pub fn directory(&self) -> PathBuf {
        let revision = if self.revision == REVISION { String::new() } else { format!("@{}", self.revision) };
        format!("{}{revision}", self.repository).replace('/', "--").into()
    }
}

impl fmt::Display for HubModel {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{PREFIX}{}@{}", self.repository, self.revision)
    }
}

/// Where models are downloaded from, and which are worth it.
#[derive(Debug, Clone)]
pub struct Hub {
    /// Address of the hub.
    pub endpoint: String,
    /// Access token, sent to the hub's host and to no other that it redirects to.
    pub token: Option<String>,
    /// Whether the program can run a model of this `config.json`; the error says why not and what it can run.
    pub supported: fn(&Value) -> Result<(), String>,
}

impl Hub {
    /// The public hub, or what the environment names: `HF_ENDPOINT` and `HF_TOKEN`.
    pub fn from_env(supported: fn(&Value) -> Result<(), String>) -> Self {
        let set = |key| std::env::var(key).ok().map(|v| v.trim().to_owned()).filter(|v| !v.is_empty());
        let endpoint = set("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned());
        Self { endpoint: endpoint.trim_end_matches('/').to_owned(), token: set("HF_TOKEN"), supported }
    }
}

/// Refuses what this build cannot download, before anything is written.
pub(super) fn must_have_client(model: &HubModel) -> Result<(), HubError> {
    if cfg!(feature = "hub") { Ok(()) } else { Err(HubError::NoClient { model: model.clone() }) }
}

/// What stands for the download in a build without a client.
#[cfg(not(feature = "hub"))]
mod without {
    use super::{Hub, HubError, HubModel};
    use std::collections::BTreeMap;
    use std::path::Path;

    pub fn bring(
        model: &HubModel,
        _: &Hub,
        _: &Path,
        _: &mut dyn FnMut(&str),
    ) -> Result<(String, BTreeMap<String, String>), HubError> {
        Err(HubError::NoClient { model: model.clone() })
    }
}

/// Why the hub did not give a model.
#[derive(Debug, Error)]
pub enum HubError {
    /// Not the name of a repository.
    #[error("`{text}`: a model on the hub is written hf:ORG/NAME or hf:ORG/NAME@REVISION")]
    Name {
        /// What was asked for.
        text: String,
    },
    /// This build has no client.
    #[error("{model}: this build cannot download from the hub: build with `--features hub`, or give a directory")]
    NoClient {
        /// The model.
        model: HubModel,
    },
    /// No connection, or no answer.
    #[error(
        "{endpoint} cannot be reached ({why}): copy the files of {} into a directory elsewhere and name that \
        directory as the target, or set HF_ENDPOINT to a mirror", model.repository
    )]
    Unreachable {
        /// Address of the hub.
        endpoint: String,
        /// The model.
        model: HubModel,
        /// The client's words.
        why: String,
    },
    /// No such repository, as far as the hub tells us.
    #[error("no repository {} at {endpoint}; if it is private, set HF_TOKEN", model.repository)]
    NoRepository {
        /// Address of the hub.
        endpoint: String,
        /// The model.
        model: HubModel,
    },
    /// The repository has no such branch, tag or commit.
    #[error("{} has no revision \"{}\"; the default is \"{REVISION}\"", model.repository, model.revision)]
    NoRevision {
        /// The model.
        model: HubModel,
    },
    /// The repository is there but not for everyone.
    #[error("{endpoint} refuses {} (HTTP {status}): it is gated or private; {}", model.repository,
        if *token { "HF_TOKEN is set, but its account must be given access on the model's page" }
        else { "ask for access on the model's page and set HF_TOKEN" })]
    Denied {
        /// Address of the hub.
        endpoint: String,
        /// The model.
        model: HubModel,
        /// HTTP status.
        status: u16,
        /// Whether a token was sent.
        token: bool,
    },
    /// Another answer than the file.
    #[error("{url}: HTTP {status}; try again later")]
    Status {
        /// The address.
        url: String,
        /// HTTP status.
        status: u16,
    },
    /// The listing of the repository is not what the hub gives.
    #[error("{url}: not the answer of a hub: {why}")]
    Answer {
        /// The address.
        url: String,
        /// What is wrong with it.
        why: String,
    },
    /// The download ended early, or something else came.
    #[error("{file}: the download broke off after {received} bytes{}: {why}; nothing was kept, run it again",
        expected.map_or_else(String::new, |n| format!(" of {n}")))]
    Interrupted {
        /// Name of the file.
        file: String,
        /// Bytes that came.
        received: u64,
        /// Bytes that the hub promised.
        expected: Option<u64>,
        /// The client's words.
        why: String,
    },
    /// The file is not the one that the hub lists.
    #[error("{file}: SHA-256 is {found}, the hub lists {expected}; nothing was kept, run it again")]
    Hash {
        /// Name of the file.
        file: String,
        /// The hash that the hub lists.
        expected: String,
        /// Hash of what came.
        found: String,
    },
    /// A model that the program cannot run.
    #[error("{model}: {why}")]
    Unsupported {
        /// The model.
        model: HubModel,
        /// What it is or lacks, and what would be right.
        why: String,
    },
}

impl HubError {
    /// Whether another request would be right, rather than another try of this one.
    pub(super) fn is_request(&self) -> bool {
        match self {
            Self::Name { .. }
            | Self::NoClient { .. }
            | Self::NoRepository { .. }
            | Self::NoRevision { .. }
            | Self::Denied { .. }
            | Self::Unsupported { .. } => true,
            Self::Unreachable { .. }
            | Self::Status { .. }
            | Self::Answer { .. }
            | Self::Interrupted { .. }
            | Self::Hash { .. } => false,
        }
    }
}
