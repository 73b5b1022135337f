//! The records as TensorBoard shows them.
//!
//! Written through `tensorboard-rs`, whose traps decide the shape of this file: its file name holds the second, so that
//! two writers in one directory could destroy each other's file (there is one, made after the directory was emptied);
//! it writes in a thread of its own that can only panic (the directory is tried first); values are f32.
//! `metrics.jsonl` is the source of truth: a resumed run writes its earlier records again.

use crate::{MetricSink, Record, TracedSides};
use std::fs;
use std::io;
use std::path::Path;
use tensorboard_rs::summary_writer::SummaryWriter;

/// An event file.
pub struct TensorBoard(SummaryWriter);

impl TensorBoard {
    /// Starts an event file in `dir`, which loses what it held, with the records of an earlier part of the run.
    ///
    /// # Errors
    /// When the directory cannot be emptied or written.
    pub fn create(dir: &Path, earlier: &[Record]) -> io::Result<Self> {
        match fs::remove_dir_all(dir) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => fs::create_dir_all(dir)?,
        }
        let probe = dir.join(".writable");
        fs::write(&probe, b"").and_then(|()| fs::remove_file(&probe))?;
        let mut board = Self(SummaryWriter::new(dir));
        earlier.iter().try_for_each(|record| board.record(record))?;
        Ok(board)
    }

    fn scalar(&mut self, tag: &str, value: f64, step: usize) {
        self.0.add_scalar(tag, value as f32, step);
    }

    /// One curve for each of `values`, counted from `first`.
    fn each(&mut self, tag: &str, first: usize, values: &[f64], step: usize) {
        for (k, &value) in values.iter().enumerate() {
            self.scalar(&format!("{tag}/{}", first + k), value, step);
        }
    }
}

/// Expected tokens of a round when step k is accepted with probability `alpha[k]`, the bonus token included.
fn expected_length(alpha: &[f64]) -> f64 {
    let survival = alpha.iter().scan(1.0, |s, a| {
        *s *= a;
        Some(*s)
    });
    1.0 + survival.sum::<f64>()
}

impl MetricSink for TensorBoard {
    fn record(&mut self, record: &Record) -> io::Result<()> {
        match record {
            Record::Step {
                step,
                epoch,
                loss,
                loss_step,
                alpha_step,
                alpha_policy,
                learning_rate,
                gradient_norm,
                tokens_per_second,
                memory_mib,
            } => {
                self.scalar("train/loss", *loss, *step);
                self.each("train/loss_step", 0, loss_step, *step);
                self.each("train/acceptance_step", 0, alpha_step, *step);
                self.each("train/acceptance_policy", 0, alpha_policy, *step);
                self.scalar("train/expected_length_teacher_forced", expected_length(alpha_step), *step);
                self.scalar("train/learning_rate", *learning_rate, *step);
                self.scalar("train/gradient_norm", *gradient_norm, *step);
                self.scalar("train/epoch", *epoch, *step);
                self.scalar("speed/tokens_per_second", *tokens_per_second, *step);
                if let Some(memory) = memory_mib {
                    self.scalar("speed/peak_memory_mib", *memory, *step);
                }
            }
            Record::Skipped { step, loss, median, .. } => {
                self.scalar("train/skipped_loss", *loss, *step);
                self.scalar("train/skipped_median", *median, *step);
            }
            Record::Validation {
                step,
                loss,
                loss_step,
                alpha_step,
                alpha_policy,
                expected_length: measured,
                over_training,
            } => {
                self.scalar("validation/loss", *loss, *step);
                self.each("validation/loss_step", 0, loss_step, *step);
                self.each("validation/acceptance_step", 0, alpha_step, *step);
                self.each("validation/acceptance_policy", 0, alpha_policy, *step);
                self.scalar("validation/expected_length_teacher_forced", expected_length(alpha_step), *step);
                if let Some(measured) = measured {
                    self.scalar("validation/expected_length", *measured, *step);
                    self.scalar("validation/over_training", f64::from(u8::from(*over_training)), *step);
                }
            }
            Record::Traced { step, sides } => {
                let TracedSides { temperature, text, draft, draft_bounds, difference, .. } = sides;
                let group = format!("{}/T{temperature}", if sides.served { "served" } else { "traced" });
                for (tag, value) in [
                    ("along_text", *text),
                    ("along_drafts", *draft),
                    ("along_drafts_low", draft_bounds[0]),
                    ("along_drafts_high", draft_bounds[1]),
                    ("difference_low", difference[0]),
                    ("difference_high", difference[1]),
                ] {
                    self.scalar(&format!("{group}/{tag}"), value, *step);
                }
            }
            Record::Measured { step, temperature, length, tokens_per_target_call, accept_prefix, accept_cond } => {
                let group = format!("measured/T{temperature}_K{length}");
                self.scalar(&format!("{group}/tokens_per_target_call"), *tokens_per_target_call, *step);
                self.each(&format!("{group}/accept_prefix"), 1, accept_prefix, *step);
                self.each(&format!("{group}/accept_cond"), 1, accept_cond, *step);
            }
        }
        self.0.flush();
        Ok(())
    }
}
