//! Sums over a few optimiser steps, from which a record's means are taken.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use spectrain_draft::{PolicyShare, StepLoss};
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

    /// Mean chance of acceptance of each policy, over all unroll steps.
    pub fn of_policies(&self) -> Vec<f64> {
        let mut sum = StepLoss::default();
        self.sums.iter().for_each(|step| sum.add(step));
        sum.policies.iter().map(|p| p.accepted / p.rows.max(1) as f64).collect()
    }
}

/// A step's sums: loss and acceptance as bits, rows, and acceptance and rows by policy.
type Stored = (u64, u64, usize, Vec<(u64, usize)>);

fn to_bits<S: Serializer>(sums: &[StepLoss], serializer: S) -> Result<S::Ok, S::Error> {
    let stored = |s: &StepLoss| -> Stored {
        let policies = s.policies.iter().map(|p| (p.accepted.to_bits(), p.rows)).collect();
        (s.loss.to_bits(), s.accepted.to_bits(), s.rows, policies)
    };
    sums.iter().map(stored).collect::<Vec<_>>().serialize(serializer)
}

fn from_bits<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<StepLoss>, D::Error> {
    let step = |(loss, accepted, rows, policies): Stored| {
        let share = |(accepted, rows)| PolicyShare { accepted: f64::from_bits(accepted), rows };
        let policies = policies.into_iter().map(share).collect();
        StepLoss { loss: f64::from_bits(loss), accepted: f64::from_bits(accepted), rows, policies }
    };
    Ok(Vec::<Stored>::deserialize(deserializer)?.into_iter().map(step).collect())
}
