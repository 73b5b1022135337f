//! The values of `[loss]`, by themselves and beside the verifier and the drafter.

use super::check::{Fault, must, positive};
use super::tables::Drafter;
use super::{Loss, LossKind, Recipe, RowWeighting, StepWeighting, TargetUse};
use crate::loss::Policy;

pub(super) fn check_loss(recipe: &Recipe) -> Result<(), Fault> {
    let loss = &recipe.loss;
    positive("loss.temperature", loss.temperature)?;
    let decay = loss.step_decay;
    must(decay > 0.0 && decay <= 1.0, "loss.step_decay", &decay, "above 0 and at most 1")?;
    must(loss.eta.is_finite() && loss.eta >= 0.0, "loss.eta", &loss.eta, "0 or more")?;
    let feature = loss.feature_weight;
    must(feature.is_finite() && feature >= 0.0, "loss.feature_weight", &feature, "0 or more")?;
    check_processors(loss, loss.kind_for(&recipe.verifier))?;
    check_target(recipe)?;
    check_steps(loss)
}

/// What both distributions go through, and whether the loss stays finite behind it.
fn check_processors(loss: &Loss, kind: LossKind) -> Result<(), Fault> {
    let several = !loss.policies.is_empty();
    let right = "left out where loss.temperature, top_k, top_p or min_p are set: write them into each policy";
    must(!several || loss.policy().is_none(), "loss.policies", &loss.policies, right)?;
    must((0.0..=1.0).contains(&loss.top_p) && loss.top_p > 0.0, "loss.top_p", &loss.top_p, "above 0 and at most 1")?;
    must((0.0..=1.0).contains(&loss.min_p), "loss.min_p", &loss.min_p, "from 0 to 1")?;
    for policy in &loss.policies {
        policy.validate().map_err(|error| ("loss.policies", format!("holds a policy whose {error}")))?;
    }
    let all = loss.processors();
    if kind == LossKind::ExactLength && (several || all.iter().any(Policy::truncates)) {
        let right = "another kind under loss.top_k, top_p, min_p or policies: the text was sampled without them";
        return must(false, "loss.kind", &kind.to_string(), right);
    }
    let right =
        "\"lk\", \"tv\", \"jsd\" or \"e2e-tv\" under top_k, top_p or min_p: it is infinite where the kept sets differ";
    must(kind.bears_truncation() || !all.iter().any(Policy::truncates), "loss.kind", &kind.to_string(), right)
}

/// What is read of the target, and of which rows.
fn check_target(recipe: &Recipe) -> Result<(), Fault> {
    let (loss, Drafter::Eagle3(drafter)) = (&recipe.loss, &recipe.drafter);
    if loss.target == TargetUse::Ids {
        let plain = loss.processors().is_empty();
        must(
            plain,
            "loss.target",
            &loss.target,
            "\"distribution\" with processors or a temperature: a token has none",
        )?;
        let finite = loss.kind_for(&recipe.verifier) != LossKind::ReverseKl;
        must(
            finite,
            "loss.target",
            &loss.target,
            "\"distribution\" for \"reverse-kl\", which is infinite on one token",
        )?;
    }
    let fits = loss.rows == RowWeighting::All || !drafter.train_head;
    must(
        fits,
        "loss.rows",
        &"round-start",
        "\"all\" with drafter.train_head: the head's gradient is summed before rows are weighed",
    )
}

fn check_steps(loss: &Loss) -> Result<(), Fault> {
    let chain = loss.kind.is_some_and(LossKind::is_chain);
    let plain = !chain || loss.step_weights.is_none();
    must(plain, "loss.step_weights", &loss.step_weights, "left out: this kind weighs its steps itself")?;
    let fixed = !chain || loss.weighting == StepWeighting::Fixed;
    must(fixed, "loss.weighting", &loss.weighting, "\"fixed\": this kind weighs its steps itself")?;
    let Some(weights) = &loss.step_weights else {
        return Ok(());
    };
    let right = format!("one weight for each of the {} unroll steps (loss.unroll)", loss.unroll);
    must(weights.len() == loss.unroll, "loss.step_weights", weights, &right)?;
    let valid = weights.iter().all(|w| w.is_finite() && *w >= 0.0) && weights.iter().any(|w| *w > 0.0);
    must(valid, "loss.step_weights", weights, "weights of 0 or more, not all 0")
}
