//! Trees drawn from the drafter's distributions, which the rules that divide by `q` need.
//!
//! Those rules are exact only if nothing about a node's presence or order depends on what was drawn there or below: no
//! pruning by confidence, no re-ranking (requirements V14). The type keeps that promise. A sampled tree is born with a
//! root, grows by drawing, and offers no way to drop or move a node:
//!
//! ```
//! use spectrain_core::tree::SampledTree;
//! fn leaves(tree: &SampledTree) -> usize {
//!     tree.tree().leaves().len()
//! }
//! ```
//!
//! ```compile_fail
//! use spectrain_core::tree::SampledTree;
//! fn prune(tree: &SampledTree) -> SampledTree {
//!     tree.select(&[0, 1]).unwrap()
//! }
//! ```
//!
//! ```compile_fail
//! use spectrain_core::tree::{SampledTree, Tree};
//! fn reorder(tree: &mut SampledTree) {
//!     *tree.tree_mut() = Tree::root(0, 0);
//! }
//! ```
//!
//! Its plain nodes may be pruned, but then they are a [`Tree`], which a rule that reads `q` does not take:
//!
//! ```
//! use spectrain_core::rules::{Ask, RuleError, Verdict, sampled_match};
//! use spectrain_core::tree::SampledTree;
//! fn judge(tree: &SampledTree, p: &[Vec<f64>], coin: fn(Ask) -> f64) -> Result<Verdict, RuleError> {
//!     let pruned = tree.tree().select(&[0, 1]).unwrap();
//!     sampled_match::verify(&pruned, p, &mut { coin })
//! }
//! ```
//!
//! ```compile_fail
//! use spectrain_core::rules::{Ask, RuleError, Verdict, ZeroResidual, sequoia};
//! use spectrain_core::tree::SampledTree;
//! fn judge(tree: &SampledTree, p: &[Vec<f64>], coin: fn(Ask) -> f64) -> Result<Verdict, RuleError> {
//!     let pruned = tree.tree().select(&[0, 1]).unwrap();
//!     sequoia::verify(&pruned, p, ZeroResidual::Strict, &mut { coin })
//! }
//! ```
//!
//! The same call with the sampled tree itself is accepted:
//!
//! ```
//! use spectrain_core::rules::{Ask, RuleError, Verdict, ZeroResidual, sequoia};
//! use spectrain_core::tree::SampledTree;
//! fn judge(tree: &SampledTree, p: &[Vec<f64>], coin: fn(Ask) -> f64) -> Result<Verdict, RuleError> {
//!     sequoia::verify(tree, p, ZeroResidual::Strict, &mut { coin })
//! }
//! ```

use super::{Tree, TreeError};
use crate::rng::Purpose;
use crate::rules::{Ask, Chance};

/// How siblings are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replacement {
    /// Independently, so that a token may come twice (SpecInfer). Equal draws share one node.
    With,
    /// Each from what is left of `q` once the earlier ones are taken out (Sequoia).
    Without,
}

/// A tree whose every node was drawn from a known distribution, in a recorded order.
#[derive(Clone, Debug)]
pub struct SampledTree {
    tree: Tree,
    replacement: Replacement,
    /// Per node: its draft distribution and the children in the order drawn, repeats included.
    drawn: Vec<Option<Drawn>>,
    draws: usize,
}

#[derive(Clone, Debug)]
struct Drawn {
    q: Vec<f64>,
    children: Vec<usize>,
}

impl SampledTree {
    /// A root without children at its absolute position.
    pub fn root(token: u32, position: usize, replacement: Replacement) -> Self {
        Self { tree: Tree::root(token, position), replacement, drawn: vec![None], draws: 0 }
    }

    /// Draws `count` children of `node` from the distribution `q` (length = vocabulary) and returns the new nodes.
    ///
    /// Nodes are extended in node order, each at most once. `count` may depend on anything known before these children
    /// are drawn. Without replacement fewer children come when the support of `q` is exhausted; with replacement a
    /// repeated token makes no new node.
    ///
    /// # Errors
    /// [`TreeError::Growth`] for a node out of order, [`TreeError::DraftRow`] for a malformed `q`.
    pub fn extend(
        &mut self,
        node: usize,
        q: Vec<f64>,
        count: usize,
        chance: &mut impl Chance,
    ) -> Result<std::ops::Range<usize>, TreeError> {
        if node >= self.drawn.len() || self.drawn[node..].iter().any(Option::is_some) {
            return Err(TreeError::Growth(node));
        }
        let first = self.tree.len();
        let mut left = q.clone();
        let mut children = Vec::with_capacity(count);
        for _ in 0..count {
            let mass: f64 = left.iter().sum();
            if children.is_empty() && !(mass > 0.0 && left.iter().all(|&entry| entry >= 0.0 && entry.is_finite())) {
                return Err(TreeError::DraftRow(node));
            }
            if mass <= 0.0 {
                break;
            }
            left.iter_mut().for_each(|entry| *entry /= mass);
            let ask = Ask { depth: self.tree.depth(node), purpose: Purpose::Draft, index: self.draws };
            let token = chance.draw(ask, &left);
            self.draws += 1;
            let known = self.tree.child(node, token as u32);
            children.push(known.unwrap_or_else(|| self.tree.push(node, token as u32)));
            if self.replacement == Replacement::Without {
                left[token] = 0.0;
            }
        }
        self.drawn[node] = Some(Drawn { q, children });
        self.drawn.resize(self.tree.len(), None);
        Ok(first..self.tree.len())
    }

    /// The nodes, for masks, forward passes and rules that do not read `q`.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// The same draws in a larger vocabulary: token `i` becomes `to[i]`, and `q` is zero at tokens that `to` lacks.
    ///
    /// # Panics
    /// If `to` names a token twice or one beyond the vocabulary, or is not as long as `q`.
    pub fn widened(&self, to: &[u32], vocabulary: usize) -> Self {
        let mut seen = vec![false; vocabulary];
        assert!(to.iter().all(|&t| !std::mem::replace(&mut seen[t as usize], true)), "two entries for one token");
        let widen = |drawn: &Drawn| {
            assert_eq!(drawn.q.len(), to.len(), "an entry for every token");
            let mut q = vec![0.0; vocabulary];
            to.iter().zip(&drawn.q).for_each(|(&token, &mass)| q[token as usize] = mass);
            Drawn { q, children: drawn.children.clone() }
        };
        Self {
            tree: self.tree.renamed(|token| to[token as usize]),
            replacement: self.replacement,
            drawn: self.drawn.iter().map(|drawn| drawn.as_ref().map(widen)).collect(),
            draws: self.draws,
        }
    }

    /// How siblings were drawn.
    pub fn replacement(&self) -> Replacement {
        self.replacement
    }

    /// The draft distribution at a node and its children in the order drawn; `None` for a node never extended.
    pub fn drawn(&self, node: usize) -> Option<(&[f64], &[usize])> {
        self.drawn[node].as_ref().map(|drawn| (&drawn.q[..], &drawn.children[..]))
    }
}
