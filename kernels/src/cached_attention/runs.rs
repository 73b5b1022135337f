//! Where a slot's entries lie in the tables.

use std::ops::Range;

/// Rows of a table in the order of a slot's entries: as few stretches of adjacent rows as there are.
///
/// A cache in pages gives a stretch a page, or fewer where pages lie side by side; a cache that is filled in order has
/// one, and is then read as if there were no pages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Runs {
    runs: Vec<Range<usize>>,
    len: usize,
}

impl Runs {
    /// `len` adjacent rows from `first` on.
    pub fn adjacent(first: usize, len: usize) -> Self {
        let mut runs = Self::default();
        runs.push(first..first + len);
        runs
    }

    /// Appends `rows`; the last run goes on where they are adjacent to it.
    pub fn push(&mut self, rows: Range<usize>) {
        self.len += rows.len();
        match self.runs.last_mut() {
            Some(last) if last.end == rows.start => last.end = rows.end,
            _ if rows.is_empty() => {}
            _ => self.runs.push(rows),
        }
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// One row after every row of the table that is named.
    pub fn end(&self) -> usize {
        self.runs.iter().map(|run| run.end).max().unwrap_or(0)
    }

    /// The runs of `entries`, each with the number of its first entry among them.
    #[inline(always)]
    pub fn of(&self, entries: Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> + '_ {
        let mut first = 0;
        self.runs.iter().filter_map(move |run| {
            let (from, to) = (entries.start.max(first), entries.end.min(first + run.len()));
            let rows = run.start + from.saturating_sub(first)..run.start + to.saturating_sub(first);
            first += run.len();
            (from < to).then(|| (from - entries.start, rows))
        })
    }

    /// The row of every entry of `entries`, in order.
    pub fn rows(&self, entries: Range<usize>) -> impl Iterator<Item = usize> + '_ {
        self.of(entries).flat_map(|(_, rows)| rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_rows_are_one_run() {
        let mut runs = Runs::adjacent(8, 4);
        runs.push(12..16);
        runs.push(0..4);
        runs.push(20..20);
        runs.push(4..7);
        assert_eq!(runs.len(), 15);
        assert_eq!(runs.end(), 16);
        assert_eq!(runs.of(0..15).collect::<Vec<_>>(), [(0, 8..16), (8, 0..7)]);
        assert_eq!(runs.of(3..10).collect::<Vec<_>>(), [(0, 11..16), (5, 0..2)]);
        assert_eq!(runs.of(8..8).count(), 0);
        assert_eq!(runs.rows(6..10).collect::<Vec<_>>(), [14, 15, 0, 1]);
    }
}
