//! The law of what trees emit, drawn through the real batched code and compared with exact enumeration.

use crate::law::{VOCABULARY, p_value_of};
use crate::support::random_target_of;
use spectrain_core::rng::Purpose;
use spectrain_core::rules::{Ask, Chance, Rule, RuleError, Verdict};
use spectrain_core::tree::{Replacement, TreeKind};
use spectrain_draft::Plan;
use spectrain_model::Llama;
use spectrain_verify::judge::{Judge, Round, judge};
use spectrain_verify::plan::plan;

/// Two rounds or more, so that what one leaves behind shows in the next.
const TOKENS: usize = 4;
/// Measured-looking acceptance by rank: its best shapes branch at the root and below.
pub const RANKS: [f64; 4] = [0.5, 0.25, 0.1, 0.05];

fn target(dir: &std::path::Path) -> Llama {
    random_target_of(dir, VOCABULARY, 2, 3)
}

/// The plan of `tree` under `rule`, with paths of three tokens at most.
fn planned(tree: &str, rule: Rule) -> Plan {
    plan(&tree.parse::<TreeKind>().unwrap(), rule, 3, &RANKS).unwrap()
}

fn write_the_law(rule: Rule, trees: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let target = target(dir.path());
    for tree in trees {
        let p = p_value_of(&target, judge(rule).unwrap(), planned(tree, rule), TOKENS);
        eprintln!("{rule} on {tree}: p = {p:.3}");
        assert!(p > 1e-4, "{rule} on {tree}: p = {p:e}");
    }
}

#[test]
fn sampled_match_writes_the_targets_law_on_every_tree() {
    write_the_law(Rule::SampledMatch, &["static:2,2,1", "dynamic:7", "sampled:2,2", "sequoia:7"]);
}

#[test]
fn specinfer_writes_the_targets_law_on_drawn_trees() {
    write_the_law(Rule::SpecInfer, &["sampled:2,2", "sequoia:7"]);
}

#[test]
fn sequoia_writes_the_targets_law_on_drawn_trees() {
    write_the_law(Rule::Sequoia, &["sampled:2,2", "sequoia:7"]);
}

#[test]
fn traversal_writes_the_targets_law_on_drawn_trees() {
    write_the_law(Rule::Traversal, &["sampled:2,2", "sequoia:7"]);
}

/// What is done wrong.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Fault {
    Nothing,
    /// Acceptance reads a flatter `q` than the one that was drawn from.
    WrongQ,
    /// After a rejection of all siblings `p` is drawn from instead of the residual.
    FromP,
    /// Siblings are tried by likelihood instead of in the order drawn.
    Order,
    /// Draws without replacement are judged as if with it, and the other way round.
    Mixed,
}

/// Divides by the sum, where there is one.
fn normalise(row: &mut [f64]) {
    let mass: f64 = row.iter().sum();
    if mass > 0.0 {
        row.iter_mut().for_each(|entry| *entry /= mass);
    }
}

/// Recursive rejection on drawn trees, written anew, with one fault planted.
pub fn recursive(round: &Round, fault: Fault) -> Result<Verdict, RuleError> {
    let tree = round.sampled(Rule::Sequoia)?;
    let mut chance = round.chance();
    let mut verdict = Verdict::default();
    let mut node = 0;
    'path: loop {
        let depth = verdict.path.len();
        let ask = |purpose, index| Ask { depth, purpose, index };
        let mut p = round.p(node)?;
        let Some((q, children)) = tree.drawn(node) else {
            verdict.next = Some(chance.draw(ask(Purpose::Bonus, 0), &p) as u32);
            return Ok(verdict);
        };
        let mut q: Vec<f64> = q.iter().map(|&q| if fault == Fault::WrongQ { q.sqrt() } else { q }).collect();
        normalise(&mut q);
        let mut order = children.to_vec();
        if fault == Fault::Order {
            order.sort_by(|&a, &b| q[tree.tree().token(b) as usize].total_cmp(&q[tree.tree().token(a) as usize]));
        }
        for (index, child) in order.into_iter().enumerate() {
            let token = tree.tree().token(child) as usize;
            if chance.accept(ask(Purpose::Accept, index), p[token] / q[token]) {
                verdict.path.push(child);
                verdict.tokens.push(token as u32);
                node = child;
                continue 'path;
            }
            p.iter_mut().zip(&q).for_each(|(p, q)| *p = (*p - q).max(0.0));
            normalise(&mut p);
            if (tree.replacement() == Replacement::Without) != (fault == Fault::Mixed) {
                q[token] = 0.0;
                normalise(&mut q);
            }
        }
        let rest = if fault == Fault::FromP { round.p(node)? } else { p };
        verdict.next = Some(chance.draw(ask(Purpose::Residual, 0), &rest) as u32);
        return Ok(verdict);
    }
}

fn p_with(target: &Llama, rule: Rule, fault: Fault) -> f64 {
    let judge: &Judge = &move |round| recursive(round, fault);
    p_value_of(target, judge, planned("sampled:3,2", rule), TOKENS)
}

#[test]
fn planted_bugs_in_trees_are_seen_at_the_same_size() {
    let dir = tempfile::tempdir().unwrap();
    let target = target(dir.path());
    for (rule, faults) in [
        (Rule::Sequoia, vec![Fault::WrongQ, Fault::FromP, Fault::Order, Fault::Mixed]),
        (Rule::SpecInfer, vec![Fault::Mixed]),
    ] {
        let p = p_with(&target, rule, Fault::Nothing);
        assert!(p > 1e-4, "without a fault, {rule}: p = {p:e}");
        for fault in faults {
            let p = p_with(&target, rule, fault);
            eprintln!("{fault:?} under {rule}: p = {p:e}");
            assert!(p < 1e-8, "{fault:?} under {rule}: p = {p:e}");
        }
    }
}
