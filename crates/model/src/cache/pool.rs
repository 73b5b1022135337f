//! The pages of a cache: which are free, and how many hold each of the others.

use std::collections::BTreeSet;

/// Counts of the holders of every page.
#[derive(Debug)]
pub(super) struct Pool {
    holders: Vec<usize>,
    free: BTreeSet<usize>,
}

impl Pool {
    pub fn new(pages: usize) -> Self {
        Self { holders: vec![0; pages], free: (0..pages).collect() }
    }

    /// All pages.
    pub fn pages(&self) -> usize {
        self.holders.len()
    }

    /// Pages that nobody holds.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Holders of `page`.
    pub fn holders(&self, page: usize) -> usize {
        self.holders[page]
    }

    /// Takes the free page `wish`, else the first of the longest stretch of free pages, so that what grows behind it
    /// lies side by side. `None` if there is no free page.
    pub fn take(&mut self, wish: usize) -> Option<usize> {
        let page = if self.free.contains(&wish) { wish } else { self.longest_stretch()? };
        self.free.remove(&page);
        self.holders[page] = 1;
        Some(page)
    }

    fn longest_stretch(&self) -> Option<usize> {
        let (mut best, mut best_len) = (None, 0);
        let (mut first, mut len, mut next) = (0, 0, usize::MAX);
        for &page in &self.free {
            (first, len) = if page == next { (first, len + 1) } else { (page, 1) };
            next = page + 1;
            if len > best_len {
                (best, best_len) = (Some(first), len);
            }
        }
        best
    }

    /// One more holder of a page that has some.
    pub fn share(&mut self, page: usize) {
        assert!(self.holders[page] > 0, "page {page} is free");
        self.holders[page] += 1;
    }

    /// One holder fewer.
    pub fn release(&mut self, page: usize) {
        assert!(self.holders[page] > 0, "page {page} is released once too often");
        self.holders[page] -= 1;
        if self.holders[page] == 0 {
            self.free.insert(page);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_free_once_its_last_holder_lets_go() {
        let mut pool = Pool::new(6);
        assert_eq!(pool.take(3), Some(3));
        // Of 0..3 and 4..6 the first is longer.
        assert_eq!(pool.take(3), Some(0));
        pool.share(3);
        pool.release(3);
        assert_eq!((pool.free(), pool.holders(3)), (4, 1));
        pool.release(3);
        assert_eq!((pool.free(), pool.holders(3)), (5, 0));
        let all: Vec<Option<usize>> = (0..6).map(|_| pool.take(0)).collect();
        assert_eq!(all, [Some(1), Some(2), Some(3), Some(4), Some(5), None]);
    }
}
