//! The runtime: a drafter proposes, one target pass judges, and what was accepted is committed; then the figures.

mod count;
mod engine;
pub mod evaluate;
pub mod judge;
pub mod length;
pub mod offline;
pub mod plain;
pub mod plan;
pub mod profile;
pub mod reconcile;

pub use engine::{Committed, Cost, Room, RunError, SpeculativeDecoder, Times, TooLarge, Transcript};
pub use evaluate::{Measurement, Settings, acceptance_by_rank, evaluate};
pub use length::{Fixed, LengthPolicy, PolicyKind};
pub use plain::{PlainRun, plain};
pub use spectrain_core::evaluation::Evaluation;
