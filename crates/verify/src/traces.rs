//! A run whose rounds are written down. The decoder is the usual one: what is told to the judge is all there is to a
//! round, so a judge that takes notes is enough.

use crate::compare::Bench;
use crate::engine::{SpeculativeDecoder, Transcript};
use crate::evaluate::{EvaluateError, Question, Settings, requests};
use crate::judge::{Judge, Round, judge};
use crate::plan::plan;
use crate::task::Task;
use spectrain_core::rules::{RuleError, Verdict};
use spectrain_core::tree::TreeKind;
use spectrain_data::traces::{TracedRound, TracedRow};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Rounds by request.
type Notes = Mutex<BTreeMap<u64, Vec<TracedRound>>>;

/// A request's answer and its rounds.
pub struct Traced {
    /// The answer.
    pub transcript: Transcript,
    /// One entry a verify call.
    pub rounds: Vec<TracedRound>,
}

/// Answers `questions` once more as [`crate::compare()`] does under `settings`, token by token the same, and keeps `top`
/// tokens of both distributions at every drafted token. Apart from the measured run, which it would slow down.
///
/// # Errors
/// [`EvaluateError::Chain`] for trees; else as [`crate::compare()`].
pub fn trace(
    bench: &mut Bench,
    questions: &[Question],
    settings: &Settings,
    top: usize,
) -> Result<Vec<Traced>, EvaluateError> {
    if settings.tree != TreeKind::Chain {
        return Err(EvaluateError::Chain(settings.tree.clone()));
    }
    let inner = judge(settings.rule).ok_or(EvaluateError::Rule(settings.rule))?;
    let plan = plan(&settings.tree, settings.rule, settings.length, &settings.ranks)?;
    let requests = requests(bench.target, questions, settings, plan.drafted())?;
    let noted = Arc::new(Notes::default());
    let pad = noted.clone();
    let noting = move |round: &Round| note(round, inner, top, &pad);
    let lengths = settings.lengths()?;
    let tasks = Task::alike(requests, &plan, &noting, lengths.as_ref());
    let decoder = SpeculativeDecoder { target: bench.target, stop: bench.stop, batch: settings.batch };
    let mut done = BTreeMap::new();
    decoder.run(tasks, bench.proposer, |t| drop(done.insert(t.id, t)))?;
    let mut noted = noted.lock().unwrap_or_else(PoisonError::into_inner);
    let traced = |(id, transcript)| Traced { transcript, rounds: noted.remove(&id).unwrap_or_default() };
    Ok(done.into_iter().map(traced).collect())
}

/// Judges a round and writes it down.
fn note(round: &Round, inner: &Judge, top: usize, noted: &Notes) -> Result<Verdict, RuleError> {
    let verdict = inner(round)?;
    let tokens = &round.draft.tokens;
    let mut rows = Vec::with_capacity(tokens.len());
    for (i, &token) in tokens.iter().enumerate() {
        // What was not drawn was certain.
        let q = match round.draft.q.is_empty() {
            true => point(token, round.vocabulary),
            false => round.q(i),
        };
        // Node i of a chain is what its drafted token i follows.
        rows.push(TracedRow::new(token, &round.p(i)?, &q, top));
    }
    let (root, drafted) = (round.position(), tokens.clone());
    let traced = TracedRound { root, drafted, accepted: verdict.accepted(), rows };
    let mut all = noted.lock().unwrap_or_else(PoisonError::into_inner);
    all.entry(round.prefix.request.id).or_default().push(traced);
    Ok(verdict)
}

/// All mass on `token`.
fn point(token: u32, vocabulary: usize) -> Vec<f64> {
    let mut mass = vec![0.0; vocabulary];
    mass[token as usize] = 1.0;
    mass
}
