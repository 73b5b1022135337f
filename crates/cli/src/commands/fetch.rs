//! `spectrain fetch`: a reference target, or a GGUF file, as a model directory.

use crate::args::FetchArgs;
use crate::exit::{Blame, Failure};
use spectrain_data::fetch::{Source, fetch};
use std::path::{Path, PathBuf};

/// Runs the command.
pub fn run(args: FetchArgs) -> Result<(), Failure> {
    let source = Source::parse(&args.name).request()?;
    let stem = PathBuf::from(&args.name);
    let name = match &source {
        Source::Known(_) => stem.into_os_string(),
        Source::Gguf(path) => path.file_stem().unwrap_or_default().to_os_string(),
    };
    let out = args.out.unwrap_or_else(|| Path::new("checkpoints").join(name));
    let report = fetch(&source, &out, &mut |stage| eprintln!("fetch: {stage}"));
    let report = if matches!(source, Source::Gguf(_)) { report.request()? } else { report.work()? };
    let state = if report.written { "written" } else { "already complete" };
    println!("{} ({state}, GGUF sha256 {})", report.out.display(), report.gguf_sha256);
    Ok(())
}
