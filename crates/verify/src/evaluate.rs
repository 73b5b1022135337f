//! Measuring a drafter: the same requests by the plain path and by speculation, and what the rounds say.

use crate::engine::{SpeculativeDecoder, Times, Transcript};
use crate::judge::{judge, pick};
use spectrain_core::evaluation::{Counted, Evaluation, Seconds};
use spectrain_core::rules::{Rule, RuleError};
use spectrain_core::stats::{Acceptance, Ratio, Resampling, Round, StatsError};
use spectrain_draft::proposer::Proposer;
use spectrain_model::{Completion, Decoder, Llama, Request};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How to measure.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Acceptance rule.
    pub rule: Rule,
    /// Sampling temperature of the target, and of the drafter where the rule reads its distribution.
    pub temperature: f64,
    /// Drafted tokens per round.
    pub length: usize,
    /// Requests at a time.
    pub batch: usize,
    /// Longest answer in tokens.
    pub max_new_tokens: usize,
    /// Seed of all draws.
    pub seed: u64,
}

/// A question with its task's name.
#[derive(Debug, Clone)]
pub struct Question {
    /// Task.
    pub task: String,
    /// Prompt token ids.
    pub prompt: Vec<u32>,
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum EvaluateError {
    /// The rule needs proposals that this decoder does not make.
    #[error("rule {0} needs sampled trees, which this build does not draft; use token, block, sampled-match or greedy")]
    Rule(Rule),
    /// A prompt is too long for the target.
    #[error(
        "prompt {index} has {tokens} tokens; with {room} tokens of answer and draft it passes the target's {limit}"
    )]
    TooLong {
        /// Number of the prompt.
        index: usize,
        /// Its tokens.
        tokens: usize,
        /// Tokens wanted behind it.
        room: usize,
        /// Longest sequence.
        limit: usize,
    },
    /// A distribution was none.
    #[error(transparent)]
    Verify(#[from] RuleError),
    /// Nothing was counted.
    #[error("no verify call was made: {0}")]
    Stats(#[from] StatsError),
}

/// Answers `questions` twice, plainly and speculatively, and counts. `progress` is called with the tokens written.
///
/// # Errors
/// [`EvaluateError`].
pub fn evaluate(
    target: &Llama,
    proposer: &mut dyn Proposer,
    stop: &[u32],
    questions: &[Question],
    settings: &Settings,
    mut progress: impl FnMut(usize),
) -> Result<Evaluation, EvaluateError> {
    let judge = judge(settings.rule).ok_or(EvaluateError::Rule(settings.rule))?;
    let requests = requests(target, questions, settings)?;
    let start = Instant::now();
    let mut plain: BTreeMap<u64, Completion> = BTreeMap::new();
    let keep = |c: Completion| drop(plain.insert(c.id, c));
    let capacity = requests.iter().map(|r| r.prompt.len() + r.max_new_tokens).max().unwrap_or(0);
    let batch = settings.batch.min(requests.len());
    Decoder { target, stop, batch }.run(requests.clone(), capacity, keep, &mut progress);
    let plain_time = start.elapsed();

    let pick = pick(settings.rule, settings.temperature);
    let decoder = SpeculativeDecoder { target, stop, batch: settings.batch, length: settings.length, pick, judge };
    let mut transcripts: BTreeMap<u64, Transcript> = BTreeMap::new();
    let times = decoder.run(requests, proposer, |t| {
        progress(t.ids.len());
        transcripts.insert(t.id, t);
    })?;
    summarise(questions, settings, &plain, &transcripts, (plain_time, times))
}

fn requests(target: &Llama, questions: &[Question], settings: &Settings) -> Result<Vec<Request>, EvaluateError> {
    let limit = target.config().max_positions;
    let room = settings.max_new_tokens + settings.length + 1;
    let request = |(index, q): (usize, &Question)| {
        if q.prompt.len() + room > limit {
            return Err(EvaluateError::TooLong { index, tokens: q.prompt.len(), room, limit });
        }
        Ok(Request {
            id: index as u64,
            prompt: q.prompt.clone(),
            max_new_tokens: settings.max_new_tokens,
            temperature: settings.temperature,
            seed: settings.seed,
        })
    };
    questions.iter().enumerate().map(request).collect()
}

fn summarise(
    questions: &[Question],
    settings: &Settings,
    plain: &BTreeMap<u64, Completion>,
    transcripts: &BTreeMap<u64, Transcript>,
    (plain_time, times): (Duration, Times),
) -> Result<Evaluation, EvaluateError> {
    let mut by_task: BTreeMap<&str, Vec<&Transcript>> = BTreeMap::new();
    for (question, transcript) in questions.iter().zip(transcripts.values()) {
        by_task.entry(&question.task).or_default().push(transcript);
    }
    let all: Vec<&Transcript> = transcripts.values().collect();
    let overall = count(&all, settings)?;
    // A task whose answers all ended at their first token has no verify call and is left out.
    let tasks =
        by_task.into_iter().filter_map(|(task, t)| Some((task.to_string(), count(&t, settings).ok()?))).collect();
    let rate = |tokens: usize, time: Duration| tokens as f64 / time.as_secs_f64();
    let tokens_per_second = rate(all.iter().map(|t| t.ids.len()).sum(), times.total);
    let plain_tokens_per_second = rate(plain.values().map(|c| c.ids.len()).sum(), plain_time);
    let promised = matches!(settings.rule, Rule::Greedy | Rule::SampledMatch);
    let same = || transcripts.iter().filter(|(id, t)| plain.get(*id).is_some_and(|c| c.ids == t.ids)).count();
    Ok(Evaluation {
        guarantee: settings.rule.guarantee().name().to_string(),
        rule: settings.rule,
        temperature: settings.temperature,
        length: settings.length,
        batch: settings.batch,
        max_new_tokens: settings.max_new_tokens,
        seed: settings.seed,
        dtype: "f32".to_string(),
        overall,
        tasks,
        seconds: Seconds {
            t_draft: times.draft.as_secs_f64(),
            t_verify: times.verify.as_secs_f64(),
            t_sample: times.sample.as_secs_f64(),
            t_state: times.state.as_secs_f64(),
            speculative: times.total.as_secs_f64(),
            plain: plain_time.as_secs_f64(),
        },
        tokens_per_second,
        plain_tokens_per_second,
        speedup: tokens_per_second / plain_tokens_per_second,
        same_text: promised.then(same),
        residual_fallbacks: all.iter().map(|t| t.fallbacks).sum(),
    })
}

fn count(transcripts: &[&Transcript], settings: &Settings) -> Result<Counted, StatsError> {
    let rounds: Vec<Round> = transcripts.iter().flat_map(|t| t.rounds.iter().copied()).collect();
    let acceptance = Acceptance::of(&rounds, settings.length)?;
    let ratios: Vec<Ratio> = transcripts
        .iter()
        .filter(|t| !t.rounds.is_empty())
        .map(|t| Acceptance::of(&t.rounds, settings.length).map(|a| a.ratio()))
        .collect::<Result<_, _>>()?;
    let interval = Resampling { seed: settings.seed, ..Resampling::default() }.ratio(&ratios)?;
    Ok(Counted { questions: transcripts.len(), interval, acceptance })
}
