//! Plain decoding of the same requests: what every length at one temperature is compared with, so it runs once.

use crate::count::{Answer, Counting, by_task, measured};
use crate::evaluate::{EvaluateError, Question, Settings};
use spectrain_core::evaluation::{Memory, Plain};
use spectrain_core::stats::{Call, Ratio};
use spectrain_model::{Completion, Llama};
use std::collections::BTreeMap;

/// The plain path's answers and figures.
pub struct PlainRun {
    /// Answers by request.
    pub answers: BTreeMap<u64, Completion>,
    /// Time of the run in seconds.
    pub seconds: f64,
    /// Tokens and seconds of each stint.
    pub rates: Vec<Ratio>,
    /// Its figures.
    pub figures: Plain,
}

impl PlainRun {
    /// The figures of `answers` to `questions`, written at `rates` with a cache of `target_cache` bytes.
    ///
    /// # Errors
    /// If no answer is longer than its first token.
    pub(crate) fn of(
        target: &Llama,
        questions: &[Question],
        settings: &Settings,
        answers: BTreeMap<u64, Completion>,
        target_cache: usize,
        rates: Vec<Ratio>,
    ) -> Result<Self, EvaluateError> {
        let seconds = rates.iter().map(|stint| stint.denominator).sum();
        let counting = Counting { length: 0, seed: settings.seed, slo: settings.slo.as_ref(), seconds };
        let counted: Vec<Answer> = answers.values().map(answer).collect();
        let (overall, tasks) = by_task(questions, &counted, |answers| measured(answers, &counting))?;
        let memory = Memory { target_weights: target.bytes(), target_cache, ..Memory::default() };
        let rate = |stint: &Ratio| stint.numerator / stint.denominator;
        let slowest = rates.iter().map(rate).fold(f64::INFINITY, f64::min);
        let fastest = rates.iter().map(rate).fold(0.0, f64::max);
        let figures = Plain { overall, tasks, memory, stints: Some([slowest, fastest]) };
        Ok(Self { answers, seconds, rates, figures })
    }

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
