//! Threshold acceptance: target-only acceptance loosened by two knobs. Exact only with both at one; below that
//! the committed text leans towards the draft.
//!
//! The knobs are SGLang's `threshold_single` and `threshold_acc`. Guarantee: `approximate`.

use super::residual::{draw_residual, draw_target};
use super::{Ask, Chance, RuleError, Verdict, ZeroResidual, check_rows};
use crate::rng::Purpose;
use crate::tree::Tree;

/// Parameters of the threshold rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Threshold {
    /// A child whose target probability reaches this is always kept.
    pub single: f64,
    /// The summed target probability of the siblings tried so far is divided by this before the coin is compared.
    pub accumulated: f64,
}

impl Threshold {
    /// Judges any tree; `target[node]` is `p` after the path to `node`, one row per node.
    ///
    /// One coin u per node: its children are tried in node order while their target mass adds up to A, and the first
    /// with u < A / accumulated or p ≥ single is kept. If none is, the extra token comes from `p` without the children.
    ///
    /// # Errors
    /// A [`RuleError`] if rows and tree do not fit together or the row after the path is no distribution.
    pub fn verify<R: AsRef<[f64]>>(
        &self,
        tree: &Tree,
        target: &[R],
        chance: &mut impl Chance,
    ) -> Result<Verdict, RuleError> {
        check_rows(target, tree.drafted())?;
        let mut verdict = Verdict::default();
        let mut node = 0;
        while let Some(child) = self.accepted_child(tree, node, target[node].as_ref(), chance) {
            verdict.push(child, tree.token(child));
            node = child;
        }
        let (p, depth) = (target[node].as_ref(), tree.depth(node));
        if tree.children(node).next().is_none() {
            let ask = Ask { depth, purpose: Purpose::Bonus, index: 0 };
            verdict.next = draw_target(p, node, ask, chance)?;
            return Ok(verdict);
        }
        let mut rest = p.to_vec();
        tree.children(node).for_each(|child| rest[tree.token(child) as usize] = 0.0);
        let mass = rest.iter().sum();
        let rest = super::residual::normalise(&mut rest, mass).then_some(rest);
        Ok(verdict.finish(draw_residual(rest.as_deref(), p, (node, depth), ZeroResidual::FallBack, chance)?))
    }

    /// The child kept at a node. The one coin is asked piecewise: given that it is above all earlier bounds.
    fn accepted_child(&self, tree: &Tree, node: usize, p: &[f64], chance: &mut impl Chance) -> Option<usize> {
        let depth = tree.depth(node);
        let (mut mass, mut passed) = (0.0, 0.0);
        for (index, child) in tree.children(node).enumerate() {
            let own = p[tree.token(child) as usize];
            mass += own;
            let bound = (mass / self.accumulated).min(1.0);
            let step = if passed < 1.0 { ((bound - passed) / (1.0 - passed)).clamp(0.0, 1.0) } else { 1.0 };
            let probability = if own >= self.single { 1.0 } else { step };
            if chance.accept(Ask { depth, purpose: Purpose::Accept, index }, probability) {
                return Some(child);
            }
            passed = bound;
        }
        None
    }
}
