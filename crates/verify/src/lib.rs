//! The runtime: a drafter proposes, one target pass judges, and what was accepted is committed; then the figures.

pub mod compare;
mod count;
mod departure;
mod engine;
pub mod evaluate;
pub mod judge;
pub mod length;
pub mod offline;
pub mod plain;
pub mod plan;
pub mod profile;
pub mod reconcile;
mod task;
pub mod traces;

pub use compare::{Bench, Comparison, compare};
pub use departure::{Departing, Departure, Point};
pub use engine::{Committed, Cost, Room, RunError, SpeculativeDecoder, Times, TooLarge, Transcript};
#[doc(hidden)]
pub use engine::{Inspector, Kept};
pub use evaluate::{Measurement, Settings, acceptance_by_rank};
pub use length::{Fixed, LengthPolicy, PolicyKind, Seen};
pub use plain::PlainRun;
pub use spectrain_core::evaluation::Evaluation;
pub use task::Task;
