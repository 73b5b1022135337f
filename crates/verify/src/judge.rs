//! The verdict on one drafted chain, from the target's logits.

use spectrain_core::rng::Key;
use spectrain_core::rules::{Keyed, Proposal, Rule, RuleError, Verdict, ZeroResidual};
use spectrain_core::rules::{block, greedy, keyed, sampled_match, token};
use spectrain_core::tree::Tree;
use spectrain_draft::proposer::{Draft, Pick};
use spectrain_kernels::softmax::probabilities;
use spectrain_model::sample::argmax;

/// What a rule needs to judge one request's round.
pub struct Round<'a> {
    /// Newest committed token.
    pub root: u32,
    /// Its absolute position.
    pub position: usize,
    /// The proposal.
    pub draft: &'a Draft,
    /// Target token of every draft vocabulary entry.
    pub d2t: &'a [u32],
    /// Target logits after the root and after each drafted token, `[length + 1, vocabulary]`.
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
    /// Target logits after the root (`0`) or drafted token `depth - 1`.
    pub fn row(&self, depth: usize) -> &[f32] {
        &self.logits[depth * self.vocabulary..(depth + 1) * self.vocabulary]
    }

    /// Target distributions after the root and each drafted token.
    pub fn target(&self) -> Vec<Vec<f64>> {
        (0..=self.draft.tokens.len()).map(|depth| probabilities(self.row(depth), self.temperature)).collect()
    }

    /// The distribution drafted token `i` was drawn from, over the target's vocabulary.
    pub fn q(&self, i: usize) -> Vec<f64> {
        let mut wide = vec![0.0; self.vocabulary];
        self.d2t.iter().zip(&self.draft.q[i]).for_each(|(&token, &mass)| wide[token as usize] = mass);
        wide
    }
}

impl Round<'_> {
    /// The round's draws.
    fn chance(&self) -> Keyed {
        keyed(self.key.seed, self.key.request, self.position)
    }

    /// Hands a chain rule what it reads: how each token was picked, the target's rows, the draws.
    fn chain(
        &self,
        rule: impl FnOnce(&[Proposal], &[Vec<f64>], &mut Keyed) -> Result<Verdict, RuleError>,
    ) -> Result<Verdict, RuleError> {
        let wide: Vec<Vec<f64>> = (0..self.draft.q.len()).map(|i| self.q(i)).collect();
        let proposals: Vec<Proposal> = match wide.is_empty() {
            true => vec![Proposal::Point; self.draft.tokens.len()],
            false => wide.iter().map(|q| Proposal::Sampled(q)).collect(),
        };
        rule(&proposals, &self.target(), &mut self.chance())
    }
}

/// The judge of `rule`, or `None` where this decoder cannot run it yet.
pub fn judge(rule: Rule) -> Option<&'static Judge> {
    match rule {
        Rule::Greedy => Some(&greedy_rule),
        Rule::SampledMatch => Some(&sampled_match_rule),
        Rule::Token => Some(&token_rule),
        Rule::Block => Some(&block_rule),
        _ => None,
    }
}

/// How the tokens that `rule` judges are to be picked: rules that read the drafter's distribution need draws from it.
pub fn pick(rule: Rule, temperature: f64) -> Pick {
    match rule {
        Rule::Token | Rule::Block => Pick::Sample(temperature),
        _ => Pick::Argmax,
    }
}

fn greedy_rule(round: &Round) -> Result<Verdict, RuleError> {
    let tree = Tree::chain(round.root, round.position, &round.draft.tokens);
    Ok(greedy::verify(&tree, |node| Some(argmax(round.row(node)))))
}

fn sampled_match_rule(round: &Round) -> Result<Verdict, RuleError> {
    let tree = Tree::chain(round.root, round.position, &round.draft.tokens);
    sampled_match::verify(&tree, &round.target(), &mut round.chance())
}

fn token_rule(round: &Round) -> Result<Verdict, RuleError> {
    round.chain(|proposals, target, chance| {
        token::verify(&round.draft.tokens, proposals, target, ZeroResidual::FallBack, chance)
    })
}

fn block_rule(round: &Round) -> Result<Verdict, RuleError> {
    round.chain(|proposals, target, chance| {
        block::verify(&round.draft.tokens, proposals, target, ZeroResidual::FallBack, chance)
    })
}
