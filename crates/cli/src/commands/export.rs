//! `spectrain export`: a drafter as a directory that another runtime loads.

use super::eval::open_checkpoint;
use crate::args::ExportArgs;
use crate::exit::Failure;
use crate::stage;
use spectrain_draft::export::{ExportError, TargetDir, export};

/// Runs the command.
pub fn run(args: ExportArgs) -> Result<(), Failure> {
    let checkpoint = open_checkpoint(&args.checkpoint)?;
    let asked = args.target.as_deref().unwrap_or(&checkpoint.provenance.target);
    let dir = stage::locate_target(asked, false)?;
    let target = TargetDir::open(&dir).map_err(blame)?;
    export(&checkpoint, &target, args.format, &args.out).map_err(blame)?;
    println!("{} ({} format, read back and compared); next:", args.out.display(), args.format.name);
    println!("  {}", args.format.next(&args.out, &dir));
    Ok(())
}

/// Whose fault an export or import ended by.
pub(super) fn blame(error: ExportError) -> Failure {
    if error.is_request() { Failure::Request(error.into()) } else { Failure::Work(error.into()) }
}
