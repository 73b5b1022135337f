//! Prompt lookup: the last tokens of a text are looked up earlier in it, and what followed is proposed.
//!
//! The same proposals as [`Lookup::propose`], which searches the whole text each time; here every n-gram is entered once.

use super::text::Source;
use spectrain_core::stats::lookup::Lookup;
use std::collections::HashMap;

/// Prompt lookup of matches as long as [`Lookup`] says; both bounds are at least 1, and the longer one is finite.
pub struct Ngrams(pub Lookup);

/// A text and where its n-grams occurred.
#[derive(Default)]
pub struct NgramIndex {
    text: Vec<u32>,
    /// Where the token stands that followed the n-gram last.
    after: HashMap<Box<[u32]>, usize>,
}

impl Source for Ngrams {
    type Index = NgramIndex;

    fn index(&self) -> NgramIndex {
        NgramIndex::default()
    }

    fn push(&self, index: &mut NgramIndex, token: u32) {
        let end = index.text.len();
        // The n-grams before the new token have a successor only now, so that none finds itself.
        for n in self.0.min_match..=self.0.max_match.min(end) {
            index.after.insert(index.text[end - n..].into(), end);
        }
        index.text.push(token);
    }

    /// The longest match wins, the latest among equals; a copy that reaches the end goes on with what it has copied.
    fn propose(&self, index: &NgramIndex, length: usize) -> Vec<u32> {
        let end = index.text.len();
        let longest_first = (self.0.min_match..=self.0.max_match.min(end)).rev();
        let found = longest_first.filter_map(|n| index.after.get(&index.text[end - n..])).next();
        found.map_or(Vec::new(), |&start| (0..length).map(|i| index.text[start + i % (end - start)]).collect())
    }
}
