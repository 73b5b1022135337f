//! Which evaluations belong together, and what to call them.
//!
//! A name holds the rule and the temperature, and else only what differs between the evaluations shown: nobody wants
//! to read the same seed eight times.

use spectrain_core::evaluation::{Evaluation, listed};

/// Evaluations that differ in the drafted length alone, shortest first.
pub struct Group<'a> {
    /// What sets the group off from the others.
    pub label: String,
    /// Its evaluations; never empty.
    members: Vec<&'a Evaluation>,
}

impl<'a> Group<'a> {
    /// Its evaluations.
    pub fn members(&self) -> &[&'a Evaluation] {
        &self.members
    }

    /// The evaluation with the longest drafts: it says something of every position.
    pub fn longest(&self) -> &'a Evaluation {
        self.members[self.members.len() - 1]
    }
}

/// The groups of `evaluations` that made any target call, in the order of their first members.
pub fn groups(evaluations: &[Evaluation]) -> Vec<Group<'_>> {
    let mut groups: Vec<(Vec<String>, Group)> = Vec::new();
    for (evaluation, label) in evaluations.iter().zip(labels(evaluations)) {
        if evaluation.overall.acceptance.target_calls == 0 {
            continue;
        }
        let key = settings(evaluation).map(|(_, value)| value).to_vec();
        match groups.iter_mut().find(|(k, _)| *k == key) {
            Some((_, group)) => group.members.push(evaluation),
            None => groups.push((key, Group { label, members: vec![evaluation] })),
        }
    }
    let mut groups: Vec<Group> = groups.into_iter().map(|(_, group)| group).collect();
    groups.iter_mut().for_each(|group| group.members.sort_by_key(|e| e.length));
    groups
}

/// Neighbours that differ in the drafted length alone.
pub fn curves(evaluations: &[Evaluation]) -> impl Iterator<Item = &[Evaluation]> {
    evaluations.chunk_by(|a, b| settings(a) == settings(b))
}

/// A name for each evaluation, the drafted length left out.
fn labels(evaluations: &[Evaluation]) -> Vec<String> {
    let all: Vec<_> = evaluations.iter().map(settings).collect();
    let differs = |i: usize| all.iter().any(|s| s[i].1 != all[0][i].1);
    let shown: Vec<bool> = (0..all.first().map_or(0, |s| s.len()))
        .map(|i| i < 2 || differs(i) || i == PROCESSORS && !all[0][i].1.is_empty())
        .collect();
    let name = |settings: &[(&str, String); 7]| {
        let parts = settings.iter().zip(&shown).filter(|((_, value), shown)| **shown && !value.is_empty());
        parts.map(|((key, value), _)| format!("{key}{value}")).collect::<Vec<_>>().join(", ")
    };
    all.iter().map(name).collect()
}

/// Where the processors stand among the settings: they are named wherever they are set.
const PROCESSORS: usize = 2;

/// Everything that an evaluation was asked for, with a short word before it, but the drafted length.
fn settings(e: &Evaluation) -> [(&'static str, String); 7] {
    [
        ("", e.rule.to_string()),
        ("T = ", e.temperature.to_string()),
        ("", listed(&e.processors)),
        ("batch ", e.batch.to_string()),
        ("at most ", format!("{} tokens", e.max_new_tokens)),
        ("seed ", e.seed.to_string()),
        ("", e.dtype.clone()),
    ]
}
