//! The `spectrain` command: draft heads for speculative decoding, trained and measured in the exact verifier.

mod args;
mod commands;
mod device;
mod exit;
mod interrupt;
mod progress;
mod sampling;
mod stage;
mod style;

use std::process::ExitCode;

use args::{Cli, Command};
use clap::Parser;

fn main() -> ExitCode {
    spectrain_kernels::memory::keep_pages();
    let command = Cli::parse().command;
    // A decoding step is hundreds of short parallel loops. Begun by a thread of the pool, each wakes the others and goes
    // on itself; begun from outside, the caller sleeps until it is woken again.
    let work = || exit::report(run(command));
    match rayon::ThreadPoolBuilder::new().stack_size(STACK).build_global() {
        Ok(()) => rayon::scope(|_| work()),
        // Without a pool of its own kind the work is the same, and slower.
        Err(_) => work(),
    }
}

/// Bytes of stack: what the main thread of a process has.
const STACK: usize = 8 << 20;

fn run(command: Command) -> Result<(), exit::Failure> {
    match command {
        Command::Fit(args) => commands::fit::run(args),
        Command::Generate(args) => commands::generate::run(args),
        Command::Capture(args) => commands::capture::run(args),
        Command::Eval(args) => commands::eval::run(*args),
        Command::Fetch(args) => commands::fetch::run(args),
        Command::Inspect(args) => commands::inspect::run(args),
        Command::Chat(args) => commands::chat::run(*args),
        Command::Export(args) => commands::export::run(args),
        Command::Import(args) => commands::import::run(args),
        Command::Completions(args) => commands::completions::run(args),
    }
}
