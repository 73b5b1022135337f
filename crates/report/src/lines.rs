//! Line charts: series of points, some with intervals, over two straight axes.

use crate::axis::Axis;
use crate::figure::{Figure, Frame, Key, WIDTH, colour, hollow, legend, mark, rule};
use crate::markup::{Markup, points};

const LEFT: f64 = 58.0;
const HEIGHT: f64 = 300.0;
const BELOW: f64 = 46.0;
/// Distance between the points of two series at one place, so that their intervals can be told apart.
const DODGE: f64 = 6.0;

/// One point.
#[derive(Debug, Clone, Default)]
pub struct Point {
    /// Place along the bottom axis.
    pub x: f64,
    /// Value.
    pub y: f64,
    /// Ends of its interval.
    pub interval: Option<(f64, f64)>,
    /// What a resting pointer tells.
    pub note: String,
}

/// How a series is drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Stroke {
    /// Line and marks: each point is a measurement.
    Marked,
    /// A thin line: points too many to mark.
    Thin,
    /// A dashed line with hollow marks where a point has a note: not measured.
    Dashed,
}

/// Points that belong together.
#[derive(Debug, Clone)]
pub struct Series {
    /// Its entry in the legend, if it has its own.
    pub label: Option<String>,
    /// Number of its colour and mark.
    pub index: usize,
    /// How it is drawn.
    pub stroke: Stroke,
    /// Whether the intervals are joined to a band beside being drawn at their points.
    pub band: bool,
    /// Its points from left to right; points that are no numbers are passed over.
    pub points: Vec<Point>,
}

/// A line chart before it is drawn.
pub struct LineChart {
    /// Its name.
    pub title: String,
    /// What to know when reading it.
    pub note: String,
    /// Axis along the bottom.
    pub x: Axis,
    /// Axis along the left side.
    pub y: Axis,
    /// What it shows.
    pub series: Vec<Series>,
    /// Whether series are moved apart sideways.
    pub dodge: bool,
}

impl LineChart {
    /// Draws it.
    pub fn draw(self) -> Figure {
        let mut m = Markup::default();
        let entries: Vec<(Key, String)> =
            self.series.iter().filter_map(|s| Some((s.key(), s.label.clone()?))).collect();
        let top = legend(&mut m, &entries, LEFT) + 18.0;
        let edges = (LEFT, WIDTH - 18.0, top, top + HEIGHT - BELOW);
        let frame = Frame { edges, x: self.x, y: self.y };
        frame.draw_y(&mut m);
        frame.draw_x(&mut m, false);
        frame.draw_base(&mut m);
        let last = self.series.iter().map(|s| s.index).max().unwrap_or(0) as f64;
        let shift = |s: &Series| if self.dodge { DODGE * (s.index as f64 - last / 2.0) } else { 0.0 };
        // Bands lie below all lines.
        self.series.iter().filter(|s| s.band).for_each(|s| s.draw_band(&mut m, &frame, shift(s)));
        self.series.iter().for_each(|s| s.draw(&mut m, &frame, shift(s)));
        Figure { title: self.title, note: self.note, height: top + HEIGHT, body: m.finish() }
    }
}

/// The highest finite value of `series`, intervals included, and at least `least`.
pub fn top(series: &[Series], least: f64) -> f64 {
    let values = series.iter().flat_map(|s| &s.points).flat_map(|p| [p.y, p.interval.map_or(p.y, |(_, high)| high)]);
    values.filter(|v| v.is_finite()).fold(least, f64::max)
}

impl Series {
    /// The area between the lower and the upper ends of the intervals.
    fn draw_band(&self, m: &mut Markup, frame: &Frame, shift: f64) {
        let finite = |(low, high): &(f64, f64)| low.is_finite() && high.is_finite();
        let ends = self.points.iter().filter_map(|p| Some((frame.px(p.x) + shift, p.interval.filter(finite)?)));
        let ends: Vec<(f64, (f64, f64))> = ends.filter(|(x, _)| x.is_finite()).collect();
        if ends.len() > 1 {
            let upper = ends.iter().map(|(x, (_, high))| (*x, frame.py(*high)));
            let lower = ends.iter().rev().map(|(x, (low, _))| (*x, frame.py(*low)));
            let class = format!("band {}", colour(self.index));
            m.empty("polygon", &[("class", &class), ("points", &points(upper.chain(lower)))]);
        }
    }

    fn key(&self) -> Key {
        match self.stroke {
            Stroke::Marked => Key::Marked(self.index),
            Stroke::Thin => Key::Line(self.index),
            Stroke::Dashed => Key::Dashed(self.index),
        }
    }

    fn draw(&self, m: &mut Markup, frame: &Frame, shift: f64) {
        let drawn: Vec<&Point> = self.points.iter().filter(|p| p.x.is_finite() && p.y.is_finite()).collect();
        let place = |p: &Point| (frame.px(p.x) + shift, frame.py(p.y));
        let style = match self.stroke {
            Stroke::Marked => "line",
            Stroke::Thin => "line thin",
            Stroke::Dashed => "line dashed",
        };
        if drawn.len() > 1 {
            let class = format!("{style} {}", colour(self.index));
            m.empty("polyline", &[("class", &class), ("points", &points(drawn.iter().map(|p| place(p))))]);
        }
        for point in drawn.iter().filter(|_| self.stroke == Stroke::Marked) {
            let (x, y) = place(point);
            if let Some((low, high)) = point.interval.filter(|(low, high)| low.is_finite() && high.is_finite()) {
                whisker(m, self.index, (x, frame.py(low)), (x, frame.py(high)));
            }
            mark(m, self.index, (x, y), &point.note);
        }
        for point in drawn.iter().filter(|p| self.stroke == Stroke::Dashed && !p.note.is_empty()) {
            hollow(m, self.index, place(point), &point.note);
        }
    }
}

/// An upright or level interval with a stop at each end.
pub fn whisker(m: &mut Markup, index: usize, from: (f64, f64), to: (f64, f64)) {
    let class = format!("whisker {}", colour(index));
    let (dx, dy) = if from.0 == to.0 { (3.5, 0.0) } else { (0.0, 3.5) };
    rule(m, &class, from, to);
    for (x, y) in [from, to] {
        rule(m, &class, (x - dx, y - dy), (x + dx, y + dy));
    }
}
