//! Sequoia's rule: recursive rejection on trees whose siblings were drawn without replacement.
//!
//! Chen et al., "Sequoia", 2024. After a rejection the target becomes its residual and the rejected token leaves `q`,
//! which is renormalised: exactly the distribution the next sibling was drawn from. No rejected token is tried twice,
//! so the chance to reject all goes to zero as siblings cover the support. Output law: the target's.

use super::recursive;
use super::{Chance, Rule, RuleError, Verdict, ZeroResidual};
use crate::tree::SampledTree;

/// Judges a tree sampled without replacement; `target[node]` is `p` after the path to `node`, one row per node.
///
/// # Errors
/// [`RuleError::Sampling`] for a tree sampled with replacement, others if rows and tree do not fit together.
pub fn verify<R: AsRef<[f64]>>(
    tree: &SampledTree,
    target: &[R],
    mode: ZeroResidual,
    chance: &mut impl Chance,
) -> Result<Verdict, RuleError> {
    recursive::verify(Rule::Sequoia, tree, target, mode, chance)
}
