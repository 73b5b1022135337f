//! The processors that a command sets besides the temperature.

use crate::exit::{Blame, Failure};
use anyhow::anyhow;
use clap::Args;
use spectrain_core::process::Processors;

/// What `eval` and `chat` take. An option that is not given is as in the checkpoint's recipe.
#[derive(Debug, Clone, Args)]
pub struct SamplingArgs {
    /// Keep only the fewest most probable tokens whose mass reaches this; 1 is off
    #[arg(long, value_name = "P")]
    pub top_p: Option<f64>,
    /// Keep only so many most probable tokens; 0 is off
    #[arg(long, value_name = "K")]
    pub top_k: Option<usize>,
    /// Keep only tokens of this share of the largest probability or more; 0 is off
    #[arg(long, value_name = "P")]
    pub min_p: Option<f64>,
    /// Divide positive logits of tokens in prompt or answer by this, and multiply negative ones; 1 is off
    #[arg(long, value_name = "R", allow_negative_numbers = true)]
    pub repetition_penalty: Option<f64>,
    /// Take this off a logit for every time that its token stands in the answer; 0 is off
    #[arg(long, value_name = "F", allow_negative_numbers = true)]
    pub frequency_penalty: Option<f64>,
    /// Take this off the logits of tokens that stand in the answer; 0 is off
    #[arg(long, value_name = "F", allow_negative_numbers = true)]
    pub presence_penalty: Option<f64>,
    /// Answer tokens before an end token is allowed; 0 is off
    #[arg(long, value_name = "N")]
    pub min_length: Option<usize>,
}

impl SamplingArgs {
    /// The settings of `base` with what was given here in their place, refused where one is outside its range.
    pub fn over(&self, base: Processors) -> Result<Processors, Failure> {
        let found = Processors {
            repetition_penalty: self.repetition_penalty.unwrap_or(base.repetition_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(base.frequency_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(base.presence_penalty),
            min_length: self.min_length.unwrap_or(base.min_length),
            top_k: self.top_k.unwrap_or(base.top_k),
            top_p: self.top_p.unwrap_or(base.top_p),
            min_p: self.min_p.unwrap_or(base.min_p),
            ..base
        };
        found.validate().request()?;
        Ok(found)
    }
}

/// Refuses `sampling` beside `option`, which knows a temperature only.
pub fn temperature_only(sampling: &Processors, option: &str) -> Result<(), Failure> {
    match sampling.temperature_only() {
        true => Ok(()),
        false => {
            let set: Vec<String> = sampling.named().into_keys().collect();
            Err(anyhow!("{option} knows a temperature only, and {} is set", set.join(", "))).request()
        }
    }
}
