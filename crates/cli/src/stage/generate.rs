//! The target answers the prompts; the ids it sampled are kept as they are.

use super::setup::{RunDir, Setup};
use crate::exit::{Blame, Failure};
use crate::progress::Progress;
use anyhow::anyhow;
use spectrain_core::form::Form;
use spectrain_core::process::Processors;
use spectrain_core::recipe::Recipe;
use spectrain_core::rng::{Key, Purpose};
use spectrain_data::answers::{Answer, AnswersMeta, read_answers, write_answers};
use spectrain_data::prompts::Prompt;
use spectrain_data::store::sha256_file;
use spectrain_model::{Completion, Decoder, Request};
use std::cell::Cell;
use std::collections::HashMap;
use std::path::PathBuf;

/// The file of a run's answers: the recipe's, or the run's own.
pub fn answers(recipe: &Recipe, run: &RunDir) -> PathBuf {
    recipe.data.answers.clone().unwrap_or_else(|| run.join("answers.parquet"))
}

/// What the answers depend on.
fn meta(setup: &Setup, recipe: &Recipe) -> Result<AnswersMeta, Failure> {
    let data = &recipe.data;
    Ok(AnswersMeta {
        target_hash: setup.target_hash.clone(),
        tokenizer_hash: setup.tokenizer.content_hash().to_string(),
        template_hash: setup.template.content_hash().to_string(),
        seed: recipe.seed,
        processors: serde_json::json!({
            "temperature": data.temperature,
            "greedy_share": data.greedy_share,
            "answer_tokens": data.answer_tokens,
            "max_new_tokens": data.max_new_tokens,
            "max_prompt_tokens": data.max_prompt_tokens,
            "prompts_hash": sha256_file(&data.prompts).work()?,
        }),
        spectrain_version: env!("CARGO_PKG_VERSION").to_string(),
    })
}

/// Has the target answer `prompts` until the recipe's number of tokens is reached, and writes the answers. A file that
/// an earlier run made of the same things is kept.
pub fn generate(setup: &Setup, recipe: &Recipe, prompts: &[Prompt], run: &RunDir) -> Result<(), Failure> {
    let (data, meta) = (&recipe.data, meta(setup, recipe)?);
    let path = run.join("answers.parquet");
    if path.is_file() && read_answers(&path).is_ok_and(|(found, _)| found == meta) {
        eprintln!("generate: {} is complete and kept", path.display());
        return Ok(());
    }
    let encoded: Vec<Vec<u32>> = prompts.iter().map(|p| setup.encode(p)).collect::<Result<_, _>>()?;
    let fitting: Vec<usize> = (0..prompts.len()).filter(|&i| encoded[i].len() <= data.max_prompt_tokens).collect();
    if fitting.is_empty() {
        let limit = data.max_prompt_tokens;
        return Err(anyhow!("every prompt is longer than data.max_prompt_tokens = {limit}")).request();
    }
    if fitting.len() < prompts.len() {
        eprintln!(
            "generate: {} prompts longer than data.max_prompt_tokens are left out",
            prompts.len() - fitting.len()
        );
    }
    let request = |id: u64| {
        let (round, prompt) = (id as usize / fitting.len(), fitting[id as usize % fitting.len()]);
        Request {
            id,
            prompt: encoded[prompt].clone(),
            max_new_tokens: data.max_new_tokens,
            sampling: Processors::at(if greedy(recipe, round, prompt) { 0.0 } else { data.temperature }),
            seed: recipe.seed,
            form: Form::default(),
        }
    };
    let written = Cell::new(0);
    let progress = Progress::new("generate", data.answer_tokens as u64, "tokens");
    let stop = setup.template.stop_ids();
    let capacity = data.max_prompt_tokens + data.max_new_tokens;
    let mut completions: HashMap<u64, Completion> = HashMap::new();
    let run = Decoder { target: &setup.target, stop: &stop, batch: data.batch }.run(
        (0..).take_while(|_| written.get() < data.answer_tokens).map(request),
        capacity,
        |c| drop(completions.insert(c.id, c)),
        |tokens| {
            written.set(written.get() + tokens);
            progress.inc(tokens as u64);
        },
    );
    progress.finish();
    run.work()?;
    let mut rows: Vec<Answer> = completions
        .into_values()
        .map(|c| {
            let (asked, prompt) = (request(c.id), &prompts[fitting[c.id as usize % fitting.len()]]);
            Answer {
                prompt_id: prompt.id.clone(),
                task: prompt.task.clone(),
                request: c.id,
                prompt_ids: asked.prompt,
                answer_ids: c.ids,
                temperature: asked.sampling.temperature as f32,
                seed: asked.seed,
                finish: c.finish.into(),
                off_policy: false,
            }
        })
        .collect();
    rows.sort_by_key(|r| r.request);
    write_answers(&path, &meta, &rows).work()
}

/// Whether `prompt` is answered greedily in `round`: at most once in all rounds, since greedy answers repeat.
fn greedy(recipe: &Recipe, round: usize, prompt: usize) -> bool {
    let share = recipe.data.greedy_share;
    let draw = Key::new(recipe.seed, prompt as u64, 2, Purpose::Data).uniform();
    (round as f64 * share..(round + 1) as f64 * share).contains(&draw)
}

/// The stored answers, refused when they are another target's.
pub fn load(setup: &Setup, path: &std::path::Path) -> Result<Vec<Answer>, Failure> {
    let (meta, rows) = read_answers(path).work()?;
    if meta.target_hash != setup.target_hash || meta.tokenizer_hash != setup.tokenizer.content_hash() {
        let what = format!("{} was written by another target or tokenizer; generate again", path.display());
        return Err(anyhow!(what)).request();
    }
    Ok(rows)
}
