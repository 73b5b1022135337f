//! A recipe: every key with its value, checked against the target where that is here.

use super::origin::Origin;
use crate::exit::{Blame, Failure};
use crate::stage;
use serde_json::{Value, json};
use spectrain_core::recipe::{Recipe, TargetFacts};
use spectrain_data::weights::WeightDir;
use spectrain_model::LlamaConfig;
use std::path::Path;

/// Facts about the recipe in the file `path`.
pub fn facts(path: &Path) -> Result<Value, Failure> {
    let recipe = Recipe::load(path, &[]).request()?;
    let here = stage::locate_target(&recipe.target.path, false).ok();
    // A run's own recipe: its target's path was relative to where the run was started.
    let origin = || if path.ends_with("recipe.toml") { Origin::of(path)?.target() } else { None };
    let Some(target) = here.or_else(origin) else {
        return told(path, &recipe, "not checked: the target is not here".to_owned());
    };
    let weights = WeightDir::open(&target).request()?;
    let config = LlamaConfig::from_json(weights.config_json()).request()?;
    let target_facts = TargetFacts { layers: config.layers, vocab: config.vocab_size, hidden: config.hidden_size };
    recipe.check(&target_facts).request()?;
    told(path, &recipe.resolved(&target_facts), format!("fits the target in {}", target.display()))
}

fn told(path: &Path, recipe: &Recipe, check: String) -> Result<Value, Failure> {
    let mut facts = json!({ "kind": "recipe", "path": path, "check": check });
    if let (Value::Object(all), Value::Object(keys)) = (&mut facts, serde_json::to_value(recipe).work()?) {
        all.extend(keys);
    }
    Ok(facts)
}
