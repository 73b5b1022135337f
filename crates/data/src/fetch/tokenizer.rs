//! The text side of a GGUF: byte-level BPE vocabulary, special tokens and chat template to the Hugging Face files.

use serde_json::{Map, Value, json};

use super::FetchError;
use crate::gguf::{Gguf, GgufValue};

/// `tokenizer.ggml.token_type` of a control token such as `<|im_end|>`.
const CONTROL: u64 = 3;
/// `tokenizer.ggml.token_type` of a token that is matched whole but is ordinary text.
const USER_DEFINED: u64 = 4;

/// Ids with a meaning, where the GGUF names them.
pub(super) struct Specials {
    /// Beginning of sequence.
    pub bos: Option<u64>,
    /// End of sequence.
    pub eos: Option<u64>,
    /// Padding.
    pub pad: Option<u64>,
    unknown: Option<u64>,
    /// End of turn, where it is another token than `eos`.
    end_of_turn: Option<u64>,
}

/// Everything about text that a GGUF holds.
pub(super) struct TextSide<'a> {
    tokens: Vec<&'a str>,
    kinds: Vec<u64>,
    merges: Vec<(&'a str, &'a str)>,
    pre_tokenizer: Value,
    template: Option<&'a str>,
    /// Ids with a meaning.
    pub specials: Specials,
}

impl<'a> TextSide<'a> {
    /// Reads vocabulary, merges and special tokens; `vocab` is the number of embedding rows.
    pub fn read(gguf: &'a Gguf, vocab: usize) -> Result<Self, FetchError> {
        let refuse = |what: String| FetchError::Unsupported { path: gguf.path().to_owned(), what };
        let model = gguf.text("tokenizer.ggml.model")?;
        if model != "gpt2" {
            return Err(refuse(format!("tokenizer model `{model}` is not supported, only `gpt2` (byte-level BPE)")));
        }
        let pre = gguf.text("tokenizer.ggml.pre")?;
        let pre_tokenizer = pre_tokenizer(pre)
            .ok_or_else(|| refuse(format!("pre-tokenizer `{pre}` is not supported, only `smollm`")))?;
        for key in ["add_bos_token", "add_eos_token", "add_space_prefix"] {
            if gguf.value(&format!("tokenizer.ggml.{key}")) == Some(&GgufValue::Bool(true)) {
                return Err(refuse(format!("tokenizer.ggml.{key} = true is not supported")));
            }
        }
        let tokens = gguf.array("tokenizer.ggml.tokens", "an array of texts", GgufValue::as_str)?;
        let kinds = gguf.array("tokenizer.ggml.token_type", "an array of integers", GgufValue::as_u64)?;
        let merges = gguf.array("tokenizer.ggml.merges", "an array of texts with one space", |merge| {
            merge.as_str().and_then(|text| text.split_once(' ')).filter(|(_, right)| !right.contains(' '))
        })?;
        if tokens.len() != vocab || kinds.len() != vocab {
            let (tokens, kinds) = (tokens.len(), kinds.len());
            return Err(refuse(format!("{tokens} tokens and {kinds} token types for {vocab} embedding rows")));
        }
        let id = |key: &str| match gguf.value(&format!("tokenizer.ggml.{key}_token_id")) {
            None => Ok(None),
            Some(id) => match id.as_u64().filter(|id| *id < vocab as u64) {
                Some(id) => Ok(Some(id)),
                None => {
                    Err(refuse(format!("tokenizer.ggml.{key}_token_id {id:?} is not in the vocabulary of {vocab}")))
                }
            },
        };
        let specials = Specials {
            bos: id("bos")?,
            eos: id("eos")?,
            pad: id("padding")?,
            unknown: id("unknown")?,
            end_of_turn: id("eot")?,
        };
        let template = gguf.value("tokenizer.chat_template").and_then(GgufValue::as_str);
        Ok(Self { tokens, kinds, merges, pre_tokenizer, template, specials })
    }

    /// The `tokenizer.json`.
    pub fn tokenizer(&self) -> Value {
        let added: Vec<Value> = self
            .tokens
            .iter()
            .zip(&self.kinds)
            .enumerate()
            .filter(|(_, (_, kind))| matches!(**kind, CONTROL | USER_DEFINED))
            .map(|(id, (token, kind))| {
                json!({
                    "id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false, "special": *kind == CONTROL,
                })
            })
            .collect();
        let vocab: Map<String, Value> =
            self.tokens.iter().enumerate().map(|(id, token)| ((*token).to_owned(), json!(id))).collect();
        json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": added,
            "normalizer": null,
            "pre_tokenizer": self.pre_tokenizer,
            "post_processor": null,
            "decoder": byte_level(),
            "model": {
                "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                "vocab": vocab, "merges": self.merges,
            },
        })
    }

    /// The `tokenizer_config.json`. The class is the one that takes `tokenizer.json` as it is; a model's own class
    /// would put its own pre-tokenizer in place of the one written there.
    pub fn tokenizer_config(&self, context: usize) -> Value {
        let token = |id: Option<u64>| id.map(|id| self.tokens[id as usize]);
        json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "add_prefix_space": false,
            "clean_up_tokenization_spaces": false,
            "model_max_length": context,
            "bos_token": token(self.specials.bos),
            "eos_token": token(self.specials.eos),
            "pad_token": token(self.specials.pad),
            "unk_token": token(self.specials.unknown),
            "chat_template": self.template,
        })
    }

    /// The `generation_config.json`: what ends an answer.
    pub fn generation_config(&self) -> Value {
        let Specials { bos, eos, pad, end_of_turn, .. } = self.specials;
        let stops = match (eos, end_of_turn.filter(|id| Some(*id) != eos)) {
            (Some(eos), Some(end)) => json!([eos, end]),
            (eos, end) => json!(eos.or(end)),
        };
        json!({ "bos_token_id": bos, "eos_token_id": stops, "pad_token_id": pad })
    }
}

/// How text is cut before BPE, by llama.cpp's name for it.
///
/// `smollm`: every digit is a piece of its own, then GPT-2's rule inside the pieces. Leaving the digits to GPT-2's
/// rule changes more than numbers: the line breaks before a digit would no longer be one piece.
fn pre_tokenizer(name: &str) -> Option<Value> {
    (name == "smollm").then(|| {
        json!({
            "type": "Sequence",
            "pretokenizers": [{ "type": "Digits", "individual_digits": true }, byte_level()],
        })
    })
}

fn byte_level() -> Value {
    json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true })
}
