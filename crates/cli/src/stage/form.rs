//! The form that a command line asks of an answer: stop strings, a regular expression or a JSON schema.

use crate::args::FormArgs;
use anyhow::{Context, Result};
use serde_json::Value;
use spectrain_core::chat::ChatTemplate;
use spectrain_core::constraint::Constraint;
use spectrain_core::form::Form;
use spectrain_core::stopping::StopStrings;
use spectrain_core::token_bytes::TokenBytes;
use spectrain_core::tokenizer::Tokenizer;
use std::fs;
use std::path::Path;
use std::sync::Arc;

/// What an answer must match.
#[cfg_attr(not(feature = "grammar"), allow(dead_code))]
enum Spec {
    Regex(String),
    JsonSchema(Value),
}

/// What a constraint needs to know of the target.
#[cfg_attr(not(feature = "grammar"), allow(dead_code))]
struct Words {
    bytes: Arc<TokenBytes>,
    ends: Vec<u32>,
    vocabulary: usize,
}

/// The form asked for, for answers of the target in `dir`, whose weights need not be read yet.
pub fn form(args: &FormArgs, dir: &Path, vocabulary: usize) -> Result<Form> {
    let spec = spec(args)?;
    if args.stop.is_empty() && spec.is_none() {
        return Ok(Form::default());
    }
    let tokenizer = Tokenizer::load(dir)?;
    let ends = ChatTemplate::load(dir, &tokenizer)?.stop_ids();
    let words = Words { bytes: Arc::new(tokenizer.token_bytes()?), ends, vocabulary };
    let stop = StopStrings::new(&args.stop, words.bytes.clone()).context("--stop")?;
    Ok(Form { stop, constraint: spec.map(|spec| compile(spec, &words)).transpose()? })
}

fn spec(args: &FormArgs) -> Result<Option<Spec>> {
    if let Some(pattern) = &args.regex {
        return Ok(Some(Spec::Regex(pattern.clone())));
    }
    let Some(path) = &args.json_schema else { return Ok(None) };
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let schema = serde_json::from_str(&text).with_context(|| format!("{} is no JSON", path.display()))?;
    Ok(Some(Spec::JsonSchema(schema)))
}

#[cfg(feature = "grammar")]
fn compile(spec: Spec, words: &Words) -> Result<Arc<dyn Constraint>> {
    let spec = match spec {
        Spec::Regex(pattern) => spectrain_grammar::Spec::Regex(pattern),
        Spec::JsonSchema(schema) => spectrain_grammar::Spec::JsonSchema(schema),
    };
    Ok(Arc::new(spectrain_grammar::Grammar::compile(spec, &words.bytes, &words.ends, words.vocabulary)?))
}

#[cfg(not(feature = "grammar"))]
fn compile(spec: Spec, _: &Words) -> Result<Arc<dyn Constraint>> {
    let option = match spec {
        Spec::Regex(_) => "--regex",
        Spec::JsonSchema(_) => "--json-schema",
    };
    anyhow::bail!("{option}: this build leaves grammars out; build with `cargo build --release --features grammar`")
}
