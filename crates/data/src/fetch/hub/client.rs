//! The hub over HTTP: the listing of a repository at a revision, and its files at the commit of that listing.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use ureq::Agent;
use ureq::Body;
use ureq::config::RedirectAuthHeaders;
use ureq::http::Response;

use super::{Hub, HubError, HubModel};
use crate::fetch::{FetchError, at};
use crate::weights::hex;

/// Longest wait for a name or a connection: without a network the user is told soon.
const CONNECT: Duration = Duration::from_secs(10);
/// Longest silence: within an answer, and before it.
const SILENCE: Duration = Duration::from_secs(60);
/// Bytes moved at once.
const BLOCK: usize = 1 << 20;

/// A repository as the hub lists it.
#[derive(Deserialize)]
pub struct Listing {
    /// The commit that the revision stands for.
    #[serde(rename = "sha")]
    pub commit: String,
    #[serde(rename = "siblings")]
    files: Vec<Listed>,
}

/// A file of a listing. Mirrors may leave out all but the name.
#[derive(Deserialize)]
pub struct Listed {
    #[serde(rename = "rfilename")]
    name: String,
    /// Length in bytes.
    pub size: Option<u64>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: Option<String>,
}

impl Listing {
    /// A file by its name.
    pub fn find(&self, name: &str) -> Option<&Listed> {
        self.files.iter().find(|file| file.name == name)
    }

    /// The first file with such an ending.
    pub fn ending(&self, end: &str) -> Option<&str> {
        self.files.iter().map(|file| file.name.as_str()).find(|name| name.ends_with(end))
    }
}

/// A connection to the hub about one model.
pub struct Client<'a> {
    hub: &'a Hub,
    model: &'a HubModel,
    agent: Agent,
}

impl<'a> Client<'a> {
    /// Connects to nothing yet.
    pub fn new(hub: &'a Hub, model: &'a HubModel) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .redirect_auth_headers(RedirectAuthHeaders::SameHost)
            .timeout_resolve(Some(CONNECT))
            .timeout_connect(Some(CONNECT))
            .timeout_recv_response(Some(SILENCE))
            .timeout_per_read(Some(SILENCE))
            .user_agent(concat!("spectrain/", env!("CARGO_PKG_VERSION")));
        Self { hub, model, agent: config.build().new_agent() }
    }

    /// Lists the model's files at its revision.
    pub fn list(&self) -> Result<Listing, HubError> {
        let (repository, revision) = (self.model.repository(), encoded(self.model.revision()));
        let url = format!("{}/api/models/{repository}/revision/{revision}?blobs=true", self.hub.endpoint);
        self.json(&url)
    }

    /// Downloads a file of the listing and returns its SHA-256 (hex).
    pub fn download(&self, listing: &Listing, file: &Listed, to: &Path) -> Result<String, FetchError> {
        let (repository, commit) = (self.model.repository(), encoded(&listing.commit));
        let url = format!("{}/{repository}/resolve/{commit}/{}", self.hub.endpoint, encoded(&file.name));
        let mut body = self.get(&url)?.into_body();
        let expected = file.size.or_else(|| body.content_length());
        let mut out = BufWriter::with_capacity(BLOCK, File::create(to).map_err(at(to))?);
        let broken = |received, why: String| HubError::Interrupted { file: file.name.clone(), received, expected, why };
        let (mut reader, mut sha, mut received) = (body.as_reader(), Sha256::new(), 0);
        let mut block = vec![0; BLOCK];
        loop {
            let count = match reader.read(&mut block) {
                Ok(0) => break,
                Ok(count) => count,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(broken(received, e.to_string()).into()),
            };
            sha.update(&block[..count]);
            out.write_all(&block[..count]).map_err(at(to))?;
            received += count as u64;
        }
        if expected.is_some_and(|expected| expected != received) {
            return Err(broken(received, "another length than the hub lists".into()).into());
        }
        out.into_inner().map_err(io::IntoInnerError::into_error).and_then(|f| f.sync_all()).map_err(at(to))?;
        let found = hex(&sha.finalize());
        match file.lfs.as_ref().and_then(|lfs| lfs.sha256.clone()).filter(|sha| *sha != found) {
            Some(expected) => Err(HubError::Hash { file: file.name.clone(), expected, found }.into()),
            None => Ok(found),
        }
    }

    fn json<T: DeserializeOwned>(&self, url: &str) -> Result<T, HubError> {
        let answer = |why: String| HubError::Answer { url: url.to_owned(), why };
        let text = self.get(url)?.into_body().read_to_vec().map_err(|e| answer(e.to_string()))?;
        serde_json::from_slice(&text).map_err(|e| answer(e.to_string()))
    }

    /// The answer to a request, if it is a good one.
    fn get(&self, url: &str) -> Result<Response<Body>, HubError> {
        let mut request = self.agent.get(url);
        if let Some(token) = &self.hub.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let (endpoint, model) = (self.hub.endpoint.clone(), self.model.clone());
        let response = match request.call() {
            Ok(response) => response,
            Err(e) => return Err(HubError::Unreachable { endpoint, model, why: e.to_string() }),
        };
        let status = response.status().as_u16();
        let code = response.headers().get("x-error-code").and_then(|code| code.to_str().ok());
        Err(match (status, code) {
            (200, _) => return Ok(response),
            (_, Some("RevisionNotFound")) => HubError::NoRevision { model },
            // Without a token the hub answers 401, not 404, for a repository that is not there.
            (_, Some("RepoNotFound")) | (404, None) => HubError::NoRepository { endpoint, model },
            (401 | 403, _) => HubError::Denied { endpoint, model, status, token: self.hub.token.is_some() },
            _ => HubError::Status { url: url.to_owned(), status },
        })
    }
}

/// A part of a path as a URL wants it.
fn encoded(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}
