//! Where figures go. `metrics.jsonl` is the source of truth; other sinks show the same records.

use serde::Serialize;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// Figures of one optimiser step, or of one validation.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Record {
    /// After an optimiser step.
    Step {
        /// Optimiser steps taken.
        step: usize,
        /// Epochs seen, with fraction.
        epoch: f64,
        /// Weighted loss per supervised token, nats.
        loss: f64,
        /// Teacher-forced overlap of each unroll step: a proxy of acceptance, not a measurement.
        alpha_step: Vec<f64>,
        /// Learning rate.
        learning_rate: f64,
        /// Norm of all gradients before clipping.
        gradient_norm: f64,
        /// Supervised tokens per second since the last record.
        tokens_per_second: f64,
    },
    /// On the held-out conversations.
    Validation {
        /// Optimiser steps taken.
        step: usize,
        /// Weighted loss per supervised token, nats.
        loss: f64,
        /// Loss of each unroll step.
        loss_step: Vec<f64>,
        /// Teacher-forced overlap of each unroll step.
        alpha_step: Vec<f64>,
    },
}

/// A place for records.
pub trait MetricSink {
    /// Takes a record.
    ///
    /// # Errors
    /// When it cannot be stored.
    fn record(&mut self, record: &Record) -> io::Result<()>;
}

/// One JSON object a line.
pub struct JsonLines(File);

impl JsonLines {
    /// Starts a new file at `path`.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn create(path: &Path) -> io::Result<Self> {
        Ok(Self(File::create(path)?))
    }
}

impl MetricSink for JsonLines {
    fn record(&mut self, record: &Record) -> io::Result<()> {
        writeln!(self.0, "{}", serde_json::to_string(record)?)
    }
}
