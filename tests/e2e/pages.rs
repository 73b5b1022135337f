//! The cache in pages: what slots share, what they write, what is found again, and that no page is lost.

use crate::support::{random_target_with, values};
use crate::tree_rows::{Dice, VOCABULARY, assert_cache, branch};
use burn::tensor::{Device, Tensor, TensorData};
use spectrain_kernels::cached_attention::{CachedPlan, Heads, cached_attention};
use spectrain_kernels::rope::RopeTable;
use spectrain_model::{KvCache, Llama, NoPages, Pages, SlotRows};
use std::collections::HashMap;
use std::sync::Arc;

/// Sizes of pages: none is shared in part, borders that fall out of step, and usual ones.
const SIZES: [usize; 4] = [1, 3, 16, 64];

/// Runs `ids` behind the committed rows of `slot` and commits them.
fn extend(target: &Llama, cache: &mut KvCache, slot: usize, ids: &[u32]) {
    let plan = cache.plan(&[SlotRows::chain(slot, ids.len())]);
    target.forward(ids, &plan, cache, &[]);
    cache.commit(slot, ids.len());
}

/// Keys and values of `slot` in all layers.
fn held(cache: &KvCache, layers: usize, slot: usize) -> Vec<(Vec<f32>, Vec<f32>)> {
    (0..layers).map(|layer| cache.entries(layer, slot)).map(|(k, v)| (values(k), values(v))).collect()
}

/// One round of all slots: trees with a path of each, or chains with a beginning, which may be empty.
fn ragged_round(target: &Llama, cache: &mut KvCache, texts: &mut [Vec<u32>], dice: &mut Dice) {
    let chains = dice.below(3) == 0;
    let drafts: Vec<(Vec<u32>, Vec<Option<usize>>)> = texts.iter().map(|_| dice.tree_of(14)).collect();
    let rows: Vec<SlotRows> = drafts
        .iter()
        .enumerate()
        .map(|(slot, (ids, parents))| match chains {
            true => SlotRows::chain(slot, ids.len()),
            false => SlotRows::tree(slot, ids.len(), parents.clone()).unwrap(),
        })
        .collect();
    let ids: Vec<u32> = drafts.iter().flat_map(|(ids, _)| ids.clone()).collect();
    let plan = cache.plan(&rows);
    target.forward(&ids, &plan, cache, &[]);
    for (slot, (ids, parents)) in drafts.iter().enumerate() {
        let path = match chains {
            true => (0..dice.below(ids.len() + 1).min(5)).collect(),
            false => branch(parents, dice.below(ids.len())),
        };
        let path = &path[..path.len().min(1 + dice.below(5))];
        // A chain's rows may also stay without anything being given back.
        if chains && slot % 2 == 0 {
            cache.commit(slot, path.len())
        } else {
            cache.compact(slot, path)
        }
        texts[slot].extend(path.iter().map(|&row| ids[row]));
        assert_eq!(cache.len(slot), texts[slot].len());
    }
}

#[test]
fn after_many_ragged_rounds_and_forks_pages_hold_what_a_prefill_does() {
    for heads in [(3, 3), (3, 1), (8, 1)] {
        let dir = tempfile::tempdir().unwrap();
        let target = random_target_with(dir.path(), VOCABULARY as usize, 3, heads, 8);
        for tokens in SIZES {
            let mut dice = Dice::new(heads.0 as u64 + 10 * tokens as u64);
            let pages = Pages { tokens, count: 3 * 512_usize.div_ceil(tokens) };
            let mut cache = target.cache_of(3, 512, pages);
            // Prompts that end before, at and behind a border.
            let mut texts: Vec<Vec<u32>> = (0..3).map(|slot| dice.tokens((tokens + slot).max(2) - 1)).collect();
            (0..3).for_each(|slot| extend(&target, &mut cache, slot, &texts[slot]));
            for round in 0..100 {
                ragged_round(&target, &mut cache, &mut texts, &mut dice);
                if round % 9 == 4 {
                    let from = dice.below(3);
                    let to = (from + 1 + dice.below(2)) % 3;
                    cache.fork(from, to);
                    texts[to] = texts[from].clone();
                }
            }
            texts.iter().enumerate().for_each(|(slot, text)| assert_cache(&target, &cache, slot, text));
            (0..3).for_each(|slot| cache.clear(slot));
            assert_eq!(cache.available(), pages.count);
        }
    }
}

#[test]
fn slots_that_part_leave_each_other_untouched() {
    let dir = tempfile::tempdir().unwrap();
    let target = random_target_with(dir.path(), VOCABULARY as usize, 3, (3, 1), 8);
    for tokens in SIZES {
        for prompt in [tokens, tokens + 1, 2 * tokens + 1] {
            let mut dice = Dice::new(prompt as u64);
            let mut cache = target.cache_of(2, 256, Pages { tokens, count: 2 * 256_usize.div_ceil(tokens) });
            let text = dice.tokens(prompt);
            extend(&target, &mut cache, 0, &text);
            let (before, room) = (held(&cache, 3, 0), cache.available());
            // Provisional rows take pages of their own, and no part in a fork.
            let draft = dice.tokens(tokens + 2);
            let plan = cache.plan(&[SlotRows::chain(0, draft.len())]);
            target.forward(&draft, &plan, &mut cache, &[]);
            assert!(cache.available() < room);
            cache.fork(0, 1);
            assert_eq!(cache.available(), room, "a fork copies nothing");
            let (left, right) = (dice.tokens(tokens + 2), dice.tokens(tokens + 2));
            extend(&target, &mut cache, 1, &right);
            assert_eq!(held(&cache, 3, 0), before, "pages of {tokens}, prompt of {prompt}");
            let fork = held(&cache, 3, 1);
            extend(&target, &mut cache, 0, &left);
            assert_eq!(held(&cache, 3, 1), fork, "pages of {tokens}, prompt of {prompt}");
            assert_cache(&target, &cache, 0, &[text.as_slice(), &left].concat());
            assert_cache(&target, &cache, 1, &[text.as_slice(), &right].concat());
        }
    }
}

#[test]
fn the_index_knows_committed_rows_of_whole_pages_only() {
    let dir = tempfile::tempdir().unwrap();
    let target = random_target_with(dir.path(), VOCABULARY as usize, 3, (3, 1), 8);
    let mut cache = target.cache_of(2, 64, Pages { tokens: 4, count: 32 }).keeping_prefixes();
    let text = Dice::new(3).tokens(30);
    let known = |cache: &mut KvCache, text: &[u32]| {
        cache.clear(1);
        cache.attach(1, text)
    };
    // Nine rows are written: none committed, then five, then all.
    let plan = cache.plan(&[SlotRows::chain(0, 9)]);
    target.forward(&text[..9], &plan, &mut cache, &[]);
    for (commit, found) in [(0, 0), (5, 4), (4, 8)] {
        cache.commit(0, commit);
        cache.publish(0, || text.clone());
        assert_eq!(known(&mut cache, &text), found, "after {} rows", cache.len(0));
    }
    // The last token of a text is left to run, and one other token is another text.
    assert_eq!(known(&mut cache, &text[..8]), 4);
    assert_eq!(known(&mut cache, &[&[(text[0] + 1) % VOCABULARY], &text[1..]].concat()), 0);
    // What is found serves: the text goes on behind it, while the first slot does something else.
    known(&mut cache, &text);
    extend(&target, &mut cache, 0, &[1, 2, 3]);
    extend(&target, &mut cache, 1, &text[8..]);
    assert_cache(&target, &cache, 1, &text);
    assert_cache(&target, &cache, 0, &[&text[..9], &[1, 2, 3]].concat());
    // The index lets go when pages are needed: 32 pages hold two texts of 64 tokens.
    for slot in [0, 1] {
        cache.clear(slot);
        extend(&target, &mut cache, slot, &Dice::new(slot as u64).tokens(64));
    }
    assert_eq!((cache.available(), cache.missing(0, 0)), (0, 0));
    (0..2).for_each(|slot| cache.clear(slot));
    assert_eq!((cache.available(), known(&mut cache, &text)), (32, 0));
}

#[test]
#[should_panic(expected = "a pass needs 3 more pages, and 2 are available")]
fn a_pass_without_pages_is_not_planned() {
    let heads = Heads { query: 1, key: 1, dim: 8 };
    let mut cache = KvCache::paged(1, (2, 64), Pages { tokens: 4, count: 2 }, heads, &Device::flex());
    cache.plan(&[SlotRows::chain(0, 4), SlotRows::chain(1, 5)]);
}

#[test]
fn a_refused_pass_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let target = random_target_with(dir.path(), VOCABULARY as usize, 3, (3, 1), 8);
    for tokens in SIZES {
        let mut dice = Dice::new(tokens as u64);
        let pages = Pages { tokens, count: 3 * 160_usize.div_ceil(tokens) };
        let mut cache = target.cache_of(3, 160, pages);
        let (text, draft) = (dice.tokens(tokens + 1), dice.tokens(3));
        extend(&target, &mut cache, 0, &text);
        let plan = cache.plan(&[SlotRows::chain(0, 3)]);
        target.forward(&draft, &plan, &mut cache, &[]);
        cache.commit(0, 1);
        // The second slot shares a page that it would have to copy; the third would need new ones.
        cache.fork(0, 1);
        let plan = cache.plan(&[SlotRows::chain(0, 3)]);
        target.forward(&draft, &plan, &mut cache, &[]);
        let rows = [SlotRows::chain(1, tokens), SlotRows::chain(2, 2 * tokens)];
        let missing = cache.missing(1, tokens) + cache.missing(2, 2 * tokens);
        let (before, free) = ([0, 1, 2].map(|slot| held(&cache, 3, slot)), cache.available());
        for few in 0..missing {
            cache.withhold(free - few);
            let refused = cache.try_plan(&rows).err().unwrap();
            assert_eq!(refused, NoPages { missing, available: few });
            cache.withhold(0);
            assert_eq!(cache.available(), free);
            assert_eq!([0, 1, 2].map(|slot| held(&cache, 3, slot)), before, "pages of {tokens}");
        }
        // Rows that were written before a refusal may still be kept, and the pass can be had later.
        cache.commit(0, 3);
        assert_cache(&target, &cache, 0, &[text.as_slice(), &draft[..1], &draft].concat());
        cache.withhold(cache.available() - missing);
        let (left, right) = (dice.tokens(tokens), dice.tokens(2 * tokens));
        let plan = cache.try_plan(&rows).unwrap();
        target.forward(&[left.as_slice(), &right].concat(), &plan, &mut cache, &[]);
        cache.commit(1, left.len());
        cache.commit(2, right.len());
        assert_cache(&target, &cache, 1, &[text.as_slice(), &draft[..1], &left].concat());
        assert_cache(&target, &cache, 2, &right);
    }
}

const HEADS: Heads = Heads { query: 2, key: 1, dim: 8 };
const LAYERS: usize = 2;

/// Slots that hold their texts one by one, in which every row tells the text that it ends.
struct Contiguous {
    texts: Vec<Vec<u32>>,
    names: HashMap<Vec<u32>, usize>,
    rope: Arc<RopeTable>,
}

impl Contiguous {
    /// Key (before rotation) and value of the last token of `text`.
    fn row(&mut self, text: &[u32], layer: usize) -> Vec<f32> {
        let next = self.names.len();
        let name = *self.names.entry(text.to_vec()).or_insert(next);
        (0..HEADS.dim).map(|i| (1 + name * HEADS.dim + i) as f32 + 0.5 * layer as f32).collect()
    }

    /// Writes the rows that end `texts`.
    fn write(&mut self, cache: &mut KvCache, plan: &Arc<CachedPlan>, texts: &[Vec<u32>]) {
        for layer in 0..LAYERS {
            let joint = |row: Vec<f32>| [vec![0.0; HEADS.query_width()], row.clone(), row].concat();
            let qkv: Vec<f32> = texts.iter().flat_map(|text| joint(self.row(text, layer))).collect();
            let data = TensorData::new(qkv, [texts.len(), HEADS.joint_width()]);
            let qkv = Tensor::from_data(data, &Device::flex());
            cache.with_layer(layer, |c| cached_attention(qkv, c, HEADS, &self.rope, plan));
        }
    }

    /// Every slot holds its text, to the bit.
    fn check(&mut self, cache: &KvCache) {
        for slot in 0..self.texts.len() {
            let text = self.texts[slot].clone();
            assert_eq!(cache.len(slot), text.len());
            for layer in 0..LAYERS {
                let rows: Vec<Vec<f32>> = (1..=text.len()).map(|n| self.row(&text[..n], layer)).collect();
                let (keys, found) = cache.entries(layer, slot);
                assert_eq!(values(found), rows.concat(), "slot {slot}");
                let rotated = rows.into_iter().enumerate().map(|(position, mut row)| {
                    self.rope.rotate(&mut row, position);
                    row
                });
                assert_eq!(values(keys), rotated.collect::<Vec<_>>().concat(), "slot {slot}");
            }
        }
    }

    /// A round of some slots in one pass or two; false if there are no pages for it.
    fn round(&mut self, cache: &mut KvCache, dice: &mut Dice) -> bool {
        let slots: Vec<usize> = (0..self.texts.len()).filter(|_| dice.below(3) > 0).collect();
        let trees: Vec<Vec<Option<usize>>> = slots.iter().map(|_| dice.tree_of(9).1).collect();
        let missing: usize = slots.iter().zip(&trees).map(|(&slot, tree)| cache.missing(slot, tree.len())).sum();
        if missing > cache.available() {
            return false;
        }
        let drafts: Vec<Vec<Vec<u32>>> = slots
            .iter()
            .zip(&trees)
            .map(|(&slot, parents)| {
                let mut texts: Vec<Vec<u32>> = Vec::new();
                for parent in parents {
                    let before = parent.map_or(&self.texts[slot], |p| &texts[p]);
                    texts.push([before.as_slice(), &[dice.below(2) as u32]].concat());
                }
                texts
            })
            .collect();
        let first = |parents: &Vec<Option<usize>>| parents.len().div_ceil(2);
        for half in 0..2 {
            let (mut rows, mut texts) = (Vec::new(), Vec::new());
            for ((&slot, parents), draft) in slots.iter().zip(&trees).zip(&drafts) {
                let end = if half == 0 { first(parents) } else { parents.len() };
                let begin = if half == 0 { 0 } else { first(parents) };
                if end > begin {
                    rows.push(SlotRows::tree(slot, end - begin, parents[..end].to_vec()).unwrap());
                    texts.extend_from_slice(&draft[begin..end]);
                }
            }
            let plan = cache.plan(&rows);
            self.write(cache, &plan, &texts);
        }
        for ((&slot, parents), draft) in slots.iter().zip(&trees).zip(&drafts) {
            let path = branch(parents, dice.below(parents.len()));
            let path = &path[..dice.below(path.len() + 1)];
            // A path that is a prefix may be committed without giving anything back.
            match path.iter().enumerate().all(|(i, row)| i == *row) && dice.below(2) == 0 {
                true => cache.commit(slot, path.len()),
                false => cache.compact(slot, path),
            }
            if let Some(&last) = path.last() {
                self.texts[slot] = draft[last].clone();
            }
        }
        true
    }
}

#[test]
fn any_order_of_operations_keeps_every_text_and_loses_no_page() {
    const SLOTS: usize = 4;
    let (mut refused, mut found, mut forks) = (0, 0, 0);
    for (seed, tokens) in (0..3).flat_map(|seed| SIZES.map(|tokens| (seed, tokens))) {
        let pages = Pages { tokens, count: 96_usize.div_ceil(tokens) + SLOTS };
        let device = Device::flex();
        let mut cache = KvCache::paged(LAYERS, (SLOTS, 256), pages, HEADS, &device).keeping_prefixes();
        let rope = Arc::new(RopeTable::new(256, HEADS.dim, 10_000.0));
        let mut model = Contiguous { texts: vec![Vec::new(); SLOTS], names: HashMap::new(), rope };
        let mut dice = Dice::new(1000 * seed + tokens as u64);
        for _ in 0..300 {
            let slot = dice.below(SLOTS);
            match dice.below(8) {
                0 => {
                    cache.clear(slot);
                    model.texts[slot].clear();
                    // Texts of few tokens are often known.
                    let like = model.texts[dice.below(SLOTS)].clone();
                    let known = cache.attach(slot, &like);
                    assert!(known.is_multiple_of(tokens) && known <= like.len().saturating_sub(1));
                    model.texts[slot] = like[..known].to_vec();
                    found += usize::from(known > 0);
                }
                1 => {
                    let to = (slot + 1 + dice.below(SLOTS - 1)) % SLOTS;
                    cache.fork(slot, to);
                    model.texts[to] = model.texts[slot].clone();
                    forks += usize::from(!model.texts[to].is_empty());
                }
                2 => (0..SLOTS).for_each(|slot| cache.publish(slot, || model.texts[slot].clone())),
                _ => {
                    let long = (0..SLOTS).find(|&slot| model.texts[slot].len() > 240);
                    if long.is_some() || !model.round(&mut cache, &mut dice) {
                        let slot = long.unwrap_or(slot);
                        cache.clear(slot);
                        model.texts[slot].clear();
                        refused += 1;
                    }
                }
            }
            model.check(&cache);
        }
        (0..SLOTS).for_each(|slot| cache.clear(slot));
        assert_eq!(cache.available(), pages.count, "pages of {tokens}");
    }
    assert!(refused > 30 && found > 30 && forks > 100, "hardly anything happened: {refused}, {found}, {forks}");
}
