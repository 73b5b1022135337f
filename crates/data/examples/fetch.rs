//! `fetch NAME|FILE.gguf|hf:ORG/NAME OUT`: the fetch command without the rest of the program.

use std::path::Path;
use std::process::ExitCode;

use spectrain_data::fetch::{Hub, Source, fetch};

fn main() -> ExitCode {
    let [name, out] = &std::env::args().skip(1).collect::<Vec<_>>()[..] else {
        eprintln!("usage: fetch NAME|FILE.gguf|hf:ORG/NAME OUT");
        return ExitCode::from(2);
    };
    let hub = Hub::from_env(|_| Ok(()));
    let fetched =
        Source::parse(name).and_then(|source| fetch(&source, Path::new(out), &hub, &mut |stage| println!("{stage}")));
    match fetched {
        Ok(report) => {
            let state = if report.written { "written" } else { "nothing to do" };
            println!("{}: {state} ({})", report.out.display(), report.origin);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
