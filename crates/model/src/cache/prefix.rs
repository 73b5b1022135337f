//! Whole pages by the text that they hold, so that a request with a known beginning starts behind it.

use super::pool::Pool;
use std::collections::HashMap;

/// A page's text: the number of the entry before it, and its own tokens.
///
/// Equal keys mean equal texts from the first token on: the tokens are compared, and an entry's number stands for one
/// text and is never given twice.
type Key = (Option<u64>, Vec<u32>);

#[derive(Debug)]
struct Entry {
    number: u64,
    page: usize,
    /// Entries that follow this one.
    children: usize,
    /// When it was last found or entered.
    used: u64,
}

/// The index; it holds each of its pages once.
///
/// Whoever holds an entry's page holds those before it too. So among the entries that only the index holds there is one
/// without children, and any number of them can be evicted one after the other.
#[derive(Debug, Default)]
pub(super) struct Prefixes {
    entries: HashMap<Key, Entry>,
    numbers: u64,
    clock: u64,
}

impl Prefixes {
    /// The pages of the longest known beginning of `text`, of `page` tokens each.
    pub fn find(&mut self, text: &[u32], page: usize) -> Vec<usize> {
        self.clock += 1;
        let (mut before, mut found) = (None, Vec::new());
        for tokens in text.chunks_exact(page) {
            let Some(entry) = self.entries.get_mut(&(before, tokens.to_vec())) else { break };
            entry.used = self.clock;
            before = Some(entry.number);
            found.push(entry.page);
        }
        found
    }

    /// Enters `pages`, which hold the beginning of `text`. Where a page of the same text is known, the caller's is let
    /// go and replaced by it.
    pub fn enter(&mut self, text: &[u32], page: usize, pages: &mut [usize], pool: &mut Pool) {
        self.clock += 1;
        let mut before: Option<Key> = None;
        for (own, tokens) in pages.iter_mut().zip(text.chunks_exact(page)) {
            let number = before.as_ref().map(|key| self.entries[key].number);
            let key = (number, tokens.to_vec());
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.used = self.clock;
                if entry.page != *own {
                    pool.share(entry.page);
                    pool.release(*own);
                    *own = entry.page;
                }
            } else {
                pool.share(*own);
                let entry = Entry { number: self.numbers, page: *own, children: 0, used: self.clock };
                self.numbers += 1;
                self.entries.insert(key.clone(), entry);
                if let Some(parent) = before.and_then(|key| self.entries.get_mut(&key)) {
                    parent.children += 1;
                }
            }
            before = Some(key);
        }
    }

    /// Pages that nobody but the index holds.
    pub fn evictable(&self, pool: &Pool) -> usize {
        self.entries.values().filter(|entry| pool.holders(entry.page) == 1).count()
    }

    /// Lets go of the page that was not used for longest; the end of a text goes before its beginning. False if there
    /// is none that only the index holds.
    pub fn evict(&mut self, pool: &mut Pool) -> bool {
        let last = |entry: &Entry| entry.children == 0 && pool.holders(entry.page) == 1;
        let oldest = self.entries.iter().filter(|(_, entry)| last(entry)).min_by_key(|(_, entry)| entry.used);
        let Some(key) = oldest.map(|(key, _)| key.clone()) else { return false };
        if let Some(entry) = self.entries.remove(&key) {
            pool.release(entry.page);
        }
        if let Some(parent) = self.entries.values_mut().find(|entry| Some(entry.number) == key.0) {
            parent.children -= 1;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_found_by_all_of_their_tokens() {
        let mut pool = Pool::new(8);
        let take = |pool: &mut Pool| -> Vec<usize> { (0..2).filter_map(|page| pool.take(page)).collect() };
        let (mut first, mut second) = (take(&mut pool), take(&mut pool));
        let mut prefixes = Prefixes::default();
        prefixes.enter(&[1, 2, 3, 4, 5], 2, &mut first, &mut pool);
        prefixes.enter(&[7, 2, 3, 4], 2, &mut second, &mut pool);
        assert_eq!(prefixes.find(&[1, 2, 3, 4, 9], 2), first);
        assert_eq!(prefixes.find(&[7, 2, 3, 4], 2), second);
        assert_eq!(prefixes.find(&[1, 2, 3, 9], 2), first[..1]);
        assert_eq!(prefixes.find(&[7, 2, 3], 2), second[..1]);
        assert!(prefixes.find(&[1], 2).is_empty() && prefixes.find(&[3, 4], 2).is_empty());
        // The same text in other pages is one text.
        let mut third = take(&mut pool);
        prefixes.enter(&[1, 2, 8, 8], 2, &mut third, &mut pool);
        assert_eq!(third[0], first[0]);
        assert_eq!((pool.free(), prefixes.entries.len(), pool.holders(first[0])), (3, 5, 3));
    }

    #[test]
    fn the_longest_unused_goes_first_and_no_beginning_before_its_end() {
        let mut pool = Pool::new(4);
        let mut prefixes = Prefixes::default();
        let mut pages: Vec<usize> = (0..4).filter_map(|page| pool.take(page)).collect();
        let (long, short) = pages.split_at_mut(3);
        prefixes.enter(&[1, 1, 2, 2, 3, 3], 2, long, &mut pool);
        prefixes.enter(&[9, 9], 2, short, &mut pool);
        assert!(!prefixes.evict(&mut pool), "every page is held");
        long.iter().for_each(|&page| pool.release(page));
        short.iter().for_each(|&page| pool.release(page));
        prefixes.find(&[1, 1], 2);
        let order: Vec<usize> = (0..4)
            .map(|_| {
                assert!(prefixes.evict(&mut pool));
                (0..4).filter(|&page| pool.holders(page) == 0).fold(0, |sum, page| sum + (1 << page))
            })
            .collect();
        assert_eq!(order, [0b0100, 0b0110, 0b1110, 0b1111]);
        assert_eq!((prefixes.entries.len(), prefixes.evict(&mut pool)), (0, false));
    }
}
