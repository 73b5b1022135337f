//! Downloading from a hub: what arrives, what is refused with which words, and that nothing half done is left.
#![allow(clippy::unwrap_used)]

mod server;

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use server::{COMMIT, Reply, Repository, Server, weights};
use spectrain_data::fetch::{FetchError, FetchReport, Hub, HubError, MANIFEST, Origin, Source, fetch};
use spectrain_data::weights::{WeightDir, WeightError};
use tempfile::TempDir;

fn supported(config: &Value) -> Result<(), String> {
    match config["model_type"].as_str() {
        Some("llama") => Ok(()),
        other => Err(format!("config.json: model_type {other:?} is not supported; this build runs \"llama\"")),
    }
}

/// An empty folder that models are fetched to.
struct Place {
    dir: TempDir,
    hub: Hub,
}

impl Place {
    fn new(endpoint: &str) -> Self {
        let hub = Hub { endpoint: endpoint.to_owned(), token: None, supported };
        Self { dir: tempfile::tempdir().unwrap(), hub }
    }

    fn out(&self) -> PathBuf {
        self.dir.path().join("model")
    }

    fn fetch(&self, name: &str) -> Result<FetchReport, FetchError> {
        fetch(&Source::parse(name)?, &self.out(), &self.hub, &mut |_| {})
    }

    /// The fetch must fail with one line that holds all `words`, blame as told, and leave nothing.
    fn refused(&self, name: &str, is_request: bool, words: &[&str]) -> FetchError {
        let error = self.fetch(name).unwrap_err();
        let line = error.to_string();
        assert!(words.iter().all(|word| line.contains(word)) && !line.contains('\n'), "{words:?}: {line}");
        assert_eq!(error.is_request(), is_request, "{line}");
        assert_eq!(fs::read_dir(self.dir.path()).unwrap().count(), 0, "{line}");
        error
    }
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_model_arrives_with_its_commit() {
    let server = Repository::new().start();
    let place = Place::new(&server.endpoint);
    let mut told = Vec::new();
    let source = Source::parse("hf:org/model").unwrap();
    let report = fetch(&source, &place.out(), &place.hub, &mut |stage| told.push(stage.to_owned())).unwrap();
    assert!(report.written);
    assert_eq!(report.origin, Origin::Hub { commit: COMMIT.into() });
    assert!(told.iter().any(|line| line == &format!("hf:org/model@main is commit {COMMIT}")), "{told:?}");
    let files = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"];
    assert_eq!(report.files.keys().collect::<Vec<_>>(), files);
    assert_eq!(names(&place.out()), [&files[..2], &[MANIFEST], &files[2..]].concat());
    let manifest: Value = serde_json::from_slice(&fs::read(place.out().join(MANIFEST)).unwrap()).unwrap();
    assert_eq!((&manifest["source"], &manifest["commit"]), (&json!("hf:org/model@main"), &json!(COMMIT)));
    assert_eq!(WeightDir::open(&place.out()).unwrap().tensor_f32("a", &[2]).unwrap(), [1.0, 2.0]);
    assert_eq!(names(place.dir.path()), ["model"]);
    assert!(server.asked().iter().all(|(_, token)| token.is_none()));
}

#[test]
fn what_is_here_needs_no_hub() {
    let server = Repository::new().start();
    let mut place = Place::new(&server.endpoint);
    place.fetch("hf:org/model").unwrap();
    let asked = server.asked().len();
    let again = place.fetch("hf:org/model@main").unwrap();
    assert_eq!((again.written, again.origin), (false, Origin::Hub { commit: COMMIT.into() }));
    assert_eq!(server.asked().len(), asked);
    let other = place.fetch("hf:org/model@refs/pr/7").unwrap_err();
    assert!(matches!(other, FetchError::OtherSource { .. }) && other.is_request(), "{other}");
    // A damaged file brings the model anew, and keeps what is there if that fails.
    fs::write(place.out().join("tokenizer.json"), "{}").unwrap();
    let endpoint = std::mem::replace(&mut place.hub.endpoint, closed());
    assert!(matches!(place.fetch("hf:org/model"), Err(FetchError::Hub(HubError::Unreachable { .. }))));
    assert!(place.out().join("config.json").exists());
    place.hub.endpoint = endpoint;
    assert!(place.fetch("hf:org/model").unwrap().written);
}

#[test]
fn shards_arrive_by_their_index_at_any_revision() {
    let server = Repository::sharded().start();
    let place = Place::new(&server.endpoint);
    place.fetch("hf:org/model@refs/pr/7").unwrap();
    let weights = WeightDir::open(&place.out()).unwrap();
    assert_eq!((weights.shape("a"), weights.shape("b")), (Some(&[2][..]), Some(&[1][..])));
    let files = server.files();
    assert!(files.contains(&format!("{COMMIT}/one%20of%202.safetensors")), "{files:?}");
    assert!(!files.iter().any(|file| file.ends_with(".bin")), "{files:?}");
}

#[test]
fn redirects_are_followed_and_another_host_does_not_see_the_token() {
    let store = Server::start(|_| Reply::new(200, weights(&[("a", &[4.0])])));
    let elsewhere = format!("{}/blob", store.endpoint.replace("127.0.0.1", "localhost"));
    let mut repository = Repository::new();
    repository.file("model.safetensors", weights(&[("a", &[4.0])]));
    let within = format!("/org/model/resolve/{COMMIT}/config.json?again");
    let server = repository
        .wrong("/model.safetensors", Reply::new(302, "moved").with("Location", elsewhere))
        .wrong("/config.json", Reply::new(307, "moved").with("Location", within))
        .start();
    let mut place = Place::new(&server.endpoint);
    place.hub.token = Some("secret".into());
    place.fetch("hf:org/model").unwrap();
    assert_eq!(WeightDir::open(&place.out()).unwrap().tensor_f32("a", &[1]).unwrap(), [4.0]);
    assert!(server.files().contains(&format!("{COMMIT}/config.json?again")));
    assert!(server.asked().iter().all(|(_, token)| token.as_deref() == Some("Bearer secret")), "{:?}", server.asked());
    assert_eq!(store.asked(), [("/blob".to_owned(), None)]);
}

#[test]
fn a_download_that_breaks_off_leaves_nothing() {
    let whole = Repository::new().files["model.safetensors"].clone();
    for sent in [0, 1, whole.len() - 1] {
        let server = Repository::new().wrong("/model.safetensors", Reply::new(200, whole.clone()).cut(sent)).start();
        let part = format!("after {sent} bytes of {}", whole.len());
        let error = Place::new(&server.endpoint).refused("hf:org/model", false, &["model.safetensors", &part]);
        assert!(matches!(error, FetchError::Hub(HubError::Interrupted { .. })), "{error}");
    }
    // An answer that is whole by its own header, but not what the listing says.
    let server = Repository::new().wrong("/model.safetensors", Reply::new(200, &whole[..20])).start();
    Place::new(&server.endpoint).refused("hf:org/model", false, &["after 20 bytes of", "than the hub lists"]);
    let mut other = whole;
    *other.last_mut().unwrap() ^= 1;
    let server = Repository::new().wrong("/model.safetensors", Reply::new(200, other)).start();
    let error = Place::new(&server.endpoint).refused("hf:org/model", false, &["model.safetensors: SHA-256"]);
    assert!(matches!(error, FetchError::Hub(HubError::Hash { .. })), "{error}");
}

#[test]
fn refusals_of_the_hub_are_told_apart() {
    let listing = "/revision/main?blobs=true";
    let coded = |status, code: &str| Reply::new(status, "{}").with("X-Error-Code", code);
    for (reply, token, is_request, words) in [
        (Reply::new(404, ""), false, true, ["no repository org/model", "HF_TOKEN"]),
        (coded(401, "RepoNotFound"), false, true, ["no repository org/model", "HF_TOKEN"]),
        (Reply::new(401, ""), false, true, ["HTTP 401", "set HF_TOKEN"]),
        (coded(403, "GatedRepo"), true, true, ["HTTP 403", "HF_TOKEN is set, but"]),
        (Reply::new(503, "busy"), false, false, ["HTTP 503", "try again"]),
        (Reply::new(429, "slower"), false, false, ["HTTP 429", "try again"]),
        (Reply::new(200, "<html>Log in"), false, false, ["not the answer of a hub", "/api/models/org/model"]),
        (
            Reply::new(302, "").with("Location", "/api/models/org/model/revision/main?blobs=true"),
            false,
            false,
            ["cannot be reached", "redirects"],
        ),
    ] {
        let server = Repository::new().wrong(listing, reply).start();
        let mut place = Place::new(&server.endpoint);
        place.hub.token = token.then(|| "secret".into());
        place.refused("hf:org/model", is_request, &words);
    }
    let server = Repository::new().start();
    Place::new(&server.endpoint).refused("hf:org/model@v9", true, &["no revision \"v9\"", "main"]);
    // A gated repository may be listed for everyone: its files are not.
    let server = Repository::new().wrong("/config.json", coded(401, "GatedRepo")).start();
    Place::new(&server.endpoint).refused("hf:org/model", true, &["gated", "set HF_TOKEN"]);
}

/// An address where nothing listens.
fn closed() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

#[test]
fn a_hub_out_of_reach_says_what_to_do() {
    let place = Place::new(&closed());
    place.refused("hf:org/model", false, &["cannot be reached", "copy the files of org/model into a directory"]);
    let place = Place::new("http://no-such-host.invalid");
    place.refused("hf:org/model", false, &["http://no-such-host.invalid cannot be reached"]);
    let place = Place::new("not an address");
    place.refused("hf:org/model", false, &["not an address cannot be reached"]);
}

#[test]
fn what_cannot_be_run_is_refused_before_its_weights() {
    let mut mamba = Repository::new();
    mamba.json("config.json", &json!({ "model_type": "mamba" }));
    let mut big = Repository::new();
    big.json("config.json", &json!({ "model_type": "llama", "vocab_size": 1 }));
    let mut broken = Repository::new();
    broken.file("config.json", "{");
    let mut textless = Repository::new();
    textless.files.remove("tokenizer.json");
    let mut pickled = Repository::new();
    pickled.files.remove("model.safetensors");
    let mut twofold = Repository::sharded();
    twofold.file("model.safetensors", weights(&[("a", &[1.0])]));
    let mut lost = Repository::sharded();
    lost.files.remove("two.safetensors");
    let mut leading_out = Repository::sharded();
    leading_out.index(json!({ "a": "../../secret.safetensors" }));
    for (repository, words) in [
        (mamba, &["hf:org/model@main: config.json: model_type", "mamba", "llama"][..]),
        (big, &["tokenizer.json"]),
        (broken, &["config.json", "EOF"]),
        (textless, &["has no tokenizer.json"]),
        (pickled, &["neither model.safetensors nor model.safetensors.index.json, only pytorch_model.bin"]),
        (twofold, &["two models in one"]),
        (lost, &["has no two.safetensors"]),
        (leading_out, &["tensor `a` is given", "secret"]),
    ] {
        let server = repository.start();
        Place::new(&server.endpoint).refused("hf:org/model", true, words);
        let files = server.files();
        assert!(!files.iter().any(|file| file.ends_with(".safetensors")), "{words:?}: {files:?}");
    }
}

#[test]
fn shards_that_do_not_hold_what_the_index_says_are_refused() {
    let mut repository = Repository::sharded();
    repository.file("two.safetensors", weights(&[("b", &[3.0]), ("c", &[3.0])]));
    let server = repository.start();
    let error = Place::new(&server.endpoint).refused("hf:org/model", true, &["tensor `c` of two.safetensors"]);
    assert!(matches!(error, FetchError::Weights(WeightError::Index { .. })), "{error}");
    let mut repository = Repository::new();
    repository.file("model.safetensors", "no weights at all");
    let server = repository.start();
    Place::new(&server.endpoint).refused("hf:org/model", true, &["model.safetensors"]);
}
