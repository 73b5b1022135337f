//! `fit --dry-run`: what a run would make, how large it would be and about how long it would take.
//!
//! Sizes follow from the recipe and the target, except that answers end when the target ends them: their mean length is
//! taken as three quarters of the cap. Times come from a short probe of the target's pass and of a training step on
//! this device; both are marked as estimates.

use super::setup::Setup;
use super::train::{config, objective};
use crate::exit::{Blame, Failure};
use half::bf16;
use spectrain_core::recipe::{Drafter, Recipe};
use spectrain_core::rng::{Key, Purpose};
use spectrain_data::draft_vocab::DraftVocab;
use spectrain_data::prompts::Prompt;
use spectrain_data::store::FeatureRow;
use spectrain_draft::{Eagle3, Eagle3Config, Eagle3Drafter};
use spectrain_model::host_rows;
use spectrain_train::{MetricSink, Record, Start, TrainConfig, Trainer};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// Time of each half of the probe.
const PROBE: Duration = Duration::from_millis(250);
/// Mean length of an answer, as a part of `data.max_new_tokens`.
const MEAN_ANSWER: f64 = 0.75;
/// Committed tokens per target call that the time of the evaluation is estimated with.
const ASSUMED_ACCEPTANCE: f64 = 1.5;

/// Numbers of a run that follow from its recipe and prompts.
struct Sizes {
    conversations: f64,
    tokens: f64,
    bytes_per_token: usize,
    parameters: usize,
    rows_per_step: f64,
    steps: f64,
}

/// The plan for a person: sizes and minutes. Nothing is written.
pub fn estimate(setup: &Setup, recipe: &Recipe, prompts: &[Prompt], questions: usize) -> Result<String, Failure> {
    let drafter = untrained(setup, recipe)?;
    let sizes = sizes(setup, recipe, prompts, &drafter)?;
    let pass = probe_pass(setup);
    let step = probe_step(setup, recipe, &drafter);
    let (data, eval) = (&recipe.data, &recipe.eval);
    let generate = data.answer_tokens as f64 / data.batch as f64 * pass.seconds(data.batch);
    let capture = sizes.tokens / recipe.store.batch_tokens as f64 * pass.seconds(recipe.store.batch_tokens);
    let train = sizes.steps * sizes.rows_per_step * step;
    let rounds = (questions.min(eval.limit) * eval.max_new_tokens) as f64 / eval.batch as f64;
    let checked = pass.seconds(eval.batch * (eval.length + 1)) / ASSUMED_ACCEPTANCE;
    let evaluate = eval.temperatures.len() as f64 * rounds * (pass.seconds(eval.batch) + checked);
    let minutes = |seconds: f64| format!("{:.1} minutes", seconds / 60.0);
    let mib = |bytes: f64| format!("{:.1} MiB", bytes / f64::from(1 << 20));
    let weights = 4.0 * sizes.parameters as f64;
    let lines = [
        ("target", setup.dir.display().to_string()),
        ("prompts", format!("{}, and {} held out for the evaluation", prompts.len(), questions.min(eval.limit))),
        ("answers", format!("{} tokens in about {:.0} conversations", data.answer_tokens, sizes.conversations)),
        ("bytes per token", format!("{} in the feature store", sizes.bytes_per_token)),
        ("store", format!("about {}", mib(sizes.tokens * sizes.bytes_per_token as f64))),
        ("drafter", format!("{} weights, {}", sizes.parameters, mib(weights))),
        ("checkpoints", format!("{} each, and {} of state with the newest", mib(weights), mib(3.0 * weights))),
        ("steps", format!("about {:.0}, {} epochs", sizes.steps, recipe.train.epochs)),
        ("generate", minutes(generate)),
        ("capture", minutes(capture)),
        ("train", minutes(train)),
        ("evaluate", minutes(evaluate)),
        ("in all", minutes(generate + capture + train + evaluate)),
    ];
    let mut text: String = lines.iter().map(|(name, value)| format!("{name:<16} {value}\n")).collect();
    text += "Minutes are estimates from a probe of half a second on this device. Nothing was written.\n";
    Ok(text)
}

/// A drafter of the recipe's sizes; which tokens it can draft does not matter here.
fn untrained(setup: &Setup, recipe: &Recipe) -> Result<Eagle3Drafter, Failure> {
    let Drafter::Eagle3(keys) = &recipe.drafter;
    let vocab = setup.target.config().vocab_size;
    let size = keys.draft_vocab.size(vocab);
    let taps = keys.taps_for(setup.target.config().layers).unwrap_or_default();
    let config = Eagle3Config::for_target(&setup.target, taps, size, keys.norm_before_residual);
    Ok(Eagle3Drafter::new(config, DraftVocab::from_counts(&vec![1; vocab], size).work()?, &setup.target))
}

fn sizes(setup: &Setup, recipe: &Recipe, prompts: &[Prompt], drafter: &Eagle3Drafter) -> Result<Sizes, Failure> {
    let limit = recipe.data.max_prompt_tokens;
    let lengths: Vec<usize> = prompts.iter().map(|p| setup.encode(p).map(|ids| ids.len())).collect::<Result<_, _>>()?;
    let fitting: Vec<usize> = lengths.into_iter().filter(|&n| n <= limit).collect();
    let prompt = fitting.iter().sum::<usize>() as f64 / fitting.len().max(1) as f64;
    let answer = MEAN_ANSWER * recipe.data.max_new_tokens as f64;
    let conversations = (recipe.data.answer_tokens as f64 / answer).ceil();
    let together = (recipe.train.batch_tokens as f64 / (prompt + answer)).floor().max(1.0);
    let trained = conversations * (1.0 - recipe.train.validation_share);
    let batches = (trained / together).ceil();
    let batches_per_step = batches.min(recipe.train.accumulate as f64);
    let c = &drafter.config;
    let (h, heads) = (c.hidden_size, c.heads());
    let matrices = c.taps.len() * h * h
        + 2 * h * (heads.query_width() + 2 * heads.key_width())
        + heads.query_width() * h
        + 3 * h * c.intermediate_size;
    Ok(Sizes {
        conversations,
        tokens: conversations * (prompt + answer),
        // Taps and last hidden in bf16, an id, a logsumexp, a mask.
        bytes_per_token: 2 * (c.taps.len() + 1) * h + 4 + 4 + 1,
        parameters: matrices + 4 * h,
        rows_per_step: batches_per_step * together * (prompt + answer),
        steps: (batches / batches_per_step).ceil() * recipe.train.epochs as f64,
    })
}

/// Time of a target pass: a part for reading the weights, and a part per row.
struct Pass {
    base: f64,
    row: f64,
}

impl Pass {
    fn seconds(&self, rows: usize) -> f64 {
        self.base + self.row * rows as f64
    }
}

fn probe_pass(setup: &Setup) -> Pass {
    let (few, many) = (4, 128);
    let timed = |rows: usize| {
        let ids: Vec<u32> = (0..rows as u32).collect();
        median(|| drop(host_rows(setup.target.logits(setup.target.forward_full(&[&ids], &[]).hidden))))
    };
    let (fast, slow) = (timed(few), timed(many));
    let row = ((slow - fast) / (many - few) as f64).max(0.0);
    Pass { base: (fast - row * few as f64).max(0.0), row }
}

/// Seconds of a training step per packed row.
fn probe_step(setup: &Setup, recipe: &Recipe, drafter: &Eagle3Drafter) -> f64 {
    let tokens = recipe.train.batch_tokens.min(256).max(recipe.loss.unroll + 2);
    let rows = [invented(drafter, tokens, recipe.train.prompts)];
    let device = setup.target.device().clone().autodiff();
    let weights = Eagle3::init(&drafter.config, setup.target.norm().clone(), &drafter.scale, 0, &device);
    // More epochs than the time allows.
    let config = TrainConfig { epochs: 1000, validation_share: 0.0, checkpoint_every: 0, ..config(recipe) };
    let objective = objective(recipe);
    // The first step allocates and warms up; time is taken from its end on.
    let begun: Cell<Option<Instant>> = Cell::new(None);
    let elapsed = || begun.get().map_or(Duration::ZERO, |begun| begun.elapsed());
    let taken = Cell::new((0, Duration::ZERO));
    let stop = || elapsed() > PROBE;
    let trainer = Trainer { drafter, objective: &objective, config: &config, rows: &rows, stop: &stop, measure: None };
    // The run ends by being stopped; the probe is over then.
    let ended = trainer.run(Start::Fresh(Box::new(weights)), &mut Nowhere, &mut |update| {
        begun.set(begun.get().or_else(|| Some(Instant::now())));
        taken.set((update.step - 1, elapsed()));
        Ok(())
    });
    drop(ended);
    let (steps, time) = taken.get();
    time.as_secs_f64() / steps.max(1) as f64 / rows[0].ids.len() as f64
}

/// A conversation that never was, with features of a likely size; all of it is supervised if `prompts` are.
fn invented(drafter: &Eagle3Drafter, tokens: usize, prompts: bool) -> FeatureRow {
    let c = &drafter.config;
    let noise = |stream: u64, n: usize| {
        let key = Key::new(0, stream, 0, Purpose::Init);
        (0..n).map(|i| bf16::from_f64(key.uniform_at(i as u64) - 0.5)).collect::<Vec<_>>()
    };
    FeatureRow {
        request: 0,
        ids: (0..tokens).map(|i| (i % c.vocab_size) as u32).collect(),
        // Two tokens of three are an answer's, as in most chats.
        loss_mask: (0..tokens).map(|i| prompts || 3 * i >= tokens).collect(),
        taps: noise(1, tokens * c.taps.len() * c.hidden_size),
        last_hidden: noise(2, tokens * c.hidden_size),
        logsumexp: vec![(c.vocab_size as f32).ln() + 1.0; tokens],
        temperature: 1.0,
        off_policy: false,
    }
}

struct Nowhere;

impl MetricSink for Nowhere {
    fn record(&mut self, _: &Record) -> std::io::Result<()> {
        Ok(())
    }
}

/// Median seconds of `work` over the probe's time, after one run to warm up.
fn median(work: impl Fn()) -> f64 {
    work();
    let start = Instant::now();
    let mut seconds = Vec::new();
    while seconds.len() < 3 || start.elapsed() < PROBE / 2 {
        let before = Instant::now();
        work();
        seconds.push(before.elapsed().as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}
