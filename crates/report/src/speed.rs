//! Figures of speed: tokens per second against the drafted length, and what a committed token's time was spent on.

use crate::axis::Axis;
use crate::figure::Figure;
use crate::lines::{LineChart, Point, Series, Stroke, top};
use crate::number::{fixed, parts, times};
use crate::series::{Group, groups};
use crate::stacked::{StackedChart, Whole};
use spectrain_core::evaluation::{Evaluation, fastest};

/// Both figures; none where no target call was made.
pub fn figures(evaluations: &[Evaluation]) -> Vec<Figure> {
    let groups = groups(evaluations);
    if groups.is_empty() { Vec::new() } else { vec![rates(&groups), split(&groups)] }
}

fn rates(groups: &[Group]) -> Figure {
    let line = |(index, group): (usize, &Group)| {
        let best = fastest(group.members());
        let point = |length: usize, rate: f64, speedup: f64| {
            let mark = if best == Some(length) { ", the fastest" } else { "" };
            let what = if length == 0 { "plain decoding".to_string() } else { format!("K = {length}") };
            let note = format!("{what}: {} tokens/s, {}{mark}", fixed(rate, 1), times(speedup));
            Point { x: length as f64, y: rate, interval: None, note }
        };
        let plain = group.members().iter().take(1).map(|e| point(0, e.plain_tokens_per_second, 1.0));
        let drafted = group.members().iter().map(|e| point(e.length, e.tokens_per_second, e.speedup));
        let name = match best {
            Some(0) => format!("{}: plain is fastest", group.label),
            Some(k) => format!("{}: K = {k} is fastest", group.label),
            None => group.label.clone(),
        };
        Series { label: Some(name), index, stroke: Stroke::Marked, band: false, points: plain.chain(drafted).collect() }
    };
    let series: Vec<Series> = groups.iter().enumerate().map(line).collect();
    let longest = groups.iter().map(|g| g.longest().length).max().unwrap_or(1);
    LineChart {
        title: "Output tokens per second".to_string(),
        note: "Of the whole batch, prompts included; K = 0 is plain decoding.".to_string(),
        x: Axis::whole("drafted tokens per round, K", 0.0, longest as f64, 10).padded(0.03),
        y: Axis::round("tokens per second", 0.0, top(&series, 1.0), 5),
        series,
        dodge: false,
    }
    .draw()
}

/// Time by output token, so that bars of different lengths compare; the plain path's is one part.
fn split(groups: &[Group]) -> Figure {
    let mut wholes = Vec::new();
    for group in groups {
        for (i, e) in group.members().iter().enumerate() {
            if i == 0 {
                let plain = 1e3 / e.plain_tokens_per_second;
                let parts = vec![f64::NAN, f64::NAN, f64::NAN, f64::NAN, f64::NAN, plain];
                wholes.push(Whole { name: format!("{}, plain", group.label), parts });
            }
            let tokens = e.tokens_per_second * e.seconds.speculative;
            let [draft, verify, sample, state] = parts(&e.seconds).map(|s| 1e3 * s / tokens);
            let rest = 1e3 / e.tokens_per_second - (draft + verify + sample + state);
            let parts = vec![draft, verify, sample, state, rest.max(0.0)];
            wholes.push(Whole { name: format!("{}, K = {}", group.label, e.length), parts });
        }
    }
    StackedChart {
        title: "Where the time goes".to_string(),
        note: "Time of the run by output token of all requests together: shorter is faster.".to_string(),
        label: "milliseconds per output token".to_string(),
        digits: 2,
        parts: ["draft", "verify", "sample", "state", "rest", "plain decoding"].map(str::to_string).to_vec(),
        wholes,
    }
    .draw()
}
