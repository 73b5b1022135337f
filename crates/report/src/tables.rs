//! The tables of the page.

use crate::markup::Markup;
use crate::number::{fixed, list, parts, percent, speedup};
use crate::series::curves;
use spectrain_core::evaluation::{Counted, Evaluation, Memory};
use spectrain_core::stats::latency::Spread;

/// A table in a frame that scrolls where the window is narrow; columns that hold no single number are `names`.
fn table(m: &mut Markup, names: &[usize], header: &[&str], rows: &[Vec<String>]) {
    let class = |column: usize| if names.contains(&column) { "name" } else { "number" };
    m.element("div", &[("class", &"scroll")], |m| {
        m.element("table", &[], |m| {
            m.element("thead", &[], |m| {
                m.element("tr", &[], |m| {
                    let cells = header.iter().enumerate();
                    cells.for_each(|(i, text)| m.leaf("th", &[("scope", &"col"), ("class", &class(i))], text));
                });
            });
            m.element("tbody", &[], |m| {
                for row in rows {
                    m.element("tr", &[], |m| {
                        row.iter().enumerate().for_each(|(i, text)| m.leaf("td", &[("class", &class(i))], text));
                    });
                }
            });
        });
    });
}

/// Headers of [`counted_row`]'s figures.
const COUNTED: [&str; 6] = [
    "prompts",
    "tokens per target call",
    "95 % interval",
    "accepted per call",
    "accepted / drafted",
    "survival at 1, 2, …",
];

fn counted_row(names: [String; 4], c: &Counted) -> Vec<String> {
    let a = &c.acceptance;
    let figures = [
        c.questions.to_string(),
        fixed(a.tokens_per_target_call, 3),
        format!("{} to {}", fixed(c.interval.low, 3), fixed(c.interval.high, 3)),
        fixed(a.accepted_per_target_call, 3),
        fixed(a.accept_rate_draft, 3),
        list(&a.accept_prefix, 3),
    ];
    names.into_iter().chain(figures).collect()
}

pub fn acceptance(m: &mut Markup, evaluations: &[Evaluation]) {
    let names =
        |e: &Evaluation| [e.rule.to_string(), e.guarantee.clone(), e.temperature.to_string(), e.length.to_string()];
    let rows: Vec<Vec<String>> = evaluations.iter().map(|e| counted_row(names(e), &e.overall)).collect();
    let header = [&["rule", "guarantee", "T", "K"], &COUNTED[..]].concat();
    table(m, &[0, 1, 9], &header, &rows);
}

/// The rows by task, folded away: there may be hundreds.
pub fn tasks(m: &mut Markup, evaluations: &[Evaluation]) {
    let names = |e: &Evaluation, task: &String| {
        [e.rule.to_string(), e.temperature.to_string(), e.length.to_string(), task.clone()]
    };
    let several = evaluations.iter().filter(|e| e.tasks.len() > 1);
    let rows: Vec<Vec<String>> =
        several.flat_map(|e| e.tasks.iter().map(move |(task, c)| counted_row(names(e, task), c))).collect();
    if rows.is_empty() {
        return;
    }
    m.element("details", &[], |m| {
        m.leaf("summary", &[], "Every task in numbers");
        table(m, &[0, 3, 9], &[&["rule", "T", "K", "task"], &COUNTED[..]].concat(), &rows);
    });
}

pub fn speed(m: &mut Markup, evaluations: &[Evaluation]) {
    let row = |e: &Evaluation| {
        let whole = e.seconds.speculative;
        let parts = parts(&e.seconds);
        let rest = whole - parts.iter().sum::<f64>();
        let same = e.same_text.map_or("not promised".to_string(), |n| format!("{n} of {}", e.overall.questions));
        let mut row = vec![
            e.rule.to_string(),
            e.temperature.to_string(),
            e.length.to_string(),
            e.batch.to_string(),
            fixed(e.tokens_per_second, 1),
            fixed(e.plain_tokens_per_second, 1),
            speedup(e),
        ];
        row.extend(parts.map(|part| percent(part, whole)));
        row.extend([percent(rest.max(0.0), whole), same, e.residual_fallbacks.to_string()]);
        row
    };
    let header = [
        "rule",
        "T",
        "K",
        "batch",
        "tokens/s",
        "plain tokens/s",
        "speedup [95 %]",
        "draft %",
        "verify %",
        "sample %",
        "state %",
        "rest %",
        "same text",
        "fallbacks",
    ];
    table(m, &[0], &header, &evaluations.iter().map(row).collect::<Vec<_>>());
}

/// The headline in other projects' terms, where it was counted so.
pub fn definitions(m: &mut Markup, evaluations: &[Evaluation]) {
    let value = |v: Option<f64>| fixed(v.unwrap_or(f64::NAN), 3);
    let row = |e: &Evaluation| {
        let d = &e.overall.definitions;
        let ours = fixed(e.overall.acceptance.tokens_per_target_call, 3);
        let columns = [d.as_eagle, d.as_vllm, d.as_sglang, d.as_deepspec].map(value);
        let names = [e.rule.to_string(), e.temperature.to_string(), e.length.to_string(), ours];
        names.into_iter().chain(columns).collect()
    };
    let counted = evaluations.iter().filter(|e| e.overall.definitions.as_eagle.is_some());
    let rows: Vec<Vec<String>> = counted.map(row).collect();
    if rows.is_empty() {
        return;
    }
    m.element("details", &[], |m| {
        m.leaf("summary", &[], "Acceptance length as other projects define it");
        let header = ["rule", "T", "K", "tokens per target call", "as EAGLE", "as vLLM", "as SGLang", "as DeepSpec"];
        table(m, &[0], &header, &rows);
    });
}

/// What requests waited for, plain decoding first, where arrivals were recorded.
pub fn latency(m: &mut Markup, evaluations: &[Evaluation]) {
    let row = |e: &Evaluation, rule: &str, length: usize, counted: &Counted| {
        let waits = counted.latency?;
        let cells = |spread: Option<Spread>| {
            let values = spread.map(|s| [s.mean, s.p50, s.p95, s.p99]);
            values.unwrap_or([f64::NAN; 4]).map(|seconds| fixed(1e3 * seconds, 1))
        };
        let spreads = [waits.ttft, waits.tpot, waits.itl].into_iter().flat_map(cells);
        let names = [rule.to_string(), e.temperature.to_string(), length.to_string()];
        let queue = fixed(1e3 * waits.queue.map_or(f64::NAN, |s| s.mean), 1);
        let goodput = fixed(counted.goodput.unwrap_or(f64::NAN), 1);
        Some(names.into_iter().chain(spreads).chain([queue, goodput]).collect())
    };
    let mut rows: Vec<Vec<String>> = Vec::new();
    for curve in curves(evaluations) {
        rows.extend(curve[0].plain.iter().filter_map(|plain| row(&curve[0], "plain", 0, &plain.overall)));
        rows.extend(curve.iter().filter_map(|e| row(e, e.rule.name(), e.length, &e.overall)));
    }
    if rows.is_empty() {
        return;
    }
    m.leaf("h3", &[], "Waiting, in milliseconds");
    let quantities = ["TTFT", "TPOT", "ITL"];
    let statistics = ["mean", "p50", "p95", "p99"];
    let spreads = quantities.iter().flat_map(|q| statistics.iter().map(move |s| format!("{q} {s}")));
    let header: Vec<String> = ["rule", "T", "K"].map(str::to_string).into_iter().chain(spreads).collect();
    let mut header: Vec<&str> = header.iter().map(String::as_str).collect();
    header.extend(["queue mean", "goodput, tokens/s"]);
    table(m, &[0], &header, &rows);
}

/// What the runs held, plain decoding first, where it was recorded.
pub fn memory(m: &mut Markup, evaluations: &[Evaluation]) {
    let row = |e: &Evaluation, rule: &str, length: usize, memory: &Memory| {
        let Memory { target_weights, drafter_weights, target_cache, drafter_cache, provisional } = *memory;
        let bytes = [target_weights, drafter_weights, target_cache, drafter_cache, provisional, memory.total()];
        let names = [rule.to_string(), e.temperature.to_string(), length.to_string()];
        names.into_iter().chain(bytes.map(|b| fixed(b as f64 / f64::from(1 << 20), 2))).collect()
    };
    let mut rows: Vec<Vec<String>> = Vec::new();
    for curve in curves(evaluations) {
        rows.extend(curve[0].plain.iter().map(|plain| row(&curve[0], "plain", 0, &plain.memory)));
        rows.extend(curve.iter().filter_map(|e| Some(row(e, e.rule.name(), e.length, e.memory.as_ref()?))));
    }
    if rows.is_empty() {
        return;
    }
    m.element("details", &[], |m| {
        m.leaf("summary", &[], "Memory, in MiB");
        let header = [
            "rule",
            "T",
            "K",
            "target weights",
            "drafter weights",
            "target KV",
            "drafter KV",
            "of it provisional",
            "all",
        ];
        table(m, &[0], &header, &rows);
    });
}
