//! The `spectrain` command: draft heads for speculative decoding, trained and measured in the exact verifier.

mod args;
mod commands;
mod device;
mod exit;
mod interrupt;
mod progress;
mod stage;
mod style;

use std::process::ExitCode;

use args::{Cli, Command};
use clap::Parser;

fn main() -> ExitCode {
    spectrain_kernels::memory::keep_pages();
    exit::report(match Cli::parse().command {
        Command::Fit(args) => commands::fit::run(args),
        Command::Generate(args) => commands::generate::run(args),
        Command::Capture(args) => commands::capture::run(args),
        Command::Eval(args) => commands::eval::run(args),
        Command::Fetch(args) => commands::fetch::run(args),
        Command::Inspect(args) => commands::inspect::run(args),
        Command::Chat(args) => commands::chat::run(args),
        Command::Export(args) => commands::export::run(args),
        Command::Import(args) => commands::import::run(args),
        Command::Completions(args) => commands::completions::run(args),
    })
}
