//! Waterfalls: for the terminal, and as a figure.

use crate::figure::Figure;
use crate::number::fixed;
use crate::stacked::{StackedChart, Whole};
use crate::table::aligned;
use spectrain_core::waterfall::{Cause, Waterfall};

/// `waterfalls` as aligned plain text: what was measured and what was lost, tokens per target call.
pub fn waterfall_table(waterfalls: &[Waterfall]) -> String {
    if waterfalls.is_empty() {
        return String::new();
    }
    let causes = Cause::ALL.map(|cause| format!("− {}", cause.name()));
    let head = ["T", "rule", "K + 1"].map(str::to_owned).into_iter().chain(causes).chain(["= measured".to_owned()]);
    let mut rows: Vec<Vec<String>> = vec![head.collect()];
    rows.extend(waterfalls.iter().map(|w| {
        let name = [w.temperature.to_string(), w.rule.to_string(), (w.length + 1).to_string()];
        let losses = w.losses.iter().map(|loss| fixed(loss.tokens, 3));
        name.into_iter().chain(losses).chain([fixed(w.tokens_per_target_call, 3)]).collect()
    }));
    aligned(&rows, &[1])
}

/// The same as a figure; none where there is nothing to show.
pub(crate) fn figures(waterfalls: &[Waterfall]) -> Vec<Figure> {
    let whole = |w: &Waterfall| Whole {
        name: format!("T = {}, K = {}", w.temperature, w.length),
        // A gain has no place in a sum of losses; the table has it.
        parts: std::iter::once(w.tokens_per_target_call).chain(w.losses.iter().map(|l| l.tokens.max(0.0))).collect(),
    };
    let chart = || StackedChart {
        title: "Where the tokens go".to_string(),
        note: "A perfect drafter commits K + 1 tokens by target call. Text end: the \
               last round of an answer reaches past it. Vocabulary: words that no draft can hold. \
               Capacity: the drafter is not its target, even where it reads the target's features. Exposure: behind \
               its first token it reads its own. Sampling mode: its likeliest token is drafted, not a draw. Runtime: \
               what the verifier measured differently, mostly chance where T is above 0."
            .to_string(),
        label: "tokens per target call".to_string(),
        digits: 2,
        parts: std::iter::once("committed").chain(Cause::ALL.map(Cause::name)).map(str::to_string).collect(),
        wholes: waterfalls.iter().map(whole).collect(),
    };
    if waterfalls.is_empty() { Vec::new() } else { vec![chart().draw()] }
}
