//! The offline estimates for the terminal.

use crate::number::fixed;
use crate::table::aligned;
use spectrain_core::offline::{Difference, OfflineEstimates};
use spectrain_core::stats::Interval;

const HEADER: [&str; 8] =
    ["checkpoint", "T", "rule", "K", "tokens/call [95 %]", "complete rounds [95 %]", "row mean (biased)", "tokens"];

/// Columns of names, which start at the left; numbers end at the right.
const NAMES: [usize; 2] = [0, 2];

/// `estimates` as aligned plain text, one line a checkpoint, temperature and length.
pub fn offline_table(estimates: &[OfflineEstimates]) -> String {
    let mut rows = vec![HEADER.map(str::to_owned).to_vec()];
    for found in estimates {
        rows.extend(found.lengths.iter().map(|e| {
            vec![
                found.checkpoint.clone(),
                found.temperature.to_string(),
                found.rule.to_string(),
                e.length.to_string(),
                interval(&e.tokens_per_target_call),
                e.complete_rounds.as_ref().map_or_else(|| fixed(f64::NAN, 3), interval),
                fixed(e.row_mean_biased, 3),
                e.tokens.to_string(),
            ]
        }));
    }
    aligned(&rows, &NAMES)
}

/// Which checkpoint is better where two or more were estimated, one line a pair.
pub fn differences(pairs: &[Difference]) -> String {
    let line = |d: &Difference| {
        let verdict = match d.better() {
            Some(name) => format!("{name} is better"),
            None => "no difference seen".to_owned(),
        };
        let found = interval(&d.difference);
        format!("T={} K={}: {} less {}: {found}: {verdict}\n", d.temperature, d.length, d.first, d.second)
    };
    pairs.iter().map(line).collect()
}

fn interval(i: &Interval) -> String {
    format!("{} [{}, {}]", fixed(i.estimate, 3), fixed(i.low, 3), fixed(i.high, 3))
}
