//! What plain steps and rounds cost on this device.

use super::setup::Setup;
use crate::exit::{Blame, Failure};
use crate::progress::Progress;
use anyhow::anyhow;
use spectrain_core::costs::CostProfile;
use spectrain_core::rules::Rule;
use spectrain_data::prompts::Prompt;
use spectrain_verify::Bench;
use spectrain_verify::evaluate::EvaluateError;
use spectrain_verify::profile::{ProfilePlan, Profiler};

/// Times that everything is measured; what the evaluation asks about comes again between its stints.
const SWEEPS: usize = 3;
/// Rounds of each sweep.
const ROUNDS: usize = 12;

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

/// Costs under measurement.
pub struct Costs {
    profilers: Vec<Profiler>,
    prompts: Vec<Vec<u32>>,
    device: String,
}

impl Costs {
    /// Nothing measured yet; requests are taken from `prompts`.
    pub fn new(setup: &Setup, prompts: &[Prompt], plan: &CostPlan) -> Result<Self, Failure> {
        let prompts: Vec<Vec<u32>> = prompts.iter().map(|p| setup.encode(p)).collect::<Result<_, _>>()?;
        if prompts.is_empty() {
            return Err(anyhow!("--profile needs a prompt at least")).request();
        }
        let (mut lengths, mut sizes) = (plan.lengths.clone(), plan.batches.clone());
        for list in [&mut lengths, &mut sizes] {
            list.sort_unstable();
            list.dedup();
        }
        let points = plan.temperatures.iter().flat_map(|t| sizes.iter().map(move |b| (*t, *b)));
        let profiler = |(temperature, batch)| {
            let lengths = lengths.clone();
            Profiler::new(ProfilePlan { rule: plan.rule, temperature, batch, lengths, rounds: ROUNDS, seed: plan.seed })
        };
        let profilers = points.map(profiler).collect::<Result<_, _>>().work()?;
        Ok(Self { profilers, prompts, device: plan.device.clone() })
    }

    /// Measures everything, all points by turns.
    pub fn measure(&mut self, bench: &mut Bench) -> Result<(), Failure> {
        let progress = Progress::new("profile", (SWEEPS * self.profilers.len()) as u64, "sweeps");
        for _ in 0..SWEEPS {
            for profiler in &mut self.profilers {
                profiler.sweep(bench, &self.prompts).work()?;
                progress.inc(1);
            }
        }
        progress.finish();
        Ok(())
    }

    /// Measures the costs at one point once more.
    pub fn sweep(&mut self, bench: &mut Bench, temperature: f64, batch: usize) -> Result<(), EvaluateError> {
        let here = |p: &&mut Profiler| p.plan().temperature == temperature && p.plan().batch == batch;
        self.profilers.iter_mut().filter(here).try_for_each(|profiler| profiler.sweep(bench, &self.prompts))
    }

    /// What was measured.
    pub fn profile(&self) -> CostProfile {
        let prompt_tokens = self.prompts.iter().map(Vec::len).sum::<usize>() as f64 / self.prompts.len() as f64;
        CostProfile {
            device: self.device.clone(),
            dtype: "f32".to_owned(),
            context: prompt_tokens + ROUNDS as f64 / 2.0,
            prompt_tokens,
            rounds: ROUNDS * self.profilers.iter().map(Profiler::sweeps).min().unwrap_or(0),
            batches: self.profilers.iter().map(Profiler::cost).collect(),
        }
    }
}
