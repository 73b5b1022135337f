//! The costs of plain steps and of rounds, measured with the decoders themselves, every request busy.

use crate::compare::Bench;
use crate::engine::{SpeculativeDecoder, Times};
use crate::evaluate::EvaluateError;
use crate::judge::{Judge, judge, pick};
use crate::length::Fixed;
use crate::task::Task;
use spectrain_core::costs::{BatchCost, LengthCost};
use spectrain_core::form::Form;
use spectrain_core::process::{Processors, RowError};
use spectrain_core::rules::Rule;
use spectrain_core::tree::TreeKind;
use spectrain_draft::Plan;
use spectrain_model::{Decoder, Llama, Request};
use std::time::{Duration, Instant};

/// What is measured.
#[derive(Debug, Clone)]
pub struct ProfilePlan {
    /// Rule.
    pub rule: Rule,
    /// Temperature.
    pub temperature: f64,
    /// Requests at once.
    pub batch: usize,
    /// Draft lengths, ascending.
    pub lengths: Vec<usize>,
    /// Rounds of one draft length in a sweep.
    pub rounds: usize,
    /// Seed of the draws.
    pub seed: u64,
}

/// Longest time in tokens that a request may have to live: no request ends while it is measured.
fn room(plan: &ProfilePlan) -> usize {
    let longest = plan.lengths.iter().copied().max().unwrap_or(0);
    (plan.rounds + 1) * (longest + 1) + 1
}

/// Measured parts, one value a round.
#[derive(Default, Clone)]
struct Samples {
    draft: Vec<Duration>,
    verify: Vec<Duration>,
    sample: Vec<Duration>,
    state: Vec<Duration>,
    prompt: Vec<Duration>,
}

impl Samples {
    fn add(&mut self, prompt: &Times, rounds: &[Times]) {
        self.prompt.push(prompt.total);
        self.draft.extend(rounds.iter().map(|t| t.draft));
        self.verify.extend(rounds.iter().map(|t| t.verify));
        self.sample.extend(rounds.iter().map(|t| t.sample));
        // What no part claims is bookkeeping too.
        let claimed = |t: &Times| t.draft + t.verify + t.sample;
        self.state.extend(rounds.iter().map(|t| t.total.saturating_sub(claimed(t))));
    }

    fn cost(&self, length: usize, batch: usize) -> LengthCost {
        LengthCost {
            length,
            nodes: batch * (length + 1),
            draft: mean(&self.draft),
            verify: mean(&self.verify),
            sample: mean(&self.sample),
            state: mean(&self.state),
            prompt: mean(&self.prompt),
        }
    }
}

/// Costs at one temperature and batch size, collected sweep by sweep: plain steps and rounds of every length in turn, so
/// that what else the machine does falls on all of them alike.
pub struct Profiler {
    plan: ProfilePlan,
    judge: &'static Judge,
    sweeps: usize,
    steps: Vec<Duration>,
    plain_prompt: Vec<Duration>,
    samples: Vec<Samples>,
}

impl Profiler {
    /// Nothing measured yet.
    ///
    /// # Errors
    /// [`EvaluateError`] if the rule is not exact on chains.
    pub fn new(plan: ProfilePlan) -> Result<Self, EvaluateError> {
        let rule = plan.rule.at(plan.temperature);
        TreeKind::Chain.check(rule)?;
        let judge = judge(rule).ok_or(EvaluateError::Rule(rule))?;
        let samples = vec![Samples::default(); plan.lengths.len()];
        Ok(Self { plan, judge, sweeps: 0, steps: Vec::new(), plain_prompt: Vec::new(), samples })
    }

    /// What is measured.
    pub fn plan(&self) -> &ProfilePlan {
        &self.plan
    }

    /// Sweeps so far.
    pub fn sweeps(&self) -> usize {
        self.sweeps
    }

    /// Measures everything once, on as many of `prompts` as there are requests at once; each sweep takes the next ones.
    ///
    /// # Errors
    /// [`EvaluateError`].
    pub fn sweep(&mut self, bench: &mut Bench, prompts: &[Vec<u32>]) -> Result<(), EvaluateError> {
        let requests = self.requests(bench.target, prompts)?;
        let (prompt, passes) = plain_passes(bench.target, &requests, self.plan.rounds)?;
        self.plain_prompt.push(prompt);
        self.steps.extend(passes);
        let pick = pick(self.plan.rule.at(self.plan.temperature));
        for (&length, samples) in self.plan.lengths.iter().zip(&mut self.samples) {
            let chain = Plan::chain(length, pick);
            let tasks = Task::alike(requests.clone(), &chain, self.judge, &Fixed);
            let decoder = SpeculativeDecoder { target: bench.target, stop: &[], batch: self.plan.batch };
            let (prompt, rounds) = decoder.time_rounds(tasks, bench.proposer, self.plan.rounds)?;
            samples.add(&prompt, &rounds);
        }
        self.sweeps += 1;
        Ok(())
    }

    /// Means of what was measured.
    pub fn cost(&self) -> BatchCost {
        let ProfilePlan { temperature, batch, ref lengths, .. } = self.plan;
        let lengths = lengths.iter().zip(&self.samples).map(|(&length, samples)| samples.cost(length, batch)).collect();
        let (plain, plain_prompt) = (mean(&self.steps), mean(&self.plain_prompt));
        BatchCost { temperature, batch, plain, plain_prompt, lengths }
    }

    fn requests(&self, target: &Llama, prompts: &[Vec<u32>]) -> Result<Vec<Request>, EvaluateError> {
        let plan = &self.plan;
        let (limit, room) = (target.config().max_positions, room(plan));
        let request = |(id, index): (usize, usize)| {
            let prompt = &prompts[index];
            if prompt.len() + room + plan.lengths.len() > limit {
                return Err(EvaluateError::TooLong { index, tokens: prompt.len(), room, limit });
            }
            let (prompt, sampling) = (prompt.clone(), Processors::at(plan.temperature));
            Ok(Request {
                id: id as u64,
                prompt,
                max_new_tokens: room,
                sampling,
                seed: plan.seed,
                form: Form::default(),
            })
        };
        let first = self.sweeps * plan.batch;
        (0..plan.batch).map(|id| (id, (first + id) % prompts.len())).map(request).collect()
    }
}

/// Times of the pass over the prompts and of the plain steps after it.
fn plain_passes(target: &Llama, requests: &[Request], steps: usize) -> Result<(Duration, Vec<Duration>), RowError> {
    let capacity = requests.iter().map(|r| r.prompt.len() + r.max_new_tokens).max().unwrap_or(0);
    let short: Vec<Request> = requests.iter().map(|r| Request { max_new_tokens: steps + 1, ..r.clone() }).collect();
    let mut passes = Vec::with_capacity(steps + 1);
    let mut last = Instant::now();
    let mut timed = |_| {
        passes.push(last.elapsed());
        last = Instant::now();
    };
    Decoder { target, stop: &[], batch: requests.len() }.run(short, capacity, drop, &mut timed)?;
    let prompt = passes.remove(0);
    Ok((prompt, passes))
}

/// Mean in seconds, since a run's time is the sum of all its rounds, the slow ones included; 0 for none.
fn mean(values: &[Duration]) -> f64 {
    values.iter().sum::<Duration>().as_secs_f64() / values.len().max(1) as f64
}
