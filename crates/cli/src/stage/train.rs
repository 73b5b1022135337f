//! The drafter learns from the store.

use super::capture::store_dir;
use super::checkpoints;
use super::held_out::HeldOut;
use super::setup::{RunDir, Setup};
use crate::device;
use crate::exit::{Blame, Failure};
use crate::interrupt;
use crate::progress::Progress;
use anyhow::{Context, anyhow};
use half::bf16;
use serde_json::json;
use spectrain_core::evaluation::Evaluation;
use spectrain_core::recipe::{Drafter, LossKind, Optimizer, Recipe, Reward, StepWeighting, Train};
use spectrain_data::draft_vocab::{DraftVocab, count_tokens};
use spectrain_data::store::{FeatureRow, StoreReader, sha256};
use spectrain_draft::checkpoint::Provenance;
use spectrain_draft::{Checkpoint, Eagle3, Eagle3Config, Eagle3Drafter, Objective, TapScale};
use spectrain_kernels::draft_loss::{Accepted, DraftLoss, Weighting};
use spectrain_train::{
    Anchor, JsonLines, MatrixUpdate, Measure, Measured, MetricSink, OptimiserConfig, Record, Replica, Skipped,
    Snapshot, Start, TensorBoard, TracedSides, TrainConfig, TrainError, Trainer, Update, named, read_records,
    supervise_prompts,
};
use std::path::{Path, PathBuf};

/// Refuses what cannot be trained, before any work; `replayed` says that the weights start from the run's best.
pub fn check(recipe: &Recipe, replayed: bool) -> Result<(), Failure> {
    let Drafter::Eagle3(drafter) = &recipe.drafter;
    let refuse = |text: &str| Err(anyhow!(text.to_string())).request();
    if drafter.train_embeddings {
        return refuse("drafter.train_embeddings must be false: this build keeps them frozen");
    }
    if recipe.train.anchor > 0.0 && recipe.train.start.is_none() && !replayed {
        return refuse("train.anchor holds weights near where they started: set train.start, or use `fit --replay`");
    }
    device::check_several(recipe.train.devices)
}

/// Trains the recipe's drafter; returns the directory of the best checkpoint. With `resume` it goes on from the
/// newest checkpoint of the same run.
pub fn train(setup: &Setup, recipe: &Recipe, run: &RunDir, resume: bool) -> Result<PathBuf, Failure> {
    let mut rows = read_rows(setup, recipe, run)?;
    if recipe.train.prompts {
        let (train, _) = config(recipe).split(rows.len());
        if !supervise_prompts(&mut rows, &train) {
            let dir = store_dir(recipe, run);
            let text = "was captured without the prompts' distributions: remove it to capture again";
            return Err(anyhow!("train.prompts: {} {text}", dir.display())).request();
        }
    }
    let (drafter, objective) = (build(setup, recipe, &rows)?, objective(recipe));
    let lesson = Lesson {
        rows: &rows,
        drafter: &drafter,
        objective,
        depends: json!(null),
        served: &[],
        watch: &|_| Ok(Vec::new()),
    };
    learn(setup, recipe, run, resume, lesson)
}

/// What is learned, and by whom.
pub(super) struct Lesson<'a> {
    /// The conversations, held-out ones among them.
    pub rows: &'a [FeatureRow],
    /// Sizes, draft vocabulary and scale.
    pub drafter: &'a Eagle3Drafter,
    /// The loss.
    pub objective: Objective,
    /// What the weights depend on beside recipe and store.
    pub depends: serde_json::Value,
    /// What the drafter did in service, where that is known.
    pub served: &'a [TracedSides],
    /// Is shown the weights at every evaluation; what it says of traces is recorded.
    pub watch: &'a Watch<'a>,
}

/// Says what weights do on traces.
pub(super) type Watch<'a> = dyn Fn(&Eagle3) -> Result<Vec<TracedSides>, String> + 'a;

/// As [`train`], with the conversations at hand.
pub(super) fn learn(
    setup: &Setup,
    recipe: &Recipe,
    run: &RunDir,
    resume: bool,
    lesson: Lesson,
) -> Result<PathBuf, Failure> {
    let Lesson { rows, drafter, objective, depends, served, watch } = lesson;
    let provenance = provenance(setup, recipe, run, &depends)?;
    let (anchor, replicas) = (anchor(setup, recipe, drafter)?, replicas(setup, recipe, drafter)?);
    let config = TrainConfig { anchor, replicas, ..config(recipe) };
    let stop = interrupt::asked;
    let held_out = HeldOut::new(setup, recipe, drafter, rows, &config.split(rows.len()).1);
    let measured = |weights: &Eagle3| {
        let traced = watch(weights)?;
        let length = held_out.as_ref().map_or(Ok(f64::NAN), |answers| answers.measure(weights))?;
        Ok(Measured { length, traced })
    };
    let measure: Option<&Measure> = if held_out.is_some() { Some(&measured) } else { None };
    let (objective, config) = (&objective, &config);
    let trainer = Trainer { drafter, objective, config, rows, stop: &stop, measure };
    let start = start(setup, recipe, drafter, run, &provenance.run, resume)?;
    let mut sinks = sinks(run, if let Start::Resumed(snapshot) = &start { Some(snapshot.step()) } else { None })?;
    if let Start::Fresh(_) = &start {
        let mut record = |sides: &TracedSides| sinks.record(&Record::Traced { step: 0, sides: sides.clone() });
        served.iter().try_for_each(&mut record).context("metrics").work()?;
    }
    let mut last = provenance.clone();
    let trained = interrupt::saving(|| run_trainer(&trainer, start, &mut sinks, &mut last, run));
    let trained = trained
        .map_err(|e| match e {
            TrainError::Empty => anyhow!("{e}; finished stages are kept in {}", run.display()),
            TrainError::Stopped { .. } => anyhow!("{e}; go on with: {}", interrupt::resume_command()),
            other => other.into(),
        })
        .work()?;
    let best = run.join("best");
    if !checkpoints::settle_best(run).map_err(|e| anyhow!(e)).work()? {
        save(&trained, drafter, &last, &best).map_err(|e| anyhow!(e)).work()?;
    }
    Ok(best)
}

/// Where the records go: from the start, or after those of the first `resumed` steps.
fn sinks(run: &RunDir, resumed: Option<usize>) -> Result<Vec<Box<dyn MetricSink>>, Failure> {
    let path = run.join("metrics.jsonl");
    let opened = resumed.map_or_else(|| JsonLines::create(&path), |step| JsonLines::resume(&path, step));
    let lines = opened.with_context(|| path.display().to_string()).work()?;
    let earlier = read_records(&path).with_context(|| path.display().to_string()).work()?;
    let board = TensorBoard::create(&run.join("tb"), &earlier).context("tb").work()?;
    Ok(vec![Box::new(lines), Box::new(board)])
}

/// Adds what the verifier measured of the drafter of step `step` to the run's records.
pub fn record_measurements(run: &RunDir, step: usize, results: &[Evaluation]) -> Result<(), Failure> {
    // All steps stay: the best need not be the last.
    let mut sinks = sinks(run, Some(usize::MAX))?;
    for r in results {
        let a = &r.overall;
        let record = Record::Measured {
            step,
            temperature: r.temperature,
            length: r.length,
            tokens_per_target_call: a.interval.estimate,
            accept_prefix: a.acceptance.accept_prefix.clone(),
            accept_cond: a.acceptance.accept_cond.clone(),
        };
        sinks.record(&record).context("metrics").work()?;
    }
    Ok(())
}

/// Fresh weights, or, to `resume`, the newest checkpoint of the run with this hash. A run that was stopped is not thrown
/// away unasked.
fn start(
    setup: &Setup,
    recipe: &Recipe,
    drafter: &Eagle3Drafter,
    run: &RunDir,
    hash: &str,
    resume: bool,
) -> Result<Start, Failure> {
    let device = setup.target.device().clone().autodiff();
    match checkpoints::newest(run, hash) {
        Some(dir) if resume => {
            eprintln!("train: going on from {}", dir.display());
            let snapshot = Snapshot::load(&dir, &drafter.config, &device).work()?;
            return Ok(Start::Resumed(Box::new(snapshot)));
        }
        Some(dir) if !checkpoints::ended(run, hash) => {
            let (at, all) = (dir.display(), run.join(checkpoints::DIR));
            let cure = format!("add --resume to go on, or remove {} to start over", all.display());
            return Err(anyhow!("this run was stopped, and {at} holds where it stood: {cure}")).request();
        }
        None if resume => {
            eprintln!("train: no checkpoint of this recipe in {}; starting at step 0", run.display());
        }
        _ => {}
    }
    let weights = match &recipe.train.start {
        Some(dir) => earlier(setup, drafter, dir)?,
        None => {
            let norm = setup.target.norm().clone();
            Eagle3::init(&drafter.config, norm, &drafter.scale, recipe.seed, &device)
        }
    };
    let Drafter::Eagle3(kind) = &recipe.drafter;
    let weights = match (kind.train_head, &weights.head) {
        (true, _) => weights.with_head(drafter.target_head.rows()),
        (false, None) => weights,
        (false, Some(_)) => {
            let text = "train.start has a head of its own: set drafter.train_head = true to train it further";
            return Err(anyhow!(text)).request();
        }
    };
    checkpoints::clear(run).context("old checkpoints").work()?;
    Ok(Start::Fresh(Box::new(weights)))
}

/// The drafter on the devices that share the steps with the run's own.
fn replicas(setup: &Setup, recipe: &Recipe, drafter: &Eagle3Drafter) -> Result<Vec<Replica>, Failure> {
    let further = device::further(setup.target.device(), recipe.train.devices)?;
    Ok(further.iter().map(|device| Replica::new(drafter, device)).collect())
}

/// Where the weights are pulled back to, if the recipe asks for it.
fn anchor(setup: &Setup, recipe: &Recipe, drafter: &Eagle3Drafter) -> Result<Option<Anchor>, Failure> {
    match &recipe.train.start {
        Some(dir) if recipe.train.anchor > 0.0 => {
            let origin = earlier(setup, drafter, dir)?;
            Ok(Some(Anchor { strength: recipe.train.anchor, origin }))
        }
        _ => Ok(None),
    }
}

/// The weights of the checkpoint in `dir`, to be trained further as `drafter`.
fn earlier(setup: &Setup, drafter: &Eagle3Drafter, dir: &Path) -> Result<Eagle3, Failure> {
    let key = || format!("train.start: {}", dir.display());
    let checkpoint = Checkpoint::open(dir).with_context(key).request()?;
    checkpoint
        .check_target(&setup.target_hash, setup.tokenizer.content_hash(), &setup.dir)
        .with_context(key)
        .request()?;
    let device = setup.target.device().clone().autodiff();
    let (found, weights) = checkpoint.eagle3(&setup.target, &device).with_context(key).request()?;
    if found.config != drafter.config || found.vocab != drafter.vocab {
        let text = "is another drafter: its sizes, taps, conventions and draft vocabulary must be those of this recipe";
        return Err(anyhow!("{} {text}", key())).request();
    }
    Ok(weights.unfolded(&drafter.scale))
}

/// The loop with its progress bar and checkpoints; `provenance` ends with the last step.
fn run_trainer(
    trainer: &Trainer,
    start: Start,
    sink: &mut dyn MetricSink,
    provenance: &mut Provenance,
    run: &RunDir,
) -> Result<Eagle3, TrainError> {
    let done = if let Start::Resumed(snapshot) = &start { snapshot.step() } else { 0 };
    provenance.step = done;
    let mut progress: Option<Progress> = None;
    let mut length = String::new();
    let mut on_step = |update: Update| {
        let bar = progress.get_or_insert_with(|| Progress::new("train", (update.total - done) as u64, "steps"));
        provenance.step = update.step;
        if let Some(validated) = &update.validated {
            length = validated.expected_length.map_or(String::new(), |l| format!(", expected length {l:.3}"));
            validated.best.map_or(Ok(()), |weights| {
                checkpoints::write_best(run, |dir| save(weights, trainer.drafter, provenance, dir))
            })?;
        }
        notes(&update).iter().for_each(|note| bar.say(note));
        bar.message(format!("loss {:.3}{length}", update.loss));
        bar.inc(1);
        let Some(due) = update.checkpoint else { return Ok(()) };
        checkpoints::write(run, update.step, |dir| {
            save(due.weights, trainer.drafter, provenance, dir)?;
            due.save_state(dir).map_err(|e| e.to_string())
        })
    };
    let trained = trainer.run(start, sink, &mut on_step);
    if let Some(bar) = progress {
        bar.finish();
    }
    trained
}

/// What a step has to tell beside its figures.
fn notes(update: &Update) -> Vec<String> {
    let (step, mut notes) = (update.step, Vec::new());
    if let Some(Skipped { median, requests }) = &update.skipped {
        let (loss, batch) = (update.loss, named(requests));
        let above = loss / median;
        notes.push(format!("step {step} not taken: loss {loss:.3} is {above:.1} times the median, in {batch}"));
    }
    if let Some(v) = &update.validated
        && let Some(length) = v.expected_length
    {
        let best = if v.best.is_some() { ", the best so far" } else { "" };
        notes.push(format!("step {step}: held-out loss {:.3}, expected length {length:.3}{best}", v.loss));
        if v.over_training {
            let what = "the training loss still falls, the expected length falls with it";
            notes.push(format!("step {step}: over-training: {what}"));
        }
        if v.out_of_patience && step < update.total {
            notes.push(format!("the run ends at step {step} of {}: train.patience is used up", update.total));
        }
    }
    notes.into_iter().map(|note| format!("train: {note}")).collect()
}

fn save(weights: &Eagle3, drafter: &Eagle3Drafter, provenance: &Provenance, dir: &Path) -> Result<(), String> {
    std::fs::create_dir_all(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    Checkpoint::save(dir, weights, drafter, provenance).map_err(|e| e.to_string())
}

pub(super) fn read_rows(setup: &Setup, recipe: &Recipe, run: &RunDir) -> Result<Vec<FeatureRow>, Failure> {
    let store = StoreReader::open(&store_dir(recipe, run)).work()?;
    let Drafter::Eagle3(drafter) = &recipe.drafter;
    let taps = drafter.taps_for(setup.target.config().layers).unwrap_or_default();
    if store.meta().target_hash != setup.target_hash || store.meta().taps != taps {
        let dir = store_dir(recipe, run);
        return Err(anyhow!("{} holds another target's features or other taps; capture again", dir.display()))
            .request();
    }
    if store.is_empty() {
        let text = format!("{}; finished stages are kept in {}", TrainError::Empty, run.display());
        return Err(anyhow!(text)).work();
    }
    let mut rows = store.read_all().work()?;
    for row in &mut rows {
        cut(row, recipe.train.max_seq);
    }
    Ok(rows)
}

/// Cuts a conversation to `limit` tokens.
fn cut(row: &mut FeatureRow, limit: usize) {
    let n = row.ids.len();
    if n > limit {
        row.taps.truncate(row.taps.len() / n * limit);
        row.last_hidden.truncate(row.last_hidden.len() / n * limit);
        row.ids.truncate(limit);
        row.loss_mask.truncate(limit);
        row.logsumexp.truncate(limit);
    }
}

fn build(setup: &Setup, recipe: &Recipe, rows: &[FeatureRow]) -> Result<Eagle3Drafter, Failure> {
    let Drafter::Eagle3(recipe) = &recipe.drafter;
    let vocab = setup.target.config().vocab_size;
    let counts = count_tokens(rows.iter().map(|r| (r.ids.as_slice(), r.loss_mask.as_slice())), vocab).work()?;
    let supervised: u64 = counts.iter().sum();
    let draft_vocab = DraftVocab::from_counts(&counts, recipe.draft_vocab.size(vocab)).work()?;
    let (size, share) = (draft_vocab.d2t.len(), 100.0 * draft_vocab.coverage(&counts));
    eprintln!("train: {supervised} supervised tokens; the draft vocabulary of {size} covers {share:.1} % of them");
    let taps = recipe.taps_for(setup.target.config().layers).unwrap_or_default();
    let config = Eagle3Config::for_target(&setup.target, taps, size, recipe.norm_before_residual);
    let drafter = Eagle3Drafter::new(config, draft_vocab, &setup.target);
    Ok(Eagle3Drafter { scale: tap_scale(rows), ..drafter })
}

/// Typical absolute value of every tapped dimension: medians, since first tokens carry huge activations.
pub(super) fn tap_scale(rows: &[FeatureRow]) -> TapScale {
    const SAMPLE: usize = 2048;
    let width = rows.first().map_or(0, |r| r.taps.len() / r.ids.len());
    let every = (rows.iter().map(|r| r.ids.len()).sum::<usize>() / SAMPLE).max(1);
    let tokens: Vec<&[bf16]> = rows.iter().flat_map(|r| r.taps.chunks_exact(width)).step_by(every).collect();
    let median = |dimension: usize| {
        let mut sizes: Vec<f32> = tokens.iter().map(|t| t[dimension].to_f32().abs()).collect();
        sizes.sort_by(f32::total_cmp);
        sizes[sizes.len() / 2].max(1e-3)
    };
    TapScale::new((0..width).map(median).collect())
}

/// The declared loss.
pub fn objective(recipe: &Recipe) -> Objective {
    let kind = recipe.loss.kind_for(&recipe.verifier);
    let loss = match kind {
        LossKind::Lk => DraftLoss::Lk,
        LossKind::LkLambda => DraftLoss::LkLambda { eta: recipe.loss.eta as f32 },
        LossKind::Tv => DraftLoss::TotalVariation,
        LossKind::Kl => DraftLoss::Kl,
        LossKind::Ce => DraftLoss::CrossEntropy,
        LossKind::ReverseKl => DraftLoss::ReverseKl,
        LossKind::Jsd => DraftLoss::JensenShannon,
        LossKind::E2eTv => DraftLoss::EndToEndTv,
        LossKind::ExactLength => DraftLoss::ExactLength,
    };
    let of_step = |w: f64| if kind.is_chain() { 1.0 } else { w as f32 };
    let step_weights = recipe.loss.weights().into_iter().map(of_step).collect();
    let accepted = match Reward::of(recipe.verifier.rule, recipe.verifier.temperature) {
        Reward::Overlap => Accepted::Overlap,
        Reward::TargetOnly => Accepted::TargetOnly,
    };
    let weighting = match recipe.loss.weighting {
        StepWeighting::Fixed => Weighting::Fixed,
        StepWeighting::Accepted => Weighting::Accepted,
        StepWeighting::DPace => Weighting::DPace,
    };
    Objective {
        weighting,
        rows: recipe.loss.rows,
        target: recipe.loss.target,
        policies: recipe.loss.processors(),
        seed: recipe.seed,
        accepted,
        feature_weight: recipe.loss.feature_weight as f32,
        ..Objective::new(loss, step_weights)
    }
}

/// Knobs of the loop.
pub fn config(recipe: &Recipe) -> TrainConfig {
    let t = &recipe.train;
    TrainConfig {
        epochs: t.epochs,
        batch_tokens: t.batch_tokens,
        accumulate: t.accumulate,
        replicas: Vec::new(),
        recompute: t.recompute,
        learning_rate: t.learning_rate,
        warmup_ratio: t.warmup_ratio,
        schedule: t.schedule,
        decay_share: t.decay_share,
        dropout: t.dropout,
        feature_noise: t.feature_noise,
        ema: t.ema,
        spike: t.spike,
        anchor: None,
        optimiser: OptimiserConfig {
            matrices: match t.optimizer {
                Optimizer::AdamW => MatrixUpdate::AdamW,
                Optimizer::Muon => MatrixUpdate::Muon,
            },
            betas: (t.betas[0], t.betas[1]),
            eps: t.eps,
            weight_decay: t.weight_decay,
        },
        clip_norm: t.clip_norm,
        validation_share: t.validation_share,
        patience: t.patience,
        log_every: t.log_every,
        checkpoint_every: t.checkpoint_every,
        seed: recipe.seed,
    }
}

fn provenance(setup: &Setup, recipe: &Recipe, run: &RunDir, more: &serde_json::Value) -> Result<Provenance, Failure> {
    let store = StoreReader::open(&store_dir(recipe, run)).work()?;
    // What neither changes the weights nor the records is left out, so that it may differ between the two halves.
    let train = Train { checkpoint_every: 0, ..recipe.train.clone() };
    let depends = json!([store.meta(), recipe.drafter, recipe.verifier, recipe.loss, train, recipe.seed, more]);
    Ok(Provenance {
        target_hash: setup.target_hash.clone(),
        tokenizer_hash: setup.tokenizer.content_hash().to_string(),
        target: setup.dir.display().to_string(),
        rule: recipe.verifier.rule.to_string(),
        guarantee: recipe.verifier.rule.guarantee().to_string(),
        loss: recipe.loss.label(&recipe.verifier),
        step: 0,
        run: sha256(depends.to_string().as_bytes()),
        version: env!("CARGO_PKG_VERSION").to_string(),
    })
}
