//! The verdict on one drafted chain or tree, from the target's logits.

use rayon::prelude::*;
use spectrain_core::process::RowError;
use spectrain_core::rules::{Draws, Proposal, Proposals, Rule, RuleError, Verdict, ZeroResidual};
use spectrain_core::rules::{block, greedy, sampled_match, sequoia, specinfer, token, traversal};
use spectrain_core::tree::{SampledTree, Tree};
use spectrain_draft::proposer::{Draft, Pick};
use spectrain_model::Prefix;

/// What a rule needs to judge one request's round.
pub struct Round<'a> {
    /// The proposal behind the newest committed token, in target tokens.
    pub tree: &'a Tree,
    /// How it was drafted.
    pub draft: &'a Draft,
    /// Target token of every draft vocabulary entry.
    pub d2t: &'a [u32],
    /// Target logits after each node of the tree, `[nodes, vocabulary]`.
    pub logits: &'a [f32],
    /// Entries of the vocabulary.
    pub vocabulary: usize,
    /// The committed text with the request's processors and the address of its draws.
    pub prefix: Prefix<'a>,
}

/// Judges a round. The decoder takes it as a value so that tests can plant a wrong one.
pub type Judge = JudgeOf<'static>;

/// A judge that borrows.
pub type JudgeOf<'a> = dyn Fn(&Round) -> Result<Verdict, RuleError> + Sync + 'a;

impl<'a> Round<'a> {
    /// Absolute position of the root.
    pub fn position(&self) -> usize {
        self.tree.positions()[0]
    }

    /// Target logits after a node.
    pub fn row(&self, node: usize) -> &[f32] {
        &self.logits[node * self.vocabulary..(node + 1) * self.vocabulary]
    }

    /// The target's distribution after a node, in view of the node's own path; zeros where no token may follow.
    ///
    /// # Errors
    /// [`RowError`] for logits that make no distribution.
    pub fn p(&self, node: usize) -> Result<Vec<f64>, RowError> {
        self.prefix.distribution(self.row(node), &self.tree.path_tokens(node))
    }

    /// The target's most likely token after a node, in view of the node's own path.
    ///
    /// # Errors
    /// As [`Self::p`].
    pub fn best(&self, node: usize) -> Result<Option<u32>, RowError> {
        self.prefix.best(self.row(node), &self.tree.path_tokens(node))
    }

    /// The target's distributions after all nodes.
    ///
    /// # Errors
    /// As [`Self::p`].
    pub fn target(&self) -> Result<Vec<Vec<f64>>, RowError> {
        (0..self.tree.len()).into_par_iter().map(|node| self.p(node)).collect()
    }

    /// The distribution drafted token `i` of a chain was drawn from, over the target's vocabulary.
    pub fn q(&self, i: usize) -> Vec<f64> {
        let mut wide = vec![0.0; self.vocabulary];
        self.d2t.iter().zip(&self.draft.q[i]).for_each(|(&token, &mass)| wide[token as usize] = mass);
        wide
    }

    /// The round's draws.
    pub fn chance(&self) -> Draws<'a> {
        self.prefix.chance()
    }

    /// The drawn tree over the target's vocabulary.
    ///
    /// # Errors
    /// [`RuleError::Sampling`] if the proposal was not drawn as a tree.
    pub fn sampled(&self, rule: Rule) -> Result<SampledTree, RuleError> {
        let needed = if rule.proposals() == Proposals::WithReplacement { "with" } else { "without" };
        let drawn = self.draft.drawn.as_ref().ok_or(RuleError::Sampling { rule, needed })?;
        Ok(drawn.widened(self.d2t, self.vocabulary))
    }

    /// Hands a chain rule what it reads: how each token was picked, the target's rows, the draws.
    fn chain(
        &self,
        rule: Rule,
        verify: impl FnOnce(&[Proposal], &[Vec<f64>], &mut Draws) -> Result<Verdict, RuleError>,
    ) -> Result<Verdict, RuleError> {
        if self.draft.parents.is_some() {
            return Err(RuleError::Chain { rule });
        }
        let wide: Vec<Vec<f64>> = (0..self.draft.q.len()).map(|i| self.q(i)).collect();
        let proposals: Vec<Proposal> = match wide.is_empty() {
            true => vec![Proposal::Point; self.draft.tokens.len()],
            false => wide.iter().map(|q| Proposal::Sampled(q)).collect(),
        };
        verify(&proposals, &self.target()?, &mut self.chance())
    }
}

/// The judge of `rule`, or `None` for the approximate rules.
pub fn judge(rule: Rule) -> Option<&'static Judge> {
    match rule {
        Rule::Greedy => Some(&greedy_rule),
        Rule::SampledMatch => Some(&sampled_match_rule),
        Rule::Token => Some(&token_rule),
        Rule::Block => Some(&block_rule),
        Rule::SpecInfer => Some(&|round| {
            specinfer::verify(&round.sampled(Rule::SpecInfer)?, &round.target()?, FALL_BACK, &mut round.chance())
        }),
        Rule::Sequoia => Some(&|round| {
            sequoia::verify(&round.sampled(Rule::Sequoia)?, &round.target()?, FALL_BACK, &mut round.chance())
        }),
        Rule::Traversal => Some(&|round| {
            traversal::verify(&round.sampled(Rule::Traversal)?, &round.target()?, FALL_BACK, &mut round.chance())
        }),
        Rule::Typical | Rule::Threshold => None,
    }
}

/// What a rejection without residual mass falls back to, counted in the transcripts.
const FALL_BACK: ZeroResidual = ZeroResidual::FallBack;

/// How the tokens of chains that `rule` judges are to be picked: rules that read the drafter's distribution need draws
/// from it.
pub fn pick(rule: Rule) -> Pick {
    match rule {
        Rule::Token | Rule::Block => Pick::Sample,
        _ => Pick::Argmax,
    }
}

fn greedy_rule(round: &Round) -> Result<Verdict, RuleError> {
    Ok(greedy::walk(round.tree, |node| round.best(node))?)
}

fn sampled_match_rule(round: &Round) -> Result<Verdict, RuleError> {
    sampled_match::verify_rows(round.tree, |node| Ok(round.p(node)?), &mut round.chance())
}

fn token_rule(round: &Round) -> Result<Verdict, RuleError> {
    round.chain(Rule::Token, |proposals, target, chance| {
        token::verify(&round.draft.tokens, proposals, target, FALL_BACK, chance)
    })
}

fn block_rule(round: &Round) -> Result<Verdict, RuleError> {
    round.chain(Rule::Block, |proposals, target, chance| {
        block::verify(&round.draft.tokens, proposals, target, FALL_BACK, chance)
    })
}
