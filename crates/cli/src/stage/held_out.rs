//! Expected acceptance on the held-out answers while the drafter is trained: which checkpoint is kept.
//!
//! The answers are the target's own, each at the temperature it was written at, so every round that the declared
//! verifier would make of them has a known probability ([`spectrain_verify::offline`]), and no decoding is needed.

use super::setup::Setup;
use spectrain_core::recipe::Recipe;
use spectrain_core::rules::Rule;
use spectrain_core::stats::Ratio;
use spectrain_core::stats::bootstrap::ratio_of_sums;
use spectrain_data::store::FeatureRow;
use spectrain_draft::{Eagle3, Eagle3Drafter};
use spectrain_verify::offline::{Chains, Offline};

/// Held-out answers with what measures drafters on them.
pub struct HeldOut<'a> {
    setup: &'a Setup,
    drafter: &'a Eagle3Drafter,
    /// Answers by temperature.
    answers: Vec<(Chains, Vec<FeatureRow>)>,
    /// Drafted tokens a round: as many as the training unrolls, so that what is kept does not depend on what is
    /// evaluated later.
    length: usize,
}

impl<'a> HeldOut<'a> {
    /// The held-out answers that the declared verifier's rounds follow from; `None`, said aloud, where there are none.
    pub fn new(
        setup: &'a Setup,
        recipe: &Recipe,
        drafter: &'a Eagle3Drafter,
        rows: &[FeatureRow],
        held_out: &[usize],
    ) -> Option<Self> {
        let greedy = recipe.verifier.rule.at(recipe.verifier.temperature) == Rule::Greedy;
        // The block rule's rounds do not follow from the text; it accepts at least what the token rule accepts.
        let rule = if recipe.verifier.rule == Rule::Block { Rule::Token } else { recipe.verifier.rule };
        let mut answers: Vec<(Chains, Vec<FeatureRow>)> = Vec::new();
        let told = |row: &&FeatureRow| !row.off_policy && is_answer(row) && (!greedy || row.temperature == 0.0);
        for row in held_out.iter().map(|&i| &rows[i]).filter(told) {
            let Ok(chains) = Chains::of(rule, f64::from(row.temperature)) else { continue };
            match answers.iter_mut().find(|(c, _)| *c == chains) {
                Some((_, group)) => group.push(row.clone()),
                None => answers.push((chains, vec![row.clone()])),
            }
        }
        if !answers.is_empty() {
            return Some(Self { setup, drafter, answers, length: recipe.loss.unroll });
        }
        if !held_out.is_empty() {
            eprintln!("train: no held-out answer tells of {rule} rounds, so the last checkpoint will be kept");
        }
        None
    }

    /// Expected committed tokens per target call of `weights`, over all answers together.
    pub fn measure(&self, weights: &Eagle3) -> Result<f64, String> {
        Ok(ratio_of_sums(self.rounds(weights)?.iter().map(|(_, rounds)| rounds)))
    }

    /// Prompt, and tokens over expected rounds, of every answer under `weights`.
    pub fn rounds(&self, weights: &Eagle3) -> Result<Vec<(Vec<u32>, Ratio)>, String> {
        let mut rounds = Vec::new();
        let (target, drafter) = (&self.setup.target, &self.drafter.serving(weights));
        for (chains, rows) in &self.answers {
            let offline = Offline { target, drafter, weights, chains: *chains, longest: self.length };
            for answer in offline.score(rows).map_err(|e| e.to_string())? {
                let found = answer.renewal(self.length).map_err(|e| e.to_string())?.all_rounds;
                rounds.push((answer.prompt, found));
            }
        }
        Ok(rounds)
    }
}

/// Whether the supervised tokens of `row` are one answer of two tokens or more behind a prompt.
fn is_answer(row: &FeatureRow) -> bool {
    let first = row.loss_mask.iter().position(|&m| m).unwrap_or(0);
    first > 0 && row.loss_mask.len() > first + 1 && row.loss_mask[first..].iter().all(|&m| m)
}
