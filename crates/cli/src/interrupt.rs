//! Ctrl-C: work that can end in order is asked to stop; everything else stops at once, since stages that are complete
//! are on disk and a stage that is not leaves nothing half-written.

use std::process::exit;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the work at hand ends in order when asked to stop.
static SAVES: AtomicBool = AtomicBool::new(false);
/// Whether it was asked.
static ASKED: AtomicBool = AtomicBool::new(false);

/// The command that goes on after a stop.
static RESUME: OnceLock<String> = OnceLock::new();

/// Listens for Ctrl-C (and the polite request to terminate) from now on. `resume` is the command that goes on.
pub fn listen(resume: String) {
    RESUME.set(resume).ok();
    let handler = || {
        if SAVES.load(Ordering::Relaxed) && !ASKED.swap(true, Ordering::Relaxed) {
            eprintln!("\nstopping after this step, with a checkpoint; Ctrl-C again stops at once");
            return;
        }
        eprintln!("\nerror: stopped; what was finished is kept. Go on with: {}", resume_command());
        exit(1);
    };
    // A second listener in one process is the only way to fail; the first one does then.
    ctrlc::set_handler(handler).ok();
}

/// The same for a chat: the answer at hand is asked to stop, and between answers the chat ends, as it is meant to.
pub fn listen_in_chat() {
    let handler = || {
        if SAVES.load(Ordering::Relaxed) && !ASKED.swap(true, Ordering::Relaxed) {
            return;
        }
        eprintln!();
        exit(0);
    };
    ctrlc::set_handler(handler).ok();
}

/// Runs `work`, which looks at [`asked`] and ends in order (saves its state, if it has one) when it shall stop.
pub fn saving<T>(work: impl FnOnce() -> T) -> T {
    SAVES.store(true, Ordering::Relaxed);
    let result = work();
    SAVES.store(false, Ordering::Relaxed);
    result
}

/// Whether the work shall stop.
pub fn asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}

/// The command that goes on after a stop.
pub fn resume_command() -> &'static str {
    RESUME.get().map_or("", String::as_str)
}
