//! Trees that grow level by level from a drafter's distributions, whatever the drafter.
//!
//! A drafter runs the frontier of all slots in one pass, hands over its logits, and asks for the next frontier.

use crate::drawing::Drawing;
use crate::proposer::{Draft, Plan};
use spectrain_core::process::RowError;
use spectrain_core::rules::Draws;
use spectrain_core::tree::{Eagle2, SampledTree, Shape, Tree, TreeError};
use spectrain_kernels::softmax::probabilities;
use std::borrow::Cow;

/// A tree under construction. Tokens are entries of the draft vocabulary; node 0 is the root.
pub(crate) enum Growing<'a> {
    /// [`Plan::Ranked`]
    Ranked(Shaped<Tree>),
    /// [`Plan::Dynamic`]
    Dynamic { tree: Eagle2, nodes: usize, levels: usize },
    /// [`Plan::Sampled`]
    Sampled { tree: Shaped<SampledTree>, chance: Draws<'a> },
}

/// A tree that fills a shape.
pub(crate) struct Shaped<T> {
    shape: Shape,
    tree: T,
    /// The place in the shape of every node.
    place: Vec<usize>,
    /// Nodes of the deepest level that have children in the shape.
    frontier: Vec<usize>,
}

/// The root's token, which no distribution reads.
const ROOT: u32 = 0;

impl<T> Shaped<T> {
    fn new(shape: &Shape, tree: T) -> Self {
        let frontier = if shape.child_count(0) > 0 { vec![0] } else { Vec::new() };
        Self { shape: shape.clone(), tree, place: vec![0], frontier }
    }

    /// Enters the new `children` of `node`, in the order of their ranks; what was known before keeps its place.
    fn enter(&mut self, node: usize, children: impl IntoIterator<Item = usize>, next: &mut Vec<usize>) {
        for (rank, child) in children.into_iter().enumerate() {
            if child < self.place.len() {
                continue;
            }
            let place = self.shape.child(self.place[node], rank).expect("no more children than the shape has");
            self.place.push(place);
            if self.shape.child_count(place) > 0 {
                next.push(child);
            }
        }
    }
}

impl<'a> Growing<'a> {
    /// A root, or `None` for a plan that is no tree. `chance` is the slot's; it knows where the root stands.
    pub(crate) fn new(plan: &Plan, chance: Draws<'a>) -> Option<Self> {
        match plan {
            Plan::Chain { .. } => None,
            Plan::Ranked(shape) => Some(Self::Ranked(Shaped::new(shape, Tree::root(ROOT, 0)))),
            Plan::Dynamic { nodes, depth, width } => {
                let tree = Eagle2::new(ROOT, 0, *width);
                Some(Self::Dynamic { tree, nodes: *nodes, levels: *depth })
            }
            Plan::Sampled { shape, replacement } => {
                let tree = Shaped::new(shape, SampledTree::root(ROOT, 0, *replacement));
                Some(Self::Sampled { tree, chance })
            }
        }
    }

    /// Nodes whose distributions are needed next, in order; their parents were in the frontier before.
    pub(crate) fn frontier(&self) -> &[usize] {
        match self {
            Self::Ranked(shaped) => &shaped.frontier,
            Self::Dynamic { levels: 0, .. } => &[],
            Self::Dynamic { tree, .. } => tree.frontier(),
            Self::Sampled { tree, .. } => &tree.frontier,
        }
    }

    /// Parent of a node; the root is its own.
    pub(crate) fn parent(&self, node: usize) -> usize {
        match self {
            Self::Ranked(shaped) => shaped.tree.parent(node).unwrap_or(0),
            Self::Dynamic { tree, .. } => tree.parent(node),
            Self::Sampled { tree, .. } => tree.tree.tree().parent(node).unwrap_or(0),
        }
    }

    /// Token of a node.
    pub(crate) fn token(&self, node: usize) -> u32 {
        match self {
            Self::Ranked(shaped) => shaped.tree.token(node),
            Self::Dynamic { tree, .. } => tree.token(node),
            Self::Sampled { tree, .. } => tree.tree.tree().token(node),
        }
    }

    /// Target tokens from the root, which is left out, to a node.
    fn path(&self, node: usize, d2t: &[u32]) -> Vec<u32> {
        let up = |&node: &usize| Some(self.parent(node));
        let nodes = std::iter::successors(Some(node), up).take_while(|&node| node > 0);
        let mut path: Vec<u32> = nodes.map(|node| d2t[self.token(node) as usize]).collect();
        path.reverse();
        path
    }

    /// Adds a level below the frontier, if there is one; `logits` holds a row of the draft vocabulary for each of its nodes.
    ///
    /// # Errors
    /// [`RowError`] for logits that make no distribution.
    pub(crate) fn expand(&mut self, logits: &[f32], drawing: &Drawing) -> Result<(), RowError> {
        // Deeper trees of the same batch may still grow.
        if self.frontier().is_empty() {
            return Ok(());
        }
        let paths: Vec<Vec<u32>> = self.frontier().iter().map(|&node| self.path(node, drawing.d2t)).collect();
        let rows = logits.chunks_exact(drawing.d2t.len()).zip(&paths);
        let ranked = rows.clone().map(|(row, path)| drawing.ranked(row, path));
        match self {
            Self::Ranked(shaped) => rank(shaped, ranked.collect::<Result<_, _>>()?),
            Self::Dynamic { tree, levels, .. } => {
                *levels -= 1;
                let log_q = ranked.map(|row| Ok(log_probabilities(&row?))).collect::<Result<Vec<_>, RowError>>()?;
                tree.expand(&log_q).expect("log probabilities of every frontier node");
            }
            Self::Sampled { tree: shaped, chance } => {
                let mut next = Vec::new();
                for (node, (row, path)) in std::mem::take(&mut shaped.frontier).into_iter().zip(rows) {
                    let q = drawing.q(row, path)?;
                    // Nothing can be drawn where no token may follow, which was known before.
                    let barred = q.iter().all(|&mass| mass == 0.0);
                    let count = if barred { 0 } else { shaped.shape.child_count(shaped.place[node]) };
                    shaped.tree.extend(node, q, count, chance).expect("a distribution at every node, in order");
                    let children = shaped.tree.drawn(node).map_or(Vec::new(), |(_, children)| children.to_vec());
                    shaped.enter(node, children, &mut next);
                }
                shaped.frontier = next;
            }
        }
        Ok(())
    }

    /// The whole tree, in target tokens.
    ///
    /// # Errors
    /// [`TreeError`] if a tree of no nodes was asked for.
    pub(crate) fn finish(self, d2t: &[u32]) -> Result<Draft, TreeError> {
        Ok(match self {
            Self::Ranked(shaped) => Draft::chosen(&shaped.tree, d2t),
            Self::Dynamic { tree, nodes, .. } => Draft::chosen(&tree.rerank(nodes)?, d2t),
            Self::Sampled { tree, .. } => {
                let chosen = Draft::chosen(tree.tree.tree(), d2t);
                Draft { drawn: Some(tree.tree), ..chosen }
            }
        })
    }
}

/// Gives every frontier node as many of its most likely tokens as the shape has children there.
fn rank(shaped: &mut Shaped<Tree>, rows: Vec<Cow<[f32]>>) {
    let mut nodes: Vec<(usize, u32)> =
        (1..shaped.tree.len()).map(|n| (shaped.tree.parent(n).unwrap_or(0), shaped.tree.token(n))).collect();
    let mut next = Vec::new();
    for (node, row) in std::mem::take(&mut shaped.frontier).into_iter().zip(rows) {
        let first = nodes.len() + 1;
        let count = shaped.shape.child_count(shaped.place[node]);
        nodes.extend(largest(&row, count).into_iter().map(|token| (node, token)));
        shaped.enter(node, first..=nodes.len(), &mut next);
    }
    shaped.tree = Tree::new(ROOT, 0, &nodes).expect("different children behind their parents");
    shaped.frontier = next;
}

/// Entries of the `count` largest logits, largest first, the lower one among equals; barred ones are left out.
fn largest(logits: &[f32], count: usize) -> Vec<u32> {
    let order = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    let mut entries: Vec<u32> = (0..logits.len() as u32).collect();
    if count < entries.len() {
        entries.select_nth_unstable_by(count, order);
        entries.truncate(count);
    }
    entries.sort_unstable_by(order);
    entries.retain(|&entry| logits[entry as usize] > f32::NEG_INFINITY);
    entries
}

/// Log softmax of one row; a row without a token has none.
fn log_probabilities(logits: &[f32]) -> Vec<f64> {
    if logits.iter().all(|&logit| logit == f32::NEG_INFINITY) {
        return vec![f64::NEG_INFINITY; logits.len()];
    }
    probabilities(logits, 1.0).into_iter().map(f64::ln).collect()
}
