//! Length policies: what they answer, that they see the past and the number of requests alone, and that the text stays the target's.

use crate::identity::{accepted_under, setup};
use crate::law::{Meddled, PROMPT, UNSURE, VOCABULARY, drafter, exact, hasty, small_model};
use crate::support::{random_drafter, random_target};
use burn::tensor::Device;
use spectrain_core::form::Form;
use spectrain_core::process::Processors;
use spectrain_core::rng::{Key, Purpose};
use spectrain_core::rules::Rule;
use spectrain_core::stats::chi_square::goodness_of_fit;
use spectrain_core::stats::length::CostTable;
use spectrain_core::stats::lookup::Lookup;
use spectrain_core::stats::{Call, Round};
use spectrain_draft::untrained::NgramProposer;
use spectrain_draft::untrained::ngram::Ngrams;
use spectrain_draft::{Eagle3Proposer, Plan, Proposer};
use spectrain_model::{Llama, Pages, Request};
use spectrain_verify::judge::{judge, pick};
use spectrain_verify::length::{Confidence, Floor, Marginal, Queue, Shrinking};
use spectrain_verify::{Fixed, LengthPolicy, Room, Seen, SpeculativeDecoder, Task};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

fn call(drafted: usize, accepted: usize) -> Call {
    Call { kept: Round { drafted, accepted, committed: accepted + 1 }, accepted, stop: None, end: None }
}

fn after(past: &[Call]) -> Seen<'_> {
    Seen { past, busy: 1 }
}

#[test]
fn policies_follow_the_past() {
    assert_eq!([0, 3, 5].map(|accepted| Shrinking.length(after(&[call(5, accepted)]), 5)), [1, 4, 5]);
    assert_eq!((Shrinking.length(after(&[]), 5), Fixed.length(after(&[call(5, 0)]), 5)), (5, 5));
    let floor = Floor { share: 0.3 };
    let mut past = vec![call(5, 5); 20];
    let mut asked = Vec::new();
    for _ in 0..40 {
        let length = floor.length(after(&past), 5);
        past.push(call(length, 0));
        asked.push(length);
    }
    // Of the last eight, five rounds without acceptance leave 15 of 40 and six leave 10.
    let expected = [vec![5; 6], vec![0; Floor::PAUSE], vec![5; Floor::WINDOW], vec![0; 10]].concat();
    assert_eq!(asked, expected);
}

/// A plain step takes 1, and every drafted token a quarter more.
fn costs(longest: usize) -> CostTable {
    let draft = (0..=longest).map(|k| 0.25 * k as f64).collect();
    CostTable { draft, verify: vec![1.0; longest + 1], state: 0.0 }
}

#[test]
fn the_marginal_rule_weighs_acceptance_against_costs() {
    let marginal = Marginal { costs: costs(5) };
    let length = |past: &[Call]| marginal.length(after(past), 5);
    // Survival 1/2, 1/4: 1.5 tokens in 1.25, 1.75 in 1.5.
    assert_eq!(length(&[]), 1);
    assert_eq!(length(&[call(5, 5); 12]), 5);
    assert_eq!(length(&[call(5, 0); 12]), 0);
    // The first draft is always accepted, the second never.
    assert_eq!(length(&[call(5, 1); 12]), 1);
    // What lies long behind does not count.
    let turned = [[call(5, 0); Marginal::WINDOW], [call(5, 5); Marginal::WINDOW]].concat();
    assert_eq!(length(&turned), 5);
    let mut past = vec![call(5, 0); Marginal::WINDOW];
    let mut asked = Vec::new();
    for _ in 0..2 * (Marginal::PROBE + 1) {
        asked.push(length(&past));
        past.push(call(*asked.last().unwrap(), 0));
    }
    let tries = [vec![0; Marginal::PROBE], vec![5]].concat();
    assert_eq!(asked, tries.repeat(2));
}

#[test]
fn a_queue_stops_drafts() {
    assert_eq!([1, 3, 4, 90].map(|busy| Queue { most: 3 }.length(Seen { past: &[], busy }, 5)), [5, 5, 0, 0]);
}

/// A policy with what it was asked.
struct Asked<'a> {
    policy: &'a dyn LengthPolicy,
    /// Requests without an end.
    open: AtomicUsize,
    log: Mutex<Vec<(Vec<Call>, usize)>>,
}

impl LengthPolicy for Asked<'_> {
    fn length(&self, seen: Seen, longest: usize) -> usize {
        assert_eq!(seen.busy, self.open.load(Ordering::Relaxed));
        let length = self.policy.length(seen, longest);
        self.log.lock().unwrap().push((seen.past.to_vec(), length));
        length
    }
}

/// Not a policy that would be used: any function of what is seen, so that every mixture of lengths occurs in a batch.
struct Erratic;

impl LengthPolicy for Erratic {
    fn length(&self, seen: Seen, longest: usize) -> usize {
        let sum = seen.past.iter().map(|call| 2 * call.accepted + call.kept.drafted).sum::<usize>() + seen.busy;
        Key::new(8, seen.past.len() as u64, sum as u64, Purpose::Noise).below_at(0, longest + 1)
    }
}

#[test]
fn a_policy_is_shown_the_finished_rounds_and_the_busy_requests() {
    let dir = tempfile::tempdir().unwrap();
    let target = random_target(dir.path(), 12, 3);
    let request = |id: u64| Request {
        id,
        prompt: (0..3 + id as u32).map(|i| (5 * i + id as u32) % 12).collect(),
        max_new_tokens: 40 + 7 * id as usize,
        sampling: Processors::at(1.0),
        seed: 4,
        form: Form::default(),
    };
    for policy in [&Fixed as &dyn LengthPolicy, &Shrinking, &Floor { share: 0.5 }, &Queue { most: 5 }, &Erratic] {
        let (drafter, weights) = random_drafter(&target, 10, 5, &Device::flex());
        let mut proposer = Eagle3Proposer::new(drafter, &weights);
        let asked = Asked { policy, open: AtomicUsize::new(8), log: Mutex::default() };
        let plan = Plan::chain(4, pick(Rule::Token));
        let judge = judge(Rule::Token).unwrap();
        let decoder = SpeculativeDecoder { target: &target, stop: &[], batch: 3 };
        let tasks = Task::alike((0..8).map(request), &plan, judge, &asked);
        let mut answers = Vec::new();
        let room = Room { pages: Some(Pages { tokens: 8, count: 14 }), prefixes: false };
        let done = |t| {
            answers.push(t);
            asked.open.fetch_sub(1, Ordering::Relaxed);
        };
        let cost = decoder.run_within(room, tasks, &mut proposer, done).unwrap();
        assert!(cost.preempted > 0, "no request ever gave way");
        let mut expected: Vec<(Vec<Call>, usize)> = Vec::new();
        for answer in &answers {
            for (i, call) in answer.calls.iter().enumerate() {
                // The answer to the past is what was drafted, whatever came after.
                expected.push((answer.calls[..i].to_vec(), call.kept.drafted));
            }
        }
        let mut log = asked.log.into_inner().unwrap();
        for list in [&mut log, &mut expected] {
            list.sort_by_key(|asked| format!("{asked:?}"));
        }
        assert_eq!(log, expected);
    }
}

#[test]
fn text_of_any_lengths_is_the_plain_text() {
    let s = setup(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../checkpoints/tiny"));
    for (rule, temperature) in [(Rule::Greedy, 0.0), (Rule::SampledMatch, 1.0)] {
        for policy in [&Shrinking as &dyn LengthPolicy, &Floor { share: 0.3 }, &Queue { most: 12 }, &Erratic] {
            let lookup = Lookup { min_match: 1, max_match: 3 };
            let proposer = |_| -> Box<dyn Proposer> { Box::new(NgramProposer::new(Ngrams(lookup))) };
            let plan = Plan::chain(5, pick(rule));
            let histogram = accepted_under(&s, (rule, temperature), (plan, policy), proposer);
            assert!(histogram[1..].iter().sum::<usize>() > 20, "{histogram:?}");
        }
    }
}

/// Probability of texts at least so far from the target's law, and the rounds by their drafted tokens.
fn p_value(target: &Llama, rule: Rule, policy: &dyn LengthPolicy, proposer: &mut dyn Proposer) -> (f64, Vec<usize>) {
    const TOKENS: usize = 5;
    let request = |id| Request {
        id,
        prompt: PROMPT.to_vec(),
        max_new_tokens: TOKENS,
        sampling: Processors::at(1.0),
        seed: 9,
        form: Form::default(),
    };
    let plan = Plan::chain(3, pick(rule));
    let judge = judge(rule).unwrap();
    let decoder = SpeculativeDecoder { target, stop: &[], batch: 512 };
    let tasks = Task::alike((0..150_000).map(request), &plan, judge, policy);
    let mut observed = vec![0; VOCABULARY.pow(TOKENS as u32)];
    let mut drafted = vec![0; 4];
    let count = |t: spectrain_verify::Transcript| {
        observed[t.ids.iter().fold(0, |n, &id| n * VOCABULARY + id as usize)] += 1;
        t.rounds().for_each(|round| drafted[round.drafted] += 1);
    };
    decoder.run(tasks, proposer, count).unwrap();
    (goodness_of_fit(&observed, &exact(target, TOKENS)).unwrap().p_value, drafted)
}

/// A draw that a longer and a shorter round shared would show here.
#[test]
fn rules_keep_the_law_at_any_lengths() {
    let dir = tempfile::tempdir().unwrap();
    let target = random_target(dir.path(), VOCABULARY, 3);
    let marginal = Marginal { costs: costs(3) };
    for rule in [Rule::Token, Rule::Block] {
        for policy in [&Shrinking as &dyn LengthPolicy, &Erratic, &marginal] {
            let (p, drafted) = p_value(&target, rule, policy, &mut drafter(&target));
            eprintln!("{rule}: rounds by drafted tokens {drafted:?}, p = {p:.3}");
            assert!(p > 1e-4, "{rule}: p = {p:e}");
        }
    }
}

/// A stop before a token is drawn keeps the law; the stop that looks at the token drawn does not.
#[test]
fn rules_keep_the_law_where_drafts_end_by_confidence() {
    let dir = tempfile::tempdir().unwrap();
    let target = random_target(dir.path(), VOCABULARY, 3);
    for rule in [Rule::Token, Rule::Block] {
        let (p, drafted) = p_value(&target, rule, &Confidence { least: UNSURE }, &mut small_model());
        eprintln!("{rule}: rounds by drafted tokens {drafted:?}, p = {p:.3}");
        assert!(p > 1e-4, "{rule}: p = {p:e}");
        assert!(drafted.iter().all(|&rounds| rounds > 10_000), "{drafted:?}");
        let (p, _) = p_value(&target, rule, &Fixed, &mut Meddled(small_model(), hasty(UNSURE)));
        assert!(p < 1e-8, "{rule}, anticipating: p = {p:e}");
    }
}
