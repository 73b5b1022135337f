//! `spectrain eval --proposer`: the same curves for drafts that no training made.

use super::suite::{self, Suite};
use super::{
    conditions, default_recipe, fact, has_directory, plan, processors, settings, show, write_file, write_json,
};
use crate::args::EvalArgs;
use crate::device;
use crate::exit::{Blame, Failure};
use crate::stage::{self, EvalPlan, Setup};
use anyhow::anyhow;
use serde_json::json;
use spectrain_core::evaluation::document::Document;
use spectrain_core::tree::TreeKind;
use spectrain_draft::ProposerKind;
use spectrain_report::{Report, table};
use spectrain_verify::PolicyKind;

/// Runs the command.
pub fn run(args: &EvalArgs, kind: &ProposerKind) -> Result<(), Failure> {
    refuse_policy(args, kind)?;
    let device = device::parse(&args.device)?;
    let recipe = default_recipe()?;
    let asked = args.target.as_deref().ok_or_else(|| anyhow!("--proposer needs a --target")).request()?;
    let target = stage::locate_target(asked, false)?;
    let tree = TreeKind::Chain;
    // Nothing was trained that run time could be held against.
    let plan = EvalPlan { reconcile: None, ..plan(args, &recipe, &tree)? };
    args.json.iter().chain(&args.report).try_for_each(|path| has_directory(path))?;
    let files = suite::files(&args.prompts, &recipe.eval.prompts);
    let suite = Suite::read(&files, args.limit.unwrap_or(recipe.eval.limit))?;
    let setup = Setup::load(target, &device, |_| Ok(()))?;
    let proposer = kind.proposer(&setup.target, setup.tokenizer.content_hash()).request()?;
    let longest = plan.lengths.iter().max().copied().unwrap_or(0);
    let suite = suite.fitting(&setup, plan.max_new_tokens + longest + 1)?;
    let curves = stage::evaluate_untrained(&setup, proposer, &suite.prompts, &plan)?;
    let text = format!("proposer: {kind}\n") + &processors(&plan) + &table(&curves.evaluations, args.task);
    show(args.json.as_deref(), &text);
    if let Some(path) = &args.json {
        let settings = settings(args, (&plan, &tree), &setup, json!({ "proposer": kind.to_string() }), &suite);
        write_json(path, &Document::new(settings, &curves.evaluations))?;
    }
    if let Some(path) = &args.report {
        let mut facts = vec![fact("proposer", kind.to_string())];
        facts.extend(conditions(args, &setup, &suite));
        let (evaluations, transcripts) = (curves.evaluations, curves.transcripts);
        let (training, waterfalls) = (Vec::new(), Vec::new());
        let title = format!("Evaluation of {kind}");
        let report = Report { title, facts, evaluations, training, transcripts, waterfalls };
        write_file(path, &report.html())?;
    }
    Ok(())
}

/// Refuses policies that read what drafts of this kind lack.
fn refuse_policy(args: &EvalArgs, kind: &ProposerKind) -> Result<(), Failure> {
    let asked = args.length_policy.unwrap_or_default();
    match (asked, kind) {
        (PolicyKind::Marginal, _) => {
            let text = "weighs the costs that `eval CHECKPOINT --profile` measured, and --proposer has no checkpoint";
            Err(anyhow!("--length-policy marginal {text}")).request()
        }
        (PolicyKind::Confidence(_), ProposerKind::Ngram(_) | ProposerKind::Suffix { .. }) => {
            let text = "asks how sure the drafter is, and drafts that are copied come without a distribution";
            Err(anyhow!("--length-policy {asked} {text}; use it with a checkpoint or --proposer model:DIR")).request()
        }
        _ => Ok(()),
    }
}
