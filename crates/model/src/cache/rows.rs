//! What a forward pass adds to a slot.

#[cfg(doc)]
use spectrain_kernels::cached_attention::Segment;

/// New rows of one slot in a forward pass.
pub struct SlotRows {
    /// The slot.
    pub slot: usize,
    /// Number of new rows.
    pub rows: usize,
    /// Parents as in [`Segment::parents`], those of provisional rows of earlier passes included; `None` for a chain.
    pub parents: Option<Vec<Option<usize>>>,
}

/// A row that does not stand behind its parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("row {row} follows row {parent}: parents must stand before their children")]
pub struct ParentOrder {
    /// The row.
    pub row: usize,
    /// Its parent.
    pub parent: usize,
}

impl SlotRows {
    /// A chain of `rows` tokens.
    pub fn chain(slot: usize, rows: usize) -> Self {
        Self { slot, rows, parents: None }
    }

    /// The last `rows` rows of a tree; `parents` has an entry for every row, and `None` follows the committed ones.
    ///
    /// # Errors
    /// [`ParentOrder`] if a row does not stand behind its parent.
    pub fn tree(slot: usize, rows: usize, parents: Vec<Option<usize>>) -> Result<Self, ParentOrder> {
        assert!(rows <= parents.len(), "{rows} new rows of a tree of {}", parents.len());
        let late = |(row, parent): (usize, &Option<usize>)| parent.filter(|&p| p >= row).map(|p| (row, p));
        match parents.iter().enumerate().find_map(late) {
            Some((row, parent)) => Err(ParentOrder { row, parent }),
            None => Ok(Self { slot, rows, parents: Some(parents) }),
        }
    }

    /// Positions of the new rows, which stand behind `cached` entries that all see: the depth in the tree.
    pub(super) fn positions(&self, cached: usize) -> Vec<u32> {
        let Some(parents) = &self.parents else { return (cached..cached + self.rows).map(|p| p as u32).collect() };
        let mut depths: Vec<usize> = Vec::with_capacity(parents.len());
        parents.iter().for_each(|parent| depths.push(parent.map_or(0, |p| depths[p] + 1)));
        depths[parents.len() - self.rows..].iter().map(|depth| (cached + depth) as u32).collect()
    }

    /// Provisional rows once these are written, where chains stand behind `ahead` earlier ones.
    pub(super) fn provisional(&self, ahead: usize) -> usize {
        self.parents.as_ref().map_or(ahead + self.rows, Vec::len)
    }
}
