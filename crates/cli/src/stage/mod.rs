//! The stages of a run. Each reads what the one before wrote, and nothing else.

mod capture;
mod checkpoints;
mod estimate;
mod evaluate;
mod form;
mod generate;
mod held_out;
mod offline;
mod profile;
mod reconcile;
mod replay;
mod report;
mod setup;
mod traces;
mod train;
mod transcript;
mod waterfall;

pub use capture::{capture, store_dir};
pub use estimate::estimate;
pub use evaluate::{Curves, EvalPlan, evaluate, evaluate_trees, evaluate_untrained};
pub use form::form;
pub use generate::{answers, generate};
pub use offline::{Answers, Candidate, Estimated, OfflinePlan, offline, open_store};
pub use profile::{CostPlan, Costs};
pub use reconcile::{conclude, reconcile, renderings, with_figures};
pub use replay::replay;
pub use report::write as write_report;
pub use setup::{RunDir, Setup, bring_target, locate_target, read_questions};
pub use traces::write_traces;
pub use train::{check as check_training, record_measurements, train};
pub use waterfall::waterfalls;
