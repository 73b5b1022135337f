//! Conversations to text and ids: a model's chat template, and which of the ids an assistant wrote.
//!
//! The template is rendered as `transformers` renders it. The loss mask is cut where the render says, never by
//! searching for role markers: an assistant turn begins where the render of everything before it, with the
//! generation prompt, ends.

mod jinja;
mod strftime;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use minijinja::Environment;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::tokenizer::{Spanned, Tokenizer, TokenizerError};

/// Special tokens, and the template unless it has a file of its own.
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
/// What ends an answer.
const GENERATION_CONFIG: &str = "generation_config.json";
/// A template in a file of its own; it wins over the one in [`TOKENIZER_CONFIG`].
const TEMPLATE_FILE: &str = "chat_template.jinja";
/// Role of the messages that are supervised.
const ASSISTANT: &str = "assistant";

/// Why a conversation could not be rendered or encoded.
#[derive(Debug, Error)]
pub enum ChatError {
    /// A file cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A JSON file that does not parse.
    #[error("{}: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
    /// The model directory has no template.
    #[error("{}: no chat template (neither {TEMPLATE_FILE} nor `chat_template` in {TOKENIZER_CONFIG})", dir.display())]
    NoTemplate {
        /// The directory.
        dir: PathBuf,
    },
    /// The model directory names no token that ends an answer.
    #[error("{}: nothing ends an answer: `eos_token_id` of {GENERATION_CONFIG} and `eos_token` of {TOKENIZER_CONFIG} \
        name no token of this tokenizer", dir.display())]
    NoStop {
        /// The directory.
        dir: PathBuf,
    },
    /// The template does not parse.
    #[error("the chat template does not parse: {0}")]
    Template(String),
    /// The template does not render these messages, or refuses them.
    #[error("the chat template refuses {messages} messages: {why}")]
    Render {
        /// How many messages.
        messages: usize,
        /// The template's own words where it raises an exception.
        why: String,
    },
    /// A longer conversation does not begin with the render of a shorter one, so no loss mask can be cut.
    #[error(
        "the chat template rewrites what came before: the render of {longer} messages does not begin with that of \
        {shorter}, so the loss mask has no boundary"
    )]
    NotAPrefix {
        /// Messages of the shorter render.
        shorter: usize,
        /// Messages of the longer render.
        longer: usize,
    },
    /// An assistant turn's render holds no end-of-turn token.
    #[error("message {message} (assistant): its render holds no end-of-turn token")]
    NoEndOfTurn {
        /// Index of the message.
        message: usize,
    },
    /// The tokenizer failed.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, or what else the template knows.
    pub role: String,
    /// Its text.
    pub content: String,
}

impl Message {
    /// A message of this role.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into() }
    }
}

/// A conversation as ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedConversation {
    /// The whole render.
    pub ids: Vec<u32>,
    /// One per id: whether an assistant wrote it. The end-of-turn token counts, the template's text after it does not.
    pub loss_mask: Vec<bool>,
    /// The supervised ids of each assistant turn, in order; their union is the mask.
    pub turns: Vec<Range<usize>>,
}

/// A model's chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos: Option<String>,
    eos: Option<String>,
    stops: BTreeSet<u32>,
    hash: String,
}

impl ChatTemplate {
    /// Reads the template, the special tokens it may write, and the stop ids of a model directory.
    ///
    /// # Errors
    /// [`ChatError`]: unreadable files, no template, a template that does not parse, nothing that ends an answer.
    pub fn load(dir: &Path, tokenizer: &Tokenizer) -> Result<Self, ChatError> {
        let config = read_json(&dir.join(TOKENIZER_CONFIG))?.unwrap_or_default();
        let generation = read_json(&dir.join(GENERATION_CONFIG))?.unwrap_or_default();
        let source = match read(&dir.join(TEMPLATE_FILE))? {
            Some(source) => Some(source),
            None => template_of(&config["chat_template"]),
        };
        let source = source.ok_or_else(|| ChatError::NoTemplate { dir: dir.to_owned() })?;
        let (bos, eos) = (special(&config["bos_token"]), special(&config["eos_token"]));
        let mut stops = ids_of(&generation["eos_token_id"]);
        stops.extend(eos.as_deref().and_then(|token| tokenizer.token_to_id(token)));
        stops.retain(|id| tokenizer.id_to_token(*id).is_some());
        if stops.is_empty() {
            return Err(ChatError::NoStop { dir: dir.to_owned() });
        }
        Self::new(&source, bos, eos, stops)
    }

    /// A template from its source. `bos` and `eos` are the texts it may write as `bos_token` and `eos_token`; `stops`
    /// are the ids that end an assistant's turn.
    ///
    /// # Errors
    /// [`ChatError::Template`].
    pub fn new(
        source: &str,
        bos: Option<String>,
        eos: Option<String>,
        stops: impl IntoIterator<Item = u32>,
    ) -> Result<Self, ChatError> {
        let hash = Sha256::digest(source).iter().map(|b| format!("{b:02x}")).collect();
        let environment = jinja::environment(source).map_err(|e| ChatError::Template(e.to_string()))?;
        Ok(Self { environment, bos, eos, stops: stops.into_iter().collect(), hash })
    }

    /// The ids that end an assistant's turn, ascending.
    pub fn stop_ids(&self) -> Vec<u32> {
        self.stops.iter().copied().collect()
    }

    /// SHA-256 (hex) of the template's source.
    pub fn content_hash(&self) -> &str {
        &self.hash
    }

    /// The text of a conversation; with `add_generation_prompt` it ends where the assistant's next words begin.
    ///
    /// # Errors
    /// [`ChatError::Render`], with the template's own words where it raises an exception.
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String, ChatError> {
        let token = |text: &Option<String>| text.as_deref().map_or(minijinja::Value::UNDEFINED, minijinja::Value::from);
        let context = minijinja::context! {
            messages => minijinja::Value::from(minijinja::value::Serde(messages)), add_generation_prompt, tools => (), documents => (),
            bos_token => token(&self.bos), eos_token => token(&self.eos),
        };
        self.environment
            .get_template(jinja::NAME)
            .and_then(|template| template.render(context))
            .map_err(|e| ChatError::Render { messages: messages.len(), why: e.to_string() })
    }

    /// Ids of a prompt that the assistant is to answer. A system prompt is what the template makes of the messages.
    ///
    /// # Errors
    /// [`ChatError::Render`], [`ChatError::Tokenizer`].
    pub fn encode_prompt(&self, messages: &[Message], tokenizer: &Tokenizer) -> Result<Vec<u32>, ChatError> {
        Ok(tokenizer.encode(&self.render(messages, true)?)?)
    }

    /// Ids of a whole conversation with its loss mask.
    ///
    /// The ids are those of the whole render, except where a turn's first token would reach back over its boundary
    /// (an answer that begins with a line break, say): there the text is cut, because at run time the prompt is
    /// encoded alone.
    ///
    /// # Errors
    /// [`ChatError`]: a template that refuses the messages or rewrites earlier ones, an assistant turn without an
    /// end-of-turn token.
    pub fn encode_conversation(
        &self,
        messages: &[Message],
        tokenizer: &Tokenizer,
    ) -> Result<EncodedConversation, ChatError> {
        let (text, turns) = self.boundaries(messages)?;
        let encoded = encode_cut(&text, &turns, tokenizer)?;
        let mut loss_mask = vec![false; encoded.ids.len()];
        let mut supervised = Vec::new();
        for turn in &turns {
            let start = encoded.spans.partition_point(|span| span.start < turn.text.start);
            let stop = (start..encoded.ids.len())
                .take_while(|&at| encoded.spans[at].end <= turn.text.end)
                .filter(|&at| self.stops.contains(&encoded.ids[at]))
                .last();
            let stop = stop.ok_or(ChatError::NoEndOfTurn { message: turn.message })?;
            loss_mask[start..=stop].fill(true);
            supervised.push(start..stop + 1);
        }
        Ok(EncodedConversation { ids: encoded.ids, loss_mask, turns: supervised })
    }

    /// The render of all messages, and in it the bytes of every assistant turn: from the end of its prompt to the end
    /// of the render up to and including it.
    fn boundaries(&self, messages: &[Message]) -> Result<(String, Vec<Turn>), ChatError> {
        let mut text = String::new();
        let mut rendered = 0;
        let mut turns = Vec::new();
        let mut extend = |text: &mut String, longer: usize, prompt: bool| {
            let render = self.render(&messages[..longer], prompt)?;
            if !render.starts_with(text.as_str()) {
                return Err(ChatError::NotAPrefix { shorter: rendered, longer });
            }
            *text = render;
            rendered = longer;
            Ok(())
        };
        for (message, _) in messages.iter().enumerate().filter(|(_, m)| m.role == ASSISTANT) {
            extend(&mut text, message, true)?;
            let start = text.len();
            extend(&mut text, message + 1, false)?;
            turns.push(Turn { message, text: start..text.len() });
        }
        extend(&mut text, messages.len(), false)?;
        Ok((text, turns))
    }
}

/// An assistant turn in the rendered text.
struct Turn {
    /// Index of its message.
    message: usize,
    /// Its bytes.
    text: Range<usize>,
}

/// Encodes a text whole, but cuts it at a turn's start where the ids before it would not be those of the prompt alone.
fn encode_cut(text: &str, turns: &[Turn], tokenizer: &Tokenizer) -> Result<Spanned, TokenizerError> {
    let mut done = Spanned { ids: Vec::new(), spans: Vec::new() };
    let mut from = 0;
    let mut rest = tokenizer.encode_spanned(text)?;
    for turn in turns {
        let prompt = tokenizer.encode_spanned(&text[from..turn.text.start])?;
        if !rest.ids.starts_with(&prompt.ids) {
            done.append(prompt, from);
            from = turn.text.start;
            rest = tokenizer.encode_spanned(&text[from..])?;
        }
    }
    done.append(rest, from);
    Ok(done)
}

impl Spanned {
    /// Appends ids of a text that begins at byte `from`.
    fn append(&mut self, more: Self, from: usize) {
        self.ids.extend(more.ids);
        self.spans.extend(more.spans.into_iter().map(|span| from + span.start..from + span.end));
    }
}

fn read(path: &Path) -> Result<Option<String>, ChatError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(ChatError::Io { path: path.to_owned(), source }),
    }
}

fn read_json(path: &Path) -> Result<Option<Value>, ChatError> {
    let parse = |text: String| serde_json::from_str(&text);
    read(path)?.map(parse).transpose().map_err(|source| ChatError::Json { path: path.to_owned(), source })
}

/// The template under `chat_template`: text, or a list of named ones of which `default` is meant.
fn template_of(value: &Value) -> Option<String> {
    let named = |list: &Vec<Value>| list.iter().find(|entry| entry["name"] == "default").cloned();
    match value {
        Value::Array(list) => named(list).and_then(|entry| entry["template"].as_str().map(str::to_owned)),
        other => other.as_str().map(str::to_owned),
    }
}

/// A special token: its text, or an object with its text under `content`.
fn special(value: &Value) -> Option<String> {
    value.as_str().or_else(|| value["content"].as_str()).map(str::to_owned)
}

/// One id or a list of them.
fn ids_of(value: &Value) -> BTreeSet<u32> {
    let one = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match value {
        Value::Array(list) => list.iter().filter_map(one).collect(),
        other => one(other).into_iter().collect(),
    }
}
