//! The table for the terminal: a line for every temperature and length, its tasks below if asked for.

use crate::number::{fixed, speedup, times};
use crate::series::curves;
use spectrain_core::evaluation::{Counted, Evaluation, fastest};
use spectrain_core::rules::Guarantee;
use std::collections::BTreeMap;

const HEADER: [&str; 8] = ["T", "rule", "K", "tokens/call [95 %]", "accepted", "tokens/s", "speedup [95 %]", ""];

/// Columns of names, which start at the left; numbers end at the right.
const NAMES: [usize; 2] = [1, 7];

/// One length of a curve.
struct Line<'a> {
    rule: String,
    length: usize,
    overall: &'a Counted,
    tasks: &'a BTreeMap<String, Counted>,
    /// Tokens per second, and the speedup as text, where they were measured.
    speed: Option<(f64, String)>,
    mark: &'static str,
}

/// `evaluations` as aligned plain text, the shortest drafts of each curve first and plain decoding before them. With
/// `tasks`, a line's tasks follow it unless there is only one.
pub fn table(evaluations: &[Evaluation], tasks: bool) -> String {
    let mut rows: Vec<Vec<String>> = vec![HEADER.map(str::to_string).to_vec()];
    for curve in curves(evaluations) {
        for line in lines(curve) {
            rows.push(line.cells(curve[0].temperature));
            if tasks && line.tasks.len() > 1 {
                rows.extend(line.tasks.iter().map(|(name, counted)| task(name, counted)));
            }
        }
    }
    let mut text = aligned(&rows, &NAMES);
    text.extend(curves(evaluations).filter_map(|curve| steadiness(&curve[0])));
    if evaluations.iter().any(|e| e.guarantee == Guarantee::Approximate.name()) {
        text += "rules of the guarantee `approximate` change the target's law: their figures are not lossless\n";
    }
    text
}

/// The lengths of one curve, rising.
fn lines(curve: &[Evaluation]) -> Vec<Line<'_>> {
    let best = fastest(&curve.iter().collect::<Vec<_>>());
    let mark = |length| if best == Some(length) { "fastest" } else { "" };
    let first = &curve[0];
    let plain = first.plain.iter().map(|p| Line {
        rule: "plain".to_string(),
        length: 0,
        overall: &p.overall,
        tasks: &p.tasks,
        speed: Some((first.plain_tokens_per_second, times(1.0))),
        mark: mark(0),
    });
    let measured = curve.iter().map(|e| Line {
        rule: e.rule.to_string(),
        length: e.length,
        overall: &e.overall,
        tasks: &e.tasks,
        speed: Some((e.tokens_per_second, speedup(e))),
        mark: mark(e.length),
    });
    let estimated = curve.iter().flat_map(|e| &e.estimates).map(|s| Line {
        rule: first.rule.to_string(),
        length: s.length,
        overall: &s.overall,
        tasks: &s.tasks,
        speed: None,
        mark: "estimated",
    });
    let mut lines: Vec<Line> = plain.chain(measured).chain(estimated).collect();
    lines.sort_by_key(|line| line.length);
    lines
}

impl Line<'_> {
    fn cells(&self, temperature: f64) -> Vec<String> {
        let [tokens, accepted] = counts(self.overall);
        let (rate, speedup) = self.speed.clone().unwrap_or((f64::NAN, times(f64::NAN)));
        let rate = fixed(rate, 1);
        let length = self.length.to_string();
        vec![temperature.to_string(), self.rule.clone(), length, tokens, accepted, rate, speedup, self.mark.to_string()]
    }
}

/// How steady the machine was while the curve of `e` was measured.
fn steadiness(e: &Evaluation) -> Option<String> {
    let [slowest, fastest] = e.plain.as_ref()?.stints?;
    let (slowest, fastest) = (fixed(slowest, 1), fixed(fastest, 1));
    Some(format!("T = {}: plain decoding ran at {slowest} to {fastest} tokens/s from stint to stint\n", e.temperature))
}

fn task(name: &str, counted: &Counted) -> Vec<String> {
    let [tokens, accepted] = counts(counted);
    vec![String::new(), format!("  {name} ({})", counted.questions), String::new(), tokens, accepted]
}

fn counts(counted: &Counted) -> [String; 2] {
    let a = &counted.acceptance;
    let i = &counted.interval;
    let tokens = format!("{} [{}, {}]", fixed(a.tokens_per_target_call, 3), fixed(i.low, 3), fixed(i.high, 3));
    [tokens, fixed(a.accepted_per_target_call, 3)]
}

/// `rows` as aligned text; the columns `left` start at the left, all others end at the right.
pub(crate) fn aligned(rows: &[Vec<String>], left: &[usize]) -> String {
    let width = |column: usize| rows.iter().filter_map(|r| r.get(column)).map(|c| c.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows.iter().map(Vec::len).max().unwrap_or(0)).map(width).collect();
    let cell = |(column, (text, &width)): (usize, (&String, &usize))| {
        if left.contains(&column) { format!("{text:<width$}") } else { format!("{text:>width$}") }
    };
    let line = |row: &Vec<String>| {
        let cells: Vec<String> = row.iter().zip(&widths).enumerate().map(cell).collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}
