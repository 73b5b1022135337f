//! The training loop: batches, optimiser, schedule, clipping, metrics.

mod anchor;
mod batches;
mod bits;
mod clip;
mod config;
mod ema;
mod error;
mod gradients;
mod guard;
mod metrics;
mod optimiser;
mod plan;
mod schedule;
mod selection;
pub mod snapshot;
mod state;
mod supervision;
mod tensorboard;
mod trainer;
mod validation;
mod window;

pub use anchor::Anchor;
pub use batches::Batches;
pub use clip::clip_global_norm;
pub use config::TrainConfig;
pub use error::{TrainError, named};
pub use gradients::StepGradients;
pub use metrics::{JsonLines, MetricSink, Record, TracedSides, peak_memory_mib, read_records};
pub use optimiser::{MatrixUpdate, OptimiserConfig};
pub use schedule::Schedule;
pub use snapshot::Snapshot;
pub use supervision::supervise_prompts;
pub use tensorboard::TensorBoard;
pub use trainer::{Due, Skipped, Start, Trainer, Update};
pub use validation::{Measure, Measured, Validated};
