//! `spectrain eval --profile` and `--advice`: what rounds cost here, what speed-up that predicts, and whether
//! speculation pays.

use super::write_json;
use crate::args::EvalArgs;
use crate::exit::{Blame, Failure};
use crate::stage::{CostPlan, Costs, EvalPlan, Setup};
use anyhow::{Context, anyhow};
use spectrain_core::advice::advise;
use spectrain_core::costs::{CostProfile, FILE};
use spectrain_core::evaluation::Evaluation;
use spectrain_data::prompts::Prompt;
use spectrain_report::{advice, cost_table, predictions};
use std::path::{Path, PathBuf};

/// Requests at once whose costs are measured, beside the evaluation's own number.
const BATCHES: [usize; 4] = [1, 2, 4, 8];
/// Draft lengths whose costs are measured unless some are named.
pub const LENGTHS: std::ops::RangeInclusive<usize> = 1..=7;

/// The costs that the evaluation is to measure on the way, if it is asked to.
pub fn costs(args: &EvalArgs, setup: &Setup, prompts: &[Prompt], plan: &EvalPlan) -> Result<Option<Costs>, Failure> {
    if !args.profile {
        return Ok(None);
    }
    let costs = CostPlan {
        rule: plan.rule,
        temperatures: plan.temperatures.clone(),
        batches: BATCHES.into_iter().chain([plan.batch]).collect(),
        lengths: plan.lengths.clone(),
        seed: plan.seed,
        device: args.device.clone(),
    };
    Costs::new(setup, prompts, &costs).map(Some)
}

/// Writes what was measured beside the checkpoint; returns it as text.
pub fn keep(args: &EvalArgs, costs: Option<Costs>) -> Result<String, Failure> {
    let Some(costs) = costs else { return Ok(String::new()) };
    let found = costs.profile();
    let path = file(args.checkpoint());
    write_json(&path, &found)?;
    eprintln!("profile: written to {}", path.display());
    Ok(cost_table(&found))
}

/// What the evaluation and the costs say together: the predicted speed-ups with `--profile`, advice with `--advice`.
pub fn conclusions(args: &EvalArgs, results: &[Evaluation]) -> Result<String, Failure> {
    let mut text = String::new();
    if !(args.profile || args.advice) {
        return Ok(text);
    }
    let costs = read(args.checkpoint())?;
    if let (true, Some(costs)) = (args.profile, &costs) {
        text += &predictions(costs, results);
    }
    if args.advice {
        if costs.is_none() {
            eprintln!("advice: without a cost table the batch is not judged; `--profile` measures one");
        }
        text += &advice(&advise(results, costs.as_ref()));
    }
    Ok(text)
}

/// The costs measured earlier that the option `by` weighs, refused where they do not tell of what is measured now.
pub fn known(
    args: &EvalArgs,
    by: &str,
    (temperatures, batch): (&[f64], usize),
    lengths: &[usize],
) -> Result<CostProfile, Failure> {
    let longest = lengths.iter().max().copied().unwrap_or(0);
    let all = temperatures.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let lack = |what: String| {
        let options = format!("--profile --temperature {all} --batch {batch}");
        let path = args.checkpoint().display();
        anyhow!("{by}: {what}; measure them with `spectrain eval {path} {options}`")
    };
    let costs = read(args.checkpoint())?;
    let costs = costs.ok_or_else(|| lack("what rounds cost here is not known".to_owned())).request()?;
    for &temperature in temperatures {
        let found = costs.at(temperature, batch).map_or(0, |costs| costs.table().draft.len() - 1);
        if found < longest {
            let of = format!("at temperature {temperature} for {batch} requests at once");
            let lacking = format!("the costs {of} are known of drafts up to {found}, and {longest} is asked for");
            return Err(lack(lacking)).request();
        }
    }
    Ok(costs)
}

/// Where the costs of a checkpoint lie.
fn file(checkpoint: &Path) -> PathBuf {
    if checkpoint.is_file() { checkpoint.with_file_name(FILE) } else { checkpoint.join(FILE) }
}

/// The costs measured earlier, if any.
fn read(checkpoint: &Path) -> Result<Option<CostProfile>, Failure> {
    let path = file(checkpoint);
    if !path.is_file() {
        return Ok(None);
    }
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string()).work()?;
    let cure = || format!("{} is no cost table; measure anew with --profile", path.display());
    serde_json::from_str(&text).with_context(cure).request().map(Some)
}
