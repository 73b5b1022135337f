//! Rows of trees: what a node sees, what an accepted path leaves in the cache, what the drafter is told.

use crate::support::{BOUND, assert_close, random_drafter, random_target, random_target_with, request, values, wanted};
use burn::tensor::{Device, Tensor};
use half::bf16;
use spectrain_core::form::Form;
use spectrain_core::process::{Processors, RowError};
use spectrain_core::rng::{Key, Purpose};
use spectrain_core::rules::{Rule, RuleError};
use spectrain_core::tree::{Replacement, Shape, TreeError};
use spectrain_data::store::FeatureRow;
use spectrain_draft::proposer::{Draft, DrafterMemory, Observed, Plan, Proposer, Wanted};
use spectrain_draft::{Eagle3Proposer, TrainBatch};
use spectrain_kernels::softmax::probabilities;
use spectrain_model::{Llama, ParentOrder, Request, SlotRows};
use spectrain_verify::judge::judge;
use spectrain_verify::{Fixed, SpeculativeDecoder, Task};

pub const VOCABULARY: u32 = 40;
/// Largest difference of keys and values, in parts of the layer's largest (design, decision 13).
const CACHE_BOUND: f64 = 1e-5;

/// Whole numbers in a fixed order.
pub struct Dice {
    key: Key,
    thrown: u64,
}

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self { key: Key::new(seed, 0, 0, Purpose::Noise), thrown: 0 }
    }

    pub fn below(&mut self, bound: usize) -> usize {
        self.thrown += 1;
        self.key.below_at(self.thrown, bound)
    }

    /// Parents of a tree of `nodes` rows, the root first; half of the rows follow one of the last few.
    pub fn tree(&mut self, nodes: usize) -> Vec<Option<usize>> {
        let parent = |node: usize, dice: &mut Self| match dice.below(2) {
            0 => node - 1 - dice.below(node.min(3)),
            _ => dice.below(node),
        };
        (0..nodes).map(|node| (node > 0).then(|| parent(node, self))).collect()
    }

    /// Tokens and parents of a tree of `most` nodes at most.
    pub fn tree_of(&mut self, most: usize) -> (Vec<u32>, Vec<Option<usize>>) {
        let nodes = 1 + self.below(most);
        (self.tokens(nodes), self.tree(nodes))
    }

    pub fn tokens(&mut self, n: usize) -> Vec<u32> {
        (0..n).map(|_| self.below(VOCABULARY as usize) as u32).collect()
    }
}

/// Rows from the root to `row`, both included.
pub fn branch(parents: &[Option<usize>], row: usize) -> Vec<usize> {
    let mut rows: Vec<usize> = std::iter::successors(Some(row), |&r| parents[r]).collect();
    rows.reverse();
    rows
}

#[test]
fn a_nodes_logits_are_those_of_a_prefill_of_its_path() {
    let dir = tempfile::tempdir().unwrap();
    let target = random_target(dir.path(), VOCABULARY as usize, 8);
    let mut dice = Dice::new(1);
    for nodes in [1, 63, 64, 65, 200] {
        let (prompt, tokens, parents) = (dice.tokens(9), dice.tokens(nodes), dice.tree(nodes));
        let mut cache = target.cache(2, 256);
        let plan = cache.plan(&[SlotRows::chain(1, prompt.len())]);
        target.forward(&prompt, &plan, &mut cache, &[]);
        cache.commit(1, prompt.len());
        // Another request's rows stand before and are none of the tree's business.
        let other = dice.tokens(5);
        let rows = [SlotRows::chain(0, other.len()), SlotRows::tree(1, nodes, parents.clone()).unwrap()];
        let plan = cache.plan(&rows);
        let hidden = target.forward(&[other, tokens.clone()].concat(), &plan, &mut cache, &[]).hidden;
        let found = values(target.logits(hidden.narrow(0, 5, nodes)));
        for (node, found) in found.chunks(VOCABULARY as usize).enumerate() {
            let path: Vec<u32> = branch(&parents, node).into_iter().map(|row| tokens[row]).collect();
            let text = [prompt.as_slice(), &path].concat();
            let hidden = target.forward_full(&[&text], &[]).hidden.narrow(0, text.len() - 1, 1);
            assert_close(&format!("node {node} of {nodes}"), found, &values(target.logits(hidden)), BOUND);
        }
    }
}

/// Keys and values of `slot`'s committed rows against those of `text` run as one chain.
pub fn assert_cache(target: &Llama, cache: &spectrain_model::KvCache, slot: usize, text: &[u32]) {
    let mut fresh = target.cache(1, text.len());
    let plan = fresh.plan(&[SlotRows::chain(0, text.len())]);
    target.forward(text, &plan, &mut fresh, &[]);
    fresh.commit(0, text.len());
    for layer in 0..target.config().layers {
        let (found, expected) = (cache.entries(layer, slot), fresh.entries(layer, 0));
        for (what, found, expected) in [("keys", found.0, expected.0), ("values", found.1, expected.1)] {
            let (found, expected) = (values(found), values(expected));
            assert_eq!(found.len(), expected.len(), "slot {slot}, layer {layer}, {what}");
            let largest = expected.iter().fold(0.0_f32, |top, v| top.max(v.abs()));
            let off = found.iter().zip(&expected).fold(0.0_f32, |top, (f, e)| top.max((f - e).abs())) / largest;
            assert!(f64::from(off) <= CACHE_BOUND, "slot {slot}, layer {layer}: {what} are {off:.1e} off");
        }
    }
}

#[test]
fn after_many_ragged_trees_the_cache_is_that_of_a_prefill() {
    const SLOTS: usize = 3;
    for heads in [(3, 3), (3, 1)] {
        let dir = tempfile::tempdir().unwrap();
        let target = random_target_with(dir.path(), VOCABULARY as usize, 3, heads, 8);
        let mut dice = Dice::new(heads.1 as u64);
        let mut cache = target.cache(SLOTS, 512);
        let mut texts = vec![Vec::new(); SLOTS];
        let mut moved = 0;
        for _ in 0..100 {
            let trees: Vec<(Vec<u32>, Vec<Option<usize>>)> = (0..SLOTS).map(|_| dice.tree_of(14)).collect();
            let rows: Vec<SlotRows> = trees
                .iter()
                .enumerate()
                .map(|(slot, (ids, parents))| SlotRows::tree(slot, ids.len(), parents.clone()).unwrap())
                .collect();
            let ids: Vec<u32> = trees.iter().flat_map(|(ids, _)| ids.clone()).collect();
            let plan = cache.plan(&rows);
            target.forward(&ids, &plan, &mut cache, &[]);
            for (slot, (ids, parents)) in trees.iter().enumerate() {
                let path = branch(parents, dice.below(ids.len()));
                let path = &path[..path.len().min(1 + dice.below(5))];
                moved += usize::from(path.iter().enumerate().any(|(i, row)| i != *row));
                cache.compact(slot, path);
                texts[slot].extend(path.iter().map(|&row| ids[row]));
                assert_eq!(cache.len(slot), texts[slot].len());
            }
        }
        assert!(moved > 100, "rows hardly ever moved: {moved}");
        for (slot, text) in texts.iter().enumerate() {
            assert_cache(&target, &cache, slot, text);
        }
    }
}

#[test]
fn parents_out_of_order_are_refused() {
    let refused = SlotRows::tree(0, 3, vec![None, Some(2), Some(0)]).err();
    assert_eq!(refused, Some(ParentOrder { row: 1, parent: 2 }));
    let dir = tempfile::tempdir().unwrap();
    let target = random_target(dir.path(), VOCABULARY as usize, 8);
    for (parents, error) in [
        (vec![Some(1), None], TreeError::Order { node: 1, parent: 2 }),
        (vec![None, Some(1)], TreeError::Order { node: 2, parent: 2 }),
    ] {
        let draft = Draft { tokens: vec![1, 2], parents: Some(parents), ..Draft::default() };
        let mut proposer = Wandering { draft: Some(draft), ..Wandering::new(3) };
        assert_eq!(run(&target, &mut proposer, 8).unwrap_err(), RuleError::Tree(error));
    }
}

/// Drafts random trees, and keeps the features that it is told of.
struct Wandering {
    dice: Dice,
    /// What is drafted instead of random trees.
    draft: Option<Draft>,
    /// For every slot its tokens but the first, and the rows of each tap.
    told: Vec<(Vec<u32>, Vec<Vec<f32>>)>,
    /// What slots held when they were given away.
    done: Vec<(Vec<u32>, Vec<Vec<f32>>)>,
    d2t: Vec<u32>,
}

/// The deepest taps tell of all rows that came before.
const TAPS: [usize; 2] = [1, 3];

impl Wandering {
    fn new(seed: u64) -> Self {
        let d2t = (0..VOCABULARY).collect();
        Self { dice: Dice::new(seed), draft: None, told: Vec::new(), done: Vec::new(), d2t }
    }

    fn tree(&mut self) -> Draft {
        let mut nodes: Vec<(Option<usize>, u32)> = Vec::new();
        for _ in 0..20 + self.dice.below(80) {
            // Wide at the root, so that some of it is accepted, and in no order of depth.
            let parent = self.dice.below(24).checked_sub(8).filter(|&node| node < nodes.len());
            let node = (parent, self.dice.tokens(1)[0]);
            if !nodes.contains(&node) {
                nodes.push(node);
            }
        }
        let (parents, tokens) = nodes.into_iter().unzip();
        Draft { tokens, parents: Some(parents), ..Draft::default() }
    }
}

impl Proposer for Wandering {
    fn taps(&self) -> &[usize] {
        &TAPS
    }

    fn draft_to_target(&self) -> &[u32] {
        &self.d2t
    }

    fn open(&mut self, slots: usize, _: usize) {
        self.told = vec![(Vec::new(), vec![Vec::new(); TAPS.len()]); slots];
    }

    fn clear(&mut self, slot: usize) {
        self.done.push(std::mem::replace(&mut self.told[slot], (Vec::new(), vec![Vec::new(); TAPS.len()])));
    }

    fn observe(&mut self, observed: &[Observed], features: Vec<Tensor<2>>) {
        let mut first = 0;
        for o in observed {
            let (tokens, taps) = &mut self.told[o.slot];
            tokens.extend_from_slice(&o.next);
            for (tap, rows) in taps.iter_mut().zip(&features) {
                tap.extend(values(rows.clone().narrow(0, first, o.next.len())));
            }
            first += o.next.len();
        }
    }

    fn draft(&mut self, wanted: &[Wanted]) -> Result<Vec<Draft>, RowError> {
        Ok(wanted.iter().map(|_| self.draft.clone().unwrap_or_else(|| self.tree())).collect())
    }

    fn memory(&self, _: &Plan) -> DrafterMemory {
        DrafterMemory::default()
    }

    fn committed(&self, slot: usize) -> usize {
        self.told[slot].0.len()
    }
}

/// Answers seven requests whose prompts begin with token 1, three at a time; accepted tokens by round.
fn run(target: &Llama, proposer: &mut dyn Proposer, tokens: usize) -> Result<Vec<usize>, RuleError> {
    let request = |id: u64| Request {
        id,
        prompt: [vec![1], Dice::new(90 + id).tokens(2 + id as usize)].concat(),
        max_new_tokens: tokens + 3 * id as usize,
        sampling: Processors::at(1.0),
        seed: 6,
        form: Form::default(),
    };
    let plan = Plan::Dynamic { nodes: 101, depth: 100, width: 1 };
    let judge = judge(Rule::SampledMatch).unwrap();
    let decoder = SpeculativeDecoder { target, stop: &[], batch: 3 };
    let tasks = Task::alike((0..7).map(request), &plan, judge, &Fixed);
    let mut accepted = Vec::new();
    decoder.run(tasks, proposer, |t| accepted.extend(t.rounds().map(|r| r.accepted)))?;
    Ok(accepted)
}

#[test]
fn the_drafter_is_told_the_features_of_the_accepted_path() {
    let dir = tempfile::tempdir().unwrap();
    let target = random_target(dir.path(), VOCABULARY as usize, 8);
    let mut proposer = Wandering::new(4);
    let accepted = run(&target, &mut proposer, 100).unwrap();
    let lengths = [1, 2].map(|n| accepted.iter().filter(|&&a| a >= n).count());
    assert!(lengths[0] > 50 && lengths[1] >= 5, "hardly anything was accepted: {lengths:?}");
    let mut compared = 0;
    for (next, taps) in proposer.done.iter().chain(&proposer.told).filter(|(next, _)| !next.is_empty()) {
        let text = [&[1], &next[..next.len() - 1]].concat();
        let expected = target.forward_full(&[&text], &TAPS).taps;
        for (tap, (found, expected)) in taps.iter().zip(expected).enumerate() {
            assert_close(&format!("tap {tap}"), found, &values(expected), BOUND);
        }
        compared += 1;
    }
    assert_eq!(compared, 7);
}

#[test]
fn a_drafters_tree_holds_the_distributions_that_training_unrolls() {
    const STEPS: usize = 3;
    let dir = tempfile::tempdir().unwrap();
    let (target, device) = (random_target(dir.path(), VOCABULARY as usize, 11), Device::flex());
    let (drafter, weights) = random_drafter(&target, 30, 2, &device);
    let rounded = |ids: &[u32]| -> Vec<Tensor<2>> {
        let taps = target.forward_full(&[ids], &drafter.config.taps).taps;
        taps.into_iter().map(|t| t.cast(burn::tensor::DType::BF16).cast(burn::tensor::DType::F32)).collect()
    };
    let mut proposer = Eagle3Proposer::new(drafter.clone(), &weights);
    let prompts = [Dice::new(1).tokens(9), Dice::new(2).tokens(4), Dice::new(3).tokens(31)];
    proposer.open(prompts.len(), 80);
    for (slot, ids) in prompts.iter().enumerate() {
        proposer.observe(&[Observed { slot, next: ids[1..].to_vec() }], rounded(&ids[..ids.len() - 1]));
    }
    let plan = Plan::Sampled { shape: Shape::levels(&[3, 2, 1]), replacement: Replacement::Without };
    let requests = [0, 1, 2].map(|id| request(id, 5));
    let wanted: Vec<Wanted> = (0..3).map(|slot| wanted(slot, &plan, &requests[slot])).collect();
    let drafts = proposer.draft(&wanted).unwrap();
    for (prompt, draft) in prompts.iter().zip(&drafts) {
        let drawn = draft.drawn.as_ref().unwrap();
        assert_eq!(drawn.tree().leaves().len(), 6);
        for path in drawn.tree().paths() {
            let tokens: Vec<u32> = path[1..].iter().map(|&node| draft.tokens[node - 1]).collect();
            let ids = [prompt.as_slice(), &tokens].concat();
            let taps = values(Tensor::cat(rounded(&ids), 1)).into_iter().map(bf16::from_f32).collect();
            let n = ids.len();
            let row = FeatureRow {
                request: 0,
                loss_mask: (0..n).map(|i| i >= prompt.len()).collect(),
                taps,
                last_hidden: vec![bf16::ZERO; n * target.config().hidden_size],
                logsumexp: vec![0.0; n],
                temperature: 1.0,
                off_policy: false,
                ids,
            };
            let batch = TrainBatch::new(&[&row], STEPS, &device).unwrap();
            let asking = prompt.len() - 2 - batch.plan.segments[0].first_query;
            drafter.unroll(&weights, &batch, |k, hidden| {
                let logits = values(drafter.head.logits(hidden.without_autodiff()).narrow(0, asking, 1));
                let expected: Vec<f32> = probabilities(&logits, 1.0).iter().map(|&q| q as f32).collect();
                let found: Vec<f32> = drawn.drawn(path[k]).unwrap().0.iter().map(|&q| q as f32).collect();
                assert_close(&format!("step {k} of {path:?}"), &found, &expected, BOUND);
            });
        }
    }
}
