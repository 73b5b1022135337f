//! Node arrays, masks, shapes, EAGLE-2, Sequoia's programme, budgets.

use crate::model::{Kind, Model, Source};
use crate::rounds::{eagle2, fixed_trees};
use proptest::prelude::*;
use spectrain_core::rules::{keyed, sampled_match};
use spectrain_core::tree::{AncestorMask, Budget, Eagle2, SequoiaTable, Shape, Tree, TreeError};

/// A random tree of `nodes` nodes without equal siblings.
fn random_tree(nodes: usize, vocabulary: u64, seed: u64) -> Tree {
    let mut source = Source(seed);
    let drawn: Vec<(usize, u32)> =
        (1..nodes).map(|node| (source.below(node as u64) as usize, source.below(vocabulary) as u32)).collect();
    Tree::merged(0, 10, &drawn).unwrap().0
}

/// A random order in which parents stay before their children.
fn random_order(tree: &Tree, seed: u64) -> Vec<usize> {
    let mut source = Source(seed);
    let mut order = vec![0];
    let mut open: Vec<usize> = tree.children(0).collect();
    while !open.is_empty() {
        let node = open.swap_remove(source.below(open.len() as u64) as usize);
        open.extend(tree.children(node));
        order.push(node);
    }
    order
}

proptest! {
    #[test]
    fn a_permutation_carries_every_array_and_leaves_verdicts_alone(nodes in 1usize..40, seed: u64) {
        let tree = random_tree(nodes, 4, seed);
        let order = random_order(&tree, seed ^ 1);
        let moved = tree.select(&order).unwrap();
        for (new, &old) in order.iter().enumerate() {
            prop_assert_eq!(moved.token(new), tree.token(old));
            prop_assert_eq!(moved.positions()[new], tree.positions()[old]);
            prop_assert_eq!(moved.slots()[new], tree.slots()[old]);
            prop_assert_eq!(moved.path_tokens(new), tree.path_tokens(old));
        }
        let model = Model::random(4, 0, Kind::Dense, seed);
        let rows = |tree: &Tree| tree.tokens().iter().map(|&token| model.p(&[token]).to_vec()).collect::<Vec<_>>();
        let before = sampled_match::verify(&tree, &rows(&tree), &mut keyed(seed, 0, 10)).unwrap();
        let after = sampled_match::verify(&moved, &rows(&moved), &mut keyed(seed, 0, 10)).unwrap();
        prop_assert_eq!(&before.tokens, &after.tokens);
        prop_assert_eq!(before.next, after.next);
        prop_assert_eq!(before.path, after.path.iter().map(|&node| order[node]).collect::<Vec<_>>());
        let sorted = moved.select(&moved.depth_order()).unwrap();
        prop_assert!((1..sorted.len()).all(|node| sorted.depth(node - 1) <= sorted.depth(node)));
    }

    #[test]
    fn a_mask_row_is_the_path(nodes in 1usize..200, seed: u64) {
        let tree = random_tree(nodes, 6, seed);
        let mask = AncestorMask::new(&tree);
        prop_assert_eq!(mask.words_per_row(), tree.len().div_ceil(64));
        for node in 0..tree.len() {
            let seen: Vec<usize> = (0..tree.len()).filter(|&other| mask.sees(node, other)).collect();
            prop_assert_eq!(seen, tree.path(node));
            let bits: u32 = mask.row(node).iter().map(|word| word.count_ones()).sum();
            prop_assert_eq!(bits as usize, tree.depth(node) + 1);
        }
    }
}

#[test]
fn masks_cross_the_word_border() {
    for (nodes, words) in [(1, 1), (64, 1), (65, 2), (128, 2), (129, 3)] {
        let tokens: Vec<u32> = (1..nodes).collect();
        let mask = AncestorMask::new(&Tree::chain(0, 0, &tokens));
        assert_eq!(mask.words_per_row(), words);
        assert_eq!(mask.words().len(), words * nodes as usize);
        assert!((0..nodes as usize).all(|node| mask.sees(nodes as usize - 1, node)));
        assert!((1..nodes as usize).all(|node| !mask.sees(0, node)));
    }
}

#[test]
fn malformed_trees_are_refused() {
    assert_eq!(Tree::new(0, 0, &[(1, 5)]), Err(TreeError::Order { node: 1, parent: 1 }));
    assert_eq!(Tree::new(0, 0, &[(2, 5), (0, 6)]), Err(TreeError::Order { node: 1, parent: 2 }));
    let twins = Err(TreeError::DuplicateSibling { first: 1, second: 3, token: 5 });
    assert_eq!(Tree::new(0, 0, &[(0, 5), (0, 6), (0, 5)]), twins);
    let tree = Tree::chain(0, 0, &[5, 6]);
    for (selection, culprit) in [(&[0, 2][..], 2), (&[0, 1, 1], 1), (&[1], 1), (&[0, 3], 3)] {
        assert_eq!(tree.select(selection), Err(TreeError::Selection(culprit)));
    }
    assert_eq!(tree.select(&[]), Err(TreeError::Empty));
    assert_eq!(tree.clone().with_slots(vec![4, 4, 5]), Err(TreeError::SharedSlot(4)));
    assert_eq!(tree.with_slots(vec![4]), Err(TreeError::Length { what: "slots", expected: 3, found: 1 }));
}

#[test]
fn equal_siblings_merge_with_all_below_them() {
    let (tree, became) = Tree::merged(9, 3, &[(0, 5), (0, 5), (1, 7), (2, 7), (2, 8)]).unwrap();
    assert_eq!(became, [0, 1, 1, 2, 2, 3]);
    assert_eq!(tree, Tree::new(9, 3, &[(0, 5), (1, 7), (1, 8)]).unwrap());
    assert_eq!(tree.positions(), [3, 4, 5, 5]);
    assert_eq!(tree.slots(), [3, 4, 5, 6]);
    assert_eq!(tree.paths(), [vec![0, 1, 2], vec![0, 1, 3]]);
    assert_eq!((tree.leaves(), tree.max_depth()), (vec![2, 3], 2));
}

#[test]
fn shapes_have_the_nodes_they_say() {
    assert_eq!(Shape::levels(&[2, 3]).len(), 9);
    assert_eq!(Shape::chain(5).len(), 6);
    assert_eq!((Shape::chains(3, 4).len(), Shape::chains(3, 4).max_depth()), (13, 4));
    let ranks = vec![vec![0], vec![1], vec![0, 0], vec![1, 0], vec![0, 1], vec![0, 0, 0]];
    let shape = Shape::from_ranks(&ranks).unwrap();
    let reversed: Vec<_> = ranks.into_iter().rev().collect();
    assert_eq!(Shape::from_ranks(&reversed).unwrap(), shape);
    assert_eq!((shape.len(), shape.child_count(0), shape.child_count(1), shape.max_depth()), (7, 2, 2, 3));
    let tree = shape.fill(0, 0, |path| vec![10 + path.len() as u32, 20 + path.len() as u32]).unwrap();
    assert_eq!(tree.path_tokens(6), [10, 11, 12]);
    assert_eq!(tree.len(), 7);
    for bad in [vec![vec![]], vec![vec![1]], vec![vec![0, 0]], vec![vec![0], vec![0]]] {
        assert!(Shape::from_ranks(&bad).is_err(), "{bad:?}");
    }
    let short = Shape::levels(&[3, 1]).fill(0, 0, |path| if path.is_empty() { vec![4, 5] } else { vec![6] }).unwrap();
    assert_eq!(short.tokens(), [0, 4, 5, 6, 6], "ranks without a token are left out");
}

#[test]
fn eagle2_remembers_all_candidates_and_keeps_the_best() {
    let mut source = Source(3);
    let mut eagle = Eagle2::new(1, 0, 10);
    for _ in 0..6 {
        let rows: Vec<Vec<f64>> = eagle
            .frontier()
            .iter()
            .map(|_| {
                let row: Vec<f64> = (0..50).map(|_| (1 + source.below(1000)) as f64).collect();
                let sum: f64 = row.iter().sum();
                row.iter().map(|entry| (entry / sum).ln()).collect()
            })
            .collect();
        eagle.expand(&rows).unwrap();
    }
    assert_eq!(eagle.candidates(), 1 + 510);
    let tree = eagle.rerank(60).unwrap();
    assert_eq!(tree.len(), 60);
    assert!((1..60).all(|node| tree.depth(node - 1) <= tree.depth(node)), "in depth order");
    assert_eq!(eagle.rerank(1000).unwrap().len(), 511, "no more than there are");
    assert_eq!(eagle.rerank(0), Err(TreeError::Empty));
}

#[test]
fn eagle2_keeps_the_most_probable_nodes_of_a_model() {
    for seed in 0..20 {
        let model = Model::random(4, 3, Kind::Dense, seed);
        let tree = eagle2(&model, 4, 9);
        let probability =
            |path: &[u32]| (0..path.len()).map(|i| model.q(&path[..i])[path[i] as usize]).product::<f64>();
        let kept: Vec<f64> = (1..tree.len()).map(|node| probability(&tree.path_tokens(node))).collect();
        let mut all: Vec<f64> = Vec::new();
        let mut level = vec![vec![]];
        for _ in 0..3 {
            level = level.iter().flat_map(|path: &Vec<u32>| (0..4).map(|t| [&path[..], &[t]].concat())).collect();
            all.extend(level.iter().map(|path| probability(path)));
        }
        all.sort_by(|a, b| b.total_cmp(a));
        let (mut kept, best) = (kept, &all[..8]);
        kept.sort_by(|a, b| b.total_cmp(a));
        kept.iter().zip(best).for_each(|(a, b)| assert!((a - b).abs() < 1e-12, "seed {seed}"));
    }
}

#[test]
fn eagle2_survives_ties_and_refuses_what_is_no_distribution() {
    for rows in [vec![0.25f64.ln(); 4], vec![0.0, f64::NEG_INFINITY, f64::NEG_INFINITY, f64::NEG_INFINITY]] {
        let mut eagle = Eagle2::new(0, 0, 3);
        for _ in 0..3 {
            let level = vec![rows.clone(); eagle.frontier().len()];
            eagle.expand(&level).unwrap();
        }
        for nodes in 1..=eagle.candidates() {
            assert_eq!(eagle.rerank(nodes).unwrap().len(), nodes, "a kept node has its parent kept");
        }
    }
    let mut eagle = Eagle2::new(0, 0, 3);
    assert_eq!(eagle.expand(&[vec![f64::NAN, 0.0]]), Err(TreeError::DraftRow(0)));
    assert_eq!(eagle.expand(&[vec![0.5, -1.0]]), Err(TreeError::DraftRow(0)), "a probability above one");
    assert_eq!(eagle.expand::<Vec<f64>>(&[]), Err(TreeError::Length { what: "draft rows", expected: 1, found: 0 }));
}

/// Expected committed tokens of a shape when the accepted child has rank r with probability `a[r]`.
fn expected(shape: &Shape, acceptance: &[f64], node: usize) -> f64 {
    let below = (0..shape.child_count(node))
        .map(|rank| acceptance[rank] * expected(shape, acceptance, shape.child(node, rank).unwrap()));
    1.0 + below.sum::<f64>()
}

/// All trees of `nodes` nodes and depth at most `depth`, as the best value over how the nodes are split.
fn brute(nodes: usize, depth: usize, acceptance: &[f64]) -> f64 {
    fn split(nodes: usize, depth: usize, rank: usize, acceptance: &[f64]) -> f64 {
        if nodes == 0 {
            return 0.0;
        }
        if depth == 0 || rank == acceptance.len() {
            return f64::NEG_INFINITY;
        }
        (1..=nodes)
            .map(|size| {
                acceptance[rank] * brute(size, depth - 1, acceptance) + split(nodes - size, depth, rank + 1, acceptance)
            })
            .fold(f64::NEG_INFINITY, f64::max)
    }
    1.0 + split(nodes - 1, depth, 0, acceptance)
}

const MEASURED: [f64; 6] = [0.634, 0.108, 0.057, 0.0225, 0.0195, 0.015];

#[test]
fn sequoias_programme_finds_the_best_tree() {
    let table = SequoiaTable::new(&MEASURED[..4], 8, 4);
    for (nodes, depth) in (1..=8).flat_map(|nodes| (0..=4).map(move |depth| (nodes, depth))) {
        let best = brute(nodes, depth, &MEASURED[..4]);
        match table.expected(nodes, depth) {
            None => assert_eq!(best, f64::NEG_INFINITY),
            Some(value) => {
                assert!((value - best).abs() < 1e-12, "{nodes} nodes, depth {depth}: {value}, best {best}");
                let shape = table.shape(nodes, depth).unwrap();
                assert_eq!(shape.len(), nodes);
                assert!(shape.max_depth() <= depth);
                assert!((expected(&shape, &MEASURED, 0) - value).abs() < 1e-12);
            }
        }
    }
    assert_eq!(table.expected(9, 2), None);
    assert_eq!(table.expected(2, 5), None);
}

#[test]
fn a_budget_is_the_cheapest_measured_size() {
    let table = SequoiaTable::new(&MEASURED, 32, 10);
    let verify = vec![(1, 10.0), (2, 10.0), (4, 10.0), (8, 12.0), (16, 14.0), (32, 18.0)];
    let budget = Budget { draft_level: 0.3, fixed: 0.0, verify: verify.clone() };
    let choice = budget.choose(10, |nodes, depth| table.expected(nodes, depth)).unwrap();
    for depth in 0..=10 {
        for &(nodes, time) in &verify {
            if let Some(tokens) = table.expected(nodes, depth) {
                assert!(choice.time_per_token <= (0.3 * depth as f64 + time) / tokens + 1e-12);
            }
        }
    }
    assert_eq!(table.expected(choice.nodes, choice.depth), Some(choice.expected));
    assert!(choice.nodes > 1 && choice.time_per_token < 10.0, "speculation pays on this table: {choice:?}");
    let busy = Budget { draft_level: 20.0, ..budget.clone() };
    assert_eq!(busy.choose(10, |n, d| table.expected(n, d)).unwrap().nodes, 1, "slow drafting does not");
    let none = Budget { verify: vec![(64, 20.0)], ..budget };
    assert_eq!(none.choose(10, |n, d| table.expected(n, d)), None);
}

#[test]
fn fixed_trees_hold_distinct_siblings_in_depth_order() {
    for (name, tree) in fixed_trees(&Model::random(4, 3, Kind::Dense, 1)) {
        assert_eq!(tree.depth_order(), (0..tree.len()).collect::<Vec<_>>(), "{name}");
    }
}
