//! Trees that grow level by level from a drafter's distributions, whatever the drafter.
//!
//! A drafter runs the frontier of all slots in one pass, hands over its logits, and asks for the next frontier.

use crate::proposer::{Draft, Plan};
use spectrain_core::rules::Keyed;
use spectrain_core::tree::{Eagle2, SampledTree, Shape, Tree, TreeError};
use spectrain_kernels::softmax::probabilities;

/// A tree under construction. Tokens are entries of the draft vocabulary; node 0 is the root.
pub(crate) enum Growing {
    /// [`Plan::Ranked`]
    Ranked(Shaped<Tree>),
    /// [`Plan::Dynamic`]
    Dynamic { tree: Eagle2, nodes: usize, levels: usize },
    /// [`Plan::Sampled`]
    Sampled { tree: Shaped<SampledTree>, temperature: f64, chance: Keyed },
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

impl Growing {
    /// A root, or `None` for a plan that is no tree. `chance` is the slot's; it knows where the root stands.
    pub(crate) fn new(plan: &Plan, chance: Keyed) -> Option<Self> {
        match plan {
            Plan::Chain { .. } => None,
            Plan::Ranked(shape) => Some(Self::Ranked(Shaped::new(shape, Tree::root(ROOT, 0)))),
            Plan::Dynamic { nodes, depth, width } => {
                let tree = Eagle2::new(ROOT, 0, *width);
                Some(Self::Dynamic { tree, nodes: *nodes, levels: *depth })
            }
            Plan::Sampled { shape, temperature, replacement } => {
                let tree = Shaped::new(shape, SampledTree::root(ROOT, 0, *replacement));
                Some(Self::Sampled { tree, temperature: *temperature, chance })
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

    /// Adds a level below the frontier; `logits` holds a row of `width` entries for each of its nodes.
    ///
    /// # Errors
    /// [`TreeError`] if a logit is not a number.
    pub(crate) fn expand(&mut self, logits: &[f32], width: usize) -> Result<(), TreeError> {
        let rows = logits.chunks_exact(width);
        match self {
            Self::Ranked(shaped) => rank(shaped, rows),
            Self::Dynamic { tree, levels, .. } => {
                *levels -= 1;
                tree.expand(&rows.map(log_probabilities).collect::<Vec<_>>())
            }
            Self::Sampled { tree: shaped, temperature, chance } => {
                let mut next = Vec::new();
                for (node, row) in std::mem::take(&mut shaped.frontier).into_iter().zip(rows) {
                    let count = shaped.shape.child_count(shaped.place[node]);
                    shaped.tree.extend(node, probabilities(row, *temperature), count, chance)?;
                    let children = shaped.tree.drawn(node).map_or(Vec::new(), |(_, children)| children.to_vec());
                    shaped.enter(node, children, &mut next);
                }
                shaped.frontier = next;
                Ok(())
            }
        }
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
fn rank<'a>(shaped: &mut Shaped<Tree>, rows: impl Iterator<Item = &'a [f32]>) -> Result<(), TreeError> {
    let mut nodes: Vec<(usize, u32)> =
        (1..shaped.tree.len()).map(|n| (shaped.tree.parent(n).unwrap_or(0), shaped.tree.token(n))).collect();
    let mut next = Vec::new();
    for (node, row) in std::mem::take(&mut shaped.frontier).into_iter().zip(rows) {
        let first = nodes.len() + 1;
        let count = shaped.shape.child_count(shaped.place[node]);
        nodes.extend(largest(row, count).into_iter().map(|token| (node, token)));
        shaped.enter(node, first..=nodes.len(), &mut next);
    }
    shaped.tree = Tree::new(ROOT, 0, &nodes)?;
    shaped.frontier = next;
    Ok(())
}

/// Entries of the `count` largest logits, largest first, the lower one among equals.
fn largest(logits: &[f32], count: usize) -> Vec<u32> {
    let order = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    let mut entries: Vec<u32> = (0..logits.len() as u32).collect();
    if count < entries.len() {
        entries.select_nth_unstable_by(count, order);
        entries.truncate(count);
    }
    entries.sort_unstable_by(order);
    entries
}

/// Log softmax of one row.
fn log_probabilities(logits: &[f32]) -> Vec<f64> {
    probabilities(logits, 1.0).into_iter().map(f64::ln).collect()
}
