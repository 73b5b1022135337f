//! Medusa's typical acceptance: keep what the target finds plausible enough. **Not** a sampling scheme: the committed
//! text follows neither the target's law nor greedy decoding, and raising the temperature lengthens acceptance.
//!
//! Cai et al., "Medusa", 2024. Guarantee: `approximate`.

use super::residual::draw_target;
use super::{Ask, Chance, RuleError, Verdict, check_rows};
use crate::rng::Purpose;
use crate::rules::greedy::argmax;
use crate::tree::Tree;

/// Added to probabilities before their logarithm is taken.
const LOG_FLOOR: f64 = 1e-5;

/// The token after the accepted path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Extra {
    /// The target's argmax (Medusa's "fast" mode).
    #[default]
    Argmax,
    /// Drawn from the target restricted to its typical tokens.
    Typical,
}

/// Parameters of the typical rule; the defaults are those of Medusa's inference code.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Typical {
    /// Hard bound: a token above it is always kept.
    pub epsilon: f64,
    /// Factor of the entropy-dependent bound.
    pub delta: f64,
    /// The token after the path.
    pub extra: Extra,
}

impl Default for Typical {
    fn default() -> Self {
        Self { epsilon: 0.09, delta: 0.3, extra: Extra::Argmax }
    }
}

impl Typical {
    /// The probability a token must exceed: `min(epsilon, delta · exp(-H(p)))`, H in nats.
    pub fn bound(&self, p: &[f64]) -> f64 {
        let entropy: f64 = p.iter().map(|&p| -p * (p + LOG_FLOOR).ln()).sum();
        self.epsilon.min(self.delta * (-entropy).exp())
    }

    /// Judges any tree: the longest path of kept tokens wins, ties by the larger sum of log p, then by node order.
    ///
    /// `target[node]` is `p` after the path to `node`, one row per node.
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
        let last = self.longest(tree, target);
        let path = tree.path(last)[1..].to_vec();
        let tokens = tree.path_tokens(last);
        let next = self.extra_token(target[last].as_ref(), last, tree.depth(last), chance)?;
        Ok(Verdict { path, tokens, next, fallbacks: 0 })
    }

    /// The last node of the winning path.
    fn longest<R: AsRef<[f64]>>(&self, tree: &Tree, target: &[R]) -> usize {
        let mut bounds = vec![None; tree.len()];
        let mut likelihood = vec![None; tree.len()];
        likelihood[0] = Some(0.0);
        let mut best = (0, 0.0, 0);
        for node in 1..tree.len() {
            let parent = tree.parent(node).expect("only the root has no parent");
            let Some(so_far) = likelihood[parent] else { continue };
            let p = target[parent].as_ref();
            let bound = *bounds[parent].get_or_insert_with(|| self.bound(p));
            let mass = p[tree.token(node) as usize];
            if mass > bound {
                let sum: f64 = so_far + mass.ln();
                likelihood[node] = Some(sum);
                if tree.depth(node) > best.0 || (tree.depth(node) == best.0 && sum > best.1) {
                    best = (tree.depth(node), sum, node);
                }
            }
        }
        best.2
    }

    fn extra_token(
        &self,
        p: &[f64],
        node: usize,
        depth: usize,
        chance: &mut impl Chance,
    ) -> Result<Option<u32>, RuleError> {
        let choice = argmax(p).filter(|&token| p[token as usize] > 0.0);
        let bound = self.bound(p);
        let mut typical: Vec<f64> = p.iter().map(|&mass| if mass > bound { mass } else { 0.0 }).collect();
        let mass: f64 = typical.iter().sum();
        if self.extra == Extra::Argmax || mass <= 0.0 {
            return Ok(choice);
        }
        typical.iter_mut().for_each(|entry| *entry /= mass);
        draw_target(&typical, node, Ask { depth, purpose: Purpose::Target, index: 0 }, chance)
    }
}
