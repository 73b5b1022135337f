//! The drafter against its target in the exact verifier.

use super::setup::Setup;
use crate::exit::{Blame, Failure};
use crate::progress::Progress;
use spectrain_core::evaluation::Evaluation;
use spectrain_core::rules::Rule;
use spectrain_data::prompts::Prompt;
use spectrain_draft::Checkpoint;
use spectrain_verify::evaluate::{Question, Settings};

/// What is measured.
pub struct EvalPlan {
    /// Rule at temperatures above zero.
    pub rule: Rule,
    /// One measurement each.
    pub temperatures: Vec<f64>,
    /// Drafted tokens a round, one measurement each.
    pub lengths: Vec<usize>,
    /// Requests at once.
    pub batch: usize,
    /// Longest answer.
    pub max_new_tokens: usize,
    /// Seed of the draws.
    pub seed: u64,
}

/// Measures `checkpoint` on `prompts`, once per temperature and length.
pub fn evaluate(
    setup: &Setup,
    checkpoint: &Checkpoint,
    prompts: &[Prompt],
    plan: &EvalPlan,
) -> Result<Vec<Evaluation>, Failure> {
    let question = |p: &Prompt| Ok(Question { task: p.task.clone(), prompt: setup.encode(p)? });
    let questions: Vec<Question> = prompts.iter().map(question).collect::<Result<_, Failure>>()?;
    let mut proposer = checkpoint.proposer(&setup.target).request()?;
    let stop = setup.template.stop_ids();
    let mut results = Vec::new();
    for (&temperature, &length) in plan.temperatures.iter().flat_map(|t| plan.lengths.iter().map(move |l| (t, l))) {
        let rule = plan.rule.at(temperature);
        let settings = Settings {
            rule,
            temperature,
            length,
            batch: plan.batch,
            max_new_tokens: plan.max_new_tokens,
            seed: plan.seed,
        };
        let total = 2 * questions.len() * plan.max_new_tokens;
        let label = format!("eval T={temperature} K={length} {rule}");
        let progress = Progress::new(&label, total as u64, "tokens at most");
        let count = |tokens| progress.inc(tokens as u64);
        let result = spectrain_verify::evaluate(&setup.target, proposer.as_mut(), &stop, &questions, &settings, count);
        progress.finish();
        results.push(result.work()?);
    }
    Ok(results)
}
