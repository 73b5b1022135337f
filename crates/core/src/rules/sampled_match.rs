//! Sampled-match for any tree: draw one token per node from the target's own sampler and walk while it was drafted.
//!
//! It has the law of target-only acceptance (siblings accepted with their target mass, the residual being the target
//! without the tried tokens) and does not read `q`, so it stays exact for every way to build, prune or re-rank a tree,
//! as long as the draws are independent of drafting. With draws keyed by position the text equals the plain path's
//! token for token. On a chain it accepts less than the token rule when drafts are sampled.

use super::residual::draw_target;
use super::{Ask, Chance, RuleError, Verdict, check_rows};
use crate::rng::Purpose;
use crate::tree::Tree;

/// Judges any tree.
///
/// `target[node]` is `p` after the path to `node`: one row per node, all of one width. No row is copied.
///
/// # Errors
/// A [`RuleError`] if rows and tree do not fit together or a row on the path is no distribution.
pub fn verify<R: AsRef<[f64]>>(tree: &Tree, target: &[R], chance: &mut impl Chance) -> Result<Verdict, RuleError> {
    check_rows(target, tree.drafted())?;
    verify_rows(tree, |node| Ok(target[node].as_ref()), chance)
}

/// As [`verify`], for rows that are made when they are asked for: `row(node)` is called for nodes on the path only.
///
/// # Errors
/// A [`RuleError`] if a row on the path is no distribution, and what `row` returns.
pub fn verify_rows<R: AsRef<[f64]>>(
    tree: &Tree,
    mut row: impl FnMut(usize) -> Result<R, RuleError>,
    chance: &mut impl Chance,
) -> Result<Verdict, RuleError> {
    super::greedy::walk(tree, |node| {
        let ask = Ask { depth: tree.depth(node), purpose: Purpose::Target, index: 0 };
        draw_target(row(node)?.as_ref(), node, ask, chance)
    })
}
