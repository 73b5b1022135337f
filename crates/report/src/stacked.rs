//! Level bars made of parts: what a whole consists of.

use crate::axis::Axis;
use crate::figure::{Figure, Frame, Key, WIDTH, bar, label, legend, rule};
use crate::markup::Markup;
use crate::number::fixed;

/// Thickness of a bar.
const BAR: f64 = 16.0;
/// Distance from one bar to the next.
const ROW: f64 = 24.0;
const BELOW: f64 = 46.0;

/// One bar with its parts.
#[derive(Debug, Clone)]
pub struct Whole {
    /// Its name.
    pub name: String,
    /// Its parts, in the order of the chart's; a part that is no number is passed over.
    pub parts: Vec<f64>,
}

/// A chart of wholes before it is drawn.
pub struct StackedChart {
    /// Its name.
    pub title: String,
    /// What to know when reading it.
    pub note: String,
    /// What is measured.
    pub label: String,
    /// Decimals of the sum behind each bar.
    pub digits: usize,
    /// Names of the parts.
    pub parts: Vec<String>,
    /// The bars from top to bottom.
    pub wholes: Vec<Whole>,
}

impl Whole {
    fn sum(&self) -> f64 {
        self.parts.iter().filter(|v| v.is_finite()).sum()
    }
}

impl StackedChart {
    /// Draws it.
    pub fn draw(self) -> Figure {
        let mut m = Markup::default();
        let longest = self.wholes.iter().map(|w| w.name.chars().count()).max().unwrap_or(0);
        let left = 20.0 + 6.8 * longest as f64;
        let entries: Vec<(Key, String)> =
            self.parts.iter().cloned().enumerate().map(|(i, p)| (Key::Area(i), p)).collect();
        let top = legend(&mut m, &entries, left) + 14.0;
        let bottom = top + ROW * self.wholes.len() as f64;
        let high = self.wholes.iter().map(Whole::sum).fold(0.0, f64::max);
        let x = Axis::round(&self.label, 0.0, high, 6);
        let frame = Frame { edges: (left, WIDTH - 52.0, top, bottom), x, y: Axis::round("", 0.0, 1.0, 1) };
        frame.draw_x(&mut m, true);
        for (row, whole) in self.wholes.iter().enumerate() {
            let y = top + ROW * row as f64 + (ROW - BAR) / 2.0;
            label(&mut m, ("name", "end"), (left - 10.0, y + 12.0), &whole.name);
            let mut before = 0.0;
            for (i, &part) in whole.parts.iter().enumerate().filter(|(_, part)| part.is_finite()) {
                let (start, end) = (frame.px(before), frame.px(before + part));
                let name = self.parts.get(i).map_or("", String::as_str);
                let note = format!("{}: {name} {}", whole.name, fixed(part, self.digits));
                bar(&mut m, i, ((start, y), (end - start, BAR)), &note);
                before += part;
            }
            label(&mut m, ("value", "start"), (frame.px(before) + 8.0, y + 12.0), &fixed(before, self.digits));
        }
        rule(&mut m, "base", (left, top), (left, bottom));
        Figure { title: self.title, note: self.note, height: bottom + BELOW, body: m.finish() }
    }
}
