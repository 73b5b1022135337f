//! How likely a round of the verifier starts at each row of a batch, as the drafter is now.
//!
//! Rounds start more often in hard text than in easy text, of which one round commits many tokens. A loss in which every
//! row counts alike is that of no verifier; one in which rows count by these probabilities is the loss of the rounds
//! that the verifier would make of the text.

use crate::batch::TrainBatch;
use spectrain_core::stats::renewal::sampled_chain;
use spectrain_kernels::draft_loss::StepRows;
use std::collections::{HashMap, HashSet};

/// The probability that a round starts at each query row, `[queries]`, by the chance that the verifier goes on behind
/// each step of its chain. Chains are as long as the unroll.
///
/// The token that the first query of an answer predicts is the prompt pass's own, so the first round starts one row
/// behind; rows before are no starts.
pub fn round_starts(batch: &TrainBatch, steps: &[StepRows]) -> Vec<f32> {
    let queries = batch.plan.queries();
    let mut log_passed = vec![f64::NEG_INFINITY; queries * steps.len()];
    for (k, (pairs, step)) in batch.supervised.iter().zip(steps).enumerate() {
        for &(query, _) in pairs {
            log_passed[query * steps.len() + k] = f64::from(step.metrics[query][2]).ln();
        }
    }
    let mut supervised = vec![false; queries];
    batch.supervised[0].iter().for_each(|&(query, _)| supervised[query] = true);
    let mut starts = vec![0.0; queries];
    let mut first = 0;
    for segment in &batch.plan.segments {
        let end = first + segment.queries;
        while let Some(answer) = (first..end).find(|&query| supervised[query]) {
            first = (answer..end).find(|&query| !supervised[query]).unwrap_or(end);
            fill(&mut starts, &log_passed, answer + 1..first, steps.len());
        }
        first = end;
    }
    starts
}

/// Fills in the starts at the rows `rows` of one answer.
fn fill(starts: &mut [f32], log_passed: &[f64], rows: std::ops::Range<usize>, steps: usize) {
    if rows.is_empty() {
        return;
    }
    let along = &log_passed[rows.start * steps..rows.end * steps];
    // A ratio of one is no rejection: the recursion reads quotients only. What is no number is the loss's to tell.
    let found = sampled_chain(&vec![0.0; rows.len()], along, steps);
    let values = found.map_or_else(|_| vec![f64::NAN; rows.len()], |renewal| renewal.starts);
    starts[rows].iter_mut().zip(values).for_each(|(start, value)| *start = value as f32);
}

/// Where a server's rounds really started: absolute positions of their roots, by request.
#[derive(Debug, Clone, Default)]
pub struct Started(HashMap<u64, HashSet<usize>>);

impl FromIterator<(u64, usize)> for Started {
    fn from_iter<I: IntoIterator<Item = (u64, usize)>>(roots: I) -> Self {
        let mut all = Self::default();
        for (request, root) in roots {
            all.0.entry(request).or_default().insert(root);
        }
        all
    }
}

impl Started {
    /// 1 for every query row of `batch` whose chain follows such a root, else 0; `[queries]`.
    pub fn weights(&self, batch: &TrainBatch) -> Vec<f32> {
        let mut weights = Vec::with_capacity(batch.plan.queries());
        for segment in &batch.plan.segments {
            let rows = weights.len()..weights.len() + segment.queries;
            let supervised = batch.supervised.iter().flatten().find(|(query, _)| rows.contains(query));
            let roots = supervised.and_then(|&(_, target)| self.0.get(&batch.requests[target]));
            // The query at position t drafts behind the token at t + 1.
            let started = |t: usize| roots.is_some_and(|roots| roots.contains(&(t + 1)));
            let positions = segment.first_query..segment.first_query + segment.queries;
            weights.extend(positions.map(|t| if started(t) { 1.0 } else { 0.0 }));
        }
        weights
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{Device, Tensor};
    use spectrain_kernels::unroll_attention::{UnrollPlan, UnrollSegment};
    use std::sync::Arc;

    /// One conversation of six queries. Query 0 is before the answer, query 1 predicts the answer's first token.
    fn batch() -> TrainBatch {
        let device = Device::flex();
        TrainBatch {
            plan: Arc::new(UnrollPlan { segments: vec![UnrollSegment { keys: 6, first_query: 0, queries: 6 }] }),
            next: Vec::new(),
            taps: Tensor::zeros([6, 1], &device),
            tokens: vec![Vec::new(); 2],
            supervised: vec![(1..6).map(|q| (q, q - 1)).collect(), (0..5).map(|q| (q, q)).collect()],
            target_hidden: Tensor::zeros([6, 1], &device),
            target_lse: Tensor::zeros([6], &device),
            labels: Vec::new(),
            requests: Vec::new(),
            number: 0,
            lengths: Vec::new(),
            noise: None,
            dropout: None,
        }
    }

    #[test]
    fn rounds_that_were_made_weigh_one_each() {
        let mut batch = batch();
        batch.requests = vec![4; 6];
        let started: Started = [(4, 2), (4, 5), (3, 3)].into_iter().collect();
        assert_eq!(started.weights(&batch), [0.0, 1.0, 0.0, 0.0, 1.0, 0.0]);
    }

    #[test]
    fn starts_follow_the_recursion_by_hand() {
        let passed = [[0.3, 0.9], [0.7, 0.6], [0.5, 0.4], [0.8, 0.5], [0.25, 0.1], [0.9, 0.9]];
        let step = |k: usize| StepRows {
            gradient: Tensor::zeros([6, 1], &Device::flex()),
            metrics: passed.iter().map(|of_query| [0.0, 0.0, of_query[k]]).collect(),
        };
        let starts = round_starts(&batch(), &[step(0), step(1)]);
        // From query 2 a round ends at once with 1 − 0.5, behind one draft with 0.5 − 0.2, behind two with 0.2; from
        // query 3 with 1 − 0.8 and 0.8 − 0.4; from query 4 with 1 − 0.25.
        let expected = [0.0, 0.0, 1.0, 0.5, 0.3 + 0.5 * 0.2, 0.2 + 0.5 * 0.4 + 0.4 * 0.75];
        starts.iter().zip(expected).for_each(|(a, b): (&f32, f32)| assert!((a - b).abs() < 1e-6, "{starts:?}"));
    }
}
