//! From calls and arrivals to figures: of all answers, and of each task's.

use crate::evaluate::Question;
use spectrain_core::evaluation::Counted;
use spectrain_core::stats::{
    Acceptance, Call, Definitions, Latency, Ratio, Resampling, Round, Slo, StatsError, Timeline, latency,
};
use std::collections::BTreeMap;

/// One answer.
#[derive(Clone)]
pub struct Answer {
    /// Its verify calls.
    pub calls: Vec<Call>,
    /// When its tokens came.
    pub timeline: Timeline,
}

/// What a measurement's figures depend on beside the answers.
pub struct Counting<'a> {
    /// Drafted tokens per round.
    pub length: usize,
    /// Seed of the resampling.
    pub seed: u64,
    /// Objective of the goodput.
    pub slo: Option<&'a Slo>,
    /// Time of the run.
    pub seconds: f64,
}

/// The figures of measured `answers`.
pub fn measured(answers: &[&Answer], counting: &Counting) -> Result<Counted, StatsError> {
    let rounds = answers.iter().map(|a| a.calls.iter().map(|call| call.kept).collect());
    let counted = acceptance(rounds.collect(), counting.length, counting.seed)?;
    let timelines = answers.iter().map(|a| &a.timeline);
    Ok(Counted {
        definitions: Definitions::of(answers.iter().flat_map(|a| &a.calls), answers.len()),
        output_tokens: Some(timelines.clone().map(Timeline::tokens).sum()),
        latency: Some(Latency::of(timelines.clone())),
        goodput: counting.slo.map(|slo| latency::goodput(timelines, slo, counting.seconds)),
        ..counted
    })
}

/// What drafts of at most `length` tokens would have committed in the rounds of `answers`: each round is cut short
/// where it stands. With shorter drafts rounds would have started at other places, so this is an estimate; an exact one
/// takes the place of this function without a change elsewhere.
pub fn estimated(answers: &[&Answer], length: usize, seed: u64) -> Result<Counted, StatsError> {
    let rounds = answers.iter().map(|a| a.calls.iter().map(|call| call.truncated(length)).collect());
    acceptance(rounds.collect(), length, seed)
}

/// `count` over all `answers`, and by task; a task whose answers all ended at their first token has no verify call and
/// is left out. `answers` are in the order of `questions`.
pub fn by_task(
    questions: &[Question],
    answers: &[Answer],
    count: impl Fn(&[&Answer]) -> Result<Counted, StatsError>,
) -> Result<(Counted, BTreeMap<String, Counted>), StatsError> {
    let mut tasks: BTreeMap<&str, Vec<&Answer>> = BTreeMap::new();
    for (question, answer) in questions.iter().zip(answers) {
        tasks.entry(&question.task).or_default().push(answer);
    }
    let overall = count(&answers.iter().collect::<Vec<_>>())?;
    let counted = |(task, answers): (&str, Vec<&Answer>)| Some((task.to_string(), count(&answers).ok()?));
    Ok((overall, tasks.into_iter().filter_map(counted).collect()))
}

/// Acceptance over the rounds of all answers, with an interval by question; the rest is left open.
fn acceptance(answers: Vec<Vec<Round>>, length: usize, seed: u64) -> Result<Counted, StatsError> {
    let all = Acceptance::of(&answers.concat(), length)?;
    let ratio = |rounds: &Vec<Round>| Acceptance::of(rounds, length).map(|a| a.ratio());
    let ratios: Vec<Ratio> = answers.iter().filter(|r| !r.is_empty()).map(ratio).collect::<Result<_, _>>()?;
    let interval = Resampling { seed, ..Resampling::default() }.ratio(&ratios)?;
    Ok(Counted {
        questions: answers.len(),
        interval,
        acceptance: all,
        definitions: Definitions::default(),
        output_tokens: None,
        latency: None,
        goodput: None,
    })
}
