//! Plain decoding of the same requests: what every length at one temperature is compared with, so it runs once.

use crate::count::{Answer, Counting, by_task, measured};
use crate::evaluate::{EvaluateError, Question, Settings, requests};
use spectrain_core::evaluation::{Memory, Plain};
use spectrain_core::stats::Call;
use spectrain_model::{Completion, Decoder, Llama};
use std::collections::BTreeMap;
use std::time::Instant;

/// The plain path's answers and figures.
pub struct PlainRun {
    /// Answers by request.
    pub answers: BTreeMap<u64, Completion>,
    /// Time of the run in seconds.
    pub seconds: f64,
    /// Its figures.
    pub figures: Plain,
}

/// Answers `questions` plainly. `settings.length` is the longest draft that will be compared: prompts that have no room
/// for it are refused here. `progress` is called with the tokens written.
///
/// # Errors
/// [`EvaluateError`].
pub fn plain(
    target: &Llama,
    stop: &[u32],
    questions: &[Question],
    settings: &Settings,
    mut progress: impl FnMut(usize),
) -> Result<PlainRun, EvaluateError> {
    let requests = requests(target, questions, settings)?;
    let mut answers: BTreeMap<u64, Completion> = BTreeMap::new();
    let keep = |c: Completion| drop(answers.insert(c.id, c));
    let capacity = requests.iter().map(|r| r.prompt.len() + r.max_new_tokens).max().unwrap_or(0);
    let batch = settings.batch.min(requests.len());
    let start = Instant::now();
    let target_cache = Decoder { target, stop, batch }.run(requests, capacity, keep, &mut progress)?;
    let seconds = start.elapsed().as_secs_f64();
    let counting = Counting { length: 0, seed: settings.seed, slo: settings.slo.as_ref(), seconds };
    let counted: Vec<Answer> = answers.values().map(answer).collect();
    let (overall, tasks) = by_task(questions, &counted, |answers| measured(answers, &counting))?;
    let memory = Memory { target_weights: target.bytes(), target_cache, ..Memory::default() };
    Ok(PlainRun { answers, seconds, figures: Plain { overall, tasks, memory } })
}

impl PlainRun {
    /// Output tokens by second.
    pub fn tokens_per_second(&self) -> f64 {
        self.answers.values().map(|c| c.ids.len()).sum::<usize>() as f64 / self.seconds
    }
}

/// Every token after the prompt's is a call that commits one.
fn answer(completion: &Completion) -> Answer {
    let calls = completion.ids.len().saturating_sub(1);
    let call = |i: usize| Call::plain((i + 1 == calls).then_some(completion.finish));
    Answer { calls: (0..calls).map(call).collect(), timeline: completion.timeline.clone() }
}
