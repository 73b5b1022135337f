//! Bar charts: upright groups over counted places, and level bars beside names.

use crate::axis::Axis;
use crate::figure::{Figure, Frame, Key, WIDTH, bar, label, legend, rule};
use crate::lines::whisker;
use crate::markup::Markup;
use crate::number::fixed;

const LEFT: f64 = 58.0;
const HEIGHT: f64 = 300.0;
const BELOW: f64 = 46.0;
/// Thickness of a level bar, with its distance to the next.
const ROW: f64 = 17.0;
/// Distance of two groups of level bars.
const GAP: f64 = 12.0;
/// Characters of a name that are shown.
const NAME: usize = 20;

/// One bar.
#[derive(Debug, Clone, Default)]
pub struct Bar {
    /// Its length.
    pub value: f64,
    /// Ends of its interval.
    pub interval: Option<(f64, f64)>,
    /// What a resting pointer tells.
    pub note: String,
}

/// Bars that stand over a place or beside a name, one a series; a series may have none there.
#[derive(Debug, Clone)]
pub struct Place {
    /// Its name.
    pub name: String,
    /// Its bars.
    pub bars: Vec<Option<Bar>>,
}

/// A bar chart before it is drawn.
pub struct BarChart {
    /// Its name.
    pub title: String,
    /// What to know when reading it.
    pub note: String,
    /// What the places are.
    pub places: (String, Vec<Place>),
    /// The axis of the values; starts at zero.
    pub values: Axis,
    /// Names of the series.
    pub series: Vec<String>,
    /// A value to compare with, and its name.
    pub reference: Option<(f64, String)>,
}

impl BarChart {
    fn entries(&self) -> Vec<(Key, String)> {
        let series = self.series.iter().enumerate().map(|(i, name)| (Key::Area(i), name.clone()));
        series.chain(self.reference.iter().map(|(_, name)| (Key::Reference, name.clone()))).collect()
    }

    /// Draws it with upright bars.
    pub fn upright(self) -> Figure {
        let mut m = Markup::default();
        let top = legend(&mut m, &self.entries(), LEFT) + 18.0;
        let (name, places) = self.places;
        let mut x = Axis::whole(&name, 0.0, places.len() as f64, 1);
        x.ticks.clear();
        let frame = Frame { edges: (LEFT, WIDTH - 18.0, top, top + HEIGHT - BELOW), x, y: self.values };
        frame.draw_y(&mut m);
        frame.draw_x(&mut m, false);
        let group = frame.px(1.0) - frame.px(0.0);
        let width = (0.76 * group / self.series.len().max(1) as f64).min(48.0);
        let bottom = frame.edges.3;
        for (i, place) in places.iter().enumerate() {
            let middle = frame.px(i as f64 + 0.5);
            let start = middle - width * place.bars.len() as f64 / 2.0;
            for (s, drawn) in place.bars.iter().enumerate() {
                let Some(drawn) = drawn.as_ref().filter(|b| b.value.is_finite()) else { continue };
                let y = frame.py(drawn.value);
                bar(&mut m, s, ((start + width * s as f64 + 0.5, y), (width - 1.0, bottom - y)), &drawn.note);
            }
            label(&mut m, ("tick", "middle"), (middle, bottom + 17.0), &place.name);
        }
        frame.draw_base(&mut m);
        Figure { title: self.title, note: self.note, height: top + HEIGHT, body: m.finish() }
    }

    /// Draws it with level bars, as long names need, and the value behind each.
    pub fn level(self) -> Figure {
        let mut m = Markup::default();
        let entries = self.entries();
        let (_, places) = self.places;
        let names: Vec<String> = places.iter().map(|p| shortened(&p.name)).collect();
        let longest = names.iter().map(|n| n.chars().count()).max().unwrap_or(0);
        let left = 20.0 + 6.8 * longest as f64;
        let top = legend(&mut m, &entries, left) + 14.0;
        let rows: usize = places.iter().map(|p| p.bars.len()).sum();
        let bottom = top + ROW * rows as f64 + GAP * places.len() as f64;
        let y = Axis::round("", 0.0, 1.0, 1);
        let frame = Frame { edges: (left, WIDTH - 52.0, top, bottom), x: self.values, y };
        frame.draw_x(&mut m, true);
        let mut y = top;
        for (place, name) in places.iter().zip(&names) {
            let height = ROW * place.bars.len() as f64;
            y += GAP / 2.0;
            label(&mut m, ("name", "end"), (left - 10.0, y + height / 2.0 + 4.0), name);
            for (s, drawn) in place.bars.iter().enumerate() {
                if let Some(drawn) = drawn.as_ref().filter(|b| b.value.is_finite()) {
                    level_bar(&mut m, &frame, (s, y + ROW * s as f64), drawn);
                }
            }
            y += height + GAP / 2.0;
        }
        if let Some((value, _)) = self.reference {
            rule(&mut m, "reference", (frame.px(value), top), (frame.px(value), bottom));
        }
        rule(&mut m, "base", (left, top), (left, bottom));
        Figure { title: self.title, note: self.note, height: bottom + BELOW, body: m.finish() }
    }
}

fn level_bar(m: &mut Markup, frame: &Frame, (series, y): (usize, f64), drawn: &Bar) {
    let (start, end) = (frame.edges.0, frame.px(drawn.value));
    bar(m, series, ((start, y + 1.0), (end - start, ROW - 2.0)), &drawn.note);
    let mut right = end;
    if let Some((low, high)) = drawn.interval.filter(|(low, high)| low.is_finite() && high.is_finite()) {
        right = right.max(frame.px(high));
        whisker(m, series, (frame.px(low), y + ROW / 2.0), (frame.px(high), y + ROW / 2.0));
    }
    label(m, ("value", "start"), (right + 8.0, y + ROW / 2.0 + 4.0), &fixed(drawn.value, 2));
}

fn shortened(name: &str) -> String {
    if name.chars().count() <= NAME {
        return name.to_string();
    }
    name.chars().take(NAME - 1).chain(['…']).collect()
}
