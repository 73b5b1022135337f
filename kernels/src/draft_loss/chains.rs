//! Chains of unroll steps: which rows they are, and what each row counts in a loss of the whole chain.

pub(super) use super::row::Factor;
use super::{DraftLoss, Problem, Weighting};

/// A few chains that are evaluated together.
pub(super) struct Block {
    /// Rows of the target tables that the chains need.
    pub targets: Vec<usize>,
    /// Supervised rows, chain after chain, step after step.
    pub rows: Vec<Row>,
    /// Where each chain's rows begin in `rows`; the end of the last one closes the list.
    pub starts: Vec<usize>,
}

/// A supervised row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Row {
    /// The query that starts the chain.
    pub query: usize,
    /// Unroll step.
    pub step: usize,
    /// Index into [`Block::targets`].
    pub target: usize,
}

impl Block {
    /// The rows of each chain.
    pub fn chains(&self) -> impl Iterator<Item = &[Row]> {
        self.starts.windows(2).map(|ends| &self.rows[ends[0]..ends[1]])
    }
}

/// The chains of `pairs`, by step the supervised queries with their target rows, `chains` at a time.
pub(super) fn blocks(pairs: &[Vec<(usize, usize)>], chains: usize) -> Vec<Block> {
    let queries = pairs.iter().flatten().map(|(query, _)| query + 1).max().unwrap_or(0);
    let mut by_query = vec![Vec::new(); queries];
    for (step, pairs) in pairs.iter().enumerate() {
        pairs.iter().for_each(|&(query, target)| by_query[query].push((step, target)));
    }
    let supervised: Vec<_> = by_query.into_iter().enumerate().filter(|(_, steps)| !steps.is_empty()).collect();
    supervised.chunks(chains.max(1)).map(block).collect()
}

fn block(chains: &[(usize, Vec<(usize, usize)>)]) -> Block {
    let mut targets: Vec<usize> = chains.iter().flat_map(|(_, steps)| steps.iter().map(|s| s.1)).collect();
    targets.sort_unstable();
    targets.dedup();
    let at = |target: &usize| targets.binary_search(target).unwrap_or_else(|_| unreachable!("all targets are listed"));
    let (mut rows, mut starts) = (Vec::new(), vec![0]);
    for (query, steps) in chains {
        rows.extend(steps.iter().map(|(step, target)| Row { query: *query, step: *step, target: at(target) }));
        starts.push(rows.len());
    }
    Block { rows, starts, targets }
}

/// A row's part in a loss of its chain: its overlap and the ratio `q/p` of the chain's token, 0 where that is outside
/// the draft vocabulary.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    pub alpha: f32,
    pub ratio: f32,
    /// `q` of the token.
    pub share: f32,
}

/// What each row of a chain counts under `weighting`. Steps that are not supervised change nothing.
fn weights(weighting: Weighting, links: &[Link]) -> Vec<f32> {
    match weighting {
        Weighting::Fixed => vec![1.0; links.len()],
        Weighting::Accepted => before(links.iter().map(|link| link.alpha)),
        Weighting::DPace => {
            let smoothed = links.iter().map(|link| 0.5 + 0.5 * link.share);
            let through: Vec<f32> = before(smoothed.clone()).into_iter().zip(smoothed).map(|(b, s)| b * s).collect();
            (0..links.len()).map(|j| through[j..].iter().sum()).collect()
        }
    }
}

/// Products of the values before each.
fn before(values: impl Iterator<Item = f32>) -> Vec<f32> {
    values.scan(1.0, |product, value| Some(std::mem::replace(product, *product * value))).collect()
}

/// What each row of a chain counts, and its share of the value where the chain as a whole has one.
pub(super) fn parts(problem: &Problem, rows: &[Row], links: &[Link]) -> Vec<(Factor, Option<f32>)> {
    if problem.loss.is_chain() {
        let of_chain = factors(problem.loss, rows, links, problem.pairs.len());
        return of_chain.into_iter().map(|(factor, share)| (factor, Some(share))).collect();
    }
    let weighed = weights(problem.weighting, links).into_iter();
    weighed.map(|scale| (Factor { scale, ..Factor::ALONE }, None)).collect()
}

/// What each row of a chain of `steps` steps counts, and its share of the value `1 - length / steps`.
///
/// The chain is what is supervised from step 0 on without a gap; rows behind a gap count nothing.
fn factors(loss: DraftLoss, rows: &[Row], links: &[Link], steps: usize) -> Vec<(Factor, f32)> {
    let length = rows.iter().enumerate().take_while(|(i, row)| row.step == *i).count();
    // The chance that the verifier goes on behind a row: that of the drafted token or, for a text sampled from the
    // target, that of its own token (spectrain_core::loss::exact_length).
    let passed = |link: &Link| if loss == DraftLoss::ExactLength { link.ratio.min(1.0) } else { link.alpha };
    let mut later = vec![0.0; length];
    for i in (0..length.saturating_sub(1)).rev() {
        later[i] = links[i + 1].alpha + passed(&links[i + 1]) * later[i + 1];
    }
    let mut reach = 1.0;
    let mut all = vec![(Factor { scale: 0.0, worth: 0.0 }, 0.0); rows.len()];
    for (i, (found, link)) in all.iter_mut().zip(links).take(length).enumerate() {
        let per_step = 1.0 / steps as f32;
        let factor = match loss {
            DraftLoss::ExactLength => Factor { scale: reach * per_step, worth: passed(link) * later[i] },
            _ => Factor { scale: reach * (1.0 + later[i]) * per_step, worth: 0.0 },
        };
        *found = (factor, per_step * (1.0 - reach * link.alpha));
        reach *= passed(link);
    }
    all
}
