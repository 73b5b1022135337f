//! SpecInfer's rule: recursive rejection on trees whose siblings were drawn independently, with replacement.
//!
//! Miao et al., "SpecInfer", 2024, multi-step speculative sampling. After a rejection the target becomes its residual
//! and `q` stays. A repeated draw is never accepted (its residual is zero) yet must be tried: skipping it would leave
//! the wrong residual. Output law: the target's.

use super::recursive;
use super::{Chance, Rule, RuleError, Verdict, ZeroResidual};
use crate::tree::SampledTree;

/// Judges a tree sampled with replacement; `target[node]` is `p` after the path to `node`, one row per node.
///
/// # Errors
/// [`RuleError::Sampling`] for a tree sampled without replacement, others if rows and tree do not fit together.
pub fn verify<R: AsRef<[f64]>>(
    tree: &SampledTree,
    target: &[R],
    mode: ZeroResidual,
    chance: &mut impl Chance,
) -> Result<Verdict, RuleError> {
    recursive::verify(Rule::SpecInfer, tree, target, mode, chance)
}
