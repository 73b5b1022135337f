//! Ancestor bitmasks: which tree nodes a node may attend to.

use super::Tree;

/// One bit row per node, `ceil(nodes / 64)` words each. A set bit j in row i: node i attends to node j, which is an
/// ancestor of i or i itself. The committed prefix is visible to all and not part of the mask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AncestorMask {
    words: Vec<u64>,
    words_per_row: usize,
}

impl AncestorMask {
    /// The mask of a tree: each row is its parent's row and the node's own bit.
    pub fn new(tree: &Tree) -> Self {
        let words_per_row = tree.len().div_ceil(64);
        let mut words = vec![0u64; tree.len() * words_per_row];
        for node in 0..tree.len() {
            let start = node * words_per_row;
            if let Some(parent) = tree.parent(node) {
                let from = parent * words_per_row;
                words.copy_within(from..from + words_per_row, start);
            }
            words[start + node / 64] |= 1 << (node % 64);
        }
        Self { words, words_per_row }
    }

    /// Words of one row.
    pub fn words_per_row(&self) -> usize {
        self.words_per_row
    }

    /// All rows, one after the other.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// The row of a node; bit j of the row is bit `j % 64` of word `j / 64`.
    pub fn row(&self, node: usize) -> &[u64] {
        &self.words[node * self.words_per_row..][..self.words_per_row]
    }

    /// Whether `node` attends to `other`.
    pub fn sees(&self, node: usize, other: usize) -> bool {
        self.row(node)[other / 64] >> (other % 64) & 1 == 1
    }
}
