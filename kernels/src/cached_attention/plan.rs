//! Which packed rows belong together, where their keys and values go, and what they see.

use super::Runs;

/// New rows of one request.
///
/// Rows behind the first `cached` entries are *provisional*. A tree may be written in several passes, a level each: then
/// `parents` also names the provisional rows of earlier passes, which stand first.
#[derive(Debug, Clone)]
pub struct Segment {
    /// Table rows of the request's entries: the `cached` ones, provisional rows of earlier passes, the new ones.
    pub entries: Runs,
    /// Entries that all new rows see; provisional rows stand behind them.
    pub cached: usize,
    /// Number of new rows.
    pub rows: usize,
    /// For each provisional row, the new ones last, the provisional row it follows (`None`: only the first `cached`
    /// entries precede it). `None` for the whole: a chain of new rows.
    pub parents: Option<Vec<Option<usize>>>,
}

impl Segment {
    /// A chain of `rows` new rows behind `cached` entries that lie side by side from table row `first` on.
    pub fn chain(first: usize, cached: usize, rows: usize) -> Self {
        Self { entries: Runs::adjacent(first, cached + rows), cached, rows, parents: None }
    }

    /// The last `rows` rows of a tree behind `cached` entries that lie side by side from table row `first` on.
    pub fn tree(first: usize, cached: usize, rows: usize, parents: Vec<Option<usize>>) -> Self {
        Self { entries: Runs::adjacent(first, cached + parents.len()), cached, rows, parents: Some(parents) }
    }

    /// Provisional rows of earlier passes.
    pub fn ahead(&self) -> usize {
        self.parents.as_ref().map_or(0, |parents| parents.len() - self.rows)
    }

    /// Entries of which new rows see any: all of them.
    pub fn seen(&self) -> usize {
        self.cached + self.ahead() + self.rows
    }

    /// Whether new row `row` sees provisional row `other`: itself and its ancestors.
    pub fn sees(&self, row: usize, other: usize) -> bool {
        match &self.parents {
            None => other <= row,
            Some(parents) => ancestors(parents, self.ahead() + row).any(|r| r == other),
        }
    }
}

/// Provisional row `row` and those before it on its branch.
pub(super) fn ancestors(parents: &[Option<usize>], row: usize) -> impl Iterator<Item = usize> + '_ {
    std::iter::successors(Some(row), |&r| parents[r])
}

/// Which packed rows belong to which request, and where they stand.
#[derive(Debug, Clone)]
pub struct CachedPlan {
    /// Segments in the order of their rows.
    pub segments: Vec<Segment>,
    /// Position id of every packed row.
    pub positions: Vec<u32>,
}

impl CachedPlan {
    /// Number of packed rows.
    pub fn rows(&self) -> usize {
        self.positions.len()
    }

    /// Table row of every packed row.
    pub(super) fn destinations(&self) -> impl Iterator<Item = usize> + '_ {
        self.segments.iter().flat_map(|s| s.entries.rows(s.seen() - s.rows..s.seen()))
    }

    pub(super) fn check(&self, table_rows: usize) {
        assert_eq!(self.segments.iter().map(|s| s.rows).sum::<usize>(), self.rows(), "segments do not cover the rows");
        for (i, s) in self.segments.iter().enumerate() {
            assert_eq!(s.entries.len(), s.seen(), "segment {i} names rows for other entries than it has");
            assert!(s.entries.end() <= table_rows, "segment {i} lies beyond the table's {table_rows} rows");
            let ordered =
                |parents: &Vec<Option<usize>>| parents.iter().enumerate().all(|(i, p)| p.is_none_or(|p| p < i));
            assert!(s.parents.as_ref().is_none_or(ordered), "segment {i}: a row stands before its parent");
        }
    }
}
