//! The costs of plain steps and of rounds, measured with the decoders themselves, every request busy.

use crate::engine::{SpeculativeDecoder, Times};
use crate::evaluate::EvaluateError;
use crate::judge::{judge, pick};
use crate::length::Fixed;
use spectrain_core::costs::{BatchCost, LengthCost};
use spectrain_core::form::Form;
use spectrain_core::rules::Rule;
use spectrain_core::tree::TreeKind;
use spectrain_draft::{Plan, Proposer};
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
    /// Times that everything is measured, in turn: what else the machine does then falls on all of it alike.
    pub sweeps: usize,
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

    fn cost(self, length: usize, batch: usize) -> LengthCost {
        LengthCost {
            length,
            nodes: batch * (length + 1),
            draft: median(self.draft),
            verify: median(self.verify),
            sample: median(self.sample),
            state: median(self.state),
            prompt: median(self.prompt),
        }
    }
}

/// Measures one batch size on the first `plan.batch` of `prompts`, repeated where there are fewer. `progress` is called
/// once a sweep and length, and once for plain decoding.
///
/// # Errors
/// [`EvaluateError`].
pub fn profile(
    target: &Llama,
    proposer: &mut dyn Proposer,
    prompts: &[Vec<u32>],
    plan: &ProfilePlan,
    mut progress: impl FnMut(),
) -> Result<BatchCost, EvaluateError> {
    let rule = plan.rule.at(plan.temperature);
    TreeKind::Chain.check(rule)?;
    let judge = judge(rule).ok_or(EvaluateError::Rule(rule))?;
    let requests = requests(target, prompts, plan)?;
    let (mut steps, mut plain_prompt) = (Vec::new(), Vec::new());
    let mut samples = vec![Samples::default(); plan.lengths.len()];
    for _ in 0..plan.sweeps {
        let (prompt, passes) = plain_passes(target, &requests, plan.rounds);
        plain_prompt.push(prompt);
        steps.extend(passes);
        progress();
        for (&length, samples) in plan.lengths.iter().zip(&mut samples) {
            let pick = pick(rule, plan.temperature);
            let chain = Plan::chain(length, pick);
            let decoder =
                SpeculativeDecoder { target, stop: &[], batch: plan.batch, plan: chain, judge, lengths: &Fixed };
            let (prompt, rounds) = decoder.time_rounds(requests.clone(), proposer, plan.rounds)?;
            samples.add(&prompt, &rounds);
            progress();
        }
    }
    let lengths = plan.lengths.iter().zip(samples);
    Ok(BatchCost {
        temperature: plan.temperature,
        batch: plan.batch,
        plain: median(steps),
        plain_prompt: median(plain_prompt),
        lengths: lengths.map(|(&length, samples)| samples.cost(length, plan.batch)).collect(),
    })
}

fn requests(target: &Llama, prompts: &[Vec<u32>], plan: &ProfilePlan) -> Result<Vec<Request>, EvaluateError> {
    let (limit, room) = (target.config().max_positions, room(plan));
    let request = |(id, prompt): (usize, &Vec<u32>)| match prompt.len() + room + plan.lengths.len() > limit {
        true => Err(EvaluateError::TooLong { index: id % prompts.len(), tokens: prompt.len(), room, limit }),
        false => Ok(Request {
            id: id as u64,
            prompt: prompt.clone(),
            max_new_tokens: room,
            temperature: plan.temperature,
            seed: plan.seed,
            form: Form::default(),
        }),
    };
    prompts.iter().cycle().take(plan.batch).enumerate().map(request).collect()
}

/// Times of the pass over the prompts and of the plain steps after it.
fn plain_passes(target: &Llama, requests: &[Request], steps: usize) -> (Duration, Vec<Duration>) {
    let capacity = requests.iter().map(|r| r.prompt.len() + r.max_new_tokens).max().unwrap_or(0);
    let short: Vec<Request> = requests.iter().map(|r| Request { max_new_tokens: steps + 1, ..r.clone() }).collect();
    let mut passes = Vec::with_capacity(steps + 1);
    let mut last = Instant::now();
    let mut timed = |_| {
        passes.push(last.elapsed());
        last = Instant::now();
    };
    Decoder { target, stop: &[], batch: requests.len() }.run(short, capacity, drop, &mut timed);
    let prompt = passes.remove(0);
    (prompt, passes)
}

/// Median in seconds; 0 for none.
fn median(mut values: Vec<Duration>) -> f64 {
    values.sort();
    let middle = |i: usize| values.get(i).map_or(0.0, Duration::as_secs_f64);
    let n = values.len();
    if n == 0 { 0.0 } else { (middle((n - 1) / 2) + middle(n / 2)) / 2.0 }
}
