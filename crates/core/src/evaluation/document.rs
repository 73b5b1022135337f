//! The curves as one document: settings, then a row for every temperature, length and task.

use serde::Serialize;

use crate::reconciliation::Reconciliation;
use crate::waterfall::Waterfall;

use super::{Counted, Evaluation, Memory, Seconds, fastest};
use crate::stats::Interval;
use crate::tree::TreeKind;

/// Name of the form.
pub const SCHEMA: &str = "spectrain-eval";
/// Version of the form: it rises when a key changes its meaning or goes, not when one is added.
pub const SCHEMA_VERSION: u32 = 1;

/// A set of curves.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Document<'a, S> {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// What was measured, on what and how.
    pub settings: S,
    /// One a curve, in the order of the evaluations.
    pub fastest: Vec<Fastest>,
    /// By temperature, then length, then task.
    pub rows: Vec<Row<'a>>,
    /// What was lost to what, by temperature, if it was asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waterfalls: Vec<Waterfall>,
    /// Training and run time held against each other, unless that was declined.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reconciliation: Option<Reconciliation>,
}

/// The fastest length of one curve.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Fastest {
    /// Sampling temperature.
    pub temperature: f64,
    /// Drafted tokens a round at which most tokens per second were measured; 0 is plain decoding.
    pub length: usize,
}

/// One temperature, length and task.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row<'a> {
    /// Sampling temperature.
    pub temperature: f64,
    /// Drafted tokens a round; 0 is plain decoding.
    pub length: usize,
    /// Task; none for all together.
    pub task: Option<&'a str>,
    /// What a round drafted; none for plain decoding.
    pub tree: Option<&'a TreeKind>,
    /// Most rows of a round's target pass, the root counted; of whole measurements only.
    pub nodes: Option<usize>,
    /// Beside a tree: the measured chain of as many nodes; of whole measurements only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chain_of_as_many_nodes: Option<&'a Evaluation>,
    /// Whether it was derived from the rounds of a longer draft instead of measured.
    pub estimated: bool,
    /// The acceptance rule, or `plain`.
    pub rule: &'static str,
    /// What is promised of the text.
    pub guarantee: &'a str,
    /// What was counted.
    #[serde(flatten)]
    pub counted: &'a Counted,
    /// Output tokens per second; of whole measurements only, since tasks share the batch.
    pub tokens_per_second: Option<f64>,
    /// That rate over plain decoding's.
    pub speedup: Option<f64>,
    /// The same with its 95 % interval, resampled by stints.
    pub speedup_interval: Option<Interval>,
    /// Plain decoding's tokens per second in its slowest and its fastest stint; of plain decoding only.
    pub stints: Option<[f64; 2]>,
    /// Where the time went; of whole speculative measurements only.
    pub seconds: Option<Seconds>,
    /// Bytes held; of whole measurements only.
    pub memory: Option<Memory>,
    /// Prompts whose text equals plain decoding's, where that is promised.
    pub same_text: Option<usize>,
    /// Rejections without residual mass that fell back to the target.
    pub residual_fallbacks: Option<usize>,
}

impl<'a, S> Document<'a, S> {
    /// The document of `evaluations`, those of one temperature after each other and the shortest first.
    pub fn new(settings: S, evaluations: &'a [Evaluation]) -> Self {
        let curves = evaluations.chunk_by(|a, b| a.temperature == b.temperature);
        let quickest = |curve: &'a [Evaluation]| {
            let temperature = curve[0].temperature;
            let length = fastest(&curve.iter().collect::<Vec<_>>())?;
            Some(Fastest { temperature, length })
        };
        Self {
            schema: SCHEMA,
            schema_version: SCHEMA_VERSION,
            settings,
            fastest: curves.clone().filter_map(quickest).collect(),
            rows: curves.flat_map(curve_rows).collect(),
            waterfalls: Vec::new(),
            reconciliation: None,
        }
    }
}

/// Rows of evaluations that differ in the length alone.
fn curve_rows(curve: &[Evaluation]) -> Vec<Row<'_>> {
    let mut rows = plain_rows(&curve[0]);
    let mut drafted: Vec<Row> =
        curve.iter().flat_map(|e| measured_rows(e).into_iter().chain(estimated_rows(e))).collect();
    drafted.sort_by_key(|row| row.length);
    rows.extend(drafted);
    rows
}

/// The whole and its tasks, as rows without speed.
fn rows<'a>(
    e: &'a Evaluation,
    length: usize,
    overall: &'a Counted,
    tasks: impl IntoIterator<Item = (&'a String, &'a Counted)>,
) -> Vec<Row<'a>> {
    let row = |(task, counted)| Row {
        temperature: e.temperature,
        length,
        task,
        tree: Some(&e.tree),
        nodes: None,
        chain_of_as_many_nodes: None,
        estimated: false,
        rule: e.rule.name(),
        guarantee: &e.guarantee,
        counted,
        tokens_per_second: None,
        speedup: None,
        speedup_interval: None,
        stints: None,
        seconds: None,
        memory: None,
        same_text: None,
        residual_fallbacks: None,
    };
    let tasks = tasks.into_iter().map(|(name, counted)| (Some(name.as_str()), counted));
    std::iter::once((None, overall)).chain(tasks).map(row).collect()
}

fn plain_rows(e: &Evaluation) -> Vec<Row<'_>> {
    let Some(plain) = &e.plain else { return Vec::new() };
    let mut rows = rows(e, 0, &plain.overall, &plain.tasks);
    rows.iter_mut().for_each(|row| (row.rule, row.tree) = ("plain", None));
    rows[0].tokens_per_second = Some(e.plain_tokens_per_second);
    rows[0].speedup = Some(1.0);
    rows[0].stints = plain.stints;
    rows[0].memory = Some(plain.memory);
    rows
}

fn measured_rows(e: &Evaluation) -> Vec<Row<'_>> {
    let mut rows = rows(e, e.length, &e.overall, &e.tasks);
    rows[0].tokens_per_second = Some(e.tokens_per_second);
    rows[0].speedup = Some(e.speedup);
    rows[0].speedup_interval = e.speedup_interval;
    rows[0].seconds = Some(e.seconds);
    rows[0].memory = e.memory;
    rows[0].same_text = e.same_text;
    rows[0].residual_fallbacks = Some(e.residual_fallbacks);
    rows[0].nodes = e.nodes;
    rows[0].chain_of_as_many_nodes = e.chain.as_deref();
    rows
}

fn estimated_rows(e: &Evaluation) -> Vec<Row<'_>> {
    let mut found: Vec<Row> = e.estimates.iter().flat_map(|s| rows(e, s.length, &s.overall, &s.tasks)).collect();
    found.iter_mut().for_each(|row| row.estimated = true);
    found
}
