//! What every figure has: a size, a frame with axes, a legend, and a text for those who cannot see it.

use crate::axis::Axis;
use crate::markup::{Markup, Px, points};

/// Width of every figure; heights differ.
pub const WIDTH: f64 = 640.0;
/// Width of a character of the figures' text, about.
const CHARACTER: f64 = 6.4;
/// Colours of `figure.css`.
const COLOURS: usize = 8;
const STYLE: &str = concat!(include_str!("colours.css"), include_str!("figure.css"));

/// A drawn figure.
#[derive(Debug)]
pub struct Figure {
    /// Its name.
    pub title: String,
    /// What to know when reading it.
    pub note: String,
    /// Height of the drawing.
    pub height: f64,
    /// The drawing without its frame.
    pub body: String,
}

impl Figure {
    /// The drawing for a page that has the style sheets.
    pub fn inline(&self) -> String {
        self.svg(None)
    }

    /// The drawing as a file of its own.
    pub fn alone(&self) -> String {
        self.svg(Some(STYLE)) + "\n"
    }

    fn svg(&self, style: Option<&str>) -> String {
        let mut m = Markup::default();
        let view = format!("0 0 {} {}", WIDTH, Px(self.height));
        let label = format!("{}. {}", self.title, self.note);
        let attributes: [(&str, &dyn std::fmt::Display); 5] = [
            ("xmlns", &"http://www.w3.org/2000/svg"),
            ("viewBox", &view),
            ("class", &"figure"),
            ("role", &"img"),
            ("aria-label", &label.trim_end()),
        ];
        m.element("svg", &attributes, |m| {
            m.leaf("title", &[], &self.title);
            if let Some(style) = style {
                m.element("style", &[], |m| m.raw(style));
            }
            m.empty("rect", &[("class", &"paper"), ("width", &WIDTH), ("height", &Px(self.height))]);
            m.raw(&self.body);
        });
        m.finish()
    }
}

/// The area between two axes.
pub struct Frame {
    /// Left, right, top and bottom edge.
    pub edges: (f64, f64, f64, f64),
    /// Axis along the bottom.
    pub x: Axis,
    /// Axis along the left side.
    pub y: Axis,
}

impl Frame {
    /// Where the value `x` lies.
    pub fn px(&self, x: f64) -> f64 {
        let (left, right, ..) = self.edges;
        left + self.x.place(x) * (right - left)
    }

    /// Where the value `y` lies.
    pub fn py(&self, y: f64) -> f64 {
        let (_, _, top, bottom) = self.edges;
        bottom - self.y.place(y) * (bottom - top)
    }

    /// Ticks of the bottom axis with its label; `grid` draws lines through the area.
    pub fn draw_x(&self, m: &mut Markup, grid: bool) {
        let (left, right, top, bottom) = self.edges;
        for &tick in &self.x.ticks {
            let x = self.px(tick);
            if grid {
                rule(m, "grid", (x, top), (x, bottom));
            }
            label(m, ("tick", "middle"), (x, bottom + 17.0), &self.x.text(tick));
        }
        label(m, ("axis", "middle"), ((left + right) / 2.0, bottom + 37.0), &self.x.label);
    }

    /// Ticks and grid of the left axis with its label.
    pub fn draw_y(&self, m: &mut Markup) {
        let (left, right, top, bottom) = self.edges;
        for &tick in &self.y.ticks {
            let y = self.py(tick);
            rule(m, "grid", (left, y), (right, y));
            label(m, ("tick", "end"), (left - 8.0, y + 4.0), &self.y.text(tick));
        }
        let middle = (top + bottom) / 2.0;
        let turn = format!("rotate(-90 14 {})", Px(middle));
        let attributes: [(&str, &dyn std::fmt::Display); 5] =
            [("class", &"axis"), ("text-anchor", &"middle"), ("x", &14), ("y", &Px(middle)), ("transform", &turn)];
        m.leaf("text", &attributes, &self.y.label);
    }

    /// The bottom line.
    pub fn draw_base(&self, m: &mut Markup) {
        let (left, right, _, bottom) = self.edges;
        rule(m, "base", (left, bottom), (right, bottom));
    }
}

/// A straight line of a class.
pub fn rule(m: &mut Markup, class: &str, from: (f64, f64), to: (f64, f64)) {
    let (x1, y1, x2, y2) = (Px(from.0), Px(from.1), Px(to.0), Px(to.1));
    m.empty("line", &[("class", &class), ("x1", &x1), ("y1", &y1), ("x2", &x2), ("y2", &y2)]);
}

/// A text of a class, anchored at its `start`, `middle` or `end`.
pub fn label(m: &mut Markup, (class, anchor): (&str, &str), at: (f64, f64), text: &str) {
    m.leaf("text", &[("class", &class), ("text-anchor", &anchor), ("x", &Px(at.0)), ("y", &Px(at.1))], text);
}

/// Class of the colour of series `index`.
pub fn colour(index: usize) -> String {
    format!("c{}", index % COLOURS)
}

/// The mark of series `index`, told by shape as well as by colour, with `note` for a pointer that rests on it.
pub fn mark(m: &mut Markup, index: usize, (x, y): (f64, f64), note: &str) {
    let class = format!("mark {}", colour(index));
    let told = |m: &mut Markup| {
        if !note.is_empty() {
            m.leaf("title", &[], note);
        }
    };
    let shape = |offsets: &[(f64, f64)]| points(offsets.iter().map(|(dx, dy)| (x + dx, y + dy)));
    // A ninth series has the first colour again, but not its shape.
    let corners = match (index + index / COLOURS) % 4 {
        0 => {
            m.element("circle", &[("class", &class), ("cx", &Px(x)), ("cy", &Px(y)), ("r", &4)], told);
            return;
        }
        1 => shape(&[(-3.7, -3.7), (3.7, -3.7), (3.7, 3.7), (-3.7, 3.7)]),
        2 => shape(&[(0.0, -5.2), (5.2, 0.0), (0.0, 5.2), (-5.2, 0.0)]),
        _ => shape(&[(0.0, -5.0), (4.8, 3.8), (-4.8, 3.8)]),
    };
    m.element("polygon", &[("class", &class), ("points", &corners)], told);
}

/// A ring in the colour of series `index`, for what was not measured, with `note` for a pointer that rests on it.
pub fn hollow(m: &mut Markup, index: usize, (x, y): (f64, f64), note: &str) {
    let class = format!("hollow {}", colour(index));
    m.element("circle", &[("class", &class), ("cx", &Px(x)), ("cy", &Px(y)), ("r", &3.2)], |m| {
        m.leaf("title", &[], note);
    });
}

/// How a legend shows a series.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Key {
    /// Its line with its mark.
    Marked(usize),
    /// Its line alone.
    Line(usize),
    /// Its dashed line.
    Dashed(usize),
    /// The area of a bar.
    Area(usize),
    /// A line of reference, which is no series.
    Reference,
}

/// Draws the legend from the top and returns the height it took.
pub fn legend(m: &mut Markup, entries: &[(Key, String)], left: f64) -> f64 {
    let (mut x, mut y) = (left, 18.0);
    for (key, text) in entries {
        let width = 30.0 + CHARACTER * text.chars().count() as f64;
        if x > left && x + width > WIDTH - 8.0 {
            (x, y) = (left, y + 18.0);
        }
        swatch(m, *key, (x, y - 4.0));
        label(m, ("key", "start"), (x + 30.0, y), text);
        x += width + 18.0;
    }
    if entries.is_empty() { 0.0 } else { y }
}

fn swatch(m: &mut Markup, key: Key, (x, y): (f64, f64)) {
    let line = |m: &mut Markup, class: &str| rule(m, class, (x, y), (x + 24.0, y));
    match key {
        Key::Marked(index) => {
            line(m, &format!("line {}", colour(index)));
            mark(m, index, (x + 12.0, y), "");
        }
        Key::Line(index) => line(m, &format!("line {}", colour(index))),
        Key::Dashed(index) => line(m, &format!("line dashed {}", colour(index))),
        Key::Reference => line(m, "reference"),
        Key::Area(index) => bar(m, index, ((x + 6.0, y - 6.0), (12.0, 12.0)), ""),
    }
}

/// A filled rectangle in the colour of series `index`, given by its upper left corner and its size.
pub fn bar(m: &mut Markup, index: usize, ((x, y), (width, height)): ((f64, f64), (f64, f64)), note: &str) {
    let class = format!("bar {}", colour(index));
    let (x, y, width, height) = (Px(x), Px(y), Px(width), Px(height.max(0.0)));
    let attributes: [(&str, &dyn std::fmt::Display); 5] =
        [("class", &class), ("x", &x), ("y", &y), ("width", &width), ("height", &height)];
    m.element("rect", &attributes, |m| {
        if !note.is_empty() {
            m.leaf("title", &[], note);
        }
    });
}
