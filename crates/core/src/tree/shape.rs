//! Static shapes: trees whose branching is fixed before anything is drafted.
//!
//! A shape says how many ranked children each node has and nothing about tokens. Medusa and EAGLE-1 use tuned shapes,
//! Sequoia computes one; filling it with the drafter's top tokens gives a deterministic tree, drawing that many
//! children without replacement a sampled one.

use super::{Tree, TreeError};

/// A tree of ranks: child r of a node is meant for the r-th choice there. Node 0 is the root; nodes stand by depth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Parent and rank of nodes 1, 2, …
    nodes: Vec<(usize, usize)>,
}

impl Shape {
    /// Every node at depth d has `branching[d]` children.
    pub fn levels(branching: &[usize]) -> Self {
        let mut nodes = Vec::new();
        let mut level = 0..1;
        for &children in branching {
            for parent in level.clone() {
                nodes.extend((0..children).map(|rank| (parent, rank)));
            }
            level = level.end..nodes.len() + 1;
        }
        Self { nodes }
    }

    /// One chain of `length` tokens.
    pub fn chain(length: usize) -> Self {
        Self::levels(&vec![1; length])
    }

    /// `count` chains of `length` tokens that part at the root.
    pub fn chains(count: usize, length: usize) -> Self {
        let branching: Vec<usize> = (0..length).map(|depth| if depth == 0 { count } else { 1 }).collect();
        Self::levels(&branching)
    }

    /// The shape whose nodes are these rank paths from the root (Medusa's `choices`), in any order.
    ///
    /// # Errors
    /// [`TreeError`] if a path is empty, is given twice, or lacks its beginning or a sibling of lower rank.
    pub fn from_ranks(paths: &[Vec<usize>]) -> Result<Self, TreeError> {
        let mut sorted: Vec<&Vec<usize>> = paths.iter().collect();
        sorted.sort_by_key(|path| (path.len(), *path));
        let mut nodes: Vec<(usize, usize)> = Vec::with_capacity(paths.len());
        for path in &sorted {
            let (&rank, start) = path.split_last().ok_or(TreeError::Empty)?;
            let node = nodes.len() + 1;
            let parent = match start {
                [] => 0,
                _ => 1 + sorted.iter().position(|other| other[..] == *start).ok_or(TreeError::Selection(node))?,
            };
            let siblings = nodes.iter().filter(|(up, _)| *up == parent).count();
            if rank != siblings {
                return Err(TreeError::Selection(node));
            }
            nodes.push((parent, rank));
        }
        Ok(Self { nodes })
    }

    /// The shape with these child counts, one per node in breadth-first order; missing counts are zero.
    pub(super) fn from_counts(counts: &[usize]) -> Self {
        let mut nodes = Vec::new();
        for (parent, &count) in counts.iter().enumerate() {
            nodes.extend((0..count).map(|rank| (parent, rank)));
        }
        Self { nodes }
    }

    /// Number of nodes, the root included.
    #[allow(clippy::len_without_is_empty)] // There is always a root.
    pub fn len(&self) -> usize {
        self.nodes.len() + 1
    }

    /// Children of a node.
    pub fn child_count(&self, node: usize) -> usize {
        self.nodes.iter().filter(|(parent, _)| *parent == node).count()
    }

    /// The child of a node with this rank.
    pub fn child(&self, node: usize, rank: usize) -> Option<usize> {
        self.nodes.iter().position(|&child| child == (node, rank)).map(|index| index + 1)
    }

    /// Depth of the deepest node.
    pub fn max_depth(&self) -> usize {
        let mut depth = vec![0; self.len()];
        for (index, &(parent, _)) in self.nodes.iter().enumerate() {
            depth[index + 1] = depth[parent] + 1;
        }
        depth.into_iter().max().unwrap_or(0)
    }

    /// Fills the shape: `ranked(path)` lists distinct tokens after the drafted `path`, best first. Nodes whose rank is
    /// beyond the list are left out with all below them.
    ///
    /// # Errors
    /// [`TreeError::DuplicateSibling`] if a list repeats a token.
    pub fn fill(
        &self,
        root: u32,
        root_position: usize,
        mut ranked: impl FnMut(&[u32]) -> Vec<u32>,
    ) -> Result<Tree, TreeError> {
        let mut filled = Vec::new();
        let mut became = vec![None; self.len()];
        became[0] = Some((0, Vec::new()));
        for node in 0..self.len() {
            let Some((parent, path)) = became[node].clone() else { continue };
            let count = self.child_count(node);
            if count == 0 {
                continue;
            }
            for (rank, &token) in ranked(&path).iter().take(count).enumerate() {
                filled.push((parent, token));
                if let Some(child) = self.child(node, rank) {
                    became[child] = Some((filled.len(), [&path[..], &[token]].concat()));
                }
            }
        }
        Tree::new(root, root_position, &filled)
    }
}
