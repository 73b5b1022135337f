//! The key/value cache of a model: pages that slots hold, share and give back; rolled back by the slots' lengths.

mod pool;
mod prefix;
mod rows;

pub use rows::{ParentOrder, SlotRows};

use burn::tensor::{Device, Tensor};
use pool::Pool;
use prefix::Prefixes;
use spectrain_kernels::cached_attention::{CachedPlan, Heads, LayerCache, Runs, Segment};
use spectrain_kernels::rope::indices;
use std::ops::Range;
use std::sync::Arc;

/// Bytes that the elements of `tensor` take.
pub fn bytes<const D: usize>(tensor: &Tensor<D>) -> usize {
    tensor.shape().num_elements() * tensor.dtype().size()
}

/// How a cache is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pages {
    /// Tokens of a page.
    pub tokens: usize,
    /// Pages of all slots together.
    pub count: usize,
}

impl Pages {
    /// Tokens of a page unless something else is asked for.
    pub const TOKENS: usize = 64;

    /// Room for `slots` slots that are all filled up to `capacity` tokens: as many pages of about [`Self::TOKENS`] tokens
    /// as hardly leave anything over.
    pub fn full(slots: usize, capacity: usize) -> Self {
        let each = capacity.div_ceil(Self::TOKENS);
        Self { tokens: capacity.div_ceil(each.max(1)).max(1), count: slots * each }
    }

    /// Tokens of all pages.
    pub fn capacity(&self) -> usize {
        self.tokens * self.count
    }

    /// Pages that hold `tokens` tokens.
    pub fn holding(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.tokens)
    }
}

/// Keys and values of all layers for a fixed number of slots.
///
/// Entries behind a slot's length are provisional: a forward pass writes there, [`KvCache::commit`] keeps a prefix of
/// what it wrote, and anything else is overwritten by the next pass. Rolling back is therefore not committing.
///
/// Pages may be shared, by slots ([`KvCache::fork`]) and with the index of known beginnings ([`KvCache::publish`]), and
/// are then only read: planning a pass gives the slot pages of its own for all that it will write.
pub struct KvCache {
    layers: Vec<Option<LayerCache>>,
    slots: Vec<Slot>,
    capacity: usize,
    pages: Pages,
    pool: Pool,
    /// Pages that nobody may have for now.
    withheld: usize,
    /// Known beginnings, where they are kept.
    prefixes: Option<Prefixes>,
}

/// A pass needs more pages than there are; nothing of it was planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a pass needs {missing} more pages, and {available} are available")]
pub struct NoPages {
    /// Pages that it needs.
    pub missing: usize,
    /// Pages that can be had.
    pub available: usize,
}

#[derive(Debug, Clone, Default)]
struct Slot {
    /// Pages in the order of the text, those of provisional rows included.
    pages: Vec<usize>,
    /// Committed tokens.
    len: usize,
    /// Provisional rows that the last pass left behind them.
    written: usize,
    /// Whole pages that are known to the index.
    published: usize,
}

impl KvCache {
    /// Room for `slots` requests of up to `capacity` tokens in `layers` layers.
    pub fn new(layers: usize, slots: usize, capacity: usize, heads: Heads, device: &Device) -> Self {
        Self::paged(layers, (slots, capacity), Pages::full(slots, capacity), heads, device)
    }

    /// `slots` requests of up to `capacity` tokens each, which share `pages`.
    pub fn paged(
        layers: usize,
        (slots, capacity): (usize, usize),
        pages: Pages,
        heads: Heads,
        device: &Device,
    ) -> Self {
        assert!(pages.tokens > 0, "a page of no tokens");
        let table = || Tensor::zeros([pages.capacity(), heads.key_width()], device);
        Self {
            layers: (0..layers).map(|_| Some(LayerCache { keys: table(), values: table() })).collect(),
            slots: vec![Slot::default(); slots],
            capacity,
            pages,
            pool: Pool::new(pages.count),
            withheld: 0,
            prefixes: None,
        }
    }

    /// The same cache, which keeps published pages for requests that begin alike, until it needs them otherwise.
    pub fn keeping_prefixes(self) -> Self {
        Self { prefixes: Some(Prefixes::default()), ..self }
    }

    /// Committed tokens of `slot`.
    pub fn len(&self, slot: usize) -> usize {
        self.slots[slot].len
    }

    /// Whether nothing is committed anywhere.
    pub fn is_empty(&self) -> bool {
        self.slots.iter().all(|slot| slot.len == 0)
    }

    /// Most entries of a slot.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// How the cache is divided.
    pub fn pages(&self) -> Pages {
        self.pages
    }

    /// Pages that can be had: free ones, and those that only the index of beginnings holds, less those withheld.
    pub fn available(&self) -> usize {
        let known = self.prefixes.as_ref().map_or(0, |prefixes| prefixes.evictable(&self.pool));
        (self.pool.free() + known).saturating_sub(self.withheld)
    }

    /// Withholds `pages` of those that can be had, from now on: somebody else needs the memory. What slots hold stays.
    pub fn withhold(&mut self, pages: usize) {
        self.withheld = pages;
    }

    /// Pages that must be available to write `rows` rows behind `slot`'s committed ones: new ones, and copies of shared
    /// ones.
    pub fn missing(&self, slot: usize, rows: usize) -> usize {
        let own = |page: usize| self.pool.holders(page) == 1;
        let held = &self.slots[slot].pages;
        self.written_pages(slot, rows).filter(|&i| !held.get(i).is_some_and(|&page| own(page))).count()
    }

    /// Bytes of all keys and values, free entries included.
    pub fn bytes(&self) -> usize {
        let layers = self.layers.iter().flatten();
        layers.map(|layer| bytes(&layer.keys) + bytes(&layer.values)).sum()
    }

    /// Bytes of the keys and values of one token in all layers; 0 for a cache without entries.
    pub fn bytes_per_token(&self) -> usize {
        self.bytes() / self.pages.capacity().max(1)
    }

    /// Empties `slot` for another request.
    pub fn clear(&mut self, slot: usize) {
        for page in std::mem::take(&mut self.slots[slot]).pages {
            self.pool.release(page);
        }
    }

    /// Empties `to` and gives it the committed rows of `from`, whose provisional rows are dropped. The pages are shared
    /// until one of the two writes.
    pub fn fork(&mut self, from: usize, to: usize) {
        assert_ne!(from, to, "a slot is forked to another");
        self.clear(to);
        self.trim(from);
        self.slots[to] = self.slots[from].clone();
        self.slots[to].pages.iter().for_each(|&page| self.pool.share(page));
    }

    /// Drops the provisional rows of `slot`, and gives back the pages that held nothing else.
    fn trim(&mut self, slot: usize) {
        let slot = &mut self.slots[slot];
        slot.written = 0;
        slot.pages.drain(self.pages.holding(slot.len)..).for_each(|page| self.pool.release(page));
    }

    /// Gives the empty `slot` the longest known beginning of `text` and returns its length. The last token of the text
    /// is left to run, since what follows it is asked for.
    pub fn attach(&mut self, slot: usize, text: &[u32]) -> usize {
        let (slot, page) = (&mut self.slots[slot], self.pages.tokens);
        assert_eq!(slot.len, 0, "a beginning belongs in an empty slot");
        if let (Some(prefixes), Some((_, before))) = (&mut self.prefixes, text.split_last()) {
            slot.pages.drain(..).for_each(|page| self.pool.release(page));
            slot.pages = prefixes.find(before, page);
            slot.pages.iter().for_each(|&page| self.pool.share(page));
            slot.published = slot.pages.len();
            slot.written = 0;
            slot.len = slot.published * page;
        }
        slot.len
    }

    /// Makes the whole committed pages of `slot` known, whose tokens begin `text`; it is asked for where a page has
    /// become whole. Does nothing unless the cache keeps beginnings.
    pub fn publish(&mut self, slot: usize, text: impl FnOnce() -> Vec<u32>) {
        let (slot, page) = (&mut self.slots[slot], self.pages.tokens);
        let whole = slot.len / page;
        if let Some(prefixes) = self.prefixes.as_mut().filter(|_| whole > slot.published) {
            prefixes.enter(&text()[..whole * page], page, &mut slot.pages[..whole], &mut self.pool);
            slot.published = whole;
        }
    }

    /// Keeps the first `rows` of the rows last written behind `slot`'s length.
    pub fn commit(&mut self, slot: usize, rows: usize) {
        let s = &mut self.slots[slot];
        assert!(rows <= s.written, "{rows} rows of slot {slot} are committed, and {} were written", s.written);
        s.len += rows;
        s.written -= rows;
    }

    /// Keeps `rows` of the rows last written behind `slot`'s length, ascending, and moves them together: the accepted
    /// path of a tree. Nothing moves where they are a prefix. Pages behind them are given back.
    pub fn compact(&mut self, slot: usize, rows: &[usize]) {
        assert!(rows.windows(2).all(|pair| pair[0] < pair[1]), "rows of a path stand in its order");
        let still = rows.iter().enumerate().take_while(|(i, row)| i == *row).count();
        let moved = &rows[still..];
        if let Some(last) = moved.last() {
            let Slot { len, written, .. } = self.slots[slot];
            assert!(*last < written, "row {last} of slot {slot} is kept, and {written} were written");
            let runs = self.runs(slot, len + last + 1);
            let sources = moved.iter().flat_map(|row| runs.rows(len + row..len + row + 1)).collect();
            let targets: Vec<_> = runs.of(len + still..len + rows.len()).collect();
            self.copy(sources, &targets);
        }
        self.commit(slot, rows.len());
        self.trim(slot);
    }

    /// Copies the table rows `sources` to the rows of `targets`, each with the number of its first source.
    fn copy(&mut self, sources: Vec<usize>, targets: &[(usize, Range<usize>)]) {
        // Gathered before it is written, so that the table has one owner and is written in place.
        let copied = |table: Tensor<2>| {
            let values = table.clone().select(0, indices(sources.iter().copied(), &table.device()));
            targets.iter().fold(table, |table, (first, rows)| {
                table.slice_assign([rows.clone()], values.clone().narrow(0, *first, rows.len()))
            })
        };
        for layer in &mut self.layers {
            *layer = layer
                .take()
                .map(|LayerCache { keys, values }| LayerCache { keys: copied(keys), values: copied(values) });
        }
    }

    /// Table rows of the first `entries` entries of `slot`.
    fn runs(&self, slot: usize, entries: usize) -> Runs {
        let page = self.pages.tokens;
        let mut runs = Runs::default();
        for (i, &at) in self.slots[slot].pages.iter().enumerate().take(self.pages.holding(entries)) {
            runs.push(at * page..at * page + page.min(entries - i * page));
        }
        runs
    }

    /// Numbers of the pages of `slot` that `rows` rows behind its committed ones lie in.
    fn written_pages(&self, slot: usize, rows: usize) -> Range<usize> {
        let len = self.slots[slot].len;
        let first = len / self.pages.tokens;
        first..if rows == 0 { first } else { self.pages.holding(len + rows) }
    }

    /// Gives `slot` pages of its own for `rows` rows behind its committed ones.
    fn own(&mut self, slot: usize, rows: usize) {
        for i in self.written_pages(slot, rows) {
            match self.slots[slot].pages.get(i).copied() {
                None => {
                    let page = self.take(slot, i);
                    self.slots[slot].pages.push(page);
                }
                Some(shared) if self.pool.holders(shared) > 1 => {
                    let (page, size) = (self.take(slot, i), self.pages.tokens);
                    let committed = self.slots[slot].len.saturating_sub(i * size);
                    if committed > 0 {
                        let sources = (shared * size..shared * size + committed).collect();
                        self.copy(sources, &[(0, page * size..page * size + committed)]);
                    }
                    self.slots[slot].pages[i] = page;
                    self.pool.release(shared);
                }
                Some(_) => {}
            }
        }
    }

    /// A free page for page `i` of `slot`, if possible beside the one before. Each slot begins in its own part of the
    /// pool, so that slots that are never short of pages have adjacent ones.
    fn take(&mut self, slot: usize, i: usize) -> usize {
        if let Some(prefixes) = self.prefixes.as_mut().filter(|_| self.pool.free() == 0) {
            prefixes.evict(&mut self.pool);
        }
        let wish = match i.checked_sub(1) {
            Some(before) => self.slots[slot].pages[before] + 1,
            None => slot * self.pool.pages() / self.slots.len(),
        };
        self.pool.take(wish).expect("pages were counted before a pass was planned")
    }

    /// Plan of a forward pass over the packed rows of `batch`; a row's position is its depth behind the slot's length.
    ///
    /// # Panics
    /// Before anything is changed, if a slot's capacity or the pages do not suffice: for caches with room for all slots
    /// at their longest. Where there may be less, ask [`Self::try_plan`].
    pub fn plan(&mut self, batch: &[SlotRows]) -> Arc<CachedPlan> {
        self.plan_ahead(batch, 0)
    }

    /// Like [`Self::plan`], where chains stand behind `ahead` uncommitted rows a slot that are already written and
    /// visible. Trees name such rows in their parents.
    pub fn plan_ahead(&mut self, batch: &[SlotRows], ahead: usize) -> Arc<CachedPlan> {
        self.reserve(batch, ahead).unwrap_or_else(|short| panic!("{short}"));
        self.planned(batch, ahead)
    }

    /// Like [`Self::plan`], in a cache that may be short of pages.
    ///
    /// # Errors
    /// [`NoPages`] before anything is changed, if the pages do not suffice: see [`Self::missing`].
    pub fn try_plan(&mut self, batch: &[SlotRows]) -> Result<Arc<CachedPlan>, NoPages> {
        self.reserve(batch, 0)?;
        Ok(self.planned(batch, 0))
    }

    /// Gives the slots of `batch` pages of their own for all that they will write, or changes nothing.
    fn reserve(&mut self, batch: &[SlotRows], ahead: usize) -> Result<(), NoPages> {
        let mut missing = 0;
        for rows in batch {
            let end = self.len(rows.slot) + rows.provisional(ahead);
            assert!(end <= self.capacity, "slot {} overflows its {} entries", rows.slot, self.capacity);
            missing += self.missing(rows.slot, rows.provisional(ahead));
        }
        let available = self.available();
        if missing > available {
            return Err(NoPages { missing, available });
        }
        batch.iter().for_each(|rows| self.own(rows.slot, rows.provisional(ahead)));
        Ok(())
    }

    /// The plan of a pass whose pages are [reserved](Self::reserve).
    fn planned(&mut self, batch: &[SlotRows], ahead: usize) -> Arc<CachedPlan> {
        let mut positions = Vec::new();
        let segments = batch.iter().map(|rows| {
            let written = rows.provisional(ahead);
            let slot = &mut self.slots[rows.slot];
            slot.written = written;
            let (len, parents) = (slot.len, rows.parents.clone());
            let cached = len + if parents.is_none() { ahead } else { 0 };
            positions.extend(rows.positions(cached));
            Segment { entries: self.runs(rows.slot, len + written), cached, rows: rows.rows, parents }
        });
        let segments = segments.collect();
        Arc::new(CachedPlan { segments, positions })
    }

    /// Lends the cache of `layer` to `attend`, which gives it back. A cache with fewer layers than the model is a
    /// scratch cache: every layer overwrites the one before, which is all that a full forward pass needs.
    pub fn with_layer<R>(&mut self, layer: usize, attend: impl FnOnce(LayerCache) -> (R, LayerCache)) -> R {
        let at = layer % self.layers.len();
        let (result, cache) = attend(self.layers[at].take().expect("a layer's cache is always given back"));
        self.layers[at] = Some(cache);
        result
    }

    /// Committed keys and values of `slot` in `layer`, `[len, key heads · dim]` each.
    pub fn entries(&self, layer: usize, slot: usize) -> (Tensor<2>, Tensor<2>) {
        let cache = self.layers[layer].as_ref().expect("a layer's cache is always given back");
        let len = self.slots[slot].len;
        let runs = self.runs(slot, len);
        let committed = |table: &Tensor<2>| table.clone().select(0, indices(runs.rows(0..len), &table.device()));
        (committed(&cache.keys), committed(&cache.values))
    }
}
