//! Sequoia's dynamic programme: the tree of a given size and depth with the longest expected acceptance.
//!
//! Chen et al., "Sequoia: scalable and robust speculative decoding", 2024. It needs only `a[r]`, the measured
//! probability that the accepted child of a node is its r-th sibling, taken to be the same at every position; any
//! verification rule can be measured so.

use super::Shape;

/// Best expected committed length for every size and depth.
#[derive(Clone, Debug)]
pub struct SequoiaTable {
    /// `best[depth][nodes]`: value and number of root children; index 0 of `nodes` is unused.
    best: Vec<Vec<(f64, usize)>>,
    /// `last[depth][children][nodes]`: nodes left to the root and its earlier children when the last child is cut off.
    last: Vec<Vec<Vec<usize>>>,
}

impl SequoiaTable {
    /// Fills the table for trees of up to `max_nodes` nodes (the root counts) and `max_depth` edges.
    ///
    /// `acceptance[r]` is the probability that the accepted child is the one of rank r (0-based); a node has at most
    /// `acceptance.len()` children. With T(m, l, b) the best length of m nodes, depth at most l and b root children:
    /// T(1, l, 0) = 1 and T(m, l, b) = max over y of T(y, l, b-1) + a\[b-1\] · max over b' of T(m-y, l-1, b').
    /// Time grows with `max_nodes`² · `max_depth` · ranks.
    pub fn new(acceptance: &[f64], max_nodes: usize, max_depth: usize) -> Self {
        let root_only: Vec<(f64, usize)> =
            (0..=max_nodes).map(|nodes| (if nodes == 1 { 1.0 } else { f64::NEG_INFINITY }, 0)).collect();
        let mut best = vec![root_only.clone()];
        let mut last = vec![Vec::new()];
        for depth in 1..=max_depth {
            let mut level = root_only.clone();
            let mut cuts = vec![vec![0; max_nodes + 1]];
            let mut fewer: Vec<f64> = root_only.iter().map(|entry| entry.0).collect();
            for (rank, &accepted) in acceptance.iter().enumerate() {
                let (values, cut) = add_child(&fewer, &best[depth - 1], accepted, max_nodes);
                for nodes in 1..=max_nodes {
                    if values[nodes] > level[nodes].0 {
                        level[nodes] = (values[nodes], rank + 1);
                    }
                }
                cuts.push(cut);
                fewer = values;
            }
            best.push(level);
            last.push(cuts);
        }
        Self { best, last }
    }

    /// Largest number of nodes in the table.
    pub fn max_nodes(&self) -> usize {
        self.best[0].len() - 1
    }

    /// Largest depth in the table.
    pub fn max_depth(&self) -> usize {
        self.best.len() - 1
    }

    /// Expected committed tokens of the best tree with exactly `nodes` nodes and depth at most `depth`: the root counts
    /// one, for the extra token. `None` if no such tree exists or the table does not reach so far.
    pub fn expected(&self, nodes: usize, depth: usize) -> Option<f64> {
        self.best.get(depth)?.get(nodes).map(|entry| entry.0).filter(|value| value.is_finite())
    }

    /// The best tree itself.
    pub fn shape(&self, nodes: usize, depth: usize) -> Option<Shape> {
        self.expected(nodes, depth)?;
        let mut counts = Vec::with_capacity(nodes);
        let mut queue = std::collections::VecDeque::from([(nodes, depth)]);
        while let Some((nodes, depth)) = queue.pop_front() {
            let children = self.children(nodes, depth);
            counts.push(children.len());
            queue.extend(children.into_iter().map(|nodes| (nodes, depth - 1)));
        }
        Some(Shape::from_counts(&counts))
    }

    /// Sizes of the root's subtrees in the best tree, by rank.
    fn children(&self, nodes: usize, depth: usize) -> Vec<usize> {
        let mut left = nodes;
        let mut sizes = Vec::new();
        for children in (1..=self.best[depth][nodes].1).rev() {
            let rest = self.last[depth][children][left];
            sizes.push(left - rest);
            left = rest;
        }
        sizes.reverse();
        sizes
    }
}

/// T(·, l, b) from T(·, l, b-1) and the best trees one level down, with the cut that attains it.
fn add_child(fewer: &[f64], below: &[(f64, usize)], accepted: f64, max_nodes: usize) -> (Vec<f64>, Vec<usize>) {
    let mut values = vec![f64::NEG_INFINITY; max_nodes + 1];
    let mut cuts = vec![0; max_nodes + 1];
    for nodes in 2..=max_nodes {
        for rest in 1..nodes {
            let value = fewer[rest] + accepted * below[nodes - rest].0;
            if value > values[nodes] {
                values[nodes] = value;
                cuts[nodes] = rest;
            }
        }
    }
    (values, cuts)
}
