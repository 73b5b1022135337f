//! The training's own figures, read back from `metrics.jsonl`.
//!
//! Only what is drawn is read: other fields and events may come and go without touching the report.

use crate::axis::Axis;
use crate::figure::Figure;
use crate::lines::{LineChart, Point, Series, Stroke};
use serde::Deserialize;
use std::collections::BTreeMap;

/// Most points of a drawn line; a longer one is drawn through means of neighbours.
const POINTS: usize = 240;

/// What is drawn of one record. A figure that was no number is NaN here and left out there.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainingPoint {
    /// Optimiser steps taken.
    pub step: usize,
    /// Whether it was taken on held-out conversations, not on the batch just learned from.
    pub held_out: bool,
    /// Loss per supervised token, nats.
    pub loss: f64,
    /// Teacher-forced chance of acceptance under the declared verifier, by drafted position.
    pub alpha_step: Vec<f64>,
}

/// Why records cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("line {line} is no training record: {source}; one JSON object a line belongs there")]
pub struct TrainingError {
    /// Number of the line, from 1.
    pub line: usize,
    /// What is wrong with it.
    source: serde_json::Error,
}

/// A line of any kind; numbers that JSON cannot hold were written as null.
#[derive(Deserialize)]
struct Line {
    #[serde(default)]
    event: String,
    #[serde(default)]
    step: usize,
    #[serde(default)]
    loss: Option<f64>,
    #[serde(default)]
    alpha_step: Vec<Option<f64>>,
}

/// Reads the lines of `metrics.jsonl` in the order of their steps. Unknown events are passed over; of two records of
/// one step the later one counts, as a resumed run repeats steps; a last line that was cut short is left out.
///
/// # Errors
/// At a line that is no such object.
pub fn read_training(text: &str) -> Result<Vec<TrainingPoint>, TrainingError> {
    let mut points = BTreeMap::new();
    for (index, line) in text.split_inclusive('\n').enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let read = match serde_json::from_str::<Line>(line) {
            Ok(read) => read,
            Err(e) if e.is_eof() && !line.ends_with('\n') => break,
            Err(source) => return Err(TrainingError { line: index + 1, source }),
        };
        let held_out = match read.event.as_str() {
            "step" => false,
            "validation" => true,
            _ => continue,
        };
        let number = |v: Option<f64>| v.unwrap_or(f64::NAN);
        let alpha_step = read.alpha_step.into_iter().map(number).collect();
        let point = TrainingPoint { step: read.step, held_out, loss: number(read.loss), alpha_step };
        points.insert((read.step, held_out), point);
    }
    Ok(points.into_values().collect())
}

/// Loss and chance of acceptance over the steps; none without records.
pub fn figures(points: &[TrainingPoint]) -> Vec<Figure> {
    if points.is_empty() {
        return Vec::new();
    }
    let mut figures = vec![loss(points)];
    if points.iter().any(|p| !p.alpha_step.is_empty()) {
        figures.push(acceptance(points));
    }
    figures
}

fn loss(points: &[TrainingPoint]) -> Figure {
    let names = [(false, "training", Stroke::Thin), (true, "held out", Stroke::Marked)];
    let series = names.into_iter().enumerate().filter_map(|(index, (held_out, name, stroke))| {
        let drawn = line(points, held_out, |p| Some(p.loss));
        (!drawn.is_empty()).then(|| Series { label: Some(name.to_string()), index, stroke, band: false, points: drawn })
    });
    let series: Vec<Series> = series.collect();
    let values: Vec<f64> = series.iter().flat_map(|s| &s.points).map(|p| p.y).filter(|y| y.is_finite()).collect();
    let (low, high) = values.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), &v| (a.min(v), b.max(v)));
    let (low, high) = if values.is_empty() { (0.0, 1.0) } else { (low, high) };
    LineChart {
        title: "Loss".to_string(),
        note: format!("Weighted loss per supervised token.{}", bucket_note(points)),
        x: steps(points),
        y: Axis::round("loss, nats", low, high, 5),
        series,
        dodge: false,
    }
    .draw()
}

fn acceptance(points: &[TrainingPoint]) -> Figure {
    let positions = points.iter().map(|p| p.alpha_step.len()).max().unwrap_or(0);
    let validated = points.iter().any(|p| p.held_out);
    let mut series = Vec::new();
    for index in 0..positions {
        for (held_out, stroke) in [(false, Stroke::Thin), (true, Stroke::Marked)] {
            let label = (held_out == validated).then(|| format!("position {}", index + 1));
            let points = line(points, held_out, |p| p.alpha_step.get(index).copied());
            series.push(Series { label, index, stroke, band: false, points });
        }
    }
    let lines = if validated { " Thin lines: training; marks: held out." } else { "" };
    LineChart {
        title: "Chance of acceptance on the true text".to_string(),
        note: format!(
            "By drafted position, as the declared verifier would accept: a proxy, not a measurement.{lines}{}",
            bucket_note(points)
        ),
        x: steps(points),
        y: Axis::round("mean chance of acceptance", 0.0, 1.0, 5),
        series,
        dodge: false,
    }
    .draw()
}

fn steps(points: &[TrainingPoint]) -> Axis {
    let last = points.iter().map(|p| p.step).max().unwrap_or(1);
    Axis::whole("optimiser steps", 0.0, last as f64, 8)
}

/// How many neighbours one point of a training line stands for.
fn bucket(points: &[TrainingPoint]) -> usize {
    points.iter().filter(|p| !p.held_out).count().div_ceil(POINTS).max(1)
}

fn bucket_note(points: &[TrainingPoint]) -> String {
    match bucket(points) {
        1 => String::new(),
        size => format!(" Training lines run through means of {size} records."),
    }
}

/// One figure of the training or of the held-out records, thinned by means if they are many.
fn line(points: &[TrainingPoint], held_out: bool, of: impl Fn(&TrainingPoint) -> Option<f64>) -> Vec<Point> {
    let pair = |p: &TrainingPoint| Some((p.step as f64, of(p).filter(|v| v.is_finite())?));
    let pairs: Vec<(f64, f64)> = points.iter().filter(|p| p.held_out == held_out).filter_map(pair).collect();
    let mean = |chunk: &[(f64, f64)]| {
        let count = chunk.len() as f64;
        let (x, y) = chunk.iter().fold((0.0, 0.0), |(a, b), (x, y)| (a + x, b + y));
        let (x, y) = (x / count, y / count);
        Point { x, y, interval: None, note: format!("step {x:.0}: {y:.3}") }
    };
    pairs.chunks(if held_out { 1 } else { bucket(points) }).map(mean).collect()
}
