//! `spectrain import`: a drafter that was trained elsewhere, as a checkpoint.

use super::export::blame;
use crate::args::ImportArgs;
use crate::exit::Failure;
use crate::stage;
use spectrain_draft::export::{TargetDir, import};

/// Runs the command.
pub fn run(args: ImportArgs) -> Result<(), Failure> {
    let target = TargetDir::open(&stage::locate_target(&args.target, false)?).map_err(blame)?;
    let found = import(&args.drafter, &target, &args.out).map_err(blame)?;
    let whose = |own: bool| if own { "its own" } else { "the target's" };
    println!(
        "{} (from the {} format: taps {:?}, {} of {} tokens, {} head, {} embedding)",
        args.out.display(),
        found.format.name,
        found.config.taps,
        found.config.draft_vocab_size,
        found.config.vocab_size,
        whose(found.own_head),
        whose(found.own_embedding)
    );
    Ok(())
}
