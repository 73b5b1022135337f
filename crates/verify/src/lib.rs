//! The runtime: a drafter proposes, one target pass judges, and what was accepted is committed; then the figures.

mod engine;
pub mod evaluate;
pub mod judge;

pub use engine::{Committed, SpeculativeDecoder, Times, Transcript};
pub use evaluate::{Settings, evaluate};
pub use spectrain_core::evaluation::Evaluation;
