//! One file per command.

pub mod capture;
pub mod chat;
pub mod completions;
pub mod eval;
pub mod export;
pub mod fetch;
pub mod fit;
pub mod generate;
pub mod import;
pub mod inspect;
mod run;
