//! Progress of long work on stderr: a bar on a terminal, a plain line every ten seconds elsewhere (logs, CI).

use std::io::IsTerminal;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Seconds between plain lines.
const PERIOD: u64 = 10;

/// The progress of one stage. All methods take `&self`, so that threads and callbacks can share it.
pub struct Progress {
    label: String,
    unit: &'static str,
    total: u64,
    /// What stands before the total.
    bound: &'static str,
    start: Instant,
    /// Counts in any case; drawn on a terminal only.
    bar: ProgressBar,
    /// When the next plain line is due, in seconds from the start; none on a terminal.
    due: Option<AtomicU64>,
}

impl Progress {
    /// Starts the stage `label` of `total` units; `unit` is a plural, such as `"tokens"`.
    pub fn new(label: &str, total: u64, unit: &'static str) -> Self {
        Self::start(label, ("", total), unit)
    }

    /// Starts a stage of which only is known that it takes no more than `most` units.
    pub fn up_to(label: &str, most: u64, unit: &'static str) -> Self {
        Self::start(label, ("at most ", most), unit)
    }

    fn start(label: &str, (bound, total): (&'static str, u64), unit: &'static str) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let target = if terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let counts = format!("{{human_pos}}/{bound}{{human_len}} {unit}, {{per_sec}}, ETA {{eta}} {{msg}}");
        let style = ProgressStyle::with_template(&format!("{{prefix}} {{wide_bar}} {counts}"))
            .expect("the template is well-formed");
        let bar = ProgressBar::with_draw_target(Some(total), target).with_style(style).with_prefix(label.to_owned());
        let due = (!terminal).then(|| AtomicU64::new(PERIOD));
        Self { label: label.to_owned(), unit, total, bound, start: Instant::now(), bar, due }
    }

    /// Adds `n` units of work done.
    pub fn inc(&self, n: u64) {
        self.bar.inc(n);
        let Some(due) = &self.due else { return };
        let elapsed = self.start.elapsed();
        let seconds = elapsed.as_secs();
        let next = |due| (seconds >= due).then_some(seconds + PERIOD);
        if due.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok() {
            let text = line(&self.label, self.bar.position(), (self.bound, self.total), self.unit, elapsed);
            let message = self.bar.message();
            eprintln!("{text}{}{message}", if message.is_empty() { "" } else { ", " });
        }
    }

    /// Sets what stands beside the numbers from now on, such as the latest loss.
    pub fn message(&self, text: impl Into<String>) {
        self.bar.set_message(text.into());
    }

    /// Prints a line that stays, above the bar where there is one.
    pub fn say(&self, text: &str) {
        self.bar.suspend(|| eprintln!("{text}"));
    }

    /// Ends the stage with a line that stays: what was done, in how long. Returns the seconds it took.
    pub fn finish(self) -> f64 {
        let (done, seconds) = (self.bar.position(), self.start.elapsed().as_secs_f64());
        self.bar.finish_and_clear();
        let rate = rate(done, self.unit, seconds);
        eprintln!("{}: {done} {} in {seconds:.1} s, {rate}", self.label, self.unit);
        seconds
    }
}

/// One plain line: label, done/total, rate, ETA.
fn line(label: &str, done: u64, (bound, total): (&str, u64), unit: &str, elapsed: Duration) -> String {
    let seconds = elapsed.as_secs_f64();
    let eta = match done {
        0 => "unknown".to_owned(),
        _ => clock(seconds * total.saturating_sub(done) as f64 / done as f64),
    };
    format!("{label}: {done}/{bound}{total} {unit}, {}, ETA {eta}", rate(done, unit, seconds))
}

/// Units a second, with three figures or so.
fn rate(done: u64, unit: &str, seconds: f64) -> String {
    let rate = done as f64 / seconds.max(1e-9);
    match rate {
        100.0.. => format!("{rate:.0} {unit}/s"),
        1.0.. => format!("{rate:.1} {unit}/s"),
        _ => format!("{rate:.3} {unit}/s"),
    }
}

/// Seconds as `m:ss` or `h:mm:ss`.
fn clock(seconds: f64) -> String {
    let all = seconds.round() as u64;
    let (hours, minutes, seconds) = (all / 3600, all / 60 % 60, all % 60);
    match hours {
        0 => format!("{minutes}:{seconds:02}"),
        _ => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_line_has_rate_and_eta() {
        let text = line("generate", 25_000, ("", 100_000), "tokens", Duration::from_secs(100));
        assert_eq!(text, "generate: 25000/100000 tokens, 250 tokens/s, ETA 5:00");
        let text = line("train", 3, ("", 3), "steps", Duration::from_secs(2));
        assert_eq!(text, "train: 3/3 steps, 1.5 steps/s, ETA 0:00");
        let text = line("train", 0, ("at most ", 3), "steps", Duration::from_secs(2));
        assert_eq!(text, "train: 0/at most 3 steps, 0.000 steps/s, ETA unknown");
    }

    #[test]
    fn more_than_the_total_is_no_negative_time() {
        assert!(line("x", 9, ("", 3), "rows", Duration::from_secs(1)).ends_with("ETA 0:00"));
    }

    #[test]
    fn clocks() {
        assert_eq!([clock(0.4), clock(61.0), clock(3725.0)], ["0:00", "1:01", "1:02:05"]);
    }

    #[test]
    fn work_adds_up_across_threads() {
        let progress = Progress::new("test", 8, "rows");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| progress.inc(2));
            }
        });
        assert_eq!(progress.bar.position(), 8);
        assert!(progress.finish() >= 0.0);
    }
}
