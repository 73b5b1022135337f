//! The form that a command line asks of an answer: stop strings, a regular expression or a JSON schema.

use super::Setup;
use crate::args::FormArgs;
use crate::exit::{Blame, Failure};
use anyhow::Context;
use serde_json::Value;
use spectrain_core::constraint::Constraint;
use spectrain_core::form::Form;
use spectrain_core::stopping::StopStrings;
use spectrain_core::token_bytes::TokenBytes;
use std::fs;
use std::sync::Arc;

/// What an answer must match.
#[cfg_attr(not(feature = "grammar"), allow(dead_code))]
enum Spec {
    Regex(String),
    JsonSchema(Value),
}

/// The form asked for, for answers of the target of `setup`.
pub fn form(args: &FormArgs, setup: &Setup) -> Result<Form, Failure> {
    let spec = spec(args)?;
    if args.stop.is_empty() && spec.is_none() {
        return Ok(Form::default());
    }
    let bytes = Arc::new(setup.tokenizer.token_bytes().request()?);
    let stop = StopStrings::new(&args.stop, bytes.clone()).context("--stop").request()?;
    let constraint = spec.map(|spec| compile(spec, &bytes, setup)).transpose()?;
    Ok(Form { stop, constraint, min_tokens: 0 })
}

fn spec(args: &FormArgs) -> Result<Option<Spec>, Failure> {
    if let Some(pattern) = &args.regex {
        return Ok(Some(Spec::Regex(pattern.clone())));
    }
    let Some(path) = &args.json_schema else { return Ok(None) };
    let text = fs::read_to_string(path).with_context(|| path.display().to_string()).request()?;
    let schema = serde_json::from_str(&text).with_context(|| format!("{} is no JSON", path.display()));
    Ok(Some(Spec::JsonSchema(schema.request()?)))
}

#[cfg(feature = "grammar")]
fn compile(spec: Spec, bytes: &TokenBytes, setup: &Setup) -> Result<Arc<dyn Constraint>, Failure> {
    let spec = match spec {
        Spec::Regex(pattern) => spectrain_grammar::Spec::Regex(pattern),
        Spec::JsonSchema(schema) => spectrain_grammar::Spec::JsonSchema(schema),
    };
    let (ends, vocabulary) = (setup.template.stop_ids(), setup.target.config().vocab_size);
    Ok(Arc::new(spectrain_grammar::Grammar::compile(spec, bytes, &ends, vocabulary).request()?))
}

#[cfg(not(feature = "grammar"))]
fn compile(spec: Spec, _: &TokenBytes, _: &Setup) -> Result<Arc<dyn Constraint>, Failure> {
    let option = match spec {
        Spec::Regex(_) => "--regex",
        Spec::JsonSchema(_) => "--json-schema",
    };
    Err(anyhow::anyhow!(
        "{option}: this build leaves grammars out; build with `cargo build --release --features grammar`"
    ))
    .request()
}
