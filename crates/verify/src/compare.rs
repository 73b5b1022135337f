//! Plain decoding and several ways to draft, measured in turn on the same questions.
//!
//! A machine's clock and memory are not the same from one minute to the next, least of all where others use them too.
//! So the questions are answered in stints, each of them by everyone before the next begins, forwards and backwards by
//! turns: what changes slowly falls on all alike and leaves their ratios alone. How far the ratio of a stint strays is
//! reported as an interval.

use crate::engine::{Cost, SpeculativeDecoder, Transcript};
use crate::evaluate::{EvaluateError, Measurement, Question, Settings, requests, summarise};
use crate::judge::{Judge, judge};
use crate::length::LengthPolicy;
use crate::plain::PlainRun;
use crate::plan::plan;
use crate::task::Task;
use spectrain_core::stats::Ratio;
use spectrain_draft::proposer::{Plan, Proposer};
use spectrain_model::{Completion, Decoder, Llama, Request};
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Instant;

/// Most stints of a comparison.
const STINTS: usize = 12;

/// Least requests of a stint by those that are answered at once: the batch is to be full most of the time.
const FILLED: usize = 2;

/// The models, and what ends an answer.
pub struct Bench<'a> {
    /// The target.
    pub target: &'a Llama,
    /// The drafter.
    pub proposer: &'a mut dyn Proposer,
    /// Tokens that end an answer.
    pub stop: &'a [u32],
}

/// What a comparison found.
pub struct Comparison {
    /// Plain decoding.
    pub plain: PlainRun,
    /// One for each of the settings, in their order.
    pub measurements: Vec<Measurement>,
}

/// One way to draft, and what it has done so far.
struct Contender<'a> {
    settings: &'a Settings,
    plan: Plan,
    judge: &'static Judge,
    lengths: Box<dyn LengthPolicy>,
    requests: Vec<Request>,
    transcripts: BTreeMap<u64, Transcript>,
    cost: Cost,
    rates: Vec<Ratio>,
}

impl<'a> Contender<'a> {
    fn new(target: &Llama, questions: &[Question], settings: &'a Settings) -> Result<Self, EvaluateError> {
        let Settings { rule, length, .. } = *settings;
        let judge = judge(rule).ok_or(EvaluateError::Rule(rule))?;
        let plan = plan(&settings.tree, rule, length, &settings.ranks)?;
        let requests = requests(target, questions, settings, plan.drafted())?;
        let lengths = settings.lengths()?;
        let (transcripts, cost, rates) = (BTreeMap::new(), Cost::default(), Vec::new());
        Ok(Self { settings, plan, judge, lengths, requests, transcripts, cost, rates })
    }

    fn answer(
        &mut self,
        bench: &mut Bench,
        stint: Range<usize>,
        progress: &mut dyn FnMut(usize),
    ) -> Result<(), EvaluateError> {
        let requests = self.requests[stint].to_vec();
        let tasks = Task::alike(requests, &self.plan, self.judge, self.lengths.as_ref());
        let decoder = SpeculativeDecoder { target: bench.target, stop: bench.stop, batch: self.settings.batch };
        let (transcripts, mut written) = (&mut self.transcripts, 0);
        let cost = decoder.run(tasks, bench.proposer, |t| {
            progress(t.ids.len());
            written += t.ids.len();
            transcripts.insert(t.id, t);
        })?;
        self.rates.push(Ratio { numerator: written as f64, denominator: cost.times.total.as_secs_f64() });
        self.cost.add(cost);
        Ok(())
    }
}

/// Plain decoding, so far.
struct Plain<'a> {
    settings: &'a Settings,
    requests: Vec<Request>,
    answers: BTreeMap<u64, Completion>,
    cache: usize,
    rates: Vec<Ratio>,
}

impl Plain<'_> {
    fn answer(
        &mut self,
        bench: &Bench,
        stint: Range<usize>,
        progress: &mut dyn FnMut(usize),
    ) -> Result<(), EvaluateError> {
        let requests = self.requests[stint].to_vec();
        let capacity = requests.iter().map(|r| r.prompt.len() + r.max_new_tokens).max().unwrap_or(0);
        let batch = self.settings.batch.min(requests.len());
        let (answers, mut written) = (&mut self.answers, 0);
        let keep = |c: Completion| drop(answers.insert(c.id, c));
        let count = |tokens| {
            written += tokens;
            progress(tokens);
        };
        let start = Instant::now();
        let cache = Decoder { target: bench.target, stop: bench.stop, batch }.run(requests, capacity, keep, count)?;
        self.rates.push(Ratio { numerator: written as f64, denominator: start.elapsed().as_secs_f64() });
        self.cache = self.cache.max(cache);
        Ok(())
    }
}

/// Answers `questions` plainly and under each of `settings`, which differ in what is drafted and how it is judged.
/// `between` has its turn before each stint and after the last; `progress` is called with the tokens that anyone has
/// written.
///
/// # Errors
/// [`EvaluateError`]; nothing was measured then.
pub fn compare(
    bench: &mut Bench,
    questions: &[Question],
    settings: &[Settings],
    between: &mut dyn FnMut(&mut Bench) -> Result<(), EvaluateError>,
    mut progress: impl FnMut(usize),
) -> Result<Comparison, EvaluateError> {
    let contender = |settings| Contender::new(bench.target, questions, settings);
    let mut contenders: Vec<Contender> = settings.iter().map(contender).collect::<Result<_, _>>()?;
    let first = settings.first().ok_or(EvaluateError::Nothing)?;
    let requests = contenders[0].requests.clone();
    let mut plain = Plain { settings: first, requests, answers: BTreeMap::new(), cache: 0, rates: Vec::new() };
    let size = stint_size(questions.len(), first.batch);
    for (number, start) in (0..questions.len()).step_by(size).enumerate() {
        let stint = start..(start + size).min(questions.len());
        between(bench)?;
        for turn in turns(contenders.len() + 1, number) {
            match turn.checked_sub(1) {
                None => plain.answer(bench, stint.clone(), &mut progress)?,
                Some(turn) => contenders[turn].answer(bench, stint.clone(), &mut progress)?,
            }
        }
    }
    between(bench)?;
    let plain = PlainRun::of(bench.target, questions, first, plain.answers, plain.cache, plain.rates)?;
    let measure = |c: Contender| {
        let transcripts: Vec<Transcript> = c.transcripts.into_values().collect();
        let nodes = c.plan.drafted() + 1;
        let evaluation = summarise(questions, (c.settings, nodes), &plain, &transcripts, (c.cost, &c.rates))?;
        Ok(Measurement { evaluation, transcripts })
    };
    let measurements = contenders.into_iter().map(measure).collect::<Result<_, EvaluateError>>()?;
    Ok(Comparison { plain, measurements })
}

/// Questions of a stint: few, so that there are many stints, but enough for a batch.
fn stint_size(questions: usize, batch: usize) -> usize {
    let filled = if batch > 1 { FILLED * batch } else { 1 };
    questions.div_ceil(STINTS).max(filled)
}

/// The order of `count` in stint `number`: there and back.
fn turns(count: usize, number: usize) -> Vec<usize> {
    if number.is_multiple_of(2) { (0..count).collect() } else { (0..count).rev().collect() }
}
