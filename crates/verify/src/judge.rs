//! The verdict on one drafted chain or tree, from the target's logits.

use rayon::prelude::*;
use spectrain_core::rng::Key;
use spectrain_core::rules::{Keyed, Proposal, Proposals, Rule, RuleError, Verdict, ZeroResidual};
use spectrain_core::rules::{block, greedy, keyed, sampled_match, sequoia, specinfer, token, traversal};
use spectrain_core::tree::{SampledTree, Tree};
use spectrain_draft::proposer::{Draft, Pick};
use spectrain_kernels::softmax::probabilities;
use spectrain_model::sample::argmax;

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
    /// Sampling temperature; not read by the greedy rule.
    pub temperature: f64,
    /// Address of the request's draws: its seed and request matter, position and purpose are set by the rule.
    pub key: Key,
}

/// Judges a round. The decoder takes it as a value so that tests can plant a wrong one.
pub type Judge = dyn Fn(&Round) -> Result<Verdict, RuleError> + Sync;

impl Round<'_> {
    /// Absolute position of the root.
    pub fn position(&self) -> usize {
        self.tree.positions()[0]
    }

    /// Target logits after a node.
    pub fn row(&self, node: usize) -> &[f32] {
        &self.logits[node * self.vocabulary..(node + 1) * self.vocabulary]
    }

    /// The target's distribution after a node: zeros where nothing may follow.
    pub fn p(&self, node: usize) -> Vec<f64> {
        match nothing_follows(self.row(node)) {
            true => vec![0.0; self.vocabulary],
            false => probabilities(self.row(node), self.temperature),
        }
    }

    /// The target's distributions after all nodes.
    pub fn target(&self) -> Vec<Vec<f64>> {
        (0..self.tree.len()).into_par_iter().map(|node| self.p(node)).collect()
    }

    /// The distribution drafted token `i` of a chain was drawn from, over the target's vocabulary.
    pub fn q(&self, i: usize) -> Vec<f64> {
        let mut wide = vec![0.0; self.vocabulary];
        self.d2t.iter().zip(&self.draft.q[i]).for_each(|(&token, &mass)| wide[token as usize] = mass);
        wide
    }

    /// The round's draws.
    pub fn chance(&self) -> Keyed {
        keyed(self.key.seed, self.key.request, self.position())
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
        verify: impl FnOnce(&[Proposal], &[Vec<f64>], &mut Keyed) -> Result<Verdict, RuleError>,
    ) -> Result<Verdict, RuleError> {
        if self.draft.parents.is_some() {
            return Err(RuleError::Chain { rule });
        }
        let wide: Vec<Vec<f64>> = (0..self.draft.q.len()).map(|i| self.q(i)).collect();
        let proposals: Vec<Proposal> = match wide.is_empty() {
            true => vec![Proposal::Point; self.draft.tokens.len()],
            false => wide.iter().map(|q| Proposal::Sampled(q)).collect(),
        };
        verify(&proposals, &self.target(), &mut self.chance())
    }
}

/// Whether every entry of a row is barred.
pub fn nothing_follows(logits: &[f32]) -> bool {
    logits.iter().all(|&logit| logit == f32::NEG_INFINITY)
}

/// The judge of `rule`, or `None` for the approximate rules.
pub fn judge(rule: Rule) -> Option<&'static Judge> {
    match rule {
        Rule::Greedy => Some(&greedy_rule),
        Rule::SampledMatch => Some(&sampled_match_rule),
        Rule::Token => Some(&token_rule),
        Rule::Block => Some(&block_rule),
        Rule::SpecInfer => Some(&|round| {
            specinfer::verify(&round.sampled(Rule::SpecInfer)?, &round.target(), FALL_BACK, &mut round.chance())
        }),
        Rule::Sequoia => Some(&|round| {
            sequoia::verify(&round.sampled(Rule::Sequoia)?, &round.target(), FALL_BACK, &mut round.chance())
        }),
        Rule::Traversal => Some(&|round| {
            traversal::verify(&round.sampled(Rule::Traversal)?, &round.target(), FALL_BACK, &mut round.chance())
        }),
        Rule::Typical | Rule::Threshold => None,
    }
}

/// What a rejection without residual mass falls back to, counted in the transcripts.
const FALL_BACK: ZeroResidual = ZeroResidual::FallBack;

/// How the tokens of chains that `rule` judges are to be picked: rules that read the drafter's distribution need draws
/// from it.
pub fn pick(rule: Rule, temperature: f64) -> Pick {
    match rule {
        Rule::Token | Rule::Block => Pick::Sample(temperature),
        _ => Pick::Argmax,
    }
}

fn greedy_rule(round: &Round) -> Result<Verdict, RuleError> {
    let choice = |node| Some(round.row(node)).filter(|row| !nothing_follows(row)).map(argmax);
    Ok(greedy::verify(round.tree, choice))
}

fn sampled_match_rule(round: &Round) -> Result<Verdict, RuleError> {
    sampled_match::verify_rows(round.tree, |node| round.p(node), &mut round.chance())
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
