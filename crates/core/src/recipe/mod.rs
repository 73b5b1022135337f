//! A recipe: one TOML file that holds every knob of a run, from the target to the evaluation.
//!
//! A recipe is refused before any work starts. [`Recipe::parse`] refuses what is wrong in itself (unknown keys with the
//! nearest right one, wrong types, values out of range) and names file and line; [`Recipe::check`] refuses what does
//! not fit the target. [`Recipe::to_toml`] writes the resolved recipe, in which every default is visible.
//!
//! Paths in a recipe are relative to the current directory, not to the recipe's file.

mod check;
mod check_loss;
mod error;
mod kinds;
mod reward;
mod source;
mod tables;

use std::path::Path;

use serde::Serialize;

pub use check::TargetFacts;
pub use error::{PlanError, RecipeError};
pub use kinds::{DraftVocab, LossKind, Optimizer, RowWeighting, ScheduleShape, StepWeighting, TargetUse};
pub use reward::Reward;
pub use tables::{Data, Drafter, Eagle3, Eval, Loss, Store, Target, Train, Verifier};

use source::{Places, Source};
use tables::Table;

/// Everything that a run needs to know, with every default filled in.
///
/// It is not `Deserialize` on purpose: [`Recipe::parse`] is the only way in, so that no recipe escapes the checks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Recipe {
    /// Name of the run and of its directory: letters, digits, `-`, `_` and `.`. Required.
    pub name: String,
    /// Seed of everything random: answers, initial weights, shuffling, evaluation.
    pub seed: u64,
    /// The frozen model that the drafter is trained for.
    pub target: Target,
    /// The target's answers that the drafter learns from.
    pub data: Data,
    /// The feature store: what `capture` writes and training reads.
    pub store: Store,
    /// The drafter's architecture.
    pub drafter: Drafter,
    /// The verification rule that the drafter will serve under.
    pub verifier: Verifier,
    /// The training loss.
    pub loss: Loss,
    /// Optimiser, schedule and loop.
    pub train: Train,
    /// The measurement at the end.
    pub eval: Eval,
    /// Where each key was set, for messages. No part of what a recipe says.
    #[serde(skip)]
    places: Places,
}

/// The keys and tables at the top of a recipe.
const TOP: [&str; 10] = ["name", "seed", "target", "data", "store", "drafter", "verifier", "loss", "train", "eval"];

impl Recipe {
    /// Reads and checks the recipe in the file `path`, with the overrides `sets` (each `table.key=value`).
    ///
    /// # Errors
    /// [`RecipeError::Read`] if the file cannot be read, otherwise as [`Recipe::parse`].
    pub fn load(path: &Path, sets: &[String]) -> Result<Self, RecipeError> {
        let text =
            std::fs::read_to_string(path).map_err(|source| RecipeError::Read { path: path.to_owned(), source })?;
        Self::parse(&text, &path.display().to_string(), sets)
    }

    /// Parses a recipe's text; `origin` names it in messages. The overrides `sets`, each `table.key=value`, are merged
    /// before anything is checked; their value is read as TOML, and what is no TOML value is a string.
    ///
    /// # Errors
    /// The first thing that is wrong, with its place (`origin:line` or the override) and what would be right.
    pub fn parse(text: &str, origin: &str, sets: &[String]) -> Result<Self, RecipeError> {
        let source = Source::parse(text, origin, sets)?;
        source.known(source.root(), None, &TOP)?;
        let recipe = Self {
            name: source.top("name")?.ok_or_else(|| source.missing("name", "a name for the run"))?,
            seed: source.top("seed")?.unwrap_or(0),
            target: source.table("target")?,
            data: source.table("data")?,
            store: source.table("store")?,
            drafter: source.drafter()?,
            verifier: source.table("verifier")?,
            loss: source.table("loss")?,
            train: source.table("train")?,
            eval: source.table("eval")?,
            places: source.places.clone(),
        };
        if recipe.target.path.is_empty() {
            let right = "a model directory or a known name such as \"smollm2-135m-instruct\"";
            return Err(source.missing("target.path", right));
        }
        recipe.check_values()?;
        Ok(recipe)
    }

    /// The resolved recipe: every key with its value; keys that are not set are named in comments.
    /// `parse(to_toml(r)) == r`.
    ///
    /// # Panics
    /// If an integer exceeds 2⁶³ − 1, the largest that TOML has and hence that `parse` yields.
    pub fn to_toml(&self) -> String {
        let root = toml::Table::try_from(self).expect("a recipe holds only what TOML can hold");
        let mut text = String::new();
        for key in TOP {
            match &root[key] {
                toml::Value::Table(table) => {
                    text.push_str(&format!("\n[{key}]\n"));
                    // Value by value: what is a list of tables would else get a header that says it stands at the top.
                    table.iter().for_each(|(key, value)| text.push_str(&format!("{key} = {value}\n")));
                    let unset = self.keys(key).iter().filter(|k| !table.contains_key(**k));
                    unset.for_each(|k| text.push_str(&format!("# {k} is not set\n")));
                }
                value => text.push_str(&format!("{key} = {value}\n")),
            }
        }
        text
    }

    /// This recipe with what target and verifier decide written out: the default taps become explicit ids, the default
    /// loss a name, so that the saved recipe says everything.
    pub fn resolved(&self, facts: &TargetFacts) -> Self {
        let mut recipe = self.clone();
        let Drafter::Eagle3(drafter) = &mut recipe.drafter;
        drafter.taps = drafter.taps_for(facts.layers);
        recipe.loss.kind = Some(self.loss.kind_for(&self.verifier));
        recipe
    }

    /// The keys of one table, as the resolved recipe lists them.
    fn keys(&self, table: &str) -> &'static [&'static str] {
        match table {
            "target" => Target::KEYS,
            "data" => Data::KEYS,
            "store" => Store::KEYS,
            "drafter" => match &self.drafter {
                Drafter::Eagle3(_) => Eagle3::KEYS,
            },
            "verifier" => Verifier::KEYS,
            "loss" => Loss::KEYS,
            "train" => Train::KEYS,
            _ => Eval::KEYS,
        }
    }
}
