//! Where figures go. `metrics.jsonl` is the source of truth; other sinks show the same records.

use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// Figures of some optimiser steps, of one validation, or of one measurement in the verifier.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
        /// Loss of each unroll step, unweighted.
        loss_step: Vec<f64>,
        /// Teacher-forced chance of acceptance of each unroll step under the declared verifier: a proxy, not a
        /// measurement.
        alpha_step: Vec<f64>,
        /// Mean teacher-forced chance of acceptance under each of `loss.policies`, where there are several.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        alpha_policy: Vec<f64>,
        /// Learning rate.
        learning_rate: f64,
        /// Norm of all gradients before clipping.
        gradient_norm: f64,
        /// Supervised tokens per second since the last record.
        tokens_per_second: f64,
        /// Largest resident memory of the process so far, MiB; `None` where the system does not say.
        memory_mib: Option<f64>,
    },
    /// Instead of an optimiser step that was not taken.
    Skipped {
        /// Optimiser steps, this one among them.
        step: usize,
        /// Weighted loss per supervised token, nats.
        loss: f64,
        /// Median loss of the steps before.
        median: f64,
        /// Requests in the step's batches.
        requests: Vec<u64>,
    },
    /// On the held-out conversations.
    Validation {
        /// Optimiser steps taken.
        step: usize,
        /// Weighted loss per supervised token, nats.
        loss: f64,
        /// Loss of each unroll step.
        loss_step: Vec<f64>,
        /// Teacher-forced chance of acceptance of each unroll step.
        alpha_step: Vec<f64>,
        /// Mean teacher-forced chance of acceptance under each of `loss.policies`, where there are several.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        alpha_policy: Vec<f64>,
        /// Expected committed tokens per target call along the answers, by round: a measurement without decoding.
        /// `None` where it is not made.
        #[serde(default)]
        expected_length: Option<f64>,
        /// Whether the training loss fell since the validation before and the expected length with it.
        #[serde(default)]
        over_training: bool,
    },
    /// On traced requests of one temperature.
    Traced {
        /// Optimiser steps taken; 0 for the drafter that was at work in the server.
        step: usize,
        /// Accepted tokens a round.
        #[serde(flatten)]
        sides: TracedSides,
    },
    /// In the exact verifier, on prompts outside the training set.
    Measured {
        /// Optimiser steps the drafter had taken.
        step: usize,
        /// Sampling temperature.
        temperature: f64,
        /// Drafted tokens a round.
        length: usize,
        /// Committed tokens per target call.
        tokens_per_target_call: f64,
        /// Probability that the first k drafted tokens are all accepted, k from 1.
        accept_prefix: Vec<f64>,
        /// Probability that token k is accepted when all before it were, k from 1; it ends where no round got that far.
        accept_cond: Vec<f64>,
    },
}

/// Both estimates of the accepted tokens a round on traced requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TracedSides {
    /// Whether the drafts' side is what the server's drafter did, and not what the weights at hand would.
    pub served: bool,
    /// Sampling temperature of the requests.
    pub temperature: f64,
    /// Rounds.
    pub rounds: usize,
    /// Accepted tokens a round along the text.
    pub text: f64,
    /// Accepted tokens a round along the drafts.
    pub draft: f64,
    /// Least and largest that the latter can be by the stored masses.
    pub draft_bounds: [f64; 2],
    /// The text's side less the drafts', a 95 % interval by prompt.
    pub difference: [f64; 2],
    /// Whether the two differ beyond noise and rounding.
    pub differ: bool,
}

impl Record {
    /// Optimiser steps taken.
    pub fn step(&self) -> usize {
        match self {
            Self::Step { step, .. }
            | Self::Skipped { step, .. }
            | Self::Validation { step, .. }
            | Self::Traced { step, .. }
            | Self::Measured { step, .. } => *step,
        }
    }
}

/// A place for records.
pub trait MetricSink {
    /// Takes a record.
    ///
    /// # Errors
    /// When it cannot be stored.
    fn record(&mut self, record: &Record) -> io::Result<()>;
}

/// Every sink of a list gets every record.
impl MetricSink for Vec<Box<dyn MetricSink>> {
    fn record(&mut self, record: &Record) -> io::Result<()> {
        self.iter_mut().try_for_each(|sink| sink.record(record))
    }
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

    /// Writes behind what the file at `path` holds.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn append(path: &Path) -> io::Result<Self> {
        Ok(Self(File::options().create(true).append(true).open(path)?))
    }

    /// Goes on in the file at `path` after the records of step `step`; later ones are dropped, and so is a last line
    /// that was cut off. A file that is not there is started.
    ///
    /// # Errors
    /// When the file cannot be read or written.
    pub fn resume(path: &Path, step: usize) -> io::Result<Self> {
        let text = text(path)?;
        let early = |line: &&str| {
            let record: Option<Record> = serde_json::from_str(line).ok();
            record.is_some_and(|r| r.step() <= step && !matches!(r, Record::Measured { .. }))
        };
        let kept: usize = text.split_inclusive('\n').take_while(early).map(str::len).sum();
        let lines = Self::append(path)?;
        lines.0.set_len(kept as u64)?;
        Ok(lines)
    }
}

/// The records in the file at `path`, none if there is no file.
///
/// # Errors
/// When the file cannot be read or a line is no record.
pub fn read_records(path: &Path) -> io::Result<Vec<Record>> {
    text(path)?.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}

fn text(path: &Path) -> io::Result<String> {
    match std::fs::read_to_string(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        read => read,
    }
}

/// Largest resident memory of this process so far, MiB, where the system says so.
pub fn peak_memory_mib() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib / 1024.0)
}

impl MetricSink for JsonLines {
    fn record(&mut self, record: &Record) -> io::Result<()> {
        writeln!(self.0, "{}", serde_json::to_string(record)?)
    }
}
