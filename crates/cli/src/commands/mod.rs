//! One file per command.

pub mod capture;
pub mod eval;
pub mod fetch;
pub mod fit;
pub mod generate;
mod run;
