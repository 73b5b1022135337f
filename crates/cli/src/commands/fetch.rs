//! `spectrain fetch`: a reference target, a GGUF file or a model on the hub, as a model directory.

use crate::args::FetchArgs;
use crate::exit::{Blame, Failure};
use crate::stage;
use spectrain_data::fetch::Source;
use std::path::Path;

/// Runs the command.
pub fn run(args: FetchArgs) -> Result<(), Failure> {
    let source = Source::parse(&args.name).request()?;
    let out = args.out.unwrap_or_else(|| Path::new("checkpoints").join(source.directory()));
    let report = stage::bring_target(&source, &out)?;
    let state = if report.written { "written" } else { "already complete" };
    println!("{} ({state}, {})", report.out.display(), report.origin);
    Ok(())
}
