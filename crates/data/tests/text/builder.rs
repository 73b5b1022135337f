//! A GGUF written by hand, so that every byte of it can be wrong on purpose.

use std::fs;
use std::path::Path;

/// A metadata value.
#[derive(Clone)]
pub enum Meta {
    U32(u32),
    F32(f32),
    Bool(bool),
    Text(&'static str),
    Texts(Vec<String>),
    I32s(Vec<i32>),
}

/// A GGUF under construction.
#[derive(Clone)]
pub struct Builder {
    pub version: u32,
    pub meta: Vec<(String, Meta)>,
    /// Name, shape (outermost first), ggml type number, data.
    pub tensors: Vec<(String, Vec<u64>, u32, Vec<u8>)>,
}

impl Builder {
    pub fn new() -> Self {
        Self { version: 3, meta: Vec::new(), tensors: Vec::new() }
    }

    pub fn meta(&mut self, key: &str, value: Meta) -> &mut Self {
        self.meta.retain(|(k, _)| k != key);
        self.meta.push((key.to_owned(), value));
        self
    }

    pub fn f32s(&mut self, name: &str, shape: &[u64], values: &[f32]) -> &mut Self {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.tensors.push((name.to_owned(), shape.to_vec(), 0, bytes));
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.meta.len() as u64).to_le_bytes());
        for (key, value) in &self.meta {
            text(&mut out, key);
            put(&mut out, value);
        }
        let mut offset = 0u64;
        for (name, shape, kind, data) in &self.tensors {
            text(&mut out, name);
            out.extend((shape.len() as u32).to_le_bytes());
            shape.iter().rev().for_each(|size| out.extend(size.to_le_bytes()));
            out.extend(kind.to_le_bytes());
            out.extend(offset.to_le_bytes());
            offset += (data.len() as u64).next_multiple_of(32);
        }
        for (_, _, _, data) in &self.tensors {
            out.resize(out.len().next_multiple_of(32), 0);
            out.extend(data);
        }
        out
    }

    pub fn write(&self, path: &Path) {
        fs::write(path, self.bytes()).unwrap();
    }
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put(out: &mut Vec<u8>, value: &Meta) {
    let mut head = |kind: u32| out.extend(kind.to_le_bytes());
    match value {
        Meta::U32(n) => {
            head(4);
            out.extend(n.to_le_bytes());
        }
        Meta::F32(x) => {
            head(6);
            out.extend(x.to_le_bytes());
        }
        Meta::Bool(b) => {
            head(7);
            out.push(u8::from(*b));
        }
        Meta::Text(t) => {
            head(8);
            text(out, t);
        }
        Meta::Texts(items) => {
            head(9);
            out.extend(8u32.to_le_bytes());
            out.extend((items.len() as u64).to_le_bytes());
            items.iter().for_each(|t| text(out, t));
        }
        Meta::I32s(items) => {
            head(9);
            out.extend(5u32.to_le_bytes());
            out.extend((items.len() as u64).to_le_bytes());
            items.iter().for_each(|n| out.extend(n.to_le_bytes()));
        }
    }
}

/// Tokens of the tiny model: three special ones, then bytes and one merge.
const TOKENS: [&str; 8] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "a", "b", "1", "Ċ", "ĊĊ"];
/// Rows of `q` and `k` of the tiny model: two query heads and one key head of dimension 4, hidden size 8.
pub const HIDDEN: usize = 8;

/// A one-layer Llama with tied embeddings; element (r, c) of a matrix is `r + c / 100`.
pub fn tiny_llama() -> Builder {
    let mut gguf = Builder::new();
    for (key, n) in [("embedding_length", 8), ("block_count", 1), ("attention.head_count", 2), ("context_length", 16)] {
        gguf.meta(&format!("llama.{key}"), Meta::U32(n));
    }
    gguf.meta("general.architecture", Meta::Text("llama"));
    gguf.meta("llama.attention.head_count_kv", Meta::U32(1));
    gguf.meta("llama.feed_forward_length", Meta::U32(12));
    gguf.meta("llama.rope.freq_base", Meta::F32(100_000.0));
    gguf.meta("llama.attention.layer_norm_rms_epsilon", Meta::F32(1e-5));
    gguf.meta("tokenizer.ggml.model", Meta::Text("gpt2"));
    gguf.meta("tokenizer.ggml.pre", Meta::Text("smollm"));
    gguf.meta("tokenizer.ggml.tokens", Meta::Texts(TOKENS.map(str::to_owned).to_vec()));
    gguf.meta("tokenizer.ggml.token_type", Meta::I32s(vec![3, 3, 3, 1, 1, 1, 1, 1]));
    gguf.meta("tokenizer.ggml.merges", Meta::Texts(vec!["Ċ Ċ".to_owned()]));
    gguf.meta("tokenizer.ggml.add_bos_token", Meta::Bool(false));
    gguf.meta("tokenizer.ggml.bos_token_id", Meta::U32(1));
    gguf.meta("tokenizer.ggml.eos_token_id", Meta::U32(2));
    gguf.meta("tokenizer.chat_template", Meta::Text("{{ messages[0].content }}"));
    for (name, rows, columns) in [
        ("token_embd", 8, 8),
        ("blk.0.attn_q", 8, 8),
        ("blk.0.attn_k", 4, 8),
        ("blk.0.attn_v", 4, 8),
        ("blk.0.attn_output", 8, 8),
        ("blk.0.ffn_gate", 12, 8),
        ("blk.0.ffn_up", 12, 8),
        ("blk.0.ffn_down", 8, 12),
    ] {
        gguf.f32s(&format!("{name}.weight"), &[rows, columns], &grid(rows as usize, columns as usize));
    }
    for name in ["output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"] {
        gguf.f32s(&format!("{name}.weight"), &[8], &[1.5; 8]);
    }
    gguf
}

/// Element (r, c) is `r + c / 100`.
pub fn grid(rows: usize, columns: usize) -> Vec<f32> {
    (0..rows * columns).map(|i| (i / columns) as f32 + (i % columns) as f32 / 100.0).collect()
}
