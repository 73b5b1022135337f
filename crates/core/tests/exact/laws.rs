//! Every rule on every kind of draft: the output law is the target's to 1e-12.

use crate::enumerate::{TOLERANCE, law};
use crate::model::{KINDS, Kind, Model};
use crate::rounds::{
    CHAIN_RULES, Chain, SAMPLED_RULES, chain_round, emitted, fixed_trees, grow, match_round, sampled_round,
};
use rayon::prelude::*;
use spectrain_core::rules::greedy::{self, argmax};
use spectrain_core::rules::threshold::Threshold;
use spectrain_core::tree::Replacement;

/// All models of vocabulary 2 to 4, depth 1 to 3.
fn models() -> Vec<Model> {
    let mut models = Vec::new();
    for (vocabulary, depth) in (2..=4).flat_map(|vocabulary| (1..=3).map(move |depth| (vocabulary, depth))) {
        for kind in KINDS {
            models.extend((0..3).map(|seed| Model::random(vocabulary, depth, kind, seed)));
        }
    }
    models
}

#[test]
fn chain_rules_keep_the_law() {
    models().par_iter().for_each(|model| {
        for (name, rule) in CHAIN_RULES {
            for kind in [Chain::Sampled, Chain::Argmax, Chain::Mixed] {
                let law = law(|walk| emitted(chain_round(model, kind, rule, |_| false, walk)));
                law.assert_exact(model, &format!("{name}, {kind:?} chain"));
            }
        }
    });
}

#[test]
fn a_chain_may_stop_after_including_a_token() {
    models().par_iter().for_each(|model| {
        for (name, rule) in CHAIN_RULES {
            let stop = |tokens: &[u32]| tokens.last() == Some(&0);
            let law = law(|walk| emitted(chain_round(model, Chain::Sampled, rule, stop, walk)));
            law.assert_exact(model, &format!("{name}, stopped after token 0"));
        }
    });
}

#[test]
fn block_never_accepts_fewer_tokens_than_token() {
    for model in models() {
        let lengths = CHAIN_RULES
            .map(|(_, rule)| law(|w| emitted(chain_round(&model, Chain::Sampled, rule, |_| false, w))).length());
        assert!(lengths[1] >= lengths[0] - TOLERANCE, "{lengths:?} on {model:?}");
    }
}

#[test]
fn sampled_match_keeps_the_law_on_every_fixed_tree() {
    models().par_iter().for_each(|model| {
        for (name, tree) in fixed_trees(model) {
            law(|walk| emitted(match_round(model, &tree, walk))).assert_exact(model, name);
        }
    });
}

#[test]
fn sampled_match_survives_pruning_and_reordering_of_sampled_trees() {
    models().par_iter().filter(|model| model.vocabulary.pow(model.depth as u32) <= 16).for_each(|model| {
        for replacement in [Replacement::With, Replacement::Without] {
            let law = law(|walk| {
                let sampled = grow(model, replacement, |path| 2 - path.len() / 2, walk);
                let tree = sampled.tree();
                // Judged by what was drawn: improbable nodes go, and siblings are sorted by confidence.
                let mut kept = vec![0];
                let confidence =
                    |node: usize| model.q(&tree.path_tokens(tree.parent(node).unwrap()))[tree.token(node) as usize];
                let mut order: Vec<usize> = (1..tree.len()).collect();
                order.sort_by(|&a, &b| tree.depth(a).cmp(&tree.depth(b)).then(confidence(b).total_cmp(&confidence(a))));
                for node in order {
                    if confidence(node) >= 0.25 && kept.contains(&tree.parent(node).unwrap()) {
                        kept.push(node);
                    }
                }
                emitted(match_round(model, &tree.select(&kept).unwrap(), walk))
            });
            law.assert_exact(model, "sampled-match on a pruned sampled tree");
        }
    });
}

/// Children by depth, as wide as an exhaustive walk allows.
fn branchings(model: &Model) -> Vec<&'static [usize]> {
    let mut all: Vec<&[usize]> = match model.depth {
        1 => vec![&[1], &[2], &[3], &[4]],
        2 => vec![&[1, 1], &[2, 1], &[1, 2], &[2, 2], &[3, 1]],
        _ => vec![&[1, 1, 1], &[2, 1, 1], &[1, 2, 1], &[1, 1, 2]],
    };
    if (model.vocabulary, model.depth) == (2, 3) {
        all.push(&[2, 2, 2]);
    }
    all
}

#[test]
fn rules_on_sampled_trees_keep_the_law() {
    models().par_iter().for_each(|model| {
        for (name, replacement, rule) in SAMPLED_RULES {
            for branching in branchings(model) {
                let count = |path: &[u32]| branching[path.len()];
                let law = law(|walk| emitted(sampled_round(model, (replacement, rule), count, walk)));
                law.assert_exact(model, &format!("{name}, children {branching:?}"));
            }
        }
    });
}

#[test]
fn a_sampled_tree_may_branch_by_what_lies_above() {
    let by_token = |path: &[u32]| match path.last() {
        None => 2,
        Some(token) => (*token as usize + path.len()) % 3,
    };
    models().par_iter().filter(|model| model.vocabulary < 4 && model.depth < 3).for_each(|model| {
        for (name, replacement, rule) in SAMPLED_RULES {
            let law = law(|walk| emitted(sampled_round(model, (replacement, rule), by_token, walk)));
            law.assert_exact(model, &format!("{name}, branching by token"));
        }
    });
}

#[test]
fn tree_rules_on_chains_are_the_chain_rules() {
    for model in models() {
        let [token, block] =
            CHAIN_RULES.map(|(_, rule)| law(|w| emitted(chain_round(&model, Chain::Sampled, rule, |_| false, w))));
        for (name, replacement, rule) in SAMPLED_RULES {
            let tree = law(|walk| emitted(sampled_round(&model, (replacement, rule), |_| 1, walk)));
            let chain = if name == "traversal" { &block } else { &token };
            for (tokens, mass) in &chain.emitted {
                let found = tree.emitted.get(tokens).copied().unwrap_or(0.0);
                assert!((found - mass).abs() < TOLERANCE, "{name}: {tokens:?} has {found}, the chain rule {mass}");
            }
        }
    }
}

#[test]
fn traversal_accepts_at_least_as_much_as_sequoia_and_sequoia_as_specinfer_here() {
    for seed in 0..10 {
        let model = Model::random(3, 2, Kind::Dense, seed);
        let [specinfer, sequoia, traversal] = SAMPLED_RULES.map(|(_, replacement, rule)| {
            law(|w| emitted(sampled_round(&model, (replacement, rule), |_| 2, w))).length()
        });
        assert!(
            specinfer <= sequoia + TOLERANCE && sequoia <= traversal + TOLERANCE,
            "{specinfer} {sequoia} {traversal}"
        );
    }
}

#[test]
fn greedy_equals_greedy_decoding_on_every_tree() {
    for model in models() {
        let mut plain: Vec<u32> = Vec::new();
        while plain.len() <= model.depth {
            plain.push(argmax(model.p(&plain)).unwrap());
        }
        for (name, tree) in fixed_trees(&model) {
            let verdict = greedy::verify(&tree, |node| argmax(model.p(&tree.path_tokens(node))));
            let emitted: Vec<u32> = verdict.emitted().collect();
            assert_eq!(emitted, plain[..emitted.len()], "{name}");
            assert_eq!(tree.path_tokens(verdict.path.last().copied().unwrap_or(0)), verdict.tokens);
            let missed = tree.child(verdict.path.last().copied().unwrap_or(0), verdict.next.unwrap());
            assert_eq!(missed, None, "{name}: the walk goes on while the choice was drafted");
        }
        let whole = &fixed_trees(&model)[6].1;
        let all = greedy::verify(whole, |node| argmax(model.p(&whole.path_tokens(node))));
        assert_eq!(all.accepted(), model.depth);
    }
}

#[test]
fn thresholds_of_one_are_target_only_acceptance_and_lower_ones_are_approximate() {
    let mut biased = 0;
    for model in models() {
        for (name, tree) in fixed_trees(&model) {
            let judge = |single: f64, accumulated: f64| {
                let rule = Threshold { single, accumulated };
                law(|walk| emitted(rule.verify(&tree, &model.target_rows(&tree), walk).unwrap()))
            };
            let exact = judge(1.0, 1.0);
            exact.assert_exact(&model, name);
            let matched = law(|walk| emitted(match_round(&model, &tree, walk)));
            assert!((exact.length() - matched.length()).abs() < TOLERANCE, "target-only accepts as sampled-match does");
            for loose in [judge(0.3, 1.0), judge(1.0, 0.5)] {
                assert!(name != "chain" || loose.length() >= exact.length() - TOLERANCE);
                biased += usize::from(loose.distance(&model) > 1e-3);
            }
        }
    }
    assert!(biased > 500, "loose thresholds bend the law in {biased} cases");
}
