//! Recipes: what is refused, in exactly which words, and what the defaults are.
#![allow(clippy::unwrap_used)]

mod accepted;
mod refused;
mod values;

use spectrain_core::recipe::{Recipe, RecipeError, TargetFacts};

/// SmolLM2-135M.
const SMOLLM2: TargetFacts = TargetFacts { layers: 30, vocab: 49_152, hidden: 576 };

/// The smallest recipe, three lines, followed by `rest` from line 4 on.
fn parse_with(rest: &str, sets: &[&str]) -> Result<Recipe, RecipeError> {
    let text = format!("name = \"run\"\n[target]\npath = \"tiny\"\n{rest}");
    let sets: Vec<String> = sets.iter().map(ToString::to_string).collect();
    Recipe::parse(&text, "r.toml", &sets)
}

/// The smallest recipe with overrides.
fn set(sets: &[&str]) -> Result<Recipe, RecipeError> {
    parse_with("", sets)
}

/// Text from line 4 of the smallest recipe → the message.
#[track_caller]
fn refused(rest: &str, message: &str) {
    assert_eq!(parse_with(rest, &[]).unwrap_err().to_string(), message);
}

/// One override → the message after `--set …: `.
#[track_caller]
fn set_refused(one: &str, message: &str) {
    assert_eq!(set(&[one]).unwrap_err().to_string(), format!("--set {one}: {message}"));
}
