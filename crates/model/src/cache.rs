//! The key/value cache of a model: preallocated, one slot a request, rolled back by its lengths.

use burn::tensor::{Device, Tensor};
use spectrain_kernels::cached_attention::{CachedPlan, Heads, LayerCache, Segment};
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
    /// Parents as in [`Segment::parents`]; `None` for a chain.
    pub parents: Option<Vec<Option<usize>>>,
}

impl SlotRows {
    /// A chain of `rows` tokens.
    pub fn chain(slot: usize, rows: usize) -> Self {
        Self { slot, rows, parents: None }
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

    /// Plan of a forward pass over the packed rows of `batch`; a row's position is its depth behind the slot's length.
    pub fn plan(&self, batch: &[SlotRows]) -> Arc<CachedPlan> {
        self.plan_ahead(batch, 0)
    }

    /// Like [`Self::plan`] with `ahead` uncommitted rows per slot already written and visible.
    pub fn plan_ahead(&self, batch: &[SlotRows], ahead: usize) -> Arc<CachedPlan> {
        let mut positions = Vec::new();
        let segments = batch.iter().map(|rows| {
            let cached = self.lengths[rows.slot] + ahead;
            let first = positions.len();
            for i in 0..rows.rows {
                let position = match rows.parents.as_ref().map(|p| p[i]) {
                    None => cached + i,
                    Some(None) => cached,
                    Some(Some(parent)) => positions[first + parent] as usize + 1,
                };
                positions.push(position as u32);
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
