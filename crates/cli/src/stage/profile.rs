//! What plain steps and rounds cost on this device.

use super::setup::Setup;
use crate::exit::{Blame, Failure};
use crate::progress::Progress;
use anyhow::anyhow;
use spectrain_core::costs::CostProfile;
use spectrain_core::rules::Rule;
use spectrain_data::prompts::Prompt;
use spectrain_draft::Checkpoint;
use spectrain_verify::profile::{ProfilePlan, profile as measure};

/// Times that everything is measured, in turn.
const SWEEPS: usize = 3;
/// Rounds of each sweep.
const ROUNDS: usize = 6;

/// What is measured.
pub struct CostPlan {
    /// Rule at temperatures above zero.
    pub rule: Rule,
    /// Temperatures.
    pub temperatures: Vec<f64>,
    /// Requests at once.
    pub batches: Vec<usize>,
    /// Draft lengths.
    pub lengths: Vec<usize>,
    /// Seed of the draws.
    pub seed: u64,
    /// Device name.
    pub device: String,
}

/// Measures the costs of `checkpoint` on `prompts`.
pub fn profile(
    setup: &Setup,
    checkpoint: &Checkpoint,
    prompts: &[Prompt],
    plan: &CostPlan,
) -> Result<CostProfile, Failure> {
    let encoded: Vec<Vec<u32>> = prompts.iter().map(|p| setup.encode(p)).collect::<Result<_, _>>()?;
    if encoded.is_empty() {
        return Err(anyhow!("--profile needs a prompt at least")).request();
    }
    let mut proposer = checkpoint.proposer(&setup.target).request()?;
    let (mut lengths, mut sizes) = (plan.lengths.clone(), plan.batches.clone());
    for list in [&mut lengths, &mut sizes] {
        list.sort_unstable();
        list.dedup();
    }
    let runs = plan.temperatures.len() * sizes.len() * SWEEPS * (lengths.len() + 1);
    let progress = Progress::new("profile", runs as u64, "runs");
    let mut batches = Vec::new();
    for (&temperature, &batch) in plan.temperatures.iter().flat_map(|t| sizes.iter().map(move |b| (t, b))) {
        let plan = ProfilePlan {
            rule: plan.rule,
            temperature,
            batch,
            lengths: lengths.clone(),
            sweeps: SWEEPS,
            rounds: ROUNDS,
            seed: plan.seed,
        };
        batches.push(measure(&setup.target, proposer.as_mut(), &encoded, &plan, || progress.inc(1)).work()?);
    }
    progress.finish();
    let prompt_tokens = encoded.iter().map(Vec::len).sum::<usize>() as f64 / encoded.len() as f64;
    Ok(CostProfile {
        device: plan.device.clone(),
        dtype: "f32".to_owned(),
        context: prompt_tokens + ROUNDS as f64 / 2.0,
        prompt_tokens,
        rounds: SWEEPS * ROUNDS,
        batches,
    })
}
