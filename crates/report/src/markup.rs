//! Text that is well-formed HTML and XML at once: what is opened is closed, and every text is escaped.

use std::fmt::{Display, Write};

/// An attribute with its value.
pub type Attribute<'a> = (&'a str, &'a dyn Display);

/// Markup under construction.
#[derive(Debug, Default)]
pub struct Markup(String);

impl Markup {
    /// An element with what `inner` writes into it; an element without content closes itself.
    pub fn element(&mut self, name: &str, attributes: &[Attribute], inner: impl FnOnce(&mut Self)) {
        self.open(name, attributes);
        let start = self.0.len();
        self.0.push('>');
        inner(self);
        if self.0.len() == start + 1 && is_void(name) {
            self.0.truncate(start);
            self.0.push_str(" />");
        } else {
            self.0.push_str("</");
            self.0.push_str(name);
            self.0.push('>');
        }
    }

    /// An element that holds a text.
    pub fn leaf(&mut self, name: &str, attributes: &[Attribute], text: &str) {
        self.element(name, attributes, |m| m.text(text));
    }

    /// An element without content.
    pub fn empty(&mut self, name: &str, attributes: &[Attribute]) {
        self.element(name, attributes, |_| ());
    }

    /// Escaped text.
    pub fn text(&mut self, text: &str) {
        text.chars().for_each(|c| self.character(c));
    }

    /// Markup or a style sheet of our own, as it is.
    pub fn raw(&mut self, markup: &str) {
        self.0.push_str(markup);
    }

    /// What was written.
    pub fn finish(self) -> String {
        self.0
    }

    fn open(&mut self, name: &str, attributes: &[Attribute]) {
        self.0.push('<');
        self.0.push_str(name);
        for (key, value) in attributes {
            self.0.push(' ');
            self.0.push_str(key);
            self.0.push_str("=\"");
            self.text(&value.to_string());
            self.0.push('"');
        }
    }

    /// Control characters are allowed in neither language, not even escaped.
    fn character(&mut self, c: char) {
        match c {
            '&' => self.0.push_str("&amp;"),
            '<' => self.0.push_str("&lt;"),
            '>' => self.0.push_str("&gt;"),
            '"' => self.0.push_str("&quot;"),
            '\n' | '\t' => self.0.push(c),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => self.0.push('\u{fffd}'),
            c => self.0.push(c),
        }
    }
}

/// Elements that HTML allows, or SVG wants, without an end tag.
fn is_void(name: &str) -> bool {
    matches!(name, "meta" | "br" | "rect" | "line" | "path" | "circle" | "polyline" | "polygon")
}

/// A coordinate, to a hundredth of a pixel.
pub struct Px(pub f64);

impl Display for Px {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rounded = (self.0 * 100.0).round() / 100.0;
        // The sum turns a negative zero into zero.
        write!(f, "{}", rounded + 0.0)
    }
}

/// Points as the value of a `points` attribute.
pub fn points(points: impl IntoIterator<Item = (f64, f64)>) -> String {
    let mut text = String::new();
    for (x, y) in points {
        let space = if text.is_empty() { "" } else { " " };
        // Writing to a string does not fail.
        let _ = write!(text, "{space}{},{}", Px(x), Px(y));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_attributes_are_escaped() {
        let mut m = Markup::default();
        m.leaf("p", &[("title", &"\"<&>\"")], "a < b && c > \"d\"\u{0}\u{1b}[0m");
        let expected =
            "<p title=\"&quot;&lt;&amp;&gt;&quot;\">a &lt; b &amp;&amp; c &gt; &quot;d&quot;\u{fffd}\u{fffd}[0m</p>";
        assert_eq!(m.finish(), expected);
    }

    #[test]
    fn only_void_elements_close_themselves() {
        let mut m = Markup::default();
        m.empty("meta", &[]);
        m.empty("td", &[]);
        assert_eq!(m.finish(), "<meta /><td></td>");
    }

    #[test]
    fn coordinates_are_short() {
        assert_eq!(points([(1.0, 2.005), (-0.0001, 1e3)]), "1,2.01 0,1000");
    }
}
