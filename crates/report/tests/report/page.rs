//! The page: well-formed, escaped, complete in itself, and without `NaN` whatever is missing.

use crate::sample::{nothing, two};
use roxmltree::{Document, Node, ParsingOptions};
use spectrain_core::rules::Rule;
use spectrain_core::waterfall::Waterfall;
use spectrain_report::{Origin, Report, TrainingPoint, Transcript};

fn parsed(html: &str) -> Document<'_> {
    let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
    Document::parse_with_options(html, options).unwrap_or_else(|e| panic!("{e}\n{html}"))
}

fn text(node: Node) -> String {
    node.descendants().filter(Node::is_text).filter_map(|n| n.text()).collect()
}

fn named<'a>(document: &'a Document, name: &'a str) -> impl Iterator<Item = Node<'a, 'a>> {
    document.descendants().filter(move |n| n.tag_name().name() == name)
}

fn training() -> Vec<TrainingPoint> {
    let point = |step, held_out, loss| TrainingPoint { step, held_out, loss, alpha_step: vec![0.5, 0.25] };
    vec![point(1, false, 3.0), point(2, false, f64::NAN), point(2, true, 2.5), point(3, false, 2.0)]
}

fn full() -> Report {
    let piece = |text: &str, origin| (text.to_string(), origin);
    let pieces = vec![
        piece("if a < b", Origin::Prompt),
        piece("\nx", Origin::Target),
        piece(" && ", Origin::Drafted),
        piece("\"y\"", Origin::Drafted),
    ];
    Report {
        title: "run <1>".to_string(),
        facts: vec![("target".to_string(), "a&b".to_string())],
        evaluations: two(),
        training: training(),
        transcripts: vec![Transcript { task: "<code>".to_string(), pieces }],
        waterfalls: vec![Waterfall::new((0.0, Rule::Greedy, 4), [4.75, 4.5, 2.0, 1.75, 1.75], 1.8)],
    }
}

#[test]
fn a_full_page_is_well_formed_and_keeps_every_text() {
    let html = full().html();
    let document = parsed(&html);
    assert_eq!(named(&document, "h1").map(text).collect::<String>(), "run <1>");
    assert_eq!(named(&document, "dd").map(text).next().unwrap(), "a&b");
    let p = named(&document, "p").find(|n| n.attribute("class") == Some("transcript")).unwrap();
    let spans: Vec<(&str, String)> = p.children().map(|n| (n.attribute("class").unwrap(), text(n))).collect();
    let expected = [("prompt", "if a < b"), ("written", "\nx"), ("drafted", " && \"y\"")];
    assert_eq!(spans, expected.map(|(class, text)| (class, text.to_string())));
}

#[test]
fn every_figure_says_what_it_is() {
    let html = full().html();
    let document = parsed(&html);
    let titles: Vec<String> = named(&document, "svg")
        .map(|svg| {
            assert_eq!(svg.attribute("role"), Some("img"));
            let title = text(svg.first_element_child().unwrap());
            assert!(svg.attribute("aria-label").unwrap().starts_with(&title));
            title
        })
        .collect();
    let expected = [
        "Acceptance length",
        "Survival by position",
        "Conditional acceptance",
        "Accepted lengths",
        "Acceptance length by task",
        "Where the tokens go",
        "Output tokens per second",
        "Where the time goes",
        "Loss",
        "Chance of acceptance on the true text",
    ];
    assert_eq!(titles, expected);
}

#[test]
fn nothing_is_fetched() {
    let html = full().html();
    for loader in ["<script", "<link", "<img", "src=", "href=", "url(", "@import"] {
        assert!(!html.contains(loader), "{loader}");
    }
}

#[test]
fn facts_of_the_evaluations_follow_the_given_ones() {
    let mut report = full();
    report.facts.push(("Seed".to_string(), "given".to_string()));
    let html = report.html();
    let document = parsed(&html);
    let list = named(&document, "dl").next().unwrap();
    let facts: Vec<String> =
        list.children().map(|pair| pair.children().map(text).collect::<Vec<_>>().join("=")).collect();
    let expected = [
        "target=a&b",
        "Seed=given",
        "rule=greedy, token",
        "guarantee=greedy, target-sampling",
        "temperature=0, 1",
        "prompts=5",
        "longest answer=128 tokens",
        "batch=4",
        "dtype=f32",
    ];
    assert_eq!(facts, expected);
}

#[test]
fn tables_hold_the_numbers() {
    let html = full().html();
    let document = parsed(&html);
    let rows: Vec<String> = named(&document, "tr")
        .filter(|n| n.parent().unwrap().tag_name().name() == "tbody")
        .map(|n| n.children().map(text).collect::<Vec<_>>().join("|"))
        .collect();
    let expected = [
        "greedy|greedy|0|2|5|2.250|2.188 to 2.312|1.250|0.625|0.750 0.500",
        "token|target-sampling|1|2|5|1.812|1.750 to 1.875|0.812|0.406|0.500 0.312",
        "greedy|0|2|chat|3|2.000|1.900 to 2.100|1.000|0.500|0.750 0.250",
        "greedy|0|2|code|2|2.500|2.300 to 2.700|1.500|0.750|0.750 0.750",
        "token|1|2|chat|3|1.625|1.525 to 1.725|0.625|0.312|0.500 0.125",
        "token|1|2|code|2|2.000|1.800 to 2.200|1.000|0.500|0.500 0.500",
        "greedy|0|2|2.250|3.000|3.000|3.000|3.000",
        "token|1|2|1.812|3.000|3.000|3.000|3.000",
        "greedy|0|2|4|100.0|80.0|1.25× [1.12, 1.50]|10|80|5|2|2|5 of 5|0",
        "token|1|2|4|100.0|80.0|1.25× [1.12, 1.50]|10|80|5|2|2|not promised|0",
        "plain|0|0|500.0|500.0|500.0|500.0|500.0|500.0|500.0|500.0|500.0|500.0|500.0|500.0|0.0|12.5",
        "greedy|0|2|500.0|500.0|500.0|500.0|500.0|500.0|500.0|500.0|500.0|500.0|500.0|500.0|0.0|12.5",
        "plain|1|0|500.0|500.0|500.0|500.0|500.0|500.0|500.0|500.0|500.0|500.0|500.0|500.0|0.0|12.5",
        "token|1|2|500.0|500.0|500.0|500.0|500.0|500.0|500.0|500.0|500.0|500.0|500.0|500.0|0.0|12.5",
        "plain|0|0|4.00|0.00|1.00|0.00|0.00|5.00",
        "greedy|0|2|4.00|1.00|1.50|0.50|0.25|7.00",
        "plain|1|0|4.00|0.00|1.00|0.00|0.00|5.00",
        "token|1|2|4.00|1.00|1.50|0.50|0.25|7.00",
    ];
    assert_eq!(rows, expected);
}

#[test]
fn whatever_is_missing_the_page_stands() {
    let wordless = TrainingPoint { step: 0, held_out: false, loss: f64::NAN, alpha_step: vec![] };
    let mut one = full();
    one.evaluations.truncate(1);
    let mut unsure = full();
    let unknown = &mut unsure.evaluations[0].overall;
    (unknown.interval.low, unknown.interval.high) = (f64::NAN, f64::INFINITY);
    unsure.evaluations[1].overall.acceptance.tokens_per_target_call = f64::NAN;
    let reports = [
        unsure,
        Report::default(),
        one,
        Report { evaluations: vec![nothing()], ..full() },
        Report { evaluations: vec![nothing(), two().remove(0)], training: vec![], ..full() },
        Report { training: vec![wordless], transcripts: vec![], ..full() },
        Report { training: training()[..1].to_vec(), ..Report::default() },
        Report { transcripts: vec![Transcript { task: String::new(), pieces: vec![] }], ..Report::default() },
    ];
    for report in reports {
        let html = report.html();
        let body = &html[html.find("<body").unwrap()..];
        assert!(!body.contains("NaN") && !body.contains("inf\"") && !body.contains(">inf<"), "{body}");
        parsed(&html);
    }
}
