//! A hub of one repository on this machine, which can be told to answer wrongly.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use spectrain_data::weights::{F32Tensor, write_safetensors};

/// The commit that every revision stands for.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// An answer.
#[derive(Clone)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
    /// Bytes of the body that are sent before the connection is closed.
    pub sent: usize,
}

impl Reply {
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        let body = body.into();
        Self { status, headers: Vec::new(), sent: body.len(), body }
    }

    pub fn with(mut self, key: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((key, value.into()));
        self
    }

    pub fn cut(mut self, sent: usize) -> Self {
        self.sent = sent;
        self
    }
}

/// What was asked: the path, and the token if one was sent.
pub type Asked = (String, Option<String>);

/// A server that answers by path until the process ends.
pub struct Server {
    pub endpoint: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Server {
    pub fn start(answer: impl Fn(&str) -> Reply + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = asked.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                // A client that goes away is no failure of the server.
                serve(stream, &log, &answer).ok();
            }
        });
        Self { endpoint, asked }
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    /// Names of the files asked for, in order.
    pub fn files(&self) -> Vec<String> {
        let asked = self.asked();
        asked.iter().filter_map(|(path, _)| path.split_once("/resolve/").map(|(_, file)| file.to_owned())).collect()
    }
}

fn serve(stream: TcpStream, log: &Mutex<Vec<Asked>>, answer: &impl Fn(&str) -> Reply) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut token = None;
    for line in lines.map_while(Result::ok).take_while(|line| !line.is_empty()) {
        let (key, value) = line.split_once(": ").unwrap();
        if key.eq_ignore_ascii_case("authorization") {
            token = Some(value.to_owned());
        }
    }
    log.lock().unwrap().push((path.clone(), token));
    let reply = answer(&path);
    let mut out = stream;
    write!(out, "HTTP/1.1 {} X\r\ncontent-length: {}\r\nconnection: close\r\n", reply.status, reply.body.len())?;
    reply.headers.iter().try_for_each(|(key, value)| write!(out, "{key}: {value}\r\n"))?;
    out.write_all(b"\r\n")?;
    out.write_all(&reply.body[..reply.sent])
}

/// The repository `org/model`.
#[derive(Clone)]
pub struct Repository {
    pub files: BTreeMap<String, Vec<u8>>,
    /// Answers that differ from what the files say, by the path's ending.
    pub wrong: BTreeMap<String, Reply>,
}

/// A weight file of these tensors.
pub fn weights(tensors: &[(&str, &[f32])]) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let tensors: Vec<_> =
        tensors.iter().map(|(name, v)| ((*name).to_owned(), F32Tensor::new(&[v.len()], v.to_vec()))).collect();
    write_safetensors(&dir.path().join("x"), &tensors, &BTreeMap::new()).unwrap();
    std::fs::read(dir.path().join("x")).unwrap()
}

impl Repository {
    /// A model of one weight file.
    pub fn new() -> Self {
        let tokenizer = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
            "pre_tokenizer": { "type": "Whitespace" }, "post_processor": null, "decoder": null,
            "model": { "type": "WordLevel", "vocab": { "a": 0, "b": 1 }, "unk_token": "a" },
        });
        let mut this = Self { files: BTreeMap::new(), wrong: BTreeMap::new() };
        this.json("config.json", &json!({ "model_type": "llama", "vocab_size": 2 }));
        this.json("tokenizer.json", &tokenizer);
        this.json("tokenizer_config.json", &json!({ "eos_token": "b" }));
        this.file("README.md", "# model");
        this.file("pytorch_model.bin", "pickle");
        this.file("model.safetensors", weights(&[("a", &[1.0, 2.0]), ("b", &[3.0])]));
        this
    }

    /// The same weights in two shards.
    pub fn sharded() -> Self {
        let mut this = Self::new();
        this.files.remove("model.safetensors");
        this.file("one of 2.safetensors", weights(&[("a", &[1.0, 2.0])]));
        this.file("two.safetensors", weights(&[("b", &[3.0])]));
        this.index(json!({ "a": "one of 2.safetensors", "b": "two.safetensors" }));
        this
    }

    pub fn index(&mut self, map: Value) {
        self.json("model.safetensors.index.json", &json!({ "metadata": {}, "weight_map": map }));
    }

    pub fn file(&mut self, name: &str, content: impl Into<Vec<u8>>) {
        self.files.insert(name.to_owned(), content.into());
    }

    pub fn json(&mut self, name: &str, content: &Value) {
        self.file(name, content.to_string());
    }

    pub fn wrong(mut self, ending: &str, reply: Reply) -> Self {
        self.wrong.insert(ending.to_owned(), reply);
        self
    }

    /// What the hub tells of it; large files have hashes.
    fn listing(&self) -> Value {
        let files = self.files.iter().map(|(name, content)| {
            let sha: String = Sha256::digest(content).iter().map(|b| format!("{b:02x}")).collect();
            let lfs = name.ends_with("safetensors").then(|| json!({ "sha256": sha, "size": content.len() }));
            json!({ "rfilename": name, "size": content.len(), "lfs": lfs })
        });
        json!({ "id": "org/model", "sha": COMMIT, "siblings": files.collect::<Vec<_>>() })
    }

    pub fn start(self) -> Server {
        let listing = self.listing().to_string();
        Server::start(move |path| {
            if let Some((_, reply)) = self.wrong.iter().find(|(ending, _)| path.ends_with(ending.as_str())) {
                return reply.clone();
            }
            let (plain, _) = path.split_once('?').unwrap_or((path, ""));
            if let Some(revision) = plain.strip_prefix("/api/models/org/model/revision/") {
                return match revision {
                    "main" | "refs%2Fpr%2F7" => Reply::new(200, listing.clone()),
                    _ => Reply::new(404, "").with("X-Error-Code", "RevisionNotFound"),
                };
            }
            let file = plain.strip_prefix(&format!("/org/model/resolve/{COMMIT}/"));
            match file.and_then(|file| self.files.get(&file.replace("%20", " "))) {
                Some(content) => Reply::new(200, content.clone()),
                None => Reply::new(404, ""),
            }
        })
    }
}
