//! The CPU form: head, loss and the way back for a few chains at a time, so that no table of all logits exists.

use super::chains::{Block, Factor, Link, Row, blocks, parts};
use super::row::{Statistics, Target};
use super::{Accepted, Problem, Weighting};
use crate::flex;
use crate::matrix::View;
use crate::product::Panels;
use rayon::prelude::*;

/// Logits that a thread holds at a time, in numbers: 40 MiB.
const HELD: usize = 10 << 20;
/// Chains of a block come in groups of this many, so that no tile of a product stays half empty.
const GROUP: usize = 8;
/// Most groups of a block: enough rows to multiply at full speed, and blocks for every thread.
const GROUPS: usize = 4;

/// Tables that all blocks read.
pub(super) struct Tables<'a> {
    /// Head inputs of the drafter, `[steps · queries, width]`.
    pub students: &'a [f32],
    /// Head inputs of the target, `[targets, width]`.
    pub teacher: &'a [f32],
    /// Log denominators of the target, `[targets]`.
    pub lse: &'a [f32],
    /// Queries.
    pub queries: usize,
    /// Width of a head input.
    pub width: usize,
}

/// What a block gives, row by row.
struct Found {
    gradient: Vec<f32>,
    /// Loss and acceptance.
    metrics: Vec<[f32; 2]>,
}

/// Gradient `[steps · queries, width]` and metrics `[steps · queries, 2]`, zero where nothing is supervised.
pub(super) fn evaluate(tables: &Tables, problem: &Problem, [head, back]: [&Panels; 2]) -> [Vec<f32>; 2] {
    let steps = problem.pairs.len();
    let groups = HELD / (GROUP * head.outputs() * (steps + 1));
    let chains = if groups == 0 { 2 } else { GROUP * groups.min(GROUPS) };
    let blocks = blocks(&problem.pairs, chains);
    let work = blocks.par_iter().with_max_len(1);
    let run = |buffers: &mut Buffers, block| Work { tables, problem, head, back, block }.run(buffers);
    let found: Vec<Found> = work.map_init(Buffers::default, run).collect();
    let rows = steps * tables.queries;
    let (mut gradient, mut metrics) = (flex::zeros(rows * tables.width), flex::zeros(rows * 2));
    for (block, found) in blocks.iter().zip(&found) {
        for ((row, values), metric) in
            block.rows.iter().zip(found.gradient.chunks_exact(tables.width)).zip(&found.metrics)
        {
            let at = row.step * tables.queries + row.query;
            gradient[at * tables.width..(at + 1) * tables.width].copy_from_slice(values);
            metrics[at * 2..at * 2 + 2].copy_from_slice(metric);
        }
    }
    [gradient, metrics]
}

/// What a thread uses again for its next block.
#[derive(Default)]
struct Buffers {
    inputs: Vec<f32>,
    student: Vec<f32>,
    target: Vec<f32>,
    /// The target's distributions beside its logits.
    masses: Vec<f32>,
    row: Vec<f32>,
}

/// One block with everything it needs.
struct Work<'a> {
    tables: &'a Tables<'a>,
    problem: &'a Problem,
    head: &'a Panels,
    back: &'a Panels,
    block: &'a Block,
}

impl Work<'_> {
    fn run(&self, buffers: &mut Buffers) -> Found {
        let Tables { students, teacher, queries, width, .. } = *self.tables;
        let rows = &self.block.rows;
        let Buffers { inputs, student: logits, target, masses, row: scratch } = buffers;
        let teacher = self.block.targets.iter().map(|&i| &teacher[i * width..(i + 1) * width]);
        self.logits(teacher, inputs, target);
        let student = |row: &Row| {
            let at = row.step * queries + row.query;
            &students[at * width..(at + 1) * width]
        };
        self.logits(rows.iter().map(student), inputs, logits);
        masses.resize(target.len(), 0.0);
        let metrics = self.losses(logits, target, masses, scratch);
        let mut gradient = flex::zeros(rows.len() * width);
        self.back.multiply_alone(View::new(logits, rows.len(), self.words(), self.words()), &mut gradient);
        Found { gradient, metrics }
    }

    /// Draft vocabulary.
    fn words(&self) -> usize {
        self.head.outputs()
    }

    /// Logits of some head inputs, which are gathered in `inputs`.
    fn logits<'b>(&self, rows: impl Iterator<Item = &'b [f32]>, inputs: &mut Vec<f32>, out: &mut Vec<f32>) {
        inputs.clear();
        rows.for_each(|row| inputs.extend_from_slice(row));
        let rows = inputs.len() / self.tables.width;
        out.resize(rows * self.words(), 0.0);
        self.head.multiply_alone(View::new(inputs, rows, self.tables.width, self.tables.width), out);
    }

    /// Replaces the drafter's logits by their gradients.
    fn losses(&self, logits: &mut [f32], target: &[f32], masses: &mut [f32], scratch: &mut Vec<f32>) -> Vec<[f32; 2]> {
        let (words, problem) = (self.words(), self.problem);
        let rows = self.block.targets.iter().zip(target.chunks_exact(words)).zip(masses.chunks_exact_mut(words));
        let read = |((&at, logits), mass)| Target::new(logits, self.tables.lse[at], mass, scratch);
        let targets: Vec<Target> = rows.map(read).collect();
        let of = |row: &Row| &targets[row.target];
        let token = |row: &Row| problem.labels[self.block.targets[row.target]].map(|x| x as usize);
        let read = |(row, z): (&Row, &[f32])| Statistics::new(z, of(row), scratch);
        let statistics: Vec<Statistics> = self.block.rows.iter().zip(logits.chunks_exact(words)).map(read).collect();
        let parts = self.parts(logits, &statistics, of, token);
        let rows = self.block.rows.iter().zip(&statistics).zip(logits.chunks_exact_mut(words)).zip(parts);
        rows.map(|(((row, statistics), z), (factor, share))| {
            let factor = Factor { scale: factor.scale * problem.weights[row.step], ..factor };
            let accepted = match problem.accepted {
                Accepted::Overlap => statistics.alpha(),
                Accepted::TargetOnly => statistics.target_only(z, of(row).logits),
            };
            let value = statistics.gradient(problem.loss, z, of(row), token(row), factor, scratch);
            [share.unwrap_or(value), accepted]
        })
        .collect()
    }

    /// What each row counts, and its share of the value where a chain has one.
    fn parts<'b>(
        &self,
        logits: &[f32],
        statistics: &[Statistics],
        target: impl Fn(&Row) -> &'b Target<'b>,
        token: impl Fn(&Row) -> Option<usize>,
    ) -> Vec<(Factor, Option<f32>)> {
        let Problem { loss, weighting, .. } = *self.problem;
        if !loss.is_chain() && weighting == Weighting::Fixed {
            return vec![(Factor::ALONE, None); statistics.len()];
        }
        let words = self.words();
        let link = |(i, row): (usize, &Row)| {
            let z = &logits[i * words..(i + 1) * words];
            let ratio = token(row).map_or(0.0, |x| statistics[i].ratio(z[x], target(row).logits[x]));
            let share = token(row).map_or(0.0, |x| statistics[i].share(z[x]));
            Link { alpha: statistics[i].alpha(), ratio, share }
        };
        let links: Vec<Link> = self.block.rows.iter().enumerate().map(link).collect();
        let mut start = 0;
        let chain = |rows: &[Row]| {
            let links = &links[start..start + rows.len()];
            start += rows.len();
            parts(self.problem, rows, links)
        };
        self.block.chains().flat_map(chain).collect()
    }
}
