//! What a verifier did, request by request and round by round: JSON lines, a header first.
//!
//! Any server can write such a file. Of the two distributions at a drafted position only the masses of the most likely
//! tokens of either side are kept, both sides' at the same tokens, and the mass of all others; the overlap
//! Σ min(p, q) is then known up to the smaller of the two tails.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use spectrain_core::rules::Rule;

use crate::answers::{Answer, Finish};
use crate::store::StoreError;
use crate::weights::write_atomically;

/// Version of the layout; a reader refuses any other.
pub const FORMAT: u32 = 1;

/// What all requests of a file share: its first line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TracesMeta {
    /// Layout version, [`FORMAT`].
    pub traces_format: u32,
    /// Hash of the target's weights and configuration.
    pub target_hash: String,
    /// Hash of the tokenizer.
    pub tokenizer_hash: String,
    /// Hash of the chat template.
    pub template_hash: String,
    /// Hash of the drafter's file.
    pub drafter_hash: String,
    /// Entries of the target's vocabulary.
    pub vocabulary: usize,
    /// Rule at temperatures above 0; at 0 it is greedy.
    pub rule: Rule,
    /// Seed of the draws.
    pub seed: u64,
    /// Most likely tokens kept of each side.
    pub top: usize,
    /// Drafted tokens of a round.
    pub length: usize,
    /// Longest answer.
    pub max_new_tokens: usize,
    /// Tokens that end an answer.
    pub stop: Vec<u32>,
    /// Lines that follow.
    pub requests: usize,
    /// Version of spectrain that wrote the file.
    pub spectrain_version: String,
}

/// One request: a line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trace {
    /// Id of the prompt.
    pub prompt_id: String,
    /// Task of the prompt.
    pub task: String,
    /// The rendered prompt.
    pub prompt: Vec<u32>,
    /// What was written, an end-of-turn token included.
    pub answer: Vec<u32>,
    /// Sampling temperature; 0 is greedy.
    pub temperature: f64,
    /// Why the answer ended.
    pub finish: Finish,
    /// The verify calls, in order.
    pub rounds: Vec<TracedRound>,
}

/// One verify call of a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TracedRound {
    /// Absolute position of the newest committed token, behind which was drafted.
    pub root: usize,
    /// The drafted chain.
    pub drafted: Vec<u32>,
    /// Drafted tokens that the rule accepted, before the text was cut at its end.
    pub accepted: usize,
    /// The distributions at each drafted token.
    pub rows: Vec<TracedRow>,
}

/// Target and drafter at one drafted token, given the text and the chain before it, as the rule read them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TracedRow {
    /// The most likely tokens of either side, and the drafted one; ascending.
    pub ids: Vec<u32>,
    /// The target's mass of each.
    pub p: Vec<f32>,
    /// The mass of each in what the token was drawn from; a point where it was not drawn.
    pub q: Vec<f32>,
    /// The target's mass of all other tokens.
    pub tail_p: f32,
    /// The drafter's mass of all other tokens.
    pub tail_q: f32,
}

impl TracedRow {
    /// The row of a drafted token with `top` tokens of each side; `p` and `q` are over the target's vocabulary.
    pub fn new(drafted: u32, p: &[f64], q: &[f64], top: usize) -> Self {
        let mut ids = [largest(p, top), largest(q, top), vec![drafted]].concat();
        ids.sort_unstable();
        ids.dedup();
        let kept = |of: &[f64]| ids.iter().map(|&id| of[id as usize] as f32).collect();
        // The sum of what is left, not one less the sum of what is kept: small tails would be lost in rounding.
        let tail = |of: &[f64]| {
            let mut rest = of.to_vec();
            ids.iter().for_each(|&id| rest[id as usize] = 0.0);
            rest.iter().sum::<f64>() as f32
        };
        Self { p: kept(p), q: kept(q), tail_p: tail(p), tail_q: tail(q), ids }
    }

    /// Place of `token` among the kept ones.
    pub fn place(&self, token: u32) -> Option<usize> {
        self.ids.binary_search(&token).ok()
    }

    /// Least and largest value of Σ min(p, q) for a drafter that gives the kept tokens the masses `q` and all others
    /// `tail` together.
    pub fn overlap(&self, q: impl IntoIterator<Item = f64>, tail: f64) -> (f64, f64) {
        let known: f64 = self.p.iter().zip(q).map(|(&p, q)| f64::from(p).min(q)).sum();
        (known, known + f64::from(self.tail_p).min(tail))
    }
}

/// The `count` largest entries above 0.
fn largest(of: &[f64], count: usize) -> Vec<u32> {
    let mut ids: Vec<u32> = (0..of.len() as u32).filter(|&id| of[id as usize] > 0.0).collect();
    let descending = |a: &u32, b: &u32| of[*b as usize].total_cmp(&of[*a as usize]).then(a.cmp(b));
    if count < ids.len() {
        ids.select_nth_unstable_by(count, descending);
        ids.truncate(count);
    }
    ids
}

impl Trace {
    /// The answer as `generate` would have stored it, numbered `request`.
    pub fn answer(&self, request: u64, seed: u64) -> Answer {
        Answer {
            prompt_id: self.prompt_id.clone(),
            task: self.task.clone(),
            request,
            prompt_ids: self.prompt.clone(),
            answer_ids: self.answer.clone(),
            temperature: self.temperature as f32,
            seed,
            finish: self.finish,
            off_policy: false,
        }
    }

    /// What is wrong with the trace, for a target of `vocabulary` tokens; `None` if nothing is.
    fn fault(&self, vocabulary: usize) -> Option<String> {
        let known = |ids: &[u32]| ids.iter().all(|&id| (id as usize) < vocabulary);
        if self.prompt.is_empty() || self.answer.is_empty() || !known(&self.prompt) || !known(&self.answer) {
            return Some("prompt and answer must be token ids of the vocabulary, one each at least".into());
        }
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            return Some(format!("temperature {} is none", self.temperature));
        }
        let answered = self.prompt.len()..self.prompt.len() + self.answer.len() - 1;
        let mut before = None;
        for round in &self.rounds {
            let TracedRound { root, drafted, accepted, rows } = round;
            if !answered.contains(root) || before.is_some_and(|before| before >= *root) {
                return Some(format!("a round starts at {root}: rounds follow one another within the answer"));
            }
            if rows.len() != drafted.len() || *accepted > drafted.len() {
                return Some(format!(
                    "the round at {root} has not one row a drafted token, or accepts more than it has"
                ));
            }
            if !rows.iter().zip(drafted).all(|(row, token)| row.sound(*token, vocabulary)) {
                return Some(format!("the round at {root} has a row that is no pair of distributions"));
            }
            before = Some(*root);
        }
        None
    }
}

impl TracedRow {
    fn sound(&self, drafted: u32, vocabulary: usize) -> bool {
        let Self { ids, p, q, tail_p, tail_q } = self;
        let sums = |of: &[f32], tail: f32| {
            let all = of.iter().chain([&tail]);
            all.clone().all(|m| (0.0..=1.001).contains(m)) && (all.sum::<f32>() - 1.0).abs() < 1e-3
        };
        let ascending = ids.windows(2).all(|pair| pair[0] < pair[1]);
        let known = ids.last().is_some_and(|&id| (id as usize) < vocabulary) && self.place(drafted).is_some();
        ascending && known && ids.len() == p.len() && ids.len() == q.len() && sums(p, *tail_p) && sums(q, *tail_q)
    }
}

/// Writes a file, whole or not at all.
///
/// # Errors
/// Errors of writing, with the path.
pub fn write_traces(path: &Path, meta: &TracesMeta, traces: &[Trace]) -> Result<(), StoreError> {
    let line = |out: &mut dyn Write, text: serde_json::Result<String>| {
        out.write_all(text.map_err(io::Error::other)?.as_bytes()).and_then(|()| out.write_all(b"\n"))
    };
    write_atomically(path, |out| {
        line(out, serde_json::to_string(meta))?;
        traces.iter().try_for_each(|trace| line(out, serde_json::to_string(trace)))
    })
    .map_err(StoreError::io(path))
}

/// Reads a file of traces.
///
/// # Errors
/// [`StoreError::Corrupt`] names the line that is no header or no trace, or says that lines are missing.
pub fn read_traces(path: &Path) -> Result<(TracesMeta, Vec<Trace>), StoreError> {
    let mut lines = BufReader::new(File::open(path).map_err(StoreError::io(path))?).lines();
    let first = lines.next().transpose().map_err(StoreError::io(path))?.unwrap_or_default();
    let meta: TracesMeta = serde_json::from_str(&first)
        .map_err(|e| StoreError::corrupt(path, format!("line 1 is no header of traces: {e}")))?;
    if meta.traces_format != FORMAT {
        let found = meta.traces_format;
        return Err(StoreError::corrupt(path, format!("traces_format is {found}; this version reads {FORMAT}")));
    }
    let mut traces = Vec::new();
    for (number, line) in (2..).zip(lines) {
        let line = line.map_err(StoreError::io(path))?;
        let wrong = |what: String| StoreError::corrupt(path, format!("line {number}: {what}"));
        let trace: Trace = serde_json::from_str(&line).map_err(|e| wrong(e.to_string()))?;
        if let Some(fault) = trace.fault(meta.vocabulary) {
            return Err(wrong(fault));
        }
        traces.push(trace);
    }
    if traces.len() != meta.requests {
        let (found, said) = (traces.len(), meta.requests);
        return Err(StoreError::corrupt(path, format!("has {found} of the {said} requests that its header names")));
    }
    Ok((meta, traces))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn meta(requests: usize) -> TracesMeta {
        TracesMeta {
            traces_format: FORMAT,
            target_hash: "a".into(),
            tokenizer_hash: "b".into(),
            template_hash: "c".into(),
            drafter_hash: "d".into(),
            vocabulary: 5,
            rule: Rule::Token,
            seed: 7,
            top: 2,
            length: 2,
            max_new_tokens: 9,
            stop: vec![0],
            requests,
            spectrain_version: "0".into(),
        }
    }

    fn trace() -> Trace {
        let (p, q) = ([0.5, 0.125, 0.25, 0.0625, 0.0625], [0.1, 0.6, 0.05, 0.0, 0.25]);
        let row = TracedRow::new(3, &p, &q, 2);
        let round = TracedRound { root: 2, drafted: vec![3], accepted: 1, rows: vec![row] };
        let (prompt, answer) = (vec![1, 2], vec![4, 3, 0]);
        let (prompt_id, task) = ("x".into(), "chat".into());
        Trace { prompt_id, task, prompt, answer, temperature: 0.7, finish: Finish::Stop, rounds: vec![round] }
    }

    #[test]
    fn rows_bound_the_overlap() {
        let row = &trace().rounds[0].rows[0];
        assert_eq!(row.ids, [0, 1, 2, 3, 4]);
        let (p, q) = ([0.3, 0.25, 0.2, 0.15, 0.1], [0.02, 0.08, 0.5, 0.1, 0.3]);
        let row = TracedRow::new(2, &p, &q, 1);
        assert_eq!((row.ids.clone(), row.tail_p, row.tail_q), (vec![0, 2], 0.5, 0.48));
        let exact: f64 = p.iter().zip(&q).map(|(p, q): (&f64, &f64)| p.min(*q)).sum();
        let (low, high) = row.overlap(row.q.iter().map(|&q| f64::from(q)), f64::from(row.tail_q));
        assert!((low - 0.22).abs() < 1e-6 && (high - 0.70).abs() < 1e-6 && low <= exact && exact <= high);
    }

    #[test]
    fn files_come_back_and_damaged_ones_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.jsonl");
        write_traces(&path, &meta(2), &[trace(), trace()]).unwrap();
        assert_eq!(read_traces(&path).unwrap(), (meta(2), vec![trace(), trace()]));
        let refused = |requests: usize, change: &dyn Fn(&mut Trace)| {
            let mut changed = trace();
            change(&mut changed);
            write_traces(&path, &meta(requests), &[changed]).unwrap();
            read_traces(&path).unwrap_err().to_string()
        };
        assert!(refused(2, &|_| ()).contains("1 of the 2 requests"));
        assert!(refused(1, &|t| t.rounds[0].root = 1).contains("a round starts at 1"));
        assert!(refused(1, &|t| t.rounds[0].accepted = 2).contains("accepts more"));
        assert!(refused(1, &|t| t.rounds[0].rows[0].tail_p = 0.5).contains("no pair of distributions"));
        assert!(refused(1, &|t| t.answer[0] = 5).contains("of the vocabulary"));
        std::fs::write(&path, "{\"a\": 1}\n").unwrap();
        assert!(read_traces(&path).unwrap_err().to_string().contains("line 1 is no header"));
    }
}
