//! Token trees: several continuations of one text, verified in one target pass.
//!
//! Node 0 is the root: the last committed token, whose features the round starts from. Parents stand before their
//! children. [`Tree`] is free to be pruned, re-ranked and permuted, which only rules that do not read `q` survive;
//! [`SampledTree`] carries the draft distributions its nodes were drawn from and cannot be edited.

mod budget;
mod eagle2;
mod kind;
mod mask;
mod sampled;
mod sequoia;
mod shape;

pub use budget::{Budget, Choice};
pub use eagle2::Eagle2;
pub use kind::{TreeKind, TreeKindError};
pub use mask::AncestorMask;
pub use sampled::{Replacement, SampledTree};
pub use sequoia::SequoiaTable;
pub use shape::Shape;

/// Node arrays of a token tree, one entry per node in each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    parent: Vec<Option<usize>>,
    token: Vec<u32>,
    position: Vec<usize>,
    slot: Vec<usize>,
}

/// Why node arrays form no tree.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TreeError {
    /// There is no root.
    #[error("a tree has at least its root")]
    Empty,
    /// Arrays of different length.
    #[error("{what} has {found} entries for {expected} nodes")]
    Length {
        /// Which array.
        what: &'static str,
        /// Nodes.
        expected: usize,
        /// Entries.
        found: usize,
    },
    /// A node does not stand after its parent.
    #[error("node {node} has parent {parent}: parents must stand before their children")]
    Order {
        /// The node.
        node: usize,
        /// Its parent.
        parent: usize,
    },
    /// Two children of one node hold the same token.
    #[error("nodes {first} and {second} are siblings with the same token {token}")]
    DuplicateSibling {
        /// The earlier node.
        first: usize,
        /// The later node.
        second: usize,
        /// Their token.
        token: u32,
    },
    /// A selection without the root in front, with a repeated node, or with a node whose parent is not selected before.
    #[error("a selection must start at the root and hold every node once, after its parent; node {0} breaks this")]
    Selection(usize),
    /// Two nodes share a cache slot.
    #[error("cache slot {0} is used by two nodes")]
    SharedSlot(usize),
    /// A sampled tree is grown in node order, every node at most once.
    #[error("node {0} cannot be extended now: a sampled tree grows in node order, every node at most once")]
    Growth(usize),
    /// A draft row or a score row is malformed.
    #[error("the draft row of node {0} holds an entry that is negative, not finite or not a number, or has no mass")]
    DraftRow(usize),
}

impl Tree {
    /// A tree from the parents and tokens of nodes 1, 2, …; `root_position` is the root's absolute position.
    ///
    /// Positions are `root_position + depth`; cache slots start at `root_position` in node order.
    ///
    /// # Errors
    /// [`TreeError`] for parents out of order or equal siblings.
    pub fn new(root: u32, root_position: usize, nodes: &[(usize, u32)]) -> Result<Self, TreeError> {
        let mut tree = Self::root(root, root_position);
        for &(parent, token) in nodes {
            let node = tree.len();
            if parent >= node {
                return Err(TreeError::Order { node, parent });
            }
            if let Some(first) = tree.child(parent, token) {
                return Err(TreeError::DuplicateSibling { first, second: node, token });
            }
            tree.push(parent, token);
        }
        Ok(tree)
    }

    /// As [`Tree::new`], but equal siblings become one node that takes over the children of both. Also returns, for
    /// the root and every given node, the node it became.
    ///
    /// # Errors
    /// [`TreeError::Order`] for parents out of order.
    pub fn merged(root: u32, root_position: usize, nodes: &[(usize, u32)]) -> Result<(Self, Vec<usize>), TreeError> {
        let mut tree = Self::root(root, root_position);
        let mut became = vec![0];
        for &(parent, token) in nodes {
            let node = became.len();
            let &parent = became.get(parent).ok_or(TreeError::Order { node, parent })?;
            became.push(tree.child(parent, token).unwrap_or_else(|| tree.push(parent, token)));
        }
        Ok((tree, became))
    }

    /// A root without children: a round that drafts nothing.
    pub fn root(token: u32, position: usize) -> Self {
        Self { parent: vec![None], token: vec![token], position: vec![position], slot: vec![position] }
    }

    /// A chain of drafted tokens after the root.
    pub fn chain(root: u32, root_position: usize, tokens: &[u32]) -> Self {
        let mut tree = Self::root(root, root_position);
        for (parent, &token) in tokens.iter().enumerate() {
            tree.push(parent, token);
        }
        tree
    }

    /// Appends a child whose token no sibling has; returns its node.
    fn push(&mut self, parent: usize, token: u32) -> usize {
        let node = self.len();
        self.parent.push(Some(parent));
        self.token.push(token);
        self.position.push(self.position[parent] + 1);
        self.slot.push(self.slot[0] + node);
        node
    }

    /// The same tree with other cache slots, one per node.
    ///
    /// # Errors
    /// [`TreeError`] if the count differs or a slot is used twice.
    pub fn with_slots(mut self, slots: Vec<usize>) -> Result<Self, TreeError> {
        if slots.len() != self.len() {
            return Err(TreeError::Length { what: "slots", expected: self.len(), found: slots.len() });
        }
        let mut sorted = slots.clone();
        sorted.sort_unstable();
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(TreeError::SharedSlot(pair[0]));
        }
        self.slot = slots;
        Ok(self)
    }

    /// The tree of `nodes` in that order, every array carried along: a permutation if all nodes are named, a pruned
    /// tree if some are. `nodes[i]` becomes node i.
    ///
    /// # Errors
    /// [`TreeError::Selection`] unless the root is first and every node comes once and after its parent.
    pub fn select(&self, nodes: &[usize]) -> Result<Self, TreeError> {
        if nodes.first() != Some(&0) {
            return Err(nodes.first().map_or(TreeError::Empty, |&node| TreeError::Selection(node)));
        }
        let mut became = vec![None; self.len()];
        let mut parent = Vec::with_capacity(nodes.len());
        for (new, &node) in nodes.iter().enumerate() {
            let up = self.parent.get(node).ok_or(TreeError::Selection(node))?;
            let up = up.map(|up| became[up].ok_or(TreeError::Selection(node))).transpose()?;
            if became[node].replace(new).is_some() {
                return Err(TreeError::Selection(node));
            }
            parent.push(up);
        }
        let gather = |values: &[usize]| nodes.iter().map(|&node| values[node]).collect();
        let token = nodes.iter().map(|&node| self.token[node]).collect();
        Ok(Self { parent, token, position: gather(&self.position), slot: gather(&self.slot) })
    }

    /// The same tree with the drafted tokens renamed by `to`, which maps no two tokens to one; the root keeps its token.
    fn renamed(&self, to: impl Fn(u32) -> u32) -> Self {
        let mut tree = self.clone();
        tree.token[1..].iter_mut().for_each(|token| *token = to(*token));
        tree
    }

    /// Nodes by increasing depth, equal depths in node order: a selection after which every node stands after all
    /// nodes nearer the root, so that an accepted path can be moved to the front of the cache in place.
    pub fn depth_order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.len()).collect();
        order.sort_by_key(|&node| self.position[node]);
        order
    }

    /// Number of nodes, the root included.
    #[allow(clippy::len_without_is_empty)] // There is always a root.
    pub fn len(&self) -> usize {
        self.parent.len()
    }

    /// Parent of a node; `None` for the root.
    pub fn parent(&self, node: usize) -> Option<usize> {
        self.parent[node]
    }

    /// Token of a node.
    pub fn token(&self, node: usize) -> u32 {
        self.token[node]
    }

    /// Tokens of all nodes, the root first.
    pub fn tokens(&self) -> &[u32] {
        &self.token
    }

    /// Tokens of all nodes but the root.
    pub fn drafted(&self) -> impl ExactSizeIterator<Item = u32> + '_ {
        self.token[1..].iter().copied()
    }

    /// Absolute positions of all nodes.
    pub fn positions(&self) -> &[usize] {
        &self.position
    }

    /// Cache slots of all nodes.
    pub fn slots(&self) -> &[usize] {
        &self.slot
    }

    /// Edges between the root and a node.
    pub fn depth(&self, node: usize) -> usize {
        self.position[node] - self.position[0]
    }

    /// Depth of the deepest node.
    pub fn max_depth(&self) -> usize {
        (0..self.len()).map(|node| self.depth(node)).max().unwrap_or(0)
    }

    /// Children of a node in node order.
    pub fn children(&self, node: usize) -> impl Iterator<Item = usize> + '_ {
        (node + 1..self.len()).filter(move |&child| self.parent[child] == Some(node))
    }

    /// The child of a node that holds `token`.
    pub fn child(&self, node: usize, token: u32) -> Option<usize> {
        self.children(node).find(|&child| self.token[child] == token)
    }

    /// Nodes without children, in node order.
    pub fn leaves(&self) -> Vec<usize> {
        let mut inner = vec![false; self.len()];
        self.parent.iter().flatten().for_each(|&parent| inner[parent] = true);
        (0..self.len()).filter(|&node| !inner[node]).collect()
    }

    /// Nodes from the root to `node`, both included.
    pub fn path(&self, node: usize) -> Vec<usize> {
        let mut path: Vec<usize> = std::iter::successors(Some(node), |&node| self.parent[node]).collect();
        path.reverse();
        path
    }

    /// Tokens drafted on the way to a node: its own included, the root's not. The history processors need.
    pub fn path_tokens(&self, node: usize) -> Vec<u32> {
        self.path(node)[1..].iter().map(|&node| self.token[node]).collect()
    }

    /// Paths from the root to every leaf.
    pub fn paths(&self) -> Vec<Vec<usize>> {
        self.leaves().into_iter().map(|leaf| self.path(leaf)).collect()
    }
}
