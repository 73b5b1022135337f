//! Figures of measurements. Where a figure needs one length, each group shows its longest: it has every position.

use crate::axis::Axis;
use crate::bars::{Bar, BarChart, Place};
use crate::figure::Figure;
use crate::lines::{LineChart, Point, Series, Stroke, top};
use crate::number::{counted, fixed};
use crate::series::{Group, groups};
use spectrain_core::evaluation::{Counted, Evaluation};
use std::collections::BTreeSet;

/// Acceptance length against the drafted length as an SVG file of its own; none where no target call was made.
///
/// A group of evaluations that differ in the length alone is one line through its measured points; where lengths were
/// estimated from the rounds of the longest, a dashed line from plain decoding through the estimates ends at it.
pub fn curve_svg(evaluations: &[Evaluation]) -> Option<String> {
    let groups = groups(evaluations);
    (!groups.is_empty()).then(|| curve(&groups).alone())
}

/// Every figure of `evaluations`; none where no target call was made.
pub fn figures(evaluations: &[Evaluation]) -> Vec<Figure> {
    let groups = groups(evaluations);
    if groups.is_empty() {
        return Vec::new();
    }
    let mut figures = vec![curve(&groups), survival(&groups), conditional(&groups), histogram(&groups)];
    figures.extend(tasks(&groups));
    figures
}

fn curve(groups: &[Group]) -> Figure {
    let line = |(index, group): (usize, &Group)| {
        let points = group.members().iter().map(|e| measured(e)).collect();
        Series { label: Some(group.label.clone()), index, stroke: Stroke::Marked, band: true, points }
    };
    let mut series: Vec<Series> = groups.iter().enumerate().map(line).collect();
    let dashed: Vec<Series> = groups.iter().enumerate().filter_map(|(index, group)| estimate(index, group)).collect();
    let note = "Points are measured, with their 95 % interval; plain decoding is 1.";
    let caveat = if dashed.is_empty() { "" } else { CAVEAT };
    series.extend(dashed);
    let longest = groups.iter().map(|g| g.longest().length).max().unwrap_or(1);
    LineChart {
        title: "Acceptance length".to_string(),
        note: format!("{note}{caveat}"),
        x: Axis::whole("drafted tokens per round, K", 0.0, longest as f64, 10).padded(0.03),
        y: Axis::round("tokens per target call", 1.0, top(&series, 1.0), 5),
        series,
        dodge: groups.len() > 1,
    }
    .draw()
}

const CAVEAT: &str = " A dashed line with rings is no measurement: it cuts the rounds of the longest measured length \
    short, but with shorter drafts other rounds would have started at other places.";

/// From plain decoding through the estimated lengths to the measured length that they come from.
fn estimate(index: usize, group: &Group) -> Option<Series> {
    let longest = group.longest();
    if longest.estimates.is_empty() {
        return None;
    }
    let estimated = longest.estimates.iter().map(|e| Point {
        x: e.length as f64,
        y: e.overall.acceptance.tokens_per_target_call,
        interval: None,
        note: format!("K = {}, estimated: {}", e.length, with_interval(&e.overall)),
    });
    let start = Point { x: 0.0, y: 1.0, ..Point::default() };
    let end = Point { interval: None, note: String::new(), ..measured(longest) };
    let points = std::iter::once(start).chain(estimated).chain([end]).collect();
    let label = Some(format!("estimate from the K = {} rounds of {}", longest.length, group.label));
    Some(Series { label, index, stroke: Stroke::Dashed, band: false, points })
}

/// The measured acceptance length at one drafted length.
fn measured(e: &Evaluation) -> Point {
    let value = e.overall.acceptance.tokens_per_target_call;
    let (low, high) = (e.overall.interval.low, e.overall.interval.high);
    let note = format!("K = {}: {}", e.length, with_interval(&e.overall));
    Point { x: e.length as f64, y: value, interval: Some((low, high)), note }
}

fn with_interval(c: &Counted) -> String {
    let [value, low, high] =
        [c.acceptance.tokens_per_target_call, c.interval.low, c.interval.high].map(|v| fixed(v, 3));
    format!("{value} [{low}, {high}]")
}

fn survival(groups: &[Group]) -> Figure {
    let note = "Share of all rounds in which at least so many drafted tokens were accepted.";
    let points = |e: &Evaluation| {
        let calls = e.overall.acceptance.target_calls;
        let point = |(i, p): (usize, &f64)| {
            position(i, *p, format!("position {}: {} of {}", i + 1, fixed(*p, 3), counted(calls, "round")))
        };
        e.overall.acceptance.accept_prefix.iter().enumerate().map(point).collect()
    };
    by_position(groups, ("Survival by position", note, "share of rounds"), points)
}

fn conditional(groups: &[Group]) -> Figure {
    let note = "Share of accepted tokens among the rounds that accepted every token before.";
    let points = |e: &Evaluation| {
        let a = &e.overall.acceptance;
        let reached = |i: usize| a.accept_len_hist.iter().skip(i).sum();
        let point = |(i, p): (usize, &f64)| {
            position(i, *p, format!("position {}: {} of {}", i + 1, fixed(*p, 3), counted(reached(i), "round")))
        };
        a.accept_cond.iter().enumerate().map(point).collect()
    };
    by_position(groups, ("Conditional acceptance", note, "share of rounds that came so far"), points)
}

fn position(i: usize, y: f64, note: String) -> Point {
    Point { x: (i + 1) as f64, y, interval: None, note }
}

fn by_position(
    groups: &[Group],
    (title, note, y): (&str, &str, &str),
    points: impl Fn(&Evaluation) -> Vec<Point>,
) -> Figure {
    let one = |(index, group): (usize, &Group)| Series {
        label: Some(group.label.clone()),
        index,
        stroke: Stroke::Marked,
        band: false,
        points: points(group.longest()),
    };
    let last = groups.iter().map(|g| g.longest().length).max().unwrap_or(1);
    LineChart {
        title: title.to_string(),
        note: format!("{note}{}", of_the_longest(groups)),
        x: Axis::whole("position in the draft", 1.0, last as f64, 10).padded(0.03),
        y: Axis::round(y, 0.0, 1.0, 5),
        series: groups.iter().enumerate().map(one).collect(),
        dodge: false,
    }
    .draw()
}

/// Which length is shown, where several were measured.
fn of_the_longest(groups: &[Group]) -> &'static str {
    let several = groups.iter().any(|g| g.members().iter().any(|e| e.length != g.longest().length));
    if several { " Of each line the longest measured K." } else { "" }
}

fn histogram(groups: &[Group]) -> Figure {
    let hists: Vec<&[usize]> =
        groups.iter().map(|g| g.longest().overall.acceptance.accept_len_hist.as_slice()).collect();
    let share = |hist: &[usize], length: usize| {
        let rounds = *hist.get(length)?;
        let value = 100.0 * rounds as f64 / hist.iter().sum::<usize>() as f64;
        let note = format!("{length} accepted: {} ({} %)", counted(rounds, "round"), fixed(value, 1));
        Some(Bar { value, interval: None, note })
    };
    let lengths = hists.iter().map(|h| h.len()).max().unwrap_or(0);
    let places: Vec<Place> = (0..lengths)
        .map(|l| Place { name: l.to_string(), bars: hists.iter().map(|h| share(h, l)).collect() })
        .collect();
    BarChart {
        title: "Accepted lengths".to_string(),
        note: format!("How many rounds accepted exactly so many drafted tokens.{}", of_the_longest(groups)),
        values: Axis::round("share of rounds, %", 0.0, longest_bar(&places, 1.0), 5),
        places: ("accepted drafted tokens".to_string(), places),
        series: groups.iter().map(|g| g.label.clone()).collect(),
        reference: None,
    }
    .upright()
}

/// Tokens per target call by task, where there is more than one.
fn tasks(groups: &[Group]) -> Option<Figure> {
    let names: BTreeSet<&String> = groups.iter().flat_map(|g| g.longest().tasks.keys()).collect();
    if names.len() < 2 {
        return None;
    }
    let place = |name: &str, of: &dyn Fn(&Evaluation) -> Option<Counted>| Place {
        name: name.to_string(),
        bars: groups.iter().map(|g| of(g.longest()).map(|c| task_bar(name, &c))).collect(),
    };
    let mut places = vec![place("all", &|e| Some(e.overall.clone()))];
    places.extend(names.into_iter().map(|name| place(name, &|e| e.tasks.get(name).cloned())));
    let figure = BarChart {
        title: "Acceptance length by task".to_string(),
        note: format!("With 95 % intervals; plain decoding is 1.{}", of_the_longest(groups)),
        values: Axis::round("tokens per target call", 0.0, longest_bar(&places, 1.0), 5),
        places: (String::new(), places),
        series: groups.iter().map(|g| g.label.clone()).collect(),
        reference: Some((1.0, "plain decoding".to_string())),
    };
    Some(figure.level())
}

fn task_bar(name: &str, c: &Counted) -> Bar {
    Bar {
        value: c.acceptance.tokens_per_target_call,
        interval: Some((c.interval.low, c.interval.high)),
        note: format!("{name}: {} over {}", with_interval(c), counted(c.questions, "prompt")),
    }
}

/// The longest finite bar of `places`, intervals included, and at least `least`.
fn longest_bar(places: &[Place], least: f64) -> f64 {
    let bars = places.iter().flat_map(|p| p.bars.iter().flatten());
    let values = bars.flat_map(|b| [b.value, b.interval.map_or(b.value, |(_, high)| high)]);
    values.filter(|v| v.is_finite()).fold(least, f64::max)
}
