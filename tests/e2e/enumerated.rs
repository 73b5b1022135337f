//! Every outcome of every random event of whole runs of the batched decoder, with its exact probability: what is
//! written is the target's law, not up to a test's power but to 1e-12.
//!
//! One request is one outcome. A wave of requests runs together; each replays the decisions that it was given, takes the
//! first outcome of every later event, and leaves the others to the next wave.

use crate::law::{Meddled, PROMPT, UNSURE, VOCABULARY, drafter, hasty, resample_from_p, small_model, wrong_q};
use crate::support::random_target_of;
use crate::tree_law::{Fault, RANKS, recursive};
use spectrain_core::form::Form;
use spectrain_core::process::Processors;
use spectrain_core::rules::{Ask, Rule, Script};
use spectrain_core::tree::TreeKind;
use spectrain_draft::{Plan, Proposer};
use spectrain_model::{Llama, Request, host_rows};
use spectrain_verify::judge::{Judge, Round, judge};
use spectrain_verify::length::Confidence;
use spectrain_verify::plan::plan;
use spectrain_verify::{Fixed, LengthPolicy, SpeculativeDecoder, Task};
use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::sync::Mutex;

/// Largest deviation of a text's probability.
const TOLERANCE: f64 = 1e-12;
/// Smallest distance that counts as caught.
const CAUGHT: f64 = 1e-4;
/// Drafted tokens of a path.
const DEPTH: usize = 2;
/// Tokens of the compared texts: the prompt's own, and one whole round.
const TOKENS: usize = DEPTH + 2;
/// Requests at a time, and in a wave: every pass has its full width, and so the same rounding wherever that is possible.
const BATCH: usize = 64;

/// One event's outcome and its probability.
type Decision = (usize, f64);

/// A text and its probability.
type Written = (Vec<u32>, f64);

/// What one request has decided.
#[derive(Debug, Default)]
struct Walk {
    decided: Vec<Decision>,
    next: usize,
    asked: Vec<(usize, Ask)>,
    /// Decisions up to an event, and another outcome of it.
    others: Vec<Vec<Decision>>,
    /// Set once the rounds to be walked are over.
    over: bool,
}

/// Decides for one request.
#[derive(Debug)]
struct Walker<'a> {
    walk: Mutex<Walk>,
    /// The target's distribution behind the prompt.
    first: &'a [f64],
}

impl Script for Walker<'_> {
    fn decide(&self, root: usize, ask: Ask, probabilities: &[f64]) -> usize {
        let walk = &mut *self.walk.lock().unwrap();
        assert!(!walk.asked.contains(&(root, ask)), "{ask:?} at {root} is asked twice");
        walk.asked.push((root, ask));
        let sum: f64 = probabilities.iter().sum();
        assert!((sum - 1.0).abs() < TOLERANCE, "{ask:?} draws from a row of sum {sum}");
        let probabilities = if root + 1 == PROMPT.len() { self.first } else { probabilities };
        let mut possible = probabilities.iter().copied().enumerate().filter(|&(_, mass)| mass > 0.0);
        if walk.over {
            return possible.next().unwrap().0;
        }
        if walk.next == walk.decided.len() {
            let first = possible.next().unwrap();
            walk.others.extend(possible.map(|other| [walk.decided.as_slice(), &[other]].concat()));
            walk.decided.push(first);
        }
        walk.next += 1;
        walk.decided[walk.next - 1].0
    }
}

/// The target's logits behind every text of up to [`TOKENS`] answer tokens, from whole passes. Passes of different width
/// round differently, so what is judged is always such a row; the round's own must be equal to it up to rounding.
struct Rows(HashMap<Vec<u32>, Vec<f32>>);

impl Rows {
    fn of(target: &Llama) -> Self {
        let mut rows = HashMap::new();
        let mut texts = vec![Vec::new()];
        for _ in 0..TOKENS {
            let whole: Vec<Vec<u32>> = texts.iter().map(|answer| [PROMPT.as_slice(), answer].concat()).collect();
            let sequences: Vec<&[u32]> = whole.iter().map(Vec::as_slice).collect();
            let logits = host_rows(target.logits(target.forward_full(&sequences, &[]).hidden));
            let last = logits.chunks(VOCABULARY).skip(whole[0].len() - 1).step_by(whole[0].len());
            rows.extend(texts.iter().cloned().zip(last.map(<[f32]>::to_vec)));
            let longer = |text: &Vec<u32>| (0..VOCABULARY as u32).map(|t| [text.as_slice(), &[t]].concat()).collect();
            texts = texts.iter().flat_map::<Vec<Vec<u32>>, _>(longer).collect();
        }
        Self(rows)
    }

    /// The distribution behind `answer`.
    fn p(&self, answer: &[u32]) -> Vec<f64> {
        spectrain_kernels::softmax::probabilities(&self.0[answer], 1.0)
    }

    /// The round's rows in a form that does not depend on the pass; those behind the compared texts as they are.
    fn settled(&self, round: &Round) -> Vec<f32> {
        let row = |node: usize| {
            let found = round.row(node);
            let text = [round.prefix.answer, &round.tree.path_tokens(node)].concat();
            let Some(row) = self.0.get(&text) else { return found.to_vec() };
            let off = row.iter().zip(found).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(off < 1e-4, "behind {text:?} the round has {found:?}, a whole pass {row:?}");
            row.clone()
        };
        (0..round.tree.len()).flat_map(row).collect()
    }

    /// Adds `mass` to all texts of [`TOKENS`] tokens that begin with `text`, shared out by the target.
    fn complete(&self, text: &[u32], mass: f64, law: &mut BTreeMap<Vec<u32>, f64>) {
        if text.len() >= TOKENS {
            *law.entry(text[..TOKENS].to_vec()).or_default() += mass;
            return;
        }
        for (token, share) in self.p(text).into_iter().enumerate() {
            self.complete(&[text, &[token as u32]].concat(), mass * share, law);
        }
    }
}

/// What is drafted, and how it is judged.
struct Way<'a> {
    judge: &'a Judge,
    plan: Plan,
    lengths: &'a dyn LengthPolicy,
    proposer: &'a dyn Fn(&Llama) -> Box<dyn Proposer>,
}

impl<'a> Way<'a> {
    fn of(judge: &'a Judge, plan: Plan) -> Self {
        Self { judge, plan, lengths: &Fixed, proposer: &|target| Box::new(drafter(target)) }
    }
}

/// Runs one wave: the text of every request after the prompt's token and `rounds` rounds, its probability, and what is
/// left to walk.
fn wave(
    (target, rows): (&Llama, &Rows),
    way: &Way,
    rounds: usize,
    begun: Vec<Vec<Decision>>,
) -> (Vec<Written>, Vec<Vec<Decision>>) {
    let first = rows.p(&[]);
    let walker = |decided| Walker { walk: Mutex::new(Walk { decided, ..Walk::default() }), first: &first };
    let walkers: Vec<Walker> = begun.into_iter().map(walker).collect();
    let settled = |round: &Round| (way.judge)(&Round { logits: &rows.settled(round), ..*round });
    let request = |id: usize| Request {
        id: id as u64,
        prompt: PROMPT.to_vec(),
        max_new_tokens: TOKENS,
        sampling: Processors::at(1.0),
        seed: 0,
        form: Form::default(),
    };
    let tasks = walkers.iter().enumerate();
    let task = |id| Task::of(request(id), &way.plan, &settled, way.lengths);
    let tasks = tasks.map(|(id, w)| Task { script: Some(w), ..task(id) }).collect();
    let mut texts = vec![(Vec::new(), 0); walkers.len()];
    let committed = |c: spectrain_verify::Committed| {
        let (text, calls) = &mut texts[c.id as usize];
        if *calls <= rounds {
            text.extend_from_slice(c.tokens);
        }
        *calls += 1;
        walkers[c.id as usize].walk.lock().unwrap().over = *calls > rounds;
        ControlFlow::Continue(())
    };
    let decoder = SpeculativeDecoder { target, stop: &[], batch: BATCH };
    decoder.run_watched(tasks, (way.proposer)(target).as_mut(), committed, drop).unwrap();
    let walks: Vec<Walk> = walkers.into_iter().map(|w| w.walk.into_inner().unwrap()).collect();
    let mass = |walk: &Walk| walk.decided.iter().map(|d| d.1).product::<f64>();
    let written = texts.into_iter().zip(&walks).map(|((text, _), walk)| (text, mass(walk))).collect();
    (written, walks.into_iter().flat_map(|walk| walk.others).collect())
}

/// Total variation between the target's law and what is written in `way` in one prompt's pass and `rounds` rounds, continued
/// by the target; the largest deviation of one text; the outcomes.
fn deviation(target: &Llama, way: &Way, rounds: usize) -> (f64, f64, usize) {
    let rows = Rows::of(target);
    let (mut law, mut expected) = (BTreeMap::new(), BTreeMap::new());
    rows.complete(&[], 1.0, &mut expected);
    let (mut begun, mut outcomes) = (vec![Vec::new()], 0);
    while !begun.is_empty() {
        let (written, others) = wave((target, &rows), way, rounds, std::mem::take(&mut begun));
        outcomes += written.len();
        written.into_iter().for_each(|(text, mass)| rows.complete(&text, mass, &mut law));
        begun = others;
    }
    let off = expected.iter().map(|(text, mass)| (law.get(text).unwrap_or(&0.0) - mass).abs());
    (off.clone().sum::<f64>() / 2.0, off.fold(0.0, f64::max), outcomes)
}

fn planned(tree: &str, rule: Rule) -> Plan {
    plan(&tree.parse::<TreeKind>().unwrap(), rule, DEPTH, &RANKS).unwrap()
}

fn target(dir: &std::path::Path) -> Llama {
    random_target_of(dir, VOCABULARY, 3, 3)
}

fn is_exact(rule: Rule, trees: &[&str], rounds: usize) {
    let dir = tempfile::tempdir().unwrap();
    let target = target(dir.path());
    for tree in trees {
        let (_, error, outcomes) = deviation(&target, &Way::of(judge(rule).unwrap(), planned(tree, rule)), rounds);
        eprintln!("{rule} on {tree}, {rounds} rounds: {outcomes} outcomes, off by {error:.1e}");
        assert!(error < TOLERANCE, "{rule} on {tree}, {rounds} rounds: off by {error:e}");
    }
}

#[test]
fn chains_write_the_targets_law_exactly() {
    for rule in [Rule::Token, Rule::Block, Rule::SampledMatch] {
        is_exact(rule, &["chain"], 2);
    }
}

/// Drafts that end before a token is drawn are exact, those that end once it is are not.
#[test]
fn drafts_that_end_by_confidence_write_the_targets_law_exactly() {
    let dir = tempfile::tempdir().unwrap();
    let target = target(dir.path());
    for rule in [Rule::Token, Rule::Block] {
        let small: &dyn Fn(&Llama) -> Box<dyn Proposer> = &|_| Box::new(small_model());
        let way = || Way { proposer: small, ..Way::of(judge(rule).unwrap(), planned("chain", rule)) };
        let [none, confident] = [0.0, UNSURE].map(|least| {
            let (_, error, outcomes) = deviation(&target, &Way { lengths: &Confidence { least }, ..way() }, 2);
            eprintln!("{rule}, confidence {least}: {outcomes} outcomes, off by {error:.1e}");
            assert!(error < TOLERANCE, "{rule}, confidence {least}: off by {error:e}");
            outcomes
        });
        assert!(confident < none, "no draft ended early: {confident} outcomes of {none}");
        let proposer = |_: &Llama| -> Box<dyn Proposer> { Box::new(Meddled(small_model(), hasty(UNSURE))) };
        let (distance, ..) = deviation(&target, &Way { proposer: &proposer, ..way() }, 1);
        eprintln!("{rule}, anticipating: {distance:.1e}");
        assert!(distance > CAUGHT, "{rule}, anticipating: {distance:e}");
    }
}

#[test]
fn sampled_match_writes_the_targets_law_exactly_on_every_tree() {
    is_exact(Rule::SampledMatch, &["static:2,2", "dynamic:6", "sampled:2,1", "sequoia:5"], 1);
}

#[test]
fn rules_of_drawn_trees_write_the_targets_law_exactly() {
    for rule in [Rule::SpecInfer, Rule::Sequoia, Rule::Traversal] {
        is_exact(rule, &["sampled:2,1", "sequoia:4"], 1);
    }
}

#[test]
fn planted_bugs_are_off_the_law() {
    let dir = tempfile::tempdir().unwrap();
    let target = target(dir.path());
    for (name, bug) in [("resample from p", &resample_from_p as &Judge), ("wrong q", &wrong_q)] {
        let (distance, ..) = deviation(&target, &Way::of(bug, planned("chain", Rule::Token)), 1);
        eprintln!("{name}: {distance:.1e}");
        assert!(distance > CAUGHT, "{name}: {distance:e}");
    }
    for (rule, faults) in [
        (Rule::Sequoia, vec![Fault::Nothing, Fault::WrongQ, Fault::FromP, Fault::Order, Fault::Mixed]),
        (Rule::SpecInfer, vec![Fault::Nothing, Fault::Mixed]),
    ] {
        for fault in faults {
            let bug: &Judge = &move |round| recursive(round, fault);
            let (distance, ..) = deviation(&target, &Way::of(bug, planned("sampled:2,1", rule)), 1);
            eprintln!("{fault:?} under {rule}: {distance:.1e}");
            assert_eq!(distance > CAUGHT, fault != Fault::Nothing, "{fault:?} under {rule}: {distance:e}");
        }
    }
}
