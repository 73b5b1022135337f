//! Traversal rule: whole root-to-leaf paths are tried, leaves first, on trees sampled without replacement.
//!
//! "Traversal verification for speculative tree decoding", NeurIPS 2025. On a chain it is the block rule. Output law:
//! the target's, with the update below; the simpler update min(1, R / (1 - q(v))) found in a public implementation is
//! not exact.

use super::block::keep_probability;
use super::candidate::checked_acceptance;
use super::recursive::{check_sampled, take_out};
use super::residual::{ZeroResidual, draw_residual, draw_target, excess, normalise};
use super::{Ask, Chance, Rule, RuleError, Verdict};
use crate::rng::Purpose;
use crate::tree::{Replacement, SampledTree};

/// What deletions below a node have done to it.
struct Updated {
    /// Chance that the path to the node is kept.
    carried: f64,
    p: Vec<f64>,
    q: Vec<f64>,
    /// Children deleted so far.
    deleted: usize,
    /// The last deletion left no residual mass, so `p` still is what it was before.
    no_residual: bool,
}

/// Judges a tree sampled without replacement; `target[node]` is `p` after the path to `node`, one row per node.
///
/// With alpha(root) = 1 and alpha(c) = min(1, alpha(u) p_u(c)/q_u(c)), the left-most leaf's whole path is accepted with
/// probability alpha(leaf). A rejected leaf is deleted; at its parent u, with r = max(alpha(u) p_u - q_u, 0) of mass R,
/// alpha(u) becomes R / (R + 1 - alpha(u)) (so the root's stays 1), p_u becomes r normalised, and the token leaves q_u.
///
/// # Errors
/// [`RuleError::Sampling`] for a tree sampled with replacement, others if rows and tree do not fit together.
pub fn verify<R: AsRef<[f64]>>(
    tree: &SampledTree,
    target: &[R],
    mode: ZeroResidual,
    chance: &mut impl Chance,
) -> Result<Verdict, RuleError> {
    check_sampled(Rule::Traversal, Replacement::Without, tree, target)?;
    let mut state: Vec<Option<Updated>> = (0..tree.tree().len()).map(|_| None).collect();
    loop {
        let (path, carried, above) = leftmost(tree, target, &state)?;
        let leaf = *path.last().expect("a path starts at the root");
        let depth = path.len() - 1;
        let coin = Ask { depth, purpose: Purpose::Accept, index: leaf };
        if leaf == 0 || chance.accept(coin, carried) {
            return commit(tree, target[leaf].as_ref(), &path, state[leaf].as_ref(), mode, chance);
        }
        let parent = path[depth - 1];
        delete(tree, target[parent].as_ref(), (parent, leaf), above, &mut state[parent]);
    }
}

/// The path along first remaining children, alpha of its last node, and alpha of the node before that.
fn leftmost<R: AsRef<[f64]>>(
    tree: &SampledTree,
    target: &[R],
    state: &[Option<Updated>],
) -> Result<(Vec<usize>, f64, f64), RuleError> {
    let mut path = vec![0];
    let (mut carried, mut above) = (1.0, 1.0);
    loop {
        let node = path[path.len() - 1];
        let updated = state[node].as_ref();
        let Some((q, children)) = tree.drawn(node) else { return Ok((path, carried, above)) };
        let deleted = updated.map_or(0, |updated| updated.deleted);
        let Some(&child) = children.get(deleted) else { return Ok((path, carried, above)) };
        let (p, q) = updated.map_or((target[node].as_ref(), q), |updated| (&updated.p[..], &updated.q[..]));
        let token = tree.tree().token(child);
        let fresh = checked_acceptance(carried, p[token as usize], q[token as usize], child, token)?;
        above = carried;
        carried = state[child].as_ref().map_or(fresh, |updated| updated.carried);
        path.push(child);
    }
}

/// Takes a rejected leaf out of its parent.
fn delete(
    tree: &SampledTree,
    target: &[f64],
    (parent, leaf): (usize, usize),
    carried: f64,
    state: &mut Option<Updated>,
) {
    let (q, _) = tree.drawn(parent).expect("the parent of a node was extended");
    let updated = state.get_or_insert_with(|| Updated {
        carried,
        p: target.to_vec(),
        q: q.to_vec(),
        deleted: 0,
        no_residual: false,
    });
    let (mut rest, mass) = excess(carried, &updated.p, &updated.q);
    updated.no_residual = !normalise(&mut rest, mass);
    if !updated.no_residual {
        updated.p = rest;
    }
    updated.carried = keep_probability(mass, carried);
    take_out(&mut updated.q, tree.tree().token(leaf) as usize);
    updated.deleted += 1;
}

/// Accepts a path and draws the token after it: from the target at a true leaf, else from what deletions left.
fn commit(
    tree: &SampledTree,
    target: &[f64],
    path: &[usize],
    updated: Option<&Updated>,
    mode: ZeroResidual,
    chance: &mut impl Chance,
) -> Result<Verdict, RuleError> {
    let depth = path.len() - 1;
    let leaf = path[depth];
    let tokens = path[1..].iter().map(|&node| tree.tree().token(node)).collect();
    let verdict = Verdict { path: path[1..].to_vec(), tokens, ..Default::default() };
    let Some(updated) = updated else {
        let ask = Ask { depth, purpose: Purpose::Bonus, index: 0 };
        return Ok(Verdict { next: draw_target(target, leaf, ask, chance)?, ..verdict });
    };
    let rest = (!updated.no_residual).then_some(&updated.p[..]);
    Ok(verdict.finish(draw_residual(rest, target, (leaf, depth), mode, chance)?))
}
