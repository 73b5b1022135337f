//! The key/value cache of a model: preallocated, one slot a request, rolled back by its lengths.

use burn::tensor::{Device, Tensor};
use spectrain_kernels::cached_attention::{CachedPlan, Heads, LayerCache, Segment};
use spectrain_kernels::rope::indices;
use std::sync::Arc;

/// Bytes that the elements of `tensor` take.
pub fn bytes<const D: usize>(tensor: &Tensor<D>) -> usize {
    tensor.shape().num_elements() * tensor.dtype().size()
}

/// Keys and values of all layers for a fixed number of slots.
///
/// Entries behind a slot's length are free: a forward pass writes there, [`KvCache::commit`] keeps a prefix of what it
/// wrote, and anything else is overwritten by the next pass. Rolling back is therefore not committing.
pub struct KvCache {
    layers: Vec<Option<LayerCache>>,
    lengths: Vec<usize>,
    capacity: usize,
}

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
}

impl KvCache {
    /// Room for `slots` requests of up to `capacity` tokens in `layers` layers.
    pub fn new(layers: usize, slots: usize, capacity: usize, heads: Heads, device: &Device) -> Self {
        let table = || Tensor::zeros([slots * capacity, heads.key_width()], device);
        Self {
            layers: (0..layers).map(|_| Some(LayerCache { keys: table(), values: table() })).collect(),
            lengths: vec![0; slots],
            capacity,
        }
    }

    /// Committed tokens of `slot`.
    pub fn len(&self, slot: usize) -> usize {
        self.lengths[slot]
    }

    /// Whether nothing is committed anywhere.
    pub fn is_empty(&self) -> bool {
        self.lengths.iter().all(|&n| n == 0)
    }

    /// Entries per slot.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bytes of all keys and values, free entries included.
    pub fn bytes(&self) -> usize {
        let layers = self.layers.iter().flatten();
        layers.map(|layer| bytes(&layer.keys) + bytes(&layer.values)).sum()
    }

    /// Bytes of the keys and values of one token in all layers; 0 for a cache without entries.
    pub fn bytes_per_token(&self) -> usize {
        self.bytes() / (self.lengths.len() * self.capacity).max(1)
    }

    /// Empties `slot` for another request.
    pub fn clear(&mut self, slot: usize) {
        self.lengths[slot] = 0;
    }

    /// Keeps the first `rows` of the rows last written behind `slot`'s length.
    pub fn commit(&mut self, slot: usize, rows: usize) {
        self.lengths[slot] += rows;
        assert!(self.lengths[slot] <= self.capacity, "commit beyond the capacity of slot {slot}");
    }

    /// Keeps `rows` of the rows last written behind `slot`'s length, ascending, and moves them together: the accepted
    /// path of a tree. Nothing moves where they are a prefix.
    pub fn compact(&mut self, slot: usize, rows: &[usize]) {
        assert!(rows.windows(2).all(|pair| pair[0] < pair[1]), "rows of a path stand in its order");
        let first = slot * self.capacity + self.lengths[slot];
        let still = rows.iter().enumerate().take_while(|(i, row)| i == *row).count();
        let moved = &rows[still..];
        if let Some(last) = moved.last() {
            assert!(self.lengths[slot] + last < self.capacity, "row {last} lies beyond the capacity of slot {slot}");
            let target = first + still..first + rows.len();
            // Gathered before it is written, so that the table has one owner and is written in place.
            let packed = |table: Tensor<2>| {
                let values = table.clone().select(0, indices(moved.iter().map(|row| first + row), &table.device()));
                table.slice_assign([target.clone()], values)
            };
            for layer in &mut self.layers {
                *layer = layer
                    .take()
                    .map(|LayerCache { keys, values }| LayerCache { keys: packed(keys), values: packed(values) });
            }
        }
        self.commit(slot, rows.len());
    }

    /// Plan of a forward pass over the packed rows of `batch`; a row's position is its depth behind the slot's length.
    pub fn plan(&self, batch: &[SlotRows]) -> Arc<CachedPlan> {
        self.plan_ahead(batch, 0)
    }

    /// Like [`Self::plan`], where chains stand behind `ahead` uncommitted rows a slot that are already written and
    /// visible. Trees name such rows in their parents.
    pub fn plan_ahead(&self, batch: &[SlotRows], ahead: usize) -> Arc<CachedPlan> {
        let mut positions = Vec::new();
        let segments = batch.iter().map(|rows| {
            let cached = self.lengths[rows.slot] + if rows.parents.is_none() { ahead } else { 0 };
            match &rows.parents {
                None => positions.extend((cached..cached + rows.rows).map(|position| position as u32)),
                Some(parents) => {
                    let mut depths: Vec<usize> = Vec::with_capacity(parents.len());
                    parents.iter().for_each(|parent| depths.push(parent.map_or(0, |p| depths[p] + 1)));
                    let new = &depths[parents.len() - rows.rows..];
                    positions.extend(new.iter().map(|depth| (cached + depth) as u32));
                }
            }
            Segment { slot: rows.slot, cached, rows: rows.rows, parents: rows.parents.clone() }
        });
        let segments = segments.collect();
        Arc::new(CachedPlan { segments, positions, capacity: self.capacity })
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
        let (first, len) = (slot * self.capacity, self.lengths[slot]);
        (cache.keys.clone().narrow(0, first, len), cache.values.clone().narrow(0, first, len))
    }
}
