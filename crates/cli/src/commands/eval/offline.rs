//! `spectrain eval --offline`: checkpoints estimated, and compared, without decoding with them.

use super::profile::LENGTHS;
use super::suite::{self, Suite};
use super::{open_checkpoint, recipe_of, recipe_path, show, write_json};
use crate::args::EvalArgs;
use crate::device;
use crate::exit::{Blame, Failure};
use crate::sampling::temperature_only;
use crate::stage::{self, Answers, Candidate, Estimated, OfflinePlan, RunDir, Setup};
use anyhow::Context;
use serde_json::json;
use spectrain_core::process::Processors;
use spectrain_core::recipe::Recipe;
use spectrain_draft::Checkpoint;
use spectrain_report::{differences, offline_table};
use std::path::{Path, PathBuf};

/// Runs the command.
pub fn run(args: &EvalArgs) -> Result<(), Failure> {
    temperature_only(&args.sampling.over(Processors::default())?, "--offline")?;
    let device = device::parse(&args.device)?;
    let others = args.others.iter().map(PathBuf::as_path);
    let paths: Vec<&Path> = std::iter::once(args.checkpoint()).chain(others).collect();
    let checkpoints: Vec<Checkpoint> = paths.iter().map(|p| open_checkpoint(p)).collect::<Result<_, _>>()?;
    let recipe = recipe_of(args.checkpoint())?;
    let rule = args.rule.unwrap_or(recipe.verifier.rule);
    let asked = args.target.as_deref().unwrap_or(&checkpoints[0].provenance.target);
    let dir = stage::locate_target(asked, false)?;
    let limit = args.limit.unwrap_or(recipe.eval.limit);
    let files = if args.store.is_some() { Vec::new() } else { suite::files(&args.prompts, &recipe.eval.prompts) };
    let suite = Suite::read(&files, limit)?;
    let setup = Setup::load(dir.clone(), &device, |_| Ok(()))?;
    let candidate = |(path, checkpoint): (&&Path, &Checkpoint)| {
        let name = path.display().to_string();
        let fits = checkpoint.check_target(&setup.target_hash, setup.tokenizer.content_hash(), &dir);
        fits.with_context(|| name.clone()).request()?;
        Candidate::load(&setup, name, checkpoint)
    };
    let candidates: Vec<Candidate> = paths.iter().zip(&checkpoints).map(candidate).collect::<Result<_, Failure>>()?;
    let max_new_tokens = args.max_new_tokens.unwrap_or(recipe.eval.max_new_tokens);
    let answers = match (&args.store, suite) {
        (Some(store), _) => {
            paths.iter().for_each(|path| warn_of_training_store(path, store));
            Answers::Store(Box::new(stage::open_store(&setup, store, &candidates)?))
        }
        (None, suite) => Answers::Fresh {
            prompts: suite.fitting(&setup, max_new_tokens + 1)?.prompts,
            max_new_tokens,
            batch: args.batch.unwrap_or(recipe.eval.batch),
            batch_tokens: recipe.store.batch_tokens,
            seed: recipe.seed,
        },
    };
    let plan = OfflinePlan {
        rule,
        temperatures: match (&args.store, args.temperatures.is_empty()) {
            (None, true) => recipe.eval.temperatures.clone(),
            _ => args.temperatures.clone(),
        },
        lengths: if args.lengths.is_empty() { LENGTHS.collect() } else { args.lengths.clone() },
        seed: recipe.seed,
    };
    let Estimated { estimates, differences: pairs } = stage::offline(&setup, &candidates, &answers, &plan)?;
    let text = offline_table(&estimates) + &differences(&pairs);
    show(args.json.as_deref(), &text);
    let document = json!({ "estimates": estimates, "differences": pairs });
    args.json.as_deref().map_or(Ok(()), |path| write_json(path, &document))
}

/// A drafter knows the answers that it learned from.
fn warn_of_training_store(checkpoint: &Path, store: &Path) {
    let own = recipe_path(checkpoint).and_then(|path| {
        let run = RunDir::look(path.parent()?);
        Some(stage::store_dir(&Recipe::load(&path, &[]).ok()?, &run))
    });
    let same = |own: PathBuf| own.canonicalize().ok() == store.canonicalize().ok();
    if own.is_some_and(same) {
        let name = checkpoint.display();
        eprintln!(
            "offline: {name} learned from this store, so its figures are too good; leave --store out to estimate it on held-out prompts"
        );
    }
}
