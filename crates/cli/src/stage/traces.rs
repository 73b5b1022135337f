//! What the verifier did, written down for `fit --replay`.

use super::evaluate::EvalPlan;
use super::setup::Setup;
use crate::exit::{Blame, Failure};
use spectrain_core::process::Processors;
use spectrain_data::prompts::Prompt;
use spectrain_data::store::sha256_file;
use spectrain_data::traces::{self, FORMAT, Trace, TracesMeta};
use spectrain_draft::{Checkpoint, checkpoint};
use spectrain_verify::Bench;
use spectrain_verify::evaluate::Question;
use spectrain_verify::traces::trace;
use std::path::Path;

/// Hash of a drafter's file; `path` is its directory, or the file itself.
pub fn drafter_hash(path: &Path) -> Result<String, Failure> {
    let file = if path.is_file() { path.to_path_buf() } else { path.join(checkpoint::FILE) };
    sha256_file(&file).request()
}

/// Answers `prompts` at every temperature of `plan` with its longest chain, and writes the rounds to `path` with `top`
/// tokens of each side.
pub fn write_traces(
    setup: &Setup,
    (dir, drafter): (&Path, &Checkpoint),
    prompts: &[Prompt],
    plan: &EvalPlan,
    (path, top): (&Path, usize),
) -> Result<(), Failure> {
    let question = |p: &Prompt| Ok(Question { task: p.task.clone(), prompt: setup.encode(p)? });
    let questions: Vec<Question> = prompts.iter().map(question).collect::<Result<_, Failure>>()?;
    let mut proposer = drafter.proposer(&setup.target).request()?;
    let stop = setup.template.stop_ids();
    let (temperatures, lengths) = plan.axes();
    let length = lengths.last().copied().unwrap_or(1);
    let mut found = Vec::new();
    for temperature in temperatures {
        let mut bench = Bench { target: &setup.target, proposer: proposer.as_mut(), stop: &stop };
        let settings = plan.settings(temperature, length);
        let traced = trace(&mut bench, &questions, &settings, top).work()?;
        let Processors { temperature, .. } = settings.sampling;
        found.extend(prompts.iter().zip(&questions).zip(traced).map(|((prompt, question), traced)| Trace {
            prompt_id: prompt.id.clone(),
            task: prompt.task.clone(),
            prompt: question.prompt.clone(),
            answer: traced.transcript.ids,
            temperature,
            finish: traced.transcript.finish.into(),
            rounds: traced.rounds,
        }));
    }
    let meta = TracesMeta {
        traces_format: FORMAT,
        target_hash: setup.target_hash.clone(),
        tokenizer_hash: setup.tokenizer.content_hash().to_string(),
        template_hash: setup.template.content_hash().to_string(),
        drafter_hash: drafter_hash(dir)?,
        vocabulary: setup.target.config().vocab_size,
        rule: plan.rule,
        seed: plan.seed,
        top,
        length,
        max_new_tokens: plan.max_new_tokens,
        stop,
        requests: found.len(),
        spectrain_version: env!("CARGO_PKG_VERSION").to_string(),
    };
    traces::write_traces(path, &meta, &found).work()?;
    let rounds: usize = found.iter().map(|trace| trace.rounds.len()).sum();
    eprintln!("traces: {} requests, {rounds} rounds in {}", found.len(), path.display());
    Ok(())
}
