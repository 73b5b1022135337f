//! The training loop: batches, optimiser, schedule, clipping, metrics.

mod batches;
mod clip;
mod config;
mod gradients;
mod metrics;
mod optimiser;
mod plan;
mod schedule;
pub mod snapshot;
mod supervision;
mod tensorboard;
mod trainer;
mod window;

pub use batches::Batches;
pub use clip::clip_global_norm;
pub use config::TrainConfig;
pub use gradients::StepGradients;
pub use metrics::{JsonLines, MetricSink, Record, peak_memory_mib, read_records};
pub use optimiser::{MatrixUpdate, OptimiserConfig};
pub use schedule::Schedule;
pub use snapshot::Snapshot;
pub use supervision::supervise_prompts;
pub use tensorboard::TensorBoard;
pub use trainer::{Due, Start, TrainError, Trainer, Update};
