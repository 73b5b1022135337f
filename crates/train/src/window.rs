//! Sums over a few optimiser steps, from which a record's means are taken.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use spectrain_draft::StepLoss;
use std::time::Instant;

/// Sums since the last record.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Window {
    #[serde(serialize_with = "to_bits", deserialize_with = "from_bits")]
    pub sums: Vec<StepLoss>,
    pub tokens: usize,
    /// When the window was opened; a resumed one counts the time since.
    #[serde(skip, default = "Instant::now")]
    pub start: Instant,
}

impl Window {
    pub fn new(unroll: usize) -> Self {
        Self { sums: vec![StepLoss::default(); unroll], tokens: 0, start: Instant::now() }
    }

    pub fn add(&mut self, sums: &[StepLoss], tokens: usize) {
        self.sums.iter_mut().zip(sums).for_each(|(a, b)| a.add(b));
        self.tokens += tokens;
    }

    /// Mean over the rows of each unroll step.
    pub fn means(&self, what: impl Fn(&StepLoss) -> f64) -> Vec<f64> {
        self.sums.iter().map(|s| what(s) / s.rows.max(1) as f64).collect()
    }
}

fn to_bits<S: Serializer>(sums: &[StepLoss], serializer: S) -> Result<S::Ok, S::Error> {
    let bits: Vec<_> = sums.iter().map(|s| (s.loss.to_bits(), s.accepted.to_bits(), s.rows)).collect();
    bits.serialize(serializer)
}

fn from_bits<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<StepLoss>, D::Error> {
    let bits = Vec::<(u64, u64, usize)>::deserialize(deserializer)?;
    let sums = bits.into_iter();
    Ok(sums
        .map(|(loss, accepted, rows)| StepLoss { loss: f64::from_bits(loss), accepted: f64::from_bits(accepted), rows })
        .collect())
}
