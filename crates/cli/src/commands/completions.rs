//! `spectrain completions`: what a shell needs to complete commands and options.

use crate::args::{Cli, CompletionsArgs};
use crate::exit::{Blame, Failure};
use clap::CommandFactory;
use std::io::Write;

/// Runs the command.
pub fn run(args: CompletionsArgs) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "spectrain", &mut script);
    std::io::stdout().write_all(&script).work()
}
