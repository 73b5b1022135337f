//! `spectrain eval`: curves of acceptance and speed of a checkpoint against its target.

mod offline;
mod profile;
mod suite;
mod untrained;

use crate::args::EvalArgs;
use crate::device;
use crate::exit::{Blame, Failure};
use crate::sampling::temperature_only;
use crate::stage::{self, Answers, Candidate, EvalPlan, RunDir, Setup};
use anyhow::{Context, anyhow};
use serde::Serialize;
use serde_json::json;
use spectrain_core::evaluation::document::Document;
use spectrain_core::evaluation::{Evaluation, listed};
use spectrain_core::process::Processors;
use spectrain_core::recipe::Recipe;
use spectrain_core::reconciliation::Reconciliation;
use spectrain_core::rules::Rule;
use spectrain_core::tree::TreeKind;
use spectrain_core::waterfall::Waterfall;
use spectrain_data::weights::write_atomically;
use spectrain_draft::Checkpoint;
use spectrain_draft::checkpoint::DrafterConfig;
use spectrain_report::{Report, table, tree_table, waterfall_table};
use spectrain_verify::PolicyKind;
use std::io::Write;
use std::path::{Path, PathBuf};
use suite::Suite;

/// Lengths that are measured if the command does not say.
const LENGTHS: [usize; 4] = [1, 3, 5, 7];
/// Temperatures that are measured if the command does not say.
const TEMPERATURES: [f64; 3] = [0.0, 0.6, 1.0];

/// Runs the command.
pub fn run(args: EvalArgs) -> Result<(), Failure> {
    args.sampling.over(Processors::default())?;
    if let Some(kind) = &args.proposer {
        return untrained::run(&args, kind);
    }
    if args.offline {
        return offline::run(&args);
    }
    let device = device::parse(&args.device)?;
    let checkpoint = open_checkpoint(args.checkpoint())?;
    let recipe = recipe_of(args.checkpoint())?;
    let asked = args.target.as_deref().unwrap_or(&checkpoint.provenance.target);
    let target = stage::locate_target(asked, false)?;
    let tree = tree(&args, &recipe)?;
    let plan = plan(&args, &recipe, &tree)?;
    args.json.iter().chain(&args.report).chain(&args.traces).try_for_each(|path| has_directory(path))?;
    let files = suite::files(&args.prompts, &recipe.eval.prompts);
    let suite = Suite::read(&files, args.limit.unwrap_or(recipe.eval.limit))?;
    let setup = Setup::load(target.clone(), &device, |_| Ok(()))?;
    checkpoint.check_target(&setup.target_hash, setup.tokenizer.content_hash(), &target).request()?;
    let longest = plan.lengths.iter().max().copied().unwrap_or(0).max(plan.nodes(&tree));
    let suite = suite.fitting(&setup, plan.max_new_tokens + longest + 1)?;
    let found = match args.no_reconcile {
        true => None,
        false => Some(reconcile(&args, &setup, &checkpoint, &recipe, &suite, longest)?),
    };
    let mut costs = profile::costs(&args, &setup, &suite.prompts, &plan)?;
    let mut curves = stage::evaluate_trees(&setup, &checkpoint, &suite.prompts, &plan, &tree, costs.as_mut())?;
    if let Some(path) = &args.traces {
        let drafter = args.checkpoint();
        stage::write_traces(&setup, (drafter, &checkpoint), &suite.prompts, &plan, (path, args.traces_top))?;
    }
    let costs = profile::keep(&args, costs)?;
    let found = found.map(|found| stage::with_figures(found, std::mem::take(&mut curves.figures)));
    let waterfalls = match args.waterfall {
        true => waterfalls(&args, &setup, &checkpoint, &recipe, (&suite, &plan), &curves.evaluations)?,
        false => Vec::new(),
    };
    let conclusions = profile::conclusions(&args, &curves.evaluations)?;
    let beside = tree_table(&curves.evaluations);
    let text = processors(&plan)
        + &costs
        + &table(&curves.evaluations, args.task)
        + &beside
        + &waterfall_table(&waterfalls)
        + &conclusions;
    show(args.json.as_deref(), &text);
    if let Some(path) = &args.json {
        let origin = json!({
            "checkpoint": args.checkpoint(),
            "drafter": checkpoint.config,
            "trained": checkpoint.provenance,
        });
        let settings = settings(&args, (&plan, &tree), &setup, origin, &suite);
        let (waterfalls, reconciliation) = (waterfalls.clone(), found.clone());
        let document = Document::new(settings, &curves.evaluations);
        write_json(path, &Document { waterfalls, reconciliation, ..document })?;
    }
    if let Some(path) = &args.report {
        let told = found.iter().map(|found| ("training and run time".to_owned(), found.to_string()));
        let facts = facts(&args, &setup, &checkpoint, &suite).into_iter().chain(told).collect();
        let title = format!("Evaluation of {}", args.checkpoint().display());
        let (evaluations, transcripts) = (curves.evaluations, curves.transcripts);
        let report = Report { title, facts, evaluations, training: Vec::new(), transcripts, waterfalls };
        write_file(path, &report.html())?;
    }
    found.as_ref().map_or(Ok(()), stage::conclude)
}

/// Holds the drafter at run time against its training before anything is measured with it.
fn reconcile(
    args: &EvalArgs,
    setup: &Setup,
    checkpoint: &Checkpoint,
    recipe: &Recipe,
    suite: &Suite,
    length: usize,
) -> Result<Reconciliation, Failure> {
    let run = recipe_path(args.checkpoint()).and_then(|path| Some(RunDir::look(path.parent()?)));
    let renderings = run.map_or(Ok(Vec::new()), |run| stage::renderings(setup, recipe, &run))?;
    let found = stage::reconcile(setup, checkpoint, &suite.prompts, &renderings, length)?;
    if found.fault.is_some() {
        stage::conclude(&found)?;
    }
    Ok(found)
}

/// What is drafted, refused beside what exists for chains only; the recipe's trees are left for it.
fn tree(args: &EvalArgs, recipe: &Recipe) -> Result<TreeKind, Failure> {
    let of_chains =
        args.profile || args.waterfall || args.advice || args.length_policy.is_some() || args.traces.is_some();
    let tree = match &args.tree {
        Some(tree) => tree.clone(),
        None if of_chains => TreeKind::Chain,
        None => recipe.eval.tree.clone(),
    };
    if args.traces.is_some() && tree != TreeKind::Chain {
        return Err(anyhow!("--traces writes the rounds of chains only, and what is drafted is \"{tree}\"")).request();
    }
    if tree.depth().is_some() && !args.lengths.is_empty() {
        return Err(anyhow!("--lengths: {tree} trees say their own depth; --tree chain drafts chains")).request();
    }
    Ok(tree)
}

/// What is measured, refused where the rule forbids it.
fn plan(args: &EvalArgs, recipe: &Recipe, tree: &TreeKind) -> Result<EvalPlan, Failure> {
    let temperatures = if args.temperatures.is_empty() { TEMPERATURES.to_vec() } else { args.temperatures.clone() };
    let rule = args.rule.unwrap_or(recipe.verifier.rule);
    // A drafter that is to serve greedily has a greedy curve only, unless more is asked for.
    let temperatures = match args.temperatures.is_empty() && rule == Rule::Greedy {
        true => vec![0.0],
        false => temperatures,
    };
    if rule == Rule::Greedy && temperatures.iter().any(|&t| t != 0.0) {
        return Err(anyhow!("--rule greedy is exact at temperature 0 only; use token or sampled-match above it"))
            .request();
    }
    let exact = temperatures.iter().try_for_each(|&temperature| tree.check(rule.at(temperature)));
    exact.map_err(|error| anyhow!("--rule {rule}, --tree {tree}: {error}")).request()?;
    let sampling = args.sampling.over(recipe.eval.processors())?;
    let of_temperatures =
        [("--profile", args.profile), ("--waterfall", args.waterfall), ("--traces", args.traces.is_some())];
    of_temperatures
        .iter()
        .filter(|(_, asked)| *asked)
        .try_for_each(|(option, _)| temperature_only(&sampling, option))?;
    let lengths = match (args.lengths.is_empty(), args.profile) {
        (true, true) => profile::LENGTHS.collect(),
        (true, false) if *tree != TreeKind::Chain => vec![recipe.eval.length],
        (true, false) => LENGTHS.to_vec(),
        (false, _) => args.lengths.clone(),
    };
    let (policy, batch) = (args.length_policy.unwrap_or_default(), args.batch.unwrap_or(recipe.eval.batch));
    let weighed = match (policy, tree) {
        (PolicyKind::Marginal, _) => Some("--length-policy marginal"),
        (_, TreeKind::Sequoia(None)) => Some("--tree sequoia:best"),
        _ => None,
    };
    let costs = weighed.map(|by| profile::known(args, by, (&temperatures, batch), &lengths)).transpose()?;
    Ok(EvalPlan {
        rule,
        temperatures,
        sampling,
        lengths,
        policy,
        costs,
        batch,
        max_new_tokens: args.max_new_tokens.unwrap_or(recipe.eval.max_new_tokens),
        seed: recipe.seed,
        slo: args.slo,
        reconcile: (!args.no_reconcile).then_some(recipe.store.batch_tokens),
    })
}

/// What the drafts of each temperature lost to what.
fn waterfalls(
    args: &EvalArgs,
    setup: &Setup,
    checkpoint: &Checkpoint,
    recipe: &Recipe,
    (suite, plan): (&Suite, &EvalPlan),
    evaluations: &[Evaluation],
) -> Result<Vec<Waterfall>, Failure> {
    let candidate = Candidate::load(setup, args.checkpoint().display().to_string(), checkpoint)?;
    let answers = Answers::Fresh {
        prompts: suite.prompts.clone(),
        max_new_tokens: plan.max_new_tokens,
        batch: plan.batch,
        batch_tokens: recipe.store.batch_tokens,
        seed: plan.seed,
    };
    stage::waterfalls(setup, &candidate, &answers, evaluations)
}

/// Refuses a file whose directory is not there, before any work.
fn has_directory(path: &Path) -> Result<(), Failure> {
    match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() && !dir.is_dir() => {
            Err(anyhow!("{} cannot be written: there is no directory {}", path.display(), dir.display())).request()
        }
        _ => Ok(()),
    }
}

/// The line that names what was set besides the temperature, and what is left out for it; empty where nothing was.
fn processors(plan: &EvalPlan) -> String {
    if plan.sampling.temperature_only() {
        return String::new();
    }
    let offline =
        if plan.reconcile.is_some() { "; offline's figures know a temperature only and are left out" } else { "" };
    format!("processors: {}{offline}\n", listed(&plan.sampling.named()))
}

/// The document's settings; `origin` says where the drafts come from.
fn settings(
    args: &EvalArgs,
    (plan, tree): (&EvalPlan, &TreeKind),
    setup: &Setup,
    origin: serde_json::Value,
    suite: &Suite,
) -> serde_json::Value {
    let mut all = json!({
        "spectrain_version": env!("CARGO_PKG_VERSION"),
        "target": setup.dir,
        "target_hash": setup.target_hash,
        "tokenizer_hash": setup.tokenizer.content_hash(),
        "template_hash": setup.template.content_hash(),
        "device": args.device,
        "dtype": "f32",
        "rule": plan.rule,
        "tree": tree,
        "temperatures": plan.temperatures,
        "processors": plan.sampling.named(),
        "lengths_measured": plan.lengths,
        "length_policy": plan.policy.to_string(),
        "batch": plan.batch,
        "max_new_tokens": plan.max_new_tokens,
        "seed": plan.seed,
        "slo": plan.slo,
        "turns": "first",
        "prompts": suite.files,
    });
    if let (Some(all), serde_json::Value::Object(origin)) = (all.as_object_mut(), origin) {
        all.extend(origin);
    }
    all
}

/// Facts for the head of the report.
fn facts(args: &EvalArgs, setup: &Setup, checkpoint: &Checkpoint, suite: &Suite) -> Vec<(String, String)> {
    let DrafterConfig::Eagle3(drafter) = &checkpoint.config;
    let mut facts = vec![
        fact("checkpoint", args.checkpoint().display().to_string()),
        fact("drafter", format!("eagle3, draft vocabulary {}", drafter.draft_vocab_size)),
        fact("trained", format!("{} steps, loss {}", checkpoint.provenance.step, checkpoint.provenance.loss)),
    ];
    facts.extend(conditions(args, setup, suite));
    facts
}

fn fact(name: &str, value: String) -> (String, String) {
    (name.to_owned(), value)
}

/// Facts that do not depend on where the drafts come from.
fn conditions(args: &EvalArgs, setup: &Setup, suite: &Suite) -> Vec<(String, String)> {
    vec![
        fact("target", setup.dir.display().to_string()),
        fact("prompt files", suite.files.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")),
        fact("device", args.device.clone()),
        fact("spectrain", env!("CARGO_PKG_VERSION").to_owned()),
    ]
}

/// The checkpoint at `path`, refused where there is none.
pub(super) fn open_checkpoint(path: &Path) -> Result<Checkpoint, Failure> {
    if !path.exists() {
        let text = "there is no such checkpoint; `spectrain fit` writes one to runs/NAME/best";
        return Err(anyhow!("{}: {text}", path.display())).request();
    }
    Checkpoint::open(path).request()
}

/// The recipe's file in the run that the checkpoint is part of.
fn recipe_path(checkpoint: &Path) -> Option<PathBuf> {
    checkpoint.ancestors().skip(1).take(3).map(|d| d.join("recipe.toml")).find(|p| p.is_file())
}

/// The recipe that the checkpoint was trained with, two or three directories up; a default one elsewhere.
pub(super) fn recipe_of(checkpoint: &Path) -> Result<Recipe, Failure> {
    match recipe_path(checkpoint) {
        Some(path) => Recipe::load(&path, &[]).request(),
        None => default_recipe(),
    }
}

fn default_recipe() -> Result<Recipe, Failure> {
    Recipe::parse("name = \"eval\"\n[target]\npath = \".\"\n", "defaults", &[]).request()
}

/// Prints `text`; where JSON takes standard output, it gives way.
fn show(json: Option<&Path>, text: &str) {
    if json == Some(Path::new("-")) { eprint!("{text}") } else { print!("{text}") }
}

/// Writes a result to a file, whole or not at all, or to standard output for `-`.
pub(super) fn write_json(path: &Path, results: &(impl Serialize + ?Sized)) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(results).work()? + "\n";
    if path == Path::new("-") {
        return std::io::stdout().write_all(text.as_bytes()).work();
    }
    write_file(path, &text)
}

/// Writes a file, whole or not at all.
fn write_file(path: &Path, text: &str) -> Result<(), Failure> {
    let written = write_atomically(path, |out| out.write_all(text.as_bytes()));
    written.with_context(|| format!("{} cannot be written", path.display())).work()
}
