//! The numbers in a picture are the numbers that were measured: positions are read back through the axes' own ticks.

use crate::sample::{evaluation, nothing, two};
use roxmltree::{Document, Node};
use spectrain_core::rules::Rule;
use spectrain_report::curve_svg;

/// A picture with the scales that its tick texts span.
struct Picture<'a> {
    document: &'a Document<'a>,
    x: (f64, f64),
    y: (f64, f64),
}

fn number(node: Node, attribute: &str) -> f64 {
    node.attribute(attribute).unwrap().parse().unwrap()
}

/// Slope and offset from pixels to values, of the ticks that end where `anchor` says.
fn scale(document: &Document, anchor: &str, attribute: &str) -> (f64, f64) {
    let ticks: Vec<(f64, f64)> = document
        .descendants()
        .filter(|n| n.attribute("class") == Some("tick") && n.attribute("text-anchor") == Some(anchor))
        .map(|n| (number(n, attribute), n.text().unwrap().parse().unwrap()))
        .collect();
    let ((p0, v0), (p1, v1)) = (ticks[0], ticks[ticks.len() - 1]);
    let slope = (v1 - v0) / (p1 - p0);
    (slope, v0 - slope * p0)
}

impl<'a> Picture<'a> {
    fn new(document: &'a Document<'a>) -> Self {
        let (slope, offset) = scale(document, "end", "y");
        // Tick texts sit four pixels below their ticks.
        Self { document, x: scale(document, "middle", "x"), y: (slope, offset + 4.0 * slope) }
    }

    fn value(&self, (px, py): (f64, f64)) -> (f64, f64) {
        (self.x.0 * px + self.x.1, self.y.0 * py + self.y.1)
    }

    fn of_class(&self, class: &str) -> Vec<Node<'a, 'a>> {
        self.document.descendants().filter(|n| n.attribute("class") == Some(class)).collect()
    }

    /// Values of the points of the first polyline or polygon of a class.
    fn polyline(&self, class: &str) -> Vec<(f64, f64)> {
        let line = self.of_class(class).into_iter().find(|n| n.has_attribute("points"));
        let pair = |pair: &str| {
            let (x, y) = pair.split_once(',').unwrap();
            self.value((x.parse().unwrap(), y.parse().unwrap()))
        };
        line.unwrap().attribute("points").unwrap().split(' ').map(pair).collect()
    }
}

fn assert_close(found: &[(f64, f64)], expected: &[(f64, f64)]) {
    assert_eq!(found.len(), expected.len(), "{found:?} {expected:?}");
    for (f, e) in found.iter().zip(expected) {
        assert!((f.0 - e.0).abs() < 0.005 && (f.1 - e.1).abs() < 0.005, "{found:?} {expected:?}");
    }
}

/// Titles of the marks that have one.
fn notes(document: &Document) -> Vec<String> {
    let marks = document.descendants().filter(|n| n.attribute("class").is_some_and(|c| c.starts_with("mark")));
    marks.filter_map(|n| n.first_element_child()?.text().map(str::to_string)).collect()
}

#[test]
fn measured_lengths_are_points_with_intervals_on_one_line() {
    let mut results = [
        evaluation(Rule::Token, 1.0, &[3, 3, 1, 1], &[4, 1, 0, 3]),
        evaluation(Rule::Token, 1.0, &[4, 3, 1], &[4, 0, 4]),
    ];
    results.iter_mut().for_each(|e| e.estimates.clear());
    let svg = curve_svg(&results).unwrap();
    let document = Document::parse(&svg).unwrap();
    let picture = Picture::new(&document);
    assert_close(&picture.polyline("line c0"), &[(2.0, 1.8125), (3.0, 2.125)]);
    // An interval is three strokes: itself and its two stops.
    let ends: Vec<(f64, f64)> = picture.of_class("whisker c0")[..1]
        .iter()
        .flat_map(|n| [(number(*n, "x1"), number(*n, "y1")), (number(*n, "x2"), number(*n, "y2"))])
        .map(|at| picture.value(at))
        .collect();
    assert_close(&ends, &[(2.0, 1.75), (2.0, 1.875)]);
    assert_eq!(notes(&document), ["K = 2: 1.812 [1.750, 1.875]", "K = 3: 2.125 [2.062, 2.188]"]);
    assert!(!svg.contains("estimate from"), "nothing was estimated");
    // The band runs along the upper ends and back along the lower ones.
    assert_close(&picture.polyline("band c0"), &[(2.0, 1.875), (3.0, 2.1875), (3.0, 2.0625), (2.0, 1.75)]);
}

#[test]
fn estimates_lie_between_the_measured_points_as_rings() {
    let mut longer = evaluation(Rule::Token, 1.0, &[3, 3, 1, 1], &[4, 1, 0, 3]);
    longer.estimates.retain(|e| e.length == 2);
    let svg = curve_svg(&[evaluation(Rule::Token, 1.0, &[4, 4], &[4, 4]), longer]).unwrap();
    let document = Document::parse(&svg).unwrap();
    let picture = Picture::new(&document);
    assert_close(&picture.polyline("line c0"), &[(1.0, 1.5), (3.0, 2.125)]);
    assert_close(&picture.polyline("line dashed c0"), &[(0.0, 1.0), (2.0, 1.875), (3.0, 2.125)]);
    let rings: Vec<&str> =
        picture.of_class("hollow c0").iter().map(|n| n.first_element_child().unwrap().text().unwrap()).collect();
    assert_eq!(rings, ["K = 2, estimated: 1.875 [1.750, 2.000]"]);
}

#[test]
fn one_length_is_a_point_and_a_dashed_estimate_that_says_so() {
    let svg = curve_svg(&two()[..1]).unwrap();
    let document = Document::parse(&svg).unwrap();
    let picture = Picture::new(&document);
    assert_close(&picture.polyline("line dashed c0"), &[(0.0, 1.0), (1.0, 1.75), (2.0, 2.25)]);
    assert_eq!(notes(&document), ["K = 2: 2.250 [2.188, 2.312]"]);
    let keys: Vec<&str> = picture.of_class("key").iter().filter_map(|n| n.text()).collect();
    assert_eq!(keys, ["greedy, T = 0", "estimate from the K = 2 rounds of greedy, T = 0"]);
    assert!(svg.contains("A dashed line with rings is no measurement"));
}

#[test]
fn names_hold_what_differs_and_no_more() {
    let mut results = two();
    results.push(two().remove(1));
    results[2].batch = 1;
    let svg = curve_svg(&results).unwrap();
    for name in ["greedy, T = 0, batch 4", "token, T = 1, batch 4", "token, T = 1, batch 1"] {
        assert!(svg.contains(&format!(">{name}<")), "{name}");
    }
    assert!(!svg.contains("seed") && !svg.contains("f32"));
}

#[test]
fn a_picture_of_its_own_carries_both_colour_schemes() {
    let svg = curve_svg(&two()).unwrap();
    assert!(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""));
    assert!(svg.contains("prefers-color-scheme: dark") && svg.contains("--c0:"));
}

#[test]
fn without_a_target_call_there_is_no_picture() {
    assert_eq!(curve_svg(&[]), None);
    assert_eq!(curve_svg(&[nothing()]), None);
}
