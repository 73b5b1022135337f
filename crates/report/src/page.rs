//! `report.html`: facts, tables, figures, transcripts, and what each word means.

use crate::figure::Figure;
use crate::markup::Markup;
use crate::training::TrainingPoint;
use crate::transcript::Transcript;
use crate::words::WORDS;
use crate::{measured, speed, tables, training, transcript, waterfall};
use spectrain_core::evaluation::{Evaluation, listed};
use spectrain_core::waterfall::Waterfall;

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
    /// What was lost to what.
    pub waterfalls: Vec<Waterfall>,
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
            tables::acceptance(m, &self.evaluations);
            figures(m, &measured::figures(&self.evaluations));
            figures(m, &waterfall::figures(&self.waterfalls));
            tables::tasks(m, &self.evaluations);
            tables::definitions(m, &self.evaluations);
            m.leaf("h2", &[], "Speed");
            tables::speed(m, &self.evaluations);
            figures(m, &speed::figures(&self.evaluations));
            tables::latency(m, &self.evaluations);
            tables::memory(m, &self.evaluations);
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
    const FACTS: [Fact; 9] = [
        ("rule", |e| e.rule.to_string()),
        ("guarantee", |e| e.guarantee.clone()),
        ("temperature", |e| e.temperature.to_string()),
        ("processors", |e| listed(&e.processors)),
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
