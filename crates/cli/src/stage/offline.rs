//! Drafters estimated without decoding, on answers of the target: stored ones, or ones that are made here.

use super::capture::{batches, features};
use super::setup::Setup;
use crate::exit::{Blame, Failure};
use crate::progress::Progress;
use anyhow::anyhow;
use half::bf16;
use spectrain_core::form::Form;
use spectrain_core::process::Processors;
use spectrain_core::rules::Rule;
use spectrain_core::stats::Resampling;
use spectrain_core::{offline, offline::OfflineEstimates};
use spectrain_data::answers::Answer;
use spectrain_data::prompts::Prompt;
use spectrain_data::store::{FeatureRow, StoreReader};
use spectrain_draft::{Checkpoint, Eagle3, Eagle3Drafter};
use spectrain_model::{Completion, Decoder, Request};
use spectrain_verify::offline::{Chains, Offline, OfflineError, Questions, Scored};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::path::Path;

/// Answers made here share no draw with those that the verifier makes of the same prompts.
const SEED_SHIFT: u64 = 1 << 32;

/// A drafter under its name.
pub struct Candidate {
    /// Its checkpoint's directory.
    pub name: String,
    drafter: Eagle3Drafter,
    weights: Eagle3,
}

impl Candidate {
    /// Loads the drafter of `checkpoint`, which was trained for the target at hand.
    pub fn load(setup: &Setup, name: String, checkpoint: &Checkpoint) -> Result<Self, Failure> {
        let (drafter, weights) = checkpoint.eagle3(&setup.target, setup.target.device()).request()?;
        Ok(Self { name, drafter, weights })
    }

    fn taps(&self) -> &[usize] {
        &self.drafter.config.taps
    }
}

/// Where the answers come from.
pub enum Answers {
    /// A feature store.
    Store(Box<StoreReader>),
    /// The target answers these prompts now.
    Fresh {
        /// The prompts.
        prompts: Vec<Prompt>,
        /// Longest answer.
        max_new_tokens: usize,
        /// Requests at once.
        batch: usize,
        /// Tokens of a capturing pass.
        batch_tokens: usize,
        /// Seed of the run; the draws are keyed by another.
        seed: u64,
    },
}

/// What is estimated.
pub struct OfflinePlan {
    /// Rule at temperatures above zero.
    pub rule: Rule,
    /// Temperatures; empty for those that a store has.
    pub temperatures: Vec<f64>,
    /// Drafted tokens a round.
    pub lengths: Vec<usize>,
    /// Seed of the resampling.
    pub seed: u64,
}

/// The outcome.
pub struct Estimated {
    /// By candidate and temperature.
    pub estimates: Vec<OfflineEstimates>,
    /// The best candidate of each temperature and length against each of the others.
    pub differences: Vec<offline::Difference>,
}

/// Opens the store in `dir`, refused where it cannot serve `candidates`.
pub fn open_store(setup: &Setup, dir: &Path, candidates: &[Candidate]) -> Result<StoreReader, Failure> {
    let store = StoreReader::open(dir).request()?;
    let at = dir.display();
    if store.meta().target_hash != setup.target_hash {
        let target = setup.dir.display();
        let cure = "give a store that was captured from this target, or leave --store out to have answers made here";
        return Err(anyhow!("{at} holds features of another target than {target}: {cure}")).request();
    }
    for candidate in candidates {
        let (has, needs) = (&store.meta().taps, candidate.taps());
        if needs.iter().any(|tap| !has.contains(tap)) {
            let name = &candidate.name;
            let cure = "capture with these drafter.taps, or leave --store out";
            return Err(anyhow!("{at} holds taps {has:?}, the drafter of {name} reads {needs:?}: {cure}")).request();
        }
    }
    Ok(store)
}

/// Estimates `candidates`, all on the same answers.
pub fn offline(
    setup: &Setup,
    candidates: &[Candidate],
    answers: &Answers,
    plan: &OfflinePlan,
) -> Result<Estimated, Failure> {
    let temperatures = match (answers, plan.temperatures.is_empty()) {
        (Answers::Store(store), true) => stored_temperatures(store)?,
        _ => plan.temperatures.clone(),
    };
    let mut found = Estimated { estimates: Vec::new(), differences: Vec::new() };
    for temperature in temperatures {
        let chains = Chains::of(plan.rule, temperature).request()?;
        let longest = plan.lengths.iter().copied().max().unwrap_or(1);
        let scored = match answers {
            Answers::Store(store) => from_store(setup, candidates, store, temperature, (chains, longest))?,
            Answers::Fresh { .. } => from_fresh(setup, candidates, answers, temperature, (chains, longest))?,
        };
        summarise(candidates, &scored, temperature, plan, &mut found)?;
    }
    Ok(found)
}

/// Temperatures of a store's rows, ascending.
fn stored_temperatures(store: &StoreReader) -> Result<Vec<f64>, Failure> {
    let mut found: Vec<f32> = Vec::new();
    for shard in 0..store.manifest().shards.len() {
        found.extend(store.read_shard(shard).work()?.iter().map(|row| row.temperature));
        found.sort_by(f32::total_cmp);
        found.dedup();
    }
    // The shortest decimal that reads as this f32: 0.7 and not 0.699999988.
    Ok(found.iter().map(|t| t.to_string().parse().unwrap_or(f64::from(*t))).collect())
}

/// Answers by candidate.
pub(super) type ByCandidate = Vec<Vec<Scored>>;

fn from_store(
    setup: &Setup,
    candidates: &[Candidate],
    store: &StoreReader,
    temperature: f64,
    chains: (Chains, usize),
) -> Result<ByCandidate, Failure> {
    let label = format!("offline T={temperature}");
    let progress = Progress::new(&label, store.manifest().tokens as u64, "tokens");
    let mut scored: ByCandidate = candidates.iter().map(|_| Vec::new()).collect();
    for shard in 0..store.manifest().shards.len() {
        let rows = store.read_shard(shard).work()?;
        let read: usize = rows.iter().map(|row| row.ids.len()).sum();
        let rows: Vec<FeatureRow> = rows.into_iter().filter(|row| row.temperature == temperature as f32).collect();
        if let Some(row) = rows.iter().find(|row| row.off_policy) {
            let why = "its ids came from text, so the target's own rounds do not follow from them";
            let cure = "let `spectrain generate` write the answers, or leave --store out to have it done here";
            return Err(anyhow!("request {} is off-policy: {why}; {cure}", row.request)).request();
        }
        lead(setup, candidates, &rows, &store.meta().taps, chains, &mut scored)?;
        progress.inc(read as u64);
    }
    progress.finish();
    if scored.iter().any(Vec::is_empty) {
        let has = stored_temperatures(store)?;
        let why = "samples at one temperature say nothing about another";
        let cure = "ask for one of these, or leave --store out to have answers made here";
        return Err(anyhow!("no answers at temperature {temperature}: the store has {has:?}, and {why}; {cure}"))
            .request();
    }
    Ok(scored)
}

fn from_fresh(
    setup: &Setup,
    candidates: &[Candidate],
    answers: &Answers,
    temperature: f64,
    chains: (Chains, usize),
) -> Result<ByCandidate, Failure> {
    let written = answer(setup, answers, temperature)?;
    let Answers::Fresh { batch_tokens, .. } = answers else { return Ok(Vec::new()) };
    score(setup, candidates, &written, *batch_tokens, temperature, chains)
}

/// Leads every candidate along answers that were just written, `batch_tokens` tokens a pass of the target. The rows of
/// what is scored are the numbers of the answers.
pub(super) fn score(
    setup: &Setup,
    candidates: &[Candidate],
    written: &[Answer],
    batch_tokens: usize,
    temperature: f64,
    chains: (Chains, usize),
) -> Result<ByCandidate, Failure> {
    let mut taps: Vec<usize> = candidates.iter().flat_map(|c| c.taps()).copied().collect();
    taps.sort_unstable();
    taps.dedup();
    let tokens = written.iter().map(|a| a.prompt_ids.len() + a.answer_ids.len()).sum::<usize>();
    let progress = Progress::new(&format!("offline T={temperature}"), tokens as u64, "tokens");
    let mut scored: ByCandidate = candidates.iter().map(|_| Vec::new()).collect();
    let mut first = 0;
    for group in batches(written, batch_tokens) {
        let rows = features(&setup.target, group, &taps, |answer| answer.prompt_ids.len());
        let before = scored.first().map_or(0, Vec::len);
        lead(setup, candidates, &rows, &taps, chains, &mut scored)?;
        scored.iter_mut().flat_map(|s| &mut s[before..]).for_each(|answer| answer.row += first);
        first += group.len();
        progress.inc(rows.iter().map(|row| row.ids.len()).sum::<usize>() as u64);
    }
    progress.finish();
    Ok(scored)
}

/// The target's answers to the prompts.
pub(super) fn answer(setup: &Setup, answers: &Answers, temperature: f64) -> Result<Vec<Answer>, Failure> {
    let Answers::Fresh { prompts, max_new_tokens, batch, seed, .. } = answers else { return Ok(Vec::new()) };
    let encoded: Vec<Vec<u32>> = prompts.iter().map(|p| setup.encode(p)).collect::<Result<_, _>>()?;
    let (seed, capacity) = (seed ^ SEED_SHIFT, encoded.iter().map(Vec::len).max().unwrap_or(0) + max_new_tokens);
    let limit = setup.target.config().max_positions;
    if capacity > limit {
        return Err(anyhow!(
            "prompt and answer may reach {capacity} tokens, the target reads {limit}: lower --max-new-tokens"
        ))
        .request();
    }
    let request = |(id, prompt): (usize, &Vec<u32>)| Request {
        id: id as u64,
        prompt: prompt.clone(),
        max_new_tokens: *max_new_tokens,
        sampling: Processors::at(temperature),
        seed,
        form: Form::default(),
    };
    let label = format!("answers T={temperature}");
    let progress = Progress::up_to(&label, (prompts.len() * max_new_tokens) as u64, "tokens");
    let stop = setup.template.stop_ids();
    let mut done: BTreeMap<u64, Completion> = BTreeMap::new();
    let decoder = Decoder { target: &setup.target, stop: &stop, batch: (*batch).min(prompts.len()) };
    let requests = encoded.iter().enumerate().map(request);
    let run = decoder.run(requests, capacity, |c| drop(done.insert(c.id, c)), |tokens| progress.inc(tokens as u64));
    progress.finish();
    run.work()?;
    let row = |((prompt, prompt_ids), c): ((&Prompt, &Vec<u32>), Completion)| Answer {
        prompt_id: prompt.id.clone(),
        task: prompt.task.clone(),
        ..written(prompt_ids, &c, temperature, seed)
    };
    Ok(prompts.iter().zip(&encoded).zip(done.into_values()).map(row).collect())
}

/// An answer just written, of a prompt without a name.
pub(super) fn written(prompt_ids: &[u32], c: &Completion, temperature: f64, seed: u64) -> Answer {
    Answer {
        prompt_id: String::new(),
        task: String::new(),
        request: c.id,
        prompt_ids: prompt_ids.to_vec(),
        answer_ids: c.ids.clone(),
        temperature: temperature as f32,
        seed,
        finish: c.finish.into(),
        off_policy: false,
    }
}

/// Leads every candidate along `rows`, whose taps are `taps`.
fn lead(
    setup: &Setup,
    candidates: &[Candidate],
    rows: &[FeatureRow],
    taps: &[usize],
    (chains, longest): (Chains, usize),
    scored: &mut ByCandidate,
) -> Result<(), Failure> {
    for (candidate, scored) in candidates.iter().zip(scored) {
        let Candidate { drafter, weights, .. } = candidate;
        let offline = Offline { target: &setup.target, drafter, weights, chains, longest };
        let found = match candidate.taps() == taps {
            true => offline.score(rows),
            false => {
                let rows: Vec<FeatureRow> = rows.iter().map(|row| picked(row, taps, candidate.taps())).collect();
                offline.score(&rows)
            }
        };
        scored.extend(found.request()?);
    }
    Ok(())
}

/// `row` with the taps `wanted` of the taps `has`.
fn picked(row: &FeatureRow, has: &[usize], wanted: &[usize]) -> FeatureRow {
    let width = row.taps.len() / row.ids.len() / has.len();
    let place = |tap: &usize| has.iter().position(|t| t == tap).unwrap_or(0) * width;
    let token = |all: &[bf16]| wanted.iter().flat_map(|tap| all[place(tap)..place(tap) + width].to_vec()).collect();
    let taps: Vec<Vec<bf16>> = row.taps.chunks_exact(width * has.len()).map(token).collect();
    FeatureRow { taps: taps.concat(), ..row.clone() }
}

/// Estimates of every candidate, and the best of each length against the others.
fn summarise(
    candidates: &[Candidate],
    scored: &ByCandidate,
    temperature: f64,
    plan: &OfflinePlan,
    found: &mut Estimated,
) -> Result<(), Failure> {
    let resampling = Resampling { seed: plan.seed, ..Resampling::default() };
    let mut lengths = vec![Vec::new(); candidates.len()];
    for &length in &plan.lengths {
        let questions: Vec<Questions> =
            scored.iter().map(|s| Questions::of(s, length)).collect::<Result<_, OfflineError>>().work()?;
        for (questions, lengths) in questions.iter().zip(&mut lengths) {
            lengths.push(questions.estimate(length, &resampling).work()?);
        }
        let tau = |i: &usize| lengths[*i].last().map_or(f64::NAN, |e| e.tokens_per_target_call.estimate);
        let mut order: Vec<usize> = (0..candidates.len()).collect();
        order.sort_by(|a, b| tau(b).partial_cmp(&tau(a)).unwrap_or(Ordering::Equal));
        for &other in &order[1..] {
            let (best, other) = (order[0], other);
            let pair = resampling.paired_difference(&questions[best].all_rounds, &questions[other].all_rounds);
            found.differences.push(offline::Difference {
                first: candidates[best].name.clone(),
                second: candidates[other].name.clone(),
                temperature,
                length,
                difference: pair.work()?,
            });
        }
    }
    found.estimates.extend(candidates.iter().zip(lengths).map(|(candidate, lengths)| OfflineEstimates {
        checkpoint: candidate.name.clone(),
        temperature,
        rule: plan.rule.at(temperature),
        lengths,
    }));
    Ok(())
}
