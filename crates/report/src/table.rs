//! The table for the terminal: one line an evaluation, its tasks below.

use crate::number::{fixed, list, parts, percent, times};
use spectrain_core::evaluation::{Counted, Evaluation};
use spectrain_core::rules::Guarantee;

const HEADER: [&str; 10] = [
    "T",
    "rule",
    "K",
    "tokens/call [95 %]",
    "survival at 1, 2, …",
    "accepted",
    "tok/s",
    "plain",
    "speedup",
    "draft/verify/sample/state %",
];

/// Columns of names, which start at the left; numbers end at the right.
const NAMES: [usize; 2] = [1, 4];

/// `evaluations` as aligned plain text. Tasks follow their evaluation unless there is only one.
pub fn table(evaluations: &[Evaluation]) -> String {
    let mut rows: Vec<Vec<String>> = vec![HEADER.map(str::to_string).to_vec()];
    for evaluation in evaluations {
        rows.push(whole(evaluation));
        if evaluation.tasks.len() > 1 {
            rows.extend(evaluation.tasks.iter().map(|(name, counted)| task(name, counted)));
        }
    }
    let mut text = aligned(&rows);
    if evaluations.iter().any(|e| e.guarantee == Guarantee::Approximate.name()) {
        text += "rules of the guarantee `approximate` change the target's law: their figures are not lossless\n";
    }
    text
}

fn whole(e: &Evaluation) -> Vec<String> {
    let split = parts(&e.seconds).map(|part| percent(part, e.seconds.speculative)).join("/");
    let [tokens, survival, accepted] = counts(&e.overall);
    vec![
        e.temperature.to_string(),
        e.rule.to_string(),
        e.length.to_string(),
        tokens,
        survival,
        accepted,
        fixed(e.tokens_per_second, 1),
        fixed(e.plain_tokens_per_second, 1),
        times(e.speedup),
        split,
    ]
}

fn task(name: &str, counted: &Counted) -> Vec<String> {
    let [tokens, survival, accepted] = counts(counted);
    let name = format!("  {name} ({})", counted.questions);
    vec![String::new(), name, String::new(), tokens, survival, accepted]
}

fn counts(counted: &Counted) -> [String; 3] {
    let a = &counted.acceptance;
    let i = &counted.interval;
    let tokens = format!("{} [{}, {}]", fixed(a.tokens_per_target_call, 3), fixed(i.low, 3), fixed(i.high, 3));
    [tokens, list(&a.accept_prefix, 2), fixed(a.accepted_per_target_call, 3)]
}

fn aligned(rows: &[Vec<String>]) -> String {
    let width = |column: usize| rows.iter().filter_map(|r| r.get(column)).map(|c| c.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..HEADER.len()).map(width).collect();
    let cell = |(column, (text, &width)): (usize, (&String, &usize))| {
        if NAMES.contains(&column) { format!("{text:<width$}") } else { format!("{text:>width$}") }
    };
    let line = |row: &Vec<String>| {
        let cells: Vec<String> = row.iter().zip(&widths).enumerate().map(cell).collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}
