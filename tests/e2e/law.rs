//! The law of what the verifier emits, drawn through the real batched code and compared with exact enumeration.

use crate::support::{random_drafter, random_target, random_target_of};
use burn::tensor::{Device, Tensor};
use spectrain_core::form::Form;
use spectrain_core::process::{Context, Processors, RowError};
use spectrain_core::rng::Purpose;
use spectrain_core::rules::{Ask, Chance, Proposal, Rule, ZeroResidual};
use spectrain_core::rules::{RuleError, Verdict, token::verify};
use spectrain_core::stats::chi_square::goodness_of_fit;
use spectrain_draft::Eagle3Proposer;
use spectrain_draft::proposer::{Draft, DrafterMemory, Observed, Pick, Plan, Proposer, Wanted};
use spectrain_draft::untrained::model::DraftModelProposer;
use spectrain_model::{Llama, Request, host_rows};
use spectrain_verify::judge::{Judge, Round, judge};
use spectrain_verify::{Fixed, SpeculativeDecoder, Task};

pub const VOCABULARY: usize = 4;
const TOKENS: usize = 6;
const DRAWS: usize = 160_000;
pub const PROMPT: [u32; 3] = [1, 3, 2];

/// Exact probability of every text of `tokens` tokens, in the order of base-[`VOCABULARY`] numbers.
pub fn exact(target: &Llama, tokens: usize) -> Vec<f64> {
    exact_under(target, tokens, &Processors::at(1.0))
}

/// As [`exact`], after `sampling`: in f64 from the logits of whole passes, the text so far being all that is read.
pub fn exact_under(target: &Llama, tokens: usize, sampling: &Processors) -> Vec<f64> {
    exact_where(target, tokens, sampling, |_| true)
}

/// As [`exact_under`], where the answers that `may_be` denies are barred as they grow.
pub fn exact_where(target: &Llama, tokens: usize, sampling: &Processors, may_be: impl Fn(&[u32]) -> bool) -> Vec<f64> {
    let mut texts: Vec<(Vec<u32>, f64)> = vec![(PROMPT.to_vec(), 1.0)];
    for _ in 0..tokens {
        let sequences: Vec<&[u32]> = texts.iter().map(|(ids, _)| ids.as_slice()).collect();
        let n = sequences[0].len();
        let hidden = target.forward_full(&sequences, &[]).hidden;
        let logits = host_rows(target.logits(hidden));
        let last = |i: usize| &logits[(i * n + n - 1) * VOCABULARY..(i * n + n) * VOCABULARY];
        let grown = texts.iter().enumerate().flat_map(|(i, (ids, mass))| {
            let mut p: Vec<f64> = last(i).iter().map(|&l| f64::from(l)).collect();
            let answer = &ids[PROMPT.len()..];
            let mask: Vec<bool> = (0..VOCABULARY as u32).map(|v| may_be(&[answer, &[v]].concat())).collect();
            let context = Context { prompt: &PROMPT, answer, mask: Some(&mask), ..Context::default() };
            sampling.apply(&mut p, &context).unwrap();
            (0..VOCABULARY).map(move |v| ([ids.as_slice(), &[v as u32]].concat(), mass * p[v])).collect::<Vec<_>>()
        });
        texts = grown.collect();
    }
    texts.into_iter().map(|(_, mass)| mass).collect()
}

/// p-value of the texts that the decoder wrote under `judge` in chains.
fn p_value(target: &Llama, judge: &Judge) -> f64 {
    p_value_of(target, judge, Plan::chain(3, Pick::Sample), TOKENS)
}

/// p-value of the texts of `tokens` tokens that the decoder wrote under `judge` with drafts of `plan`.
pub fn p_value_of(target: &Llama, judge: &Judge, plan: Plan, tokens: usize) -> f64 {
    p_value_with(target, judge, plan, &mut drafter(target), tokens)
}

/// A random drafter that lacks a token of `target`.
pub fn drafter(target: &Llama) -> Eagle3Proposer {
    let (drafter, weights) = random_drafter(target, 3, 5, &Device::flex());
    Eagle3Proposer::new(drafter, &weights)
}

/// A drafter of one layer that is sure of some tokens and unsure of others, as [`UNSURE`] tells them apart.
pub fn small_model() -> DraftModelProposer {
    let dir = tempfile::tempdir().unwrap();
    DraftModelProposer::new(random_target_of(dir.path(), VOCABULARY, 1, 3))
}

/// A mass that [`small_model`] gives its likeliest token about as often as not.
pub const UNSURE: f64 = 0.65;

/// A drafter whose drafts are another's work.
pub struct Meddled<P, F>(pub P, pub F);

impl<P: Proposer, F: FnMut(&mut P, &[Wanted]) -> Result<Vec<Draft>, RowError>> Proposer for Meddled<P, F> {
    fn taps(&self) -> &[usize] {
        self.0.taps()
    }

    fn draft_to_target(&self) -> &[u32] {
        self.0.draft_to_target()
    }

    fn open(&mut self, slots: usize, capacity: usize) {
        self.0.open(slots, capacity);
    }

    fn clear(&mut self, slot: usize) {
        self.0.clear(slot);
    }

    fn start(&mut self, slot: usize, prompt: &[u32]) {
        self.0.start(slot, prompt);
    }

    fn observe(&mut self, observed: &[Observed], features: Vec<Tensor<2>>) {
        self.0.observe(observed, features);
    }

    fn draft(&mut self, wanted: &[Wanted]) -> Result<Vec<Draft>, RowError> {
        self.1(&mut self.0, wanted)
    }

    fn memory(&self, plan: &Plan) -> DrafterMemory {
        self.0.memory(plan)
    }

    fn committed(&self, slot: usize) -> usize {
        self.0.committed(slot)
    }
}

/// Drafts on, and takes back the first token, with those behind it, that had less than `least` of the mass: how long a
/// draft is then depends on what was drawn.
pub fn hasty<P: Proposer>(least: f64) -> impl Fn(&mut P, &[Wanted]) -> Result<Vec<Draft>, RowError> {
    move |drafter, wanted| {
        let mut drafts = drafter.draft(wanted)?;
        for draft in &mut drafts {
            let sure = draft.tokens.iter().zip(&draft.q).take_while(|(token, q)| q[**token as usize] >= least).count();
            draft.tokens.truncate(sure);
            draft.q.truncate(sure);
            draft.logits.truncate(sure);
        }
        Ok(drafts)
    }
}

/// As [`p_value_of`], with the drafts of `proposer`.
pub fn p_value_with(target: &Llama, judge: &Judge, plan: Plan, proposer: &mut dyn Proposer, tokens: usize) -> f64 {
    p_value_under(target, (judge, &plan), proposer, (tokens, DRAWS), &Processors::at(1.0))
}

/// As [`p_value_with`], of `draws` texts after `sampling`.
pub fn p_value_under(
    target: &Llama,
    (judge, plan): (&Judge, &Plan),
    proposer: &mut dyn Proposer,
    (tokens, draws): (usize, usize),
    sampling: &Processors,
) -> f64 {
    let observed = observe(target, (judge, plan), proposer, (tokens, draws), (sampling, &Form::default()));
    goodness_of_fit(&observed, &exact_under(target, tokens, sampling)).unwrap().p_value
}

/// How often each text of `tokens` tokens, in the order of [`exact`], is among `draws` of this form.
pub fn observe(
    target: &Llama,
    (judge, plan): (&Judge, &Plan),
    proposer: &mut dyn Proposer,
    (tokens, draws): (usize, usize),
    (sampling, form): (&Processors, &Form),
) -> Vec<u64> {
    let request = |id| {
        let (prompt, sampling, form) = (PROMPT.to_vec(), sampling.clone(), form.clone());
        Request { id, prompt, max_new_tokens: tokens, sampling, seed: 99, form }
    };
    let tasks = Task::alike((0..draws as u64).map(request), plan, judge, &Fixed);
    let decoder = SpeculativeDecoder { target, stop: &[], batch: 512 };
    let mut observed = vec![0; VOCABULARY.pow(tokens as u32)];
    let mut accepted = 0;
    decoder
        .run(tasks, proposer, |t| {
            observed[t.ids.iter().fold(0, |n, &id| n * VOCABULARY + id as usize)] += 1;
            accepted += t.rounds().map(|r| r.accepted).sum::<usize>();
        })
        .unwrap();
    assert!(accepted > draws / 10, "hardly any draft was accepted, so the test would see nothing");
    observed
}

fn writes_the_law(rule: Rule) {
    let dir = tempfile::tempdir().unwrap();
    let target = random_target(dir.path(), VOCABULARY, 3);
    let p = p_value(&target, judge(rule).unwrap());
    assert!(p > 1e-4, "p = {p:e}");
}

#[test]
fn token_rule_writes_the_targets_law() {
    writes_the_law(Rule::Token);
}

/// Its verdict depends on tokens that are thrown away: a draw used in two rounds shows here (at this size, p = 5e-24).
#[test]
fn block_rule_writes_the_targets_law() {
    writes_the_law(Rule::Block);
}

/// A rejected draft is replaced by a draw from `p` instead of the residual.
pub fn resample_from_p(round: &Round) -> Result<Verdict, RuleError> {
    let target = round.target()?;
    let mut verdict = Verdict::default();
    let mut chance = round.chance();
    let ask = |depth, purpose| Ask { depth, purpose, index: 0 };
    for (depth, &token) in round.draft.tokens.iter().enumerate() {
        let (p, q) = (target[depth][token as usize], round.q(depth)[token as usize]);
        if chance.accept(ask(depth, Purpose::Accept), p / q) {
            verdict.path.push(depth + 1);
            verdict.tokens.push(token);
            continue;
        }
        verdict.next = Some(chance.draw(ask(depth, Purpose::Residual), &target[depth]) as u32);
        return Ok(verdict);
    }
    let last = round.draft.tokens.len();
    verdict.next = Some(chance.draw(ask(last, Purpose::Bonus), &target[last]) as u32);
    Ok(verdict)
}

/// The acceptance test reads a flatter `q` than the one the drafts were drawn from.
pub fn wrong_q(round: &Round) -> Result<Verdict, RuleError> {
    let flat = |i: usize| {
        let weights: Vec<f64> = round.q(i).iter().map(|q| q.sqrt()).collect();
        let total: f64 = weights.iter().sum();
        weights.into_iter().map(|w| w / total).collect::<Vec<f64>>()
    };
    let rows: Vec<Vec<f64>> = (0..round.draft.q.len()).map(flat).collect();
    let proposals: Vec<Proposal> = rows.iter().map(|q| Proposal::Sampled(q)).collect();
    let mut chance = round.chance();
    verify(&round.draft.tokens, &proposals, &round.target()?, ZeroResidual::FallBack, &mut chance)
}

#[test]
fn planted_bugs_are_seen_at_the_same_size() {
    let dir = tempfile::tempdir().unwrap();
    let target = random_target(dir.path(), VOCABULARY, 3);
    for (name, bug) in [("resample from p", &resample_from_p as &Judge), ("wrong q", &wrong_q)] {
        let p = p_value(&target, bug);
        assert!(p < 1e-8, "{name}: p = {p:e}");
    }
}
