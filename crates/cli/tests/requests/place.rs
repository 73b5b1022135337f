//! A small place where a request can be made: a tiny random target, prompts, a recipe.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// An empty directory with a tiny target, prompts and a recipe that would run.
pub struct Place {
    dir: TempDir,
}

const TARGET: &str = "tiny_gqa1_f32";

impl Place {
    pub fn new() -> Self {
        Self::with_target(TARGET)
    }

    /// With this one of the tiny targets.
    pub fn with_target(name: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let place = Self { dir };
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/fixtures").join(name);
        fs::create_dir(place.path("target")).unwrap();
        for file in ["config.json", "model.safetensors"] {
            fs::copy(fixtures.join(file), place.path("target").join(file)).unwrap();
        }
        place.tokenizer(97);
        fs::write(place.path("prompts.jsonl"), "{\"id\":\"a\",\"task\":\"chat\",\"prompt\":\"b c d\"}\n").unwrap();
        fs::write(place.path("recipe.toml"), RECIPE).unwrap();
        place
    }

    pub fn root(&self) -> &Path {
        self.dir.path()
    }

    pub fn path(&self, part: &str) -> PathBuf {
        self.dir.path().join(part)
    }

    /// A word-level tokenizer of `size` tokens with a minimal chat template.
    pub fn tokenizer(&self, size: usize) {
        let vocab: serde_json::Map<String, serde_json::Value> =
            (0..size).map(|i| (if i == 0 { "<end>".to_string() } else { format!("w{i}") }, i.into())).collect();
        let tokenizer = serde_json::json!({
            "version": "1.0", "truncation": null, "padding": null,
            "added_tokens": [{"id": 0, "content": "<end>", "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true}],
            "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
            "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "w1"},
        });
        fs::write(self.path("target/tokenizer.json"), tokenizer.to_string()).unwrap();
        let template = "{% for m in messages %}{{ m.content }}<end>{% endfor %}";
        let config = serde_json::json!({"chat_template": template, "eos_token": "<end>"});
        fs::write(self.path("target/tokenizer_config.json"), config.to_string()).unwrap();
    }

    pub fn run(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_spectrain")).args(arguments).current_dir(self.dir.path()).output().unwrap()
    }

    /// Names of the files in the directory: what a refused command must not change.
    pub fn listing(&self) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(self.dir.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    pub fn refused(&self, arguments: &[&str], parts: &[&str]) {
        let before = self.listing();
        let output = self.run(arguments);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        let lines: Vec<&str> = error.lines().filter(|l| l.starts_with("error: ")).collect();
        assert_eq!(lines.len(), 1, "{arguments:?}: {error}");
        for part in parts {
            assert!(lines[0].contains(part), "{arguments:?}: \"{}\" does not name {part}", lines[0]);
        }
        assert_eq!(self.listing(), before, "{arguments:?} wrote something");
    }
}

/// A recipe that runs there.
pub const RECIPE: &str = r#"name = "small"

[target]
path = "target"

[data]
prompts = "prompts.jsonl"
answer_tokens = 200
max_new_tokens = 12
max_prompt_tokens = 64
batch = 4

[drafter]
taps = [0, 1, 2]
draft_vocab = 50

[train]
epochs = 1
max_seq = 128
batch_tokens = 128

[eval]
prompts = "prompts.jsonl"
max_new_tokens = 8
"#;
