//! `fetch NAME|FILE.gguf OUT`: the fetch command without the rest of the program.

use std::path::Path;
use std::process::ExitCode;

use spectrain_data::fetch::{Source, fetch};

fn main() -> ExitCode {
    let [name, out] = &std::env::args().skip(1).collect::<Vec<_>>()[..] else {
        eprintln!("usage: fetch NAME|FILE.gguf OUT");
        return ExitCode::from(2);
    };
    let fetched =
        Source::parse(name).and_then(|source| fetch(&source, Path::new(out), &mut |stage| println!("{stage}")));
    match fetched {
        Ok(report) => {
            println!("{}: {}", report.out.display(), if report.written { "written" } else { "nothing to do" });
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
