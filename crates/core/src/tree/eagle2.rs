//! EAGLE-2's dynamic tree: expand the most probable frontier, then keep the best nodes of all levels.
//!
//! Li et al., "EAGLE-2: faster inference of language models with dynamic draft trees", 2024. The score of a node is the
//! log probability of its path under the drafter. The tree is chosen by what was drafted, so only rules that do not
//! read `q` are exact on it: the result is a plain [`Tree`].

use super::{Tree, TreeError};

/// A remembered candidate node.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    /// Candidate id of the parent.
    parent: usize,
    token: u32,
    /// Sum of log q from the root.
    score: f64,
}

/// The tree under construction. Candidate 0 is the root; ids grow with depth.
#[derive(Clone, Debug)]
pub struct Eagle2 {
    top_k: usize,
    root_position: usize,
    candidates: Vec<Candidate>,
    frontier: Vec<usize>,
}

impl Eagle2 {
    /// Starts at the last committed token; each frontier node proposes `top_k` children and `top_k` nodes are expanded
    /// per level.
    pub fn new(root: u32, root_position: usize, top_k: usize) -> Self {
        let candidates = vec![Candidate { parent: 0, token: root, score: 0.0 }];
        Self { top_k, root_position, candidates, frontier: vec![0] }
    }

    /// Candidate ids whose draft rows [`Eagle2::expand`] needs next.
    pub fn frontier(&self) -> &[usize] {
        &self.frontier
    }

    /// Token of a candidate.
    pub fn token(&self, candidate: usize) -> u32 {
        self.candidates[candidate].token
    }

    /// Parent of a candidate; the root is its own.
    pub fn parent(&self, candidate: usize) -> usize {
        self.candidates[candidate].parent
    }

    /// Candidates so far, the root included.
    pub fn candidates(&self) -> usize {
        self.candidates.len()
    }

    /// Adds one level. `log_q[i]` is the drafter's log distribution at `frontier()[i]`; entries of negative infinity
    /// are never proposed. Ties go to the lower token, between nodes to the earlier one.
    ///
    /// # Errors
    /// [`TreeError`] if the number of rows differs or an entry is above zero or not a number.
    pub fn expand<R: AsRef<[f64]>>(&mut self, log_q: &[R]) -> Result<(), TreeError> {
        if log_q.len() != self.frontier.len() {
            return Err(TreeError::Length { what: "draft rows", expected: self.frontier.len(), found: log_q.len() });
        }
        let first = self.candidates.len();
        for (&parent, row) in self.frontier.iter().zip(log_q) {
            let row = row.as_ref();
            // Not `value > 0.0`: a NaN must fail too. Rounding may lift the log of a sure token above zero a little.
            if row.iter().any(|value| !matches!(value.partial_cmp(&1e-6), Some(std::cmp::Ordering::Less))) {
                return Err(TreeError::DraftRow(parent));
            }
            let score = self.candidates[parent].score;
            for token in best(row, self.top_k) {
                let log = row[token].min(0.0);
                if log > f64::NEG_INFINITY {
                    self.candidates.push(Candidate { parent, token: token as u32, score: score + log });
                }
            }
        }
        let scores: Vec<f64> = self.candidates[first..].iter().map(|candidate| candidate.score).collect();
        self.frontier = best(&scores, self.top_k).into_iter().map(|index| first + index).collect();
        Ok(())
    }

    /// The `nodes` best candidates of all levels (the root counts) as a tree in depth order.
    ///
    /// A child never outscores its parent and stands after it, so the kept set is closed under parents, ties included.
    ///
    /// # Errors
    /// [`TreeError::Empty`] if `nodes` is zero.
    pub fn rerank(&self, nodes: usize) -> Result<Tree, TreeError> {
        let scores: Vec<f64> = self.candidates.iter().map(|candidate| candidate.score).collect();
        let mut kept = best(&scores, nodes);
        kept.sort_unstable();
        let Some((&root, rest)) = kept.split_first() else { return Err(TreeError::Empty) };
        let became = |candidate: usize| kept.binary_search(&candidate).map_err(|_| TreeError::Selection(candidate));
        let nodes: Result<Vec<_>, _> =
            rest.iter().map(|&kept| Ok((became(self.parent(kept))?, self.token(kept)))).collect();
        Tree::new(self.token(root), self.root_position, &nodes?)
    }
}

/// Indices of the `count` largest values, largest first, ties by index.
fn best(values: &[f64], count: usize) -> Vec<usize> {
    let order = |a: &usize, b: &usize| values[*b].total_cmp(&values[*a]).then(a.cmp(b));
    let mut indices: Vec<usize> = (0..values.len()).collect();
    if count < indices.len() {
        indices.select_nth_unstable_by(count, order);
        indices.truncate(count);
    }
    indices.sort_unstable_by(order);
    indices
}
