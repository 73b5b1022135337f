//! `report.html`: facts, tables, figures, transcripts, and what each word means.

use crate::figure::Figure;
use crate::markup::Markup;
use crate::number::{fixed, list, parts, percent, times};
use crate::training::TrainingPoint;
use crate::transcript::Transcript;
use crate::{measured, training, transcript};
use spectrain_core::evaluation::{Counted, Evaluation};

const STYLE: &str = concat!(include_str!("colours.css"), include_str!("figure.css"), include_str!("page.css"));

/// What a report shows. Any part may be empty.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Title of the page.
    pub title: String,
    /// Facts of the run, in the order given: name, target, drafter. What the evaluations themselves know (rule,
    /// guarantee, seed, …) is added behind them, unless a fact of that name is given.
    pub facts: Vec<(String, String)>,
    /// Measurements.
    pub evaluations: Vec<Evaluation>,
    /// Records of the training.
    pub training: Vec<TrainingPoint>,
    /// Answers to look at.
    pub transcripts: Vec<Transcript>,
}

impl Report {
    /// The page, complete in itself, and well-formed as HTML and as XML.
    pub fn html(&self) -> String {
        let mut m = Markup::default();
        m.raw("<!DOCTYPE html>\n");
        m.element("html", &[("lang", &"en")], |m| {
            m.element("head", &[], |m| {
                m.empty("meta", &[("charset", &"utf-8")]);
                m.empty("meta", &[("name", &"viewport"), ("content", &"width=device-width, initial-scale=1")]);
                m.empty("meta", &[("name", &"color-scheme"), ("content", &"light dark")]);
                m.leaf("title", &[], &self.title);
                m.element("style", &[], |m| m.raw(STYLE));
            });
            m.element("body", &[], |m| m.element("main", &[], |m| self.body(m)));
        });
        m.finish() + "\n"
    }

    fn body(&self, m: &mut Markup) {
        m.leaf("h1", &[], &self.title);
        self.write_facts(m);
        if !self.evaluations.is_empty() {
            m.leaf("h2", &[], "Acceptance");
            acceptance_table(m, &self.evaluations);
            figures(m, &measured::figures(&self.evaluations));
            task_table(m, &self.evaluations);
            m.leaf("h2", &[], "Speed");
            speed_table(m, &self.evaluations);
        }
        if !self.training.is_empty() {
            m.leaf("h2", &[], "Training");
            figures(m, &training::figures(&self.training));
        }
        if !self.transcripts.is_empty() {
            m.leaf("h2", &[], "Transcripts");
            transcript::key(m);
            self.transcripts.iter().for_each(|t| transcript::write(m, t));
        }
        m.leaf("h2", &[], "What the words mean");
        pairs(m, "words", &WORDS.map(|(word, meaning)| (word.to_string(), meaning.to_string())));
    }

    fn write_facts(&self, m: &mut Markup) {
        let derived = derived(&self.evaluations).into_iter();
        let new = derived.filter(|(key, _)| !self.facts.iter().any(|(k, _)| k.eq_ignore_ascii_case(key)));
        let facts: Vec<(String, String)> = self.facts.iter().cloned().chain(new).collect();
        if !facts.is_empty() {
            pairs(m, "facts", &facts);
        }
    }
}

/// Facts that the evaluations know, different values of one fact side by side.
fn derived(evaluations: &[Evaluation]) -> Vec<(String, String)> {
    type Fact = (&'static str, fn(&Evaluation) -> String);
    const FACTS: [Fact; 8] = [
        ("rule", |e| e.rule.to_string()),
        ("guarantee", |e| e.guarantee.clone()),
        ("temperature", |e| e.temperature.to_string()),
        ("prompts", |e| e.overall.questions.to_string()),
        ("longest answer", |e| format!("{} tokens", e.max_new_tokens)),
        ("batch", |e| e.batch.to_string()),
        ("dtype", |e| e.dtype.clone()),
        ("seed", |e| e.seed.to_string()),
    ];
    let distinct = |of: fn(&Evaluation) -> String| {
        let mut values: Vec<String> = Vec::new();
        for value in evaluations.iter().map(of) {
            if !values.contains(&value) {
                values.push(value);
            }
        }
        values.join(", ")
    };
    let facts = FACTS.map(|(key, of)| (key.to_string(), distinct(of)));
    facts.into_iter().filter(|(_, value)| !value.is_empty()).collect()
}

fn pairs(m: &mut Markup, class: &str, pairs: &[(String, String)]) {
    m.element("dl", &[("class", &class)], |m| {
        for (key, value) in pairs {
            m.element("div", &[], |m| {
                m.leaf("dt", &[], key);
                m.leaf("dd", &[], value);
            });
        }
    });
}

fn figures(m: &mut Markup, figures: &[Figure]) {
    m.element("div", &[("class", &"figures")], |m| {
        for figure in figures {
            m.element("figure", &[], |m| {
                m.leaf("h3", &[], &figure.title);
                m.raw(&figure.inline());
                m.leaf("figcaption", &[], &figure.note);
            });
        }
    });
}

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

fn acceptance_table(m: &mut Markup, evaluations: &[Evaluation]) {
    let names =
        |e: &Evaluation| [e.rule.to_string(), e.guarantee.clone(), e.temperature.to_string(), e.length.to_string()];
    let rows: Vec<Vec<String>> = evaluations.iter().map(|e| counted_row(names(e), &e.overall)).collect();
    let header = [&["rule", "guarantee", "T", "K"], &COUNTED[..]].concat();
    table(m, &[0, 1, 9], &header, &rows);
}

/// The rows by task, folded away: there may be hundreds.
fn task_table(m: &mut Markup, evaluations: &[Evaluation]) {
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

fn speed_table(m: &mut Markup, evaluations: &[Evaluation]) {
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
            times(e.speedup),
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
        "speedup",
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

const WORDS: [(&str, &str); 15] = [
    (
        "tokens per target call",
        "Tokens committed, divided by the target passes that verified drafts: one sum over all rounds by another, so \
         long answers weigh more. The token that the target adds behind the accepted ones counts; what a stop or the \
         length limit cut off does not, nor does the prompt's pass with its token. Plain decoding scores exactly 1.",
    ),
    (
        "95 % interval",
        "From resampling whole prompts, because rounds of one prompt resemble each other. It speaks for prompts like \
         these, not for others.",
    ),
    ("K", "Tokens drafted in a round. A round can commit one more."),
    ("accepted per call", "Drafted tokens that were accepted and kept, by target pass."),
    ("accepted / drafted", "Drafted tokens that were accepted, of all that were submitted. The rest was wasted work."),
    (
        "survival at j",
        "Share of all rounds that accepted at least j drafted tokens. The shares add up to accepted per call.",
    ),
    (
        "conditional acceptance at j",
        "Share of rounds that accepted token j among those that accepted the j - 1 before it. Other projects print \
         either of the two under the same name.",
    ),
    (
        "guarantee",
        "target-sampling: the text follows the target's own distribution exactly. greedy: it is the target's greedy \
         text. approximate: neither is promised, and a figure of such a rule is not lossless.",
    ),
    (
        "speedup",
        "Output tokens per second with drafts over those of plain decoding, which is separate code and answered the \
         same requests in the same process.",
    ),
    ("draft", "Share of the speculative run spent in the drafter, its own cache included."),
    ("verify", "Share spent in target passes."),
    ("sample, state", "Shares spent on distributions and draws, and on committing, undoing and bookkeeping."),
    (
        "same text",
        "Prompts whose text equals plain decoding's, for rules that promise it. The rest differ by rounding, as passes \
         of different width add up in different order.",
    ),
    ("fallbacks", "Rejections that left no residual by rounding and drew from the target instead."),
    (
        "overlap",
        "Sum over tokens of the smaller of the two probabilities, target's and drafter's, averaged over training text. \
         It is the chance of acceptance after the true text, hence a proxy: at run time a draft follows drafts.",
    ),
];
