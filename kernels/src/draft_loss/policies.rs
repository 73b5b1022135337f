//! What processors make of logits before the loss compares them.

use super::DraftLoss;
use crate::product::Head;
use spectrain_core::loss::Policy;
use std::sync::Arc;

/// The processors of each target row; the drafter's rows that meet it have the same.
pub struct Policies {
    /// What there is to choose from.
    pub list: Vec<Policy>,
    /// Which of them each target row has.
    pub of: Vec<usize>,
    /// The target's whole head, with the target's id of every draft token; `None` where the draft vocabulary is all.
    /// Truncation, and any temperature but 1, needs the logits of all tokens.
    pub whole: Option<(Head, Arc<Vec<u32>>)>,
}

impl Policies {
    /// The policy of a target row.
    pub(super) fn at(&self, target: usize) -> &Policy {
        &self.list[self.of[target]]
    }

    /// Logits that the whole head gives beside those of the draft vocabulary.
    pub(super) fn more_words(&self) -> usize {
        self.whole.as_ref().map_or(0, |(head, _)| head.rows().dims()[0])
    }
}

/// Divides `row` by the temperature, counted from its largest logit so that nothing is lost where the mass is, and sets
/// what does not stay to -inf. A row that holds what is no number stays as it is: the loss will tell.
pub(super) fn shape(policy: &Policy, row: &mut [f32], kept: &mut Vec<f64>) {
    if policy.truncates() {
        if policy.keep(row.iter().map(|&x| f64::from(x)), kept).is_err() {
            return;
        }
        let left_out = row.iter_mut().zip(kept).filter(|(_, mass)| **mass == 0.0);
        left_out.for_each(|(logit, _)| *logit = f32::NEG_INFINITY);
    }
    let top = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if top.is_finite() {
        let (top, scale) = (f64::from(top), 1.0 / policy.temperature);
        row.iter_mut().for_each(|logit| *logit = ((f64::from(*logit) - top) * scale) as f32);
    }
}

/// Shapes a row of the drafter that meets the shaped target row `target`; returns whether they share a token.
///
/// Where they do not, `-ln α` has neither value nor gradient, and the drafter's whole distribution is read in its place
/// (`spectrain_core::loss::Loss::evaluate_under`).
pub(super) fn shape_draft(
    policy: &Policy,
    loss: DraftLoss,
    row: &mut [f32],
    target: &[f32],
    kept: &mut Vec<f64>,
    spare: &mut Vec<f32>,
) -> bool {
    if !policy.truncates() {
        shape(policy, row, kept);
        return true;
    }
    spare.clear();
    spare.extend_from_slice(row);
    shape(policy, row, kept);
    let meet = row.iter().zip(target).any(|(z, t)| *z > f32::NEG_INFINITY && *t > f32::NEG_INFINITY);
    if !meet && loss == DraftLoss::Lk {
        row.copy_from_slice(spare);
        shape(&Policy::at(policy.temperature), row, kept);
    }
    meet
}
