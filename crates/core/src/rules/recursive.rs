//! Recursive rejection on sampled trees, from the root down: siblings are tried in the order they were drawn, and each
//! rejection replaces the target by its residual. The two public rules differ in what a rejection does to `q`.

use super::candidate::checked_acceptance;
use super::residual::{ZeroResidual, draw_residual, draw_target, excess, normalise};
use super::{Ask, Chance, Rule, RuleError, Verdict, check_rows, check_width};
use crate::rng::Purpose;
use crate::tree::{Replacement, SampledTree};
use std::borrow::Cow;

/// Judges a tree sampled in the way `rule` needs.
pub(super) fn verify<R: AsRef<[f64]>>(
    rule: Rule,
    tree: &SampledTree,
    target: &[R],
    mode: ZeroResidual,
    chance: &mut impl Chance,
) -> Result<Verdict, RuleError> {
    let replacement = if rule == Rule::SpecInfer { Replacement::With } else { Replacement::Without };
    check_sampled(rule, replacement, tree, target)?;
    let mut verdict = Verdict::default();
    let mut node = 0;
    loop {
        let p = target[node].as_ref();
        let depth = tree.tree().depth(node);
        match try_siblings(tree, node, p, chance)? {
            Siblings::Accepted(child) => {
                verdict.push(child, tree.tree().token(child));
                node = child;
            }
            Siblings::None => {
                verdict.next = draw_target(p, node, Ask { depth, purpose: Purpose::Bonus, index: 0 }, chance)?;
                return Ok(verdict);
            }
            Siblings::Rejected(rest) => {
                return Ok(verdict.finish(draw_residual(rest.as_deref(), p, (node, depth), mode, chance)?));
            }
        }
    }
}

/// What became of a node's children.
enum Siblings {
    /// This one goes on.
    Accepted(usize),
    /// There were none.
    None,
    /// All were rejected and this residual is left, if it has mass.
    Rejected(Option<Vec<f64>>),
}

/// Tries the children of one node in the order drawn.
fn try_siblings(tree: &SampledTree, node: usize, p: &[f64], chance: &mut impl Chance) -> Result<Siblings, RuleError> {
    let Some((q, children)) = tree.drawn(node) else { return Ok(Siblings::None) };
    let depth = tree.tree().depth(node);
    let mut p = Cow::Borrowed(p);
    let mut q = Cow::Borrowed(q);
    for (index, &child) in children.iter().enumerate() {
        let token = tree.tree().token(child) as usize;
        let probability = checked_acceptance(1.0, p[token], q[token], child, token as u32)?;
        if chance.accept(Ask { depth, purpose: Purpose::Accept, index }, probability) {
            return Ok(Siblings::Accepted(child));
        }
        let (mut rest, mass) = excess(1.0, &p, &q);
        if !normalise(&mut rest, mass) {
            return Ok(Siblings::Rejected(None));
        }
        p = Cow::Owned(rest);
        if tree.replacement() == Replacement::Without {
            take_out(q.to_mut(), token);
        }
    }
    Ok(if children.is_empty() { Siblings::None } else { Siblings::Rejected(Some(p.into_owned())) })
}

/// Removes a token from a distribution and renormalises what is left, if anything is.
pub(super) fn take_out(q: &mut [f64], token: usize) {
    q[token] = 0.0;
    let mass = q.iter().sum();
    normalise(q, mass);
}

/// Checks kind, rows and widths of a sampled tree.
pub(super) fn check_sampled<R: AsRef<[f64]>>(
    rule: Rule,
    needed: Replacement,
    tree: &SampledTree,
    target: &[R],
) -> Result<(), RuleError> {
    if tree.replacement() != needed {
        let needed = if needed == Replacement::With { "with" } else { "without" };
        return Err(RuleError::Sampling { rule, needed });
    }
    let vocabulary = check_rows(target, tree.tree().drafted())?;
    for node in 0..tree.tree().len() {
        if let Some((q, _)) = tree.drawn(node) {
            check_width("draft", node, q, vocabulary)?;
        }
    }
    Ok(())
}
