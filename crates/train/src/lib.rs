//! The training loop: batches, optimiser, schedule, clipping, metrics.

mod batches;
mod clip;
mod metrics;
mod schedule;
mod trainer;

pub use batches::Batches;
pub use clip::clip_global_norm;
pub use metrics::{JsonLines, MetricSink, Record};
pub use schedule::Schedule;
pub use trainer::{TrainConfig, TrainError, Trainer, Update};
