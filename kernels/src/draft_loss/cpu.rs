//! The CPU form: head, loss and the way back for a few chains at a time, so that no table of all logits exists.

use super::chains::{Block, Factor, Link, Row, blocks, parts};
use super::head_gradient::{self, Piece};
use super::policies::{shape, shape_draft};
use super::row::{Statistics, Target, log_denominator};
use super::{Accepted, METRICS, Problem, TargetForm, Weighting};
use crate::flex;
use crate::matrix::View;
use crate::product::{Head, Panels};
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
    /// Loss, acceptance, passage.
    metrics: Vec<[f32; METRICS]>,
    /// What it adds to the gradient of the head, where that is asked for.
    piece: Option<Piece>,
}

/// The panels of a head, which [`super::evaluate`] made sure of.
fn panels(head: &Head) -> [&Panels; 2] {
    head.panels().expect("the caller looked")
}

/// Gradient `[steps · queries, width]` and metrics `[steps · queries, METRICS]`, zero where nothing is supervised, and
/// the gradient of the drafter's own head `[words, width]`, or one zero.
pub(super) fn evaluate(tables: &Tables, problem: &Problem) -> [Vec<f32>; 3] {
    let ([head, _], [student, back]) = (panels(&problem.head), panels(problem.student()));
    let (steps, words) = (problem.pairs.len(), head.outputs());
    let more = problem.policies.as_ref().map_or(0, |p| p.more_words());
    let groups = HELD / (GROUP * (words * (steps + 1) + more));
    let chains = if groups == 0 { 2 } else { GROUP * groups.min(GROUPS) };
    let blocks = blocks(&problem.pairs, chains);
    let run = |buffers: &mut Buffers, block| Work { tables, problem, head, student, back, block }.run(buffers);
    let rows = steps * tables.queries;
    let (mut gradient, mut metrics) = (flex::zeros(rows * tables.width), flex::zeros(rows * METRICS));
    let mut of_head = flex::zeros(if problem.own.is_some() { words * tables.width } else { 1 });
    // What a block adds to a head is held until all before it were added, so only a few run ahead.
    let wave = if problem.own.is_some() { rayon::current_num_threads() } else { blocks.len() };
    for blocks in blocks.chunks(wave.max(1)) {
        let work = blocks.par_iter().with_max_len(1);
        let mut found: Vec<Found> = work.map_init(Buffers::default, run).collect();
        let pieces: Vec<Piece> = found.iter_mut().filter_map(|found| found.piece.take()).collect();
        head_gradient::add(&mut of_head, &pieces, words, tables.width);
        for (block, found) in blocks.iter().zip(&found) {
            for ((row, values), metric) in
                block.rows.iter().zip(found.gradient.chunks_exact(tables.width)).zip(&found.metrics)
            {
                let at = row.step * tables.queries + row.query;
                gradient[at * tables.width..(at + 1) * tables.width].copy_from_slice(values);
                metrics[at * METRICS..(at + 1) * METRICS].copy_from_slice(metric);
            }
        }
    }
    [gradient, metrics, of_head]
}

/// What a thread uses again for its next block.
#[derive(Default)]
struct Buffers {
    inputs: Vec<f32>,
    student: Vec<f32>,
    target: Vec<f32>,
    /// The target's logits over its whole vocabulary, where policies ask for them.
    whole: Vec<f32>,
    /// Log denominators of the target's rows.
    lse: Vec<f32>,
    /// The target's distributions beside its logits.
    masses: Vec<f32>,
    row: Vec<f32>,
    /// What a policy keeps of a row.
    kept: Vec<f64>,
}

/// One block with everything it needs.
struct Work<'a> {
    tables: &'a Tables<'a>,
    problem: &'a Problem,
    head: &'a Panels,
    /// The drafter's head and its way back.
    student: &'a Panels,
    back: &'a Panels,
    block: &'a Block,
}

impl Work<'_> {
    fn run(&self, buffers: &mut Buffers) -> Found {
        let Tables { students, queries, width, .. } = *self.tables;
        let rows = &self.block.rows;
        self.targets(buffers);
        let student = |row: &Row| {
            let at = row.step * queries + row.query;
            &students[at * width..(at + 1) * width]
        };
        self.logits(self.student, rows.iter().map(student), &mut buffers.inputs, &mut buffers.student);
        buffers.masses.resize(buffers.target.len(), 0.0);
        let metrics = self.losses(buffers);
        let mut gradient = flex::zeros(rows.len() * width);
        let logits = &mut buffers.student;
        self.back.multiply_alone(View::new(logits, rows.len(), self.words(), self.words()), &mut gradient);
        let take = || Piece { logits: std::mem::take(logits), inputs: std::mem::take(&mut buffers.inputs) };
        let piece = self.problem.own.is_some().then(take);
        Found { gradient, metrics, piece }
    }

    /// Draft vocabulary.
    fn words(&self) -> usize {
        self.head.outputs()
    }

    /// Fills in the target's logits over the draft vocabulary and its log denominators, row by row of the block.
    fn targets(&self, buffers: &mut Buffers) {
        let Tables { teacher, lse: stored, width, .. } = *self.tables;
        let (targets, words) = (&self.block.targets, self.words());
        let Buffers { inputs, target, whole, lse, row: scratch, kept, .. } = buffers;
        lse.clear();
        if let TargetForm::Known(known) = &self.problem.target {
            target.clear();
            target.resize(targets.len() * words, f32::NEG_INFINITY);
            for (row, &at) in target.chunks_exact_mut(words).zip(targets) {
                known[at].iter().for_each(|&(token, log_mass)| row[token as usize] = log_mass);
            }
            lse.resize(targets.len(), 0.0);
            return;
        }
        let rows = targets.iter().map(|&i| &teacher[i * width..(i + 1) * width]);
        let Some(policies) = &self.problem.policies else {
            self.logits(self.head, rows, inputs, target);
            lse.extend(targets.iter().map(|&at| stored[at]));
            return;
        };
        let mut shaped = |row: &mut [f32], at: usize| {
            shape(policies.at(at), row, kept);
            lse.push(log_denominator(row, scratch));
        };
        let Some((head, ids)) = &policies.whole else {
            self.logits(self.head, rows, inputs, target);
            target.chunks_exact_mut(words).zip(targets).for_each(|(row, &at)| shaped(row, at));
            return;
        };
        let [head, _] = panels(head);
        self.logits(head, rows, inputs, whole);
        target.resize(targets.len() * words, 0.0);
        let rows = whole.chunks_exact_mut(head.outputs()).zip(target.chunks_exact_mut(words));
        for ((all, row), &at) in rows.zip(targets) {
            shaped(all, at);
            row.iter_mut().zip(ids.iter()).for_each(|(logit, &id)| *logit = all[id as usize]);
        }
    }

    /// Logits that `head` gives of some head inputs, which are gathered in `inputs`.
    fn logits<'b>(
        &self,
        head: &Panels,
        rows: impl Iterator<Item = &'b [f32]>,
        inputs: &mut Vec<f32>,
        out: &mut Vec<f32>,
    ) {
        inputs.clear();
        rows.for_each(|row| inputs.extend_from_slice(row));
        let rows = inputs.len() / self.tables.width;
        out.resize(rows * head.outputs(), 0.0);
        head.multiply_alone(View::new(inputs, rows, self.tables.width, self.tables.width), out);
    }

    /// Replaces the drafter's logits by their gradients.
    fn losses(&self, buffers: &mut Buffers) -> Vec<[f32; METRICS]> {
        let (words, problem) = (self.words(), self.problem);
        let Buffers { student: logits, target, lse, masses, row: scratch, kept, .. } = buffers;
        let rows = lse.iter().zip(target.chunks_exact(words)).zip(masses.chunks_exact_mut(words));
        let read = |((&lse, logits), mass)| Target::new(logits, lse, mass, scratch);
        let targets: Vec<Target> = rows.map(read).collect();
        let of = |row: &Row| &targets[row.target];
        let token = |row: &Row| problem.labels[self.block.targets[row.target]].map(|x| x as usize);
        let policy = |row: &Row| problem.policies.as_ref().map(|p| p.at(self.block.targets[row.target]));
        let read = |(row, z): (&Row, &mut [f32])| {
            let mut spare = Vec::new();
            let shape = |policy| shape_draft(policy, problem.loss, z, of(row).logits, kept, &mut spare);
            let meets = policy(row).is_none_or(shape);
            let statistics = Statistics::new(z, of(row), scratch);
            if meets { statistics } else { statistics.refused() }
        };
        let rows = self.block.rows.iter().zip(logits.chunks_exact_mut(words));
        let statistics: Vec<Statistics> = rows.map(read).collect();
        let parts = self.parts(logits, &statistics, of, token);
        let rows = self.block.rows.iter().zip(&statistics).zip(logits.chunks_exact_mut(words)).zip(parts);
        rows.map(|(((row, statistics), z), (factor, share))| {
            let slope = policy(row).map_or(1.0, |p| (1.0 / p.temperature) as f32);
            let factor = Factor { scale: factor.scale * problem.weights[row.step] * slope, ..factor };
            let accepted = match problem.accepted {
                Accepted::Overlap => statistics.accepted(),
                Accepted::TargetOnly => statistics.target_only(z, of(row).logits),
            };
            let passed = token(row).filter(|_| problem.passage).map_or(0.0, |x| match problem.accepted {
                Accepted::Overlap => statistics.ratio(z[x], of(row).logits[x]).min(1.0),
                Accepted::TargetOnly => f32::from(u8::from(statistics.is_likeliest(z, x))),
            });
            let value = statistics.gradient(problem.loss, z, of(row), token(row), factor, scratch);
            [share.unwrap_or(value), accepted, passed]
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
            Link { alpha: statistics[i].accepted(), ratio, share }
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
