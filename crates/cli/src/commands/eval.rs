//! `spectrain eval`: a checkpoint against its target.

use crate::args::EvalArgs;
use crate::device;
use crate::exit::{Blame, Failure};
use crate::stage::{self, EvalPlan, Setup};
use anyhow::{Context, anyhow};
use serde::Serialize;
use spectrain_core::recipe::Recipe;
use spectrain_core::rules::Rule;
use spectrain_data::prompts::Prompt;
use spectrain_data::weights::write_atomically;
use spectrain_draft::Checkpoint;
use spectrain_report::table;
use std::io::Write;
use std::path::Path;

/// Runs the command.
pub fn run(args: EvalArgs) -> Result<(), Failure> {
    let device = device::parse(&args.device)?;
    let checkpoint = open_checkpoint(&args.checkpoint)?;
    let recipe = recipe_of(&args.checkpoint)?;
    let asked = args.target.as_deref().unwrap_or(&checkpoint.provenance.target);
    let target = stage::locate_target(asked, false)?;
    let defaults = recipe.eval.clone();
    let files = if args.prompts.is_empty() { vec![defaults.prompts.clone()] } else { args.prompts.clone() };
    let limit = args.limit.unwrap_or(defaults.limit);
    let mut prompts = Vec::new();
    for file in &files {
        prompts.extend(questions(file, limit, files.len() > 1)?);
    }
    let setup = Setup::load(target.clone(), &device, |_| Ok(()))?;
    checkpoint.check_target(&setup.target_hash, setup.tokenizer.content_hash(), &target).request()?;
    let plan = EvalPlan {
        rule: args.rule.unwrap_or(recipe.verifier.rule),
        temperatures: if args.temperatures.is_empty() { defaults.temperatures } else { args.temperatures.clone() },
        lengths: if args.lengths.is_empty() { vec![defaults.length] } else { args.lengths.clone() },
        batch: args.batch.unwrap_or(defaults.batch),
        max_new_tokens: args.max_new_tokens.unwrap_or(defaults.max_new_tokens),
        seed: recipe.seed,
    };
    if plan.rule == Rule::Greedy && plan.temperatures.iter().any(|&t| t != 0.0) {
        return Err(anyhow!("--rule greedy is exact at temperature 0 only; use token or sampled-match above it"))
            .request();
    }
    let results = stage::evaluate(&setup, &checkpoint, &prompts, &plan)?;
    // Where JSON takes standard output, the table gives way.
    match args.json.as_deref() {
        Some(path) if path == Path::new("-") => eprint!("{}", table(&results)),
        _ => print!("{}", table(&results)),
    }
    args.json.as_deref().map_or(Ok(()), |path| write_json(path, &results))
}

/// The checkpoint at `path`, refused where there is none.
pub(super) fn open_checkpoint(path: &Path) -> Result<Checkpoint, Failure> {
    if !path.exists() {
        let text = "there is no such checkpoint; `spectrain fit` writes one to runs/NAME/best";
        return Err(anyhow!("{}: {text}", path.display())).request();
    }
    Checkpoint::open(path).request()
}

/// The recipe that the checkpoint was trained with, two or three directories up; a default one elsewhere.
pub(super) fn recipe_of(checkpoint: &Path) -> Result<Recipe, Failure> {
    let found = checkpoint.ancestors().skip(1).take(3).map(|d| d.join("recipe.toml")).find(|p| p.is_file());
    match found {
        Some(path) => Recipe::load(&path, &[]).request(),
        None => Recipe::parse("name = \"eval\"\n[target]\npath = \".\"\n", "defaults", &[]).request(),
    }
}

/// Prompts of one file; with several files each is a task.
fn questions(file: &Path, limit: usize, task_per_file: bool) -> Result<Vec<Prompt>, Failure> {
    let mut prompts = stage::read_questions("--prompts", file)?;
    prompts.truncate(limit);
    if task_per_file {
        let task = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        prompts.iter_mut().for_each(|p| p.task.clone_from(&task));
    }
    Ok(prompts)
}

/// Writes a result to a file, whole or not at all, or to standard output for `-`.
pub(super) fn write_json(path: &Path, results: &(impl Serialize + ?Sized)) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(results).work()? + "\n";
    if path == Path::new("-") {
        return std::io::stdout().write_all(text.as_bytes()).work();
    }
    let written = write_atomically(path, |out| out.write_all(text.as_bytes()));
    written.with_context(|| format!("{} cannot be written", path.display())).work()
}
