//! Drafters in Burn: one module a kind, the same code in training and at run time.

pub mod batch;
pub mod checkpoint;
mod drawing;
mod dropout;
pub mod eagle3;
pub mod export;
mod feature_noise;
mod growing;
mod numbered;
pub mod objective;
pub mod proposer;
mod round_starts;
pub mod untrained;

pub use batch::TrainBatch;
pub use checkpoint::{Checkpoint, CheckpointError};
pub use dropout::Dropout;
pub use eagle3::{Eagle3, Eagle3Config, Eagle3Drafter, Eagle3Proposer, TapScale};
pub use feature_noise::FeatureNoise;
pub use objective::{Objective, OutputHeads, PolicyShare, StepLoss};
pub use proposer::{Draft, DrafterMemory, Observed, Plan, Proposer, Wanted};
pub use round_starts::Started;
pub use untrained::ProposerKind;
