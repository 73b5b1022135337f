//! A drafter trained further on what a verifier did with it.
//!
//! The traced texts are the target's own samples, so they are learned from like any answer; the rows at which rounds
//! really started count alone. Prompts that are set aside decide in the end whether the drafter replaces the run's best.

use super::capture::{capture, store_dir};
use super::checkpoints::replace_best;
use super::held_out::HeldOut;
use super::setup::{RunDir, Setup};
use super::traces::drafter_hash;
use super::train::{self, Lesson};
use crate::exit::{Blame, Failure};
use anyhow::{Context, anyhow};
use serde_json::json;
use spectrain_core::recipe::{Drafter, Recipe, RowWeighting};
use spectrain_core::rng::{Key, Purpose};
use spectrain_core::rules::Rule;
use spectrain_core::stats::replay::Drawn;
use spectrain_core::stats::{Interval, Ratio, Resampling};
use spectrain_data::answers::{Answer, AnswersMeta, write_answers};
use spectrain_data::store::{FeatureRow, sha256_file};
use spectrain_data::traces::{Trace, TracesMeta, read_traces};
use spectrain_draft::checkpoint::DrafterConfig;
use spectrain_draft::{Checkpoint, Eagle3, Eagle3Drafter, Started};
use spectrain_train::TracedSides;
use spectrain_verify::offline::{Chains, Drafts, Offline, Sides};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file of traces that fits the target.
struct Traces {
    meta: TracesMeta,
    /// A row's request is the number of its trace here.
    all: Vec<Trace>,
    hash: String,
}

/// Trains the drafter of `recipe`'s run further on the traces in `file`.
pub fn replay(setup: &Setup, recipe: Recipe, file: &Path, run: &RunDir, resume: bool) -> Result<(), Failure> {
    let traces = Traces::read(setup, file, recipe.train.max_seq)?;
    let (from, recipe) = starting(setup, recipe, run)?;
    let (served, weights) = from.eagle3(&setup.target, setup.target.device()).request()?;
    let dir = RunDir::look(&run.join(format!("replay-{}", &traces.hash[..12])));
    let answers = traces.write_answers(setup, &recipe, &dir)?;
    capture(setup, &recipe, &answers, &dir)?;
    let rows = train::read_rows(setup, &recipe, &dir)?;
    let as_served = traces.compare_served(setup, &recipe, (&served, &weights), &rows)?;

    let (aside, rows) = traces.split(rows, &recipe);
    let drafter = Eagle3Drafter { scale: train::tap_scale(&rows), ..served };
    let started = traces.started();
    let objective = spectrain_draft::Objective {
        started: (recipe.loss.rows == RowWeighting::All).then(|| Arc::new(started)),
        ..train::objective(&recipe)
    };
    let held_out = train::config(&recipe).split(rows.len()).1;
    let held_out: Vec<FeatureRow> = held_out.into_iter().map(|i| rows[i].clone()).collect();
    let watch = |weights: &Eagle3| {
        let drafter = drafter.serving(weights);
        let found = traces.sides(setup, &recipe, (&drafter, weights), &held_out, Drafts::Now)?;
        found.iter().for_each(|sides| eprintln!("replay: {}", told(sides)));
        Ok(found)
    };
    let depends = json!([traces.hash, drafter_hash(recipe.train.start.as_deref().unwrap_or(Path::new("")))?]);
    let lesson = Lesson { rows: &rows, drafter: &drafter, objective, depends, served: &as_served, watch: &watch };
    let trained = train::learn(setup, &recipe, &dir, resume, lesson)?;
    settle(setup, &recipe, run, &trained, &aside)
}

/// The drafter that is trained further, and the recipe with its place, its taps and its draft vocabulary.
fn starting(setup: &Setup, mut recipe: Recipe, run: &RunDir) -> Result<(Checkpoint, Recipe), Failure> {
    let path = recipe.train.start.clone().unwrap_or_else(|| run.join("best"));
    let checkpoint = Checkpoint::open(&path).request()?;
    let told = || path.display().to_string();
    let own = checkpoint.check_target(&setup.target_hash, setup.tokenizer.content_hash(), &setup.dir);
    own.with_context(told).request()?;
    let DrafterConfig::Eagle3(config) = &checkpoint.config;
    let Drafter::Eagle3(drafter) = &mut recipe.drafter;
    drafter.taps = Some(config.taps.clone());
    recipe.train.start = Some(path);
    // The store lies with the traces: that of the recipe holds other answers.
    recipe.store.dir = None;
    Ok((checkpoint, recipe))
}

impl Traces {
    /// Reads a file and refuses what is another target's; requests of more than `longest` tokens are left out.
    fn read(setup: &Setup, file: &Path, longest: usize) -> Result<Self, Failure> {
        let (meta, all) = read_traces(file).request()?;
        let vocabulary = setup.target.config().vocab_size;
        for (what, traced, own) in [
            ("target", &meta.target_hash, &setup.target_hash),
            ("tokenizer", &meta.tokenizer_hash, &setup.tokenizer.content_hash().to_string()),
            ("vocabulary", &meta.vocabulary.to_string(), &vocabulary.to_string()),
        ] {
            if traced != own {
                let (file, dir) = (file.display(), setup.dir.display());
                let text = format!("{file} was traced with another {what} than that of {dir}: {traced} against {own}");
                return Err(anyhow!("{text}; trace again with `spectrain eval --traces`")).request();
            }
        }
        let given = all.len();
        // An answer of one token has no round.
        let fits = |t: &Trace| t.prompt.len() + t.answer.len() <= longest && t.answer.len() > 1;
        let all: Vec<Trace> = all.into_iter().filter(fits).collect();
        if all.len() < given {
            let out = given - all.len();
            eprintln!(
                "replay: {out} of {given} requests left out: one token, or more than train.max_seq with the prompt"
            );
        }
        match all.is_empty() {
            true => Err(anyhow!("{} has no request to learn from", file.display())).request(),
            false => Ok(Self { meta, all, hash: sha256_file(file).work()? }),
        }
    }

    /// Writes the texts as answers of the target.
    fn write_answers(&self, setup: &Setup, recipe: &Recipe, dir: &RunDir) -> Result<PathBuf, Failure> {
        let path = dir.join("answers.parquet");
        std::fs::create_dir_all(store_dir(recipe, dir).parent().unwrap_or(&path)).context("replay").work()?;
        let seed = self.meta.seed;
        let rows: Vec<Answer> = (0..).zip(&self.all).map(|(i, trace)| trace.answer(i, seed)).collect();
        let meta = AnswersMeta {
            target_hash: self.meta.target_hash.clone(),
            tokenizer_hash: self.meta.tokenizer_hash.clone(),
            template_hash: setup.template.content_hash().to_string(),
            seed,
            processors: json!({}),
            spectrain_version: self.meta.spectrain_version.clone(),
        };
        write_answers(&path, &meta, &rows).work()?;
        Ok(path)
    }

    /// Where the rounds of all requests started.
    fn started(&self) -> Started {
        let roots =
            |(i, trace): (usize, &Trace)| trace.rounds.iter().map(move |r| (i as u64, r.root)).collect::<Vec<_>>();
        self.all.iter().enumerate().flat_map(roots).collect()
    }

    /// The conversations of the prompts that decide in the end, and those of all others. All answers to a prompt are on
    /// one side.
    fn split(&self, rows: Vec<FeatureRow>, recipe: &Recipe) -> (Vec<FeatureRow>, Vec<FeatureRow>) {
        let mut number: HashMap<&[u32], u64> = HashMap::new();
        let aside = |row: &FeatureRow| {
            let next = number.len() as u64;
            let prompt = *number.entry(self.all[row.request as usize].prompt.as_slice()).or_insert(next);
            Key::new(recipe.seed, prompt, 3, Purpose::Data).uniform() < recipe.train.validation_share
        };
        rows.into_iter().partition(aside)
    }

    /// Both sides by temperature, of rows of these traces.
    fn sides(
        &self,
        setup: &Setup,
        recipe: &Recipe,
        (drafter, weights): (&Eagle3Drafter, &Eagle3),
        rows: &[FeatureRow],
        drafts: Drafts,
    ) -> Result<Vec<TracedSides>, String> {
        // The block rule's rounds do not follow from a text; both sides are then about the token rule.
        let rule = if self.meta.rule == Rule::Block { Rule::Token } else { self.meta.rule };
        let mut temperatures: Vec<f64> = self.all.iter().map(|trace| trace.temperature).collect();
        temperatures.sort_by(f64::total_cmp);
        temperatures.dedup();
        let resampling = Resampling { seed: recipe.seed, ..Resampling::default() };
        let mut found = Vec::new();
        for temperature in temperatures {
            let of = |row: &&FeatureRow| self.all[row.request as usize].temperature == temperature;
            let rows: Vec<FeatureRow> = rows.iter().filter(of).cloned().collect();
            let traces: Vec<&Trace> = rows.iter().map(|row| &self.all[row.request as usize]).collect();
            let chains = Chains::of(rule, temperature).map_err(|e| e.to_string())?;
            let offline = Offline { target: &setup.target, drafter, weights, chains, longest: self.meta.length };
            let sides = offline.sides(&rows, &traces, &self.meta, drafts, &resampling).map_err(|e| e.to_string())?;
            found.extend(sides.map(|sides| recorded(temperature, drafts, &sides)));
        }
        Ok(found)
    }

    /// Holds what the drafter does along the text against what it did in the server, and says where they differ.
    fn compare_served(
        &self,
        setup: &Setup,
        recipe: &Recipe,
        of: (&Eagle3Drafter, &Eagle3),
        rows: &[FeatureRow],
    ) -> Result<Vec<TracedSides>, Failure> {
        let start = recipe.train.start.as_deref().unwrap_or(Path::new(""));
        if drafter_hash(start)? != self.meta.drafter_hash {
            let at = start.display();
            eprintln!(
                "replay: the traces are of another drafter than {at}, so its conditioning in service is not checked"
            );
            return Ok(Vec::new());
        }
        let found = self.sides(setup, recipe, of, rows, Drafts::Served).map_err(|e| anyhow!(e)).work()?;
        for sides in &found {
            eprintln!("replay: as served, {}", told(sides));
            if sides.differ {
                eprintln!("replay: the two differ: in service the drafter is not conditioned as in training");
            }
        }
        Ok(found)
    }
}

/// Both sides as a record has them.
fn recorded(temperature: f64, drafts: Drafts, sides: &Sides) -> TracedSides {
    let (Drawn { by_token, low, high }, Interval { low: from, high: to, .. }) = (sides.draft, sides.difference);
    TracedSides {
        served: drafts == Drafts::Served,
        temperature,
        rounds: sides.rounds,
        text: sides.text,
        draft: by_token,
        draft_bounds: [low, high],
        difference: [from, to],
        differ: sides.disagree(),
    }
}

/// Both sides in words.
fn told(sides: &TracedSides) -> String {
    let TracedSides { temperature, rounds, text, draft, draft_bounds: [low, high], difference: [from, to], .. } = sides;
    format!(
        "T={temperature}: accepted a round along the text {text:.3}, along the drafts {draft:.3} (between {low:.3} and \
         {high:.3}); difference within [{from:.3}, {to:.3}], {rounds} rounds"
    )
}

/// Makes the drafter in `trained` the run's best unless it is worse on the conversations set `aside`.
fn settle(setup: &Setup, recipe: &Recipe, run: &RunDir, trained: &Path, aside: &[FeatureRow]) -> Result<(), Failure> {
    let best = run.join("best");
    let incumbent = if best.exists() { best } else { recipe.train.start.clone().unwrap_or(best) };
    let beside = |why: String| eprintln!("replay: {why}; {} is kept beside", trained.display());
    let Some(difference) = difference(setup, recipe, (trained, &incumbent), aside)? else {
        beside("no traced prompt was set aside that could compare the two (train.validation_share)".to_string());
        return Ok(());
    };
    let Interval { estimate, low, high } = difference;
    let figure =
        format!("tokens per target call {estimate:+.4} [{low:+.4}, {high:+.4}] against {}", incumbent.display());
    if estimate < 0.0 {
        beside(format!("the drafter is worse: {figure}"));
        return Ok(());
    }
    replace_best(run, trained).map_err(|e| anyhow!(e)).work()?;
    eprintln!("replay: the drafter is not worse: {figure}; it is now {}", run.join("best").display());
    Ok(())
}

/// Expected tokens per target call of the first drafter less those of the second, by prompt; `None` where nothing tells.
fn difference(
    setup: &Setup,
    recipe: &Recipe,
    (first, second): (&Path, &Path),
    aside: &[FeatureRow],
) -> Result<Option<Interval>, Failure> {
    let mut sides: Vec<Vec<Ratio>> = Vec::new();
    let mut taps = Vec::new();
    for path in [first, second] {
        let (drafter, weights) = Checkpoint::open(path)
            .request()?
            .eagle3(&setup.target, setup.target.device())
            .with_context(|| path.display().to_string())
            .request()?;
        taps.push(drafter.config.taps.clone());
        if taps[0] != taps[taps.len() - 1] {
            return Ok(None);
        }
        let everything: Vec<usize> = (0..aside.len()).collect();
        let Some(held_out) = HeldOut::new(setup, recipe, &drafter, aside, &everything) else { return Ok(None) };
        sides.push(by_prompt(held_out.rounds(&weights).map_err(|e| anyhow!(e)).work()?));
    }
    if sides[0].is_empty() {
        return Ok(None);
    }
    let resampling = Resampling { seed: recipe.seed, ..Resampling::default() };
    resampling.paired_difference(&sides[0], &sides[1]).work().map(Some)
}

/// Sums by prompt, in the order in which prompts first appear.
fn by_prompt(rounds: Vec<(Vec<u32>, Ratio)>) -> Vec<Ratio> {
    let mut number: HashMap<Vec<u32>, usize> = HashMap::new();
    let mut sums: Vec<Ratio> = Vec::new();
    for (prompt, part) in rounds {
        let next = number.len();
        let at = *number.entry(prompt).or_insert(next);
        sums.resize(number.len(), Ratio { numerator: 0.0, denominator: 0.0 });
        sums[at].numerator += part.numerator;
        sums[at].denominator += part.denominator;
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_both_sides_and_the_line_says_them() {
        let difference = Interval { estimate: 0.25, low: 0.125, high: 0.375 };
        let draft = Drawn { by_token: 1.25, low: 1.125, high: 1.75 };
        let sides = Sides { rounds: 9, text: 1.5, draft, difference };
        let record = recorded(0.5, Drafts::Served, &sides);
        let expected = TracedSides {
            served: true,
            temperature: 0.5,
            rounds: 9,
            text: 1.5,
            draft: 1.25,
            draft_bounds: [1.125, 1.75],
            difference: [0.125, 0.375],
            differ: true,
        };
        assert_eq!(record, expected);
        let line = "T=0.5: accepted a round along the text 1.500, along the drafts 1.250 (between 1.125 and 1.750); \
                    difference within [0.125, 0.375], 9 rounds";
        assert_eq!(told(&record), line);
        let within = Sides { difference: Interval { low: -0.1, ..sides.difference }, ..sides };
        let record = recorded(0.5, Drafts::Now, &within);
        assert!(!record.served && !record.differ);
    }
}
