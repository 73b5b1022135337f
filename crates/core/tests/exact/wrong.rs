//! Every mistake known from papers, issues and public code is caught by the harness that passes the right rules.

use crate::enumerate::{TOLERANCE, Walk, first_token, law};
use crate::model::{Kind, Model};
use crate::reference::{AfterReject, ParentUpdate, Residual, draw_siblings, round, traverse};
use crate::rounds::{CHAIN_RULES, Chain, SAMPLED_RULES, chain_round, draft, emitted, sampled_round};
use spectrain_core::process::{Context, Processors};
use spectrain_core::rng::Purpose;
use spectrain_core::rules::{Ask, Chance};

/// Smallest distance that counts as caught: ten orders of magnitude above what the right rules show.
const CAUGHT: f64 = 1e-3;

fn toys() -> Vec<Model> {
    let mut toys = Vec::new();
    for (vocabulary, depth) in [(2, 1), (3, 1), (4, 1), (3, 2), (2, 3)] {
        toys.extend((0..6).map(|seed| Model::random(vocabulary, depth, Kind::Dense, 100 + seed)));
    }
    toys
}

/// Fails unless the mistake bends the law on most models; a mistake may vanish on single ones.
fn assert_caught(what: &str, models: &[Model], mut wrong: impl FnMut(&Model, &mut Walk) -> Vec<u32>) {
    let caught = models.iter().filter(|model| law(|walk| wrong(model, walk)).distance(model) > CAUGHT).count();
    assert!(2 * caught > models.len(), "{what}: caught on {caught} of {} models only", models.len());
}

fn two_without(q: &[f64], depth: usize, walk: &mut Walk) -> Vec<u32> {
    draw_siblings(q, 2, AfterReject::TakeOut, (depth, walk))
}

#[test]
fn the_reference_without_a_mistake_is_exact_and_agrees_with_the_rules() {
    for model in toys() {
        for (name, replacement, rule) in SAMPLED_RULES {
            let ours = law(|walk| emitted(sampled_round(&model, (replacement, rule), |_| 2, walk)));
            let after = if name == "specinfer" { AfterReject::Keep } else { AfterReject::TakeOut };
            let draw = |q: &[f64], depth: usize, walk: &mut Walk| draw_siblings(q, 2, after, (depth, walk));
            let plain = law(|walk| match name {
                "traversal" => traverse(&model, &[], 1.0, (2, ParentUpdate::Residual), walk, &mut 0)
                    .expect("the root is never rejected"),
                _ => round(&model, draw, after, Residual::Positive, walk),
            });
            plain.assert_exact(&model, name);
            for (tokens, mass) in &plain.emitted {
                let found = ours.emitted.get(tokens).copied().unwrap_or(0.0);
                assert!((found - mass).abs() < TOLERANCE, "{name}: {tokens:?} has {found}, the reference {mass}");
            }
        }
    }
}

#[test]
fn resampling_from_the_target_is_caught() {
    let one = |q: &[f64], depth: usize, walk: &mut Walk| vec![draft(q, depth, walk)];
    assert_caught("resample from p", &toys(), |model, walk| {
        round(model, one, AfterReject::TakeOut, Residual::Target, walk)
    });
}

#[test]
fn the_wrong_residual_sign_is_caught() {
    let one = |q: &[f64], depth: usize, walk: &mut Walk| vec![draft(q, depth, walk)];
    assert_caught("residual q - p", &toys(), |model, walk| {
        round(model, one, AfterReject::TakeOut, Residual::WrongSign, walk)
    });
}

#[test]
fn a_ratio_with_q_before_its_processors_is_caught() {
    let cool = Processors { temperature: 0.5, ..Processors::default() };
    let cut = Processors { top_k: 1, ..Processors::default() };
    for settings in [cool, cut] {
        let one = |q: &[f64], depth: usize, walk: &mut Walk| {
            let mut processed: Vec<f64> = q.iter().map(|q| q.ln()).collect();
            settings.apply(&mut processed, &Context::default()).unwrap();
            vec![draft(&processed, depth, walk)]
        };
        assert_caught("raw q", &toys(), |model, walk| {
            round(model, one, AfterReject::TakeOut, Residual::Positive, walk)
        });
    }
}

#[test]
fn pruning_by_the_sampled_token_is_caught() {
    assert_caught("drop a drafted token with small q", &toys(), |model, walk| {
        let prune = |q: &[f64], depth: usize, walk: &mut Walk| {
            let token = draft(q, depth, walk);
            if q[token as usize] < 0.35 { vec![] } else { vec![token] }
        };
        round(model, prune, AfterReject::TakeOut, Residual::Positive, walk)
    });
    let wide: Vec<Model> = toys().into_iter().filter(|model| model.vocabulary > 2).collect();
    assert_caught("drop the second sibling if improbable", &wide, |model, walk| {
        let prune = |q: &[f64], depth: usize, walk: &mut Walk| {
            let mut siblings = two_without(q, depth, walk);
            if q[siblings[1] as usize] < 0.25 {
                siblings.pop();
            }
            siblings
        };
        round(model, prune, AfterReject::TakeOut, Residual::Positive, walk)
    });
}

#[test]
fn pruning_by_rank_alone_is_exact() {
    for model in toys() {
        let first = |q: &[f64], depth: usize, walk: &mut Walk| {
            let mut siblings = two_without(q, depth, walk);
            siblings.truncate(1);
            siblings
        };
        let law = law(|walk| round(&model, first, AfterReject::TakeOut, Residual::Positive, walk));
        law.assert_exact(&model, "drop the second sibling always");
    }
}

#[test]
fn reordering_siblings_by_confidence_is_caught() {
    assert_caught("reorder", &toys(), |model, walk| {
        let reorder = |q: &[f64], depth: usize, walk: &mut Walk| {
            let mut siblings = two_without(q, depth, walk);
            siblings.sort_by(|&a, &b| q[b as usize].total_cmp(&q[a as usize]));
            siblings
        };
        round(model, reorder, AfterReject::TakeOut, Residual::Positive, walk)
    });
}

#[test]
fn top_k_children_judged_by_the_ratio_are_caught() {
    for count in [1, 2] {
        assert_caught("top-k by p/q", &toys(), |model, walk| {
            let top = |q: &[f64], _: usize, _: &mut Walk| {
                let mut tokens: Vec<u32> = (0..q.len() as u32).collect();
                tokens.sort_by(|&a, &b| q[b as usize].total_cmp(&q[a as usize]));
                tokens.truncate(count);
                tokens
            };
            round(model, top, AfterReject::TakeOut, Residual::Positive, walk)
        });
    }
}

#[test]
fn the_known_wrong_traversal_update_is_caught() {
    let deep: Vec<Model> = toys().into_iter().filter(|model| model.depth > 1).collect();
    assert_caught("traversal update", &deep, |model, walk| {
        traverse(model, &[], 1.0, (2, ParentUpdate::Simple), walk, &mut 0).expect("the root is never rejected")
    });
}

#[test]
fn duplicate_siblings_are_caught_where_they_are_misjudged() {
    let wide: Vec<Model> = toys().into_iter().filter(|model| model.vocabulary > 2).collect();
    assert_caught("repeats dropped, then judged with replacement", &wide, |model, walk| {
        let distinct = |q: &[f64], depth: usize, walk: &mut Walk| {
            let mut siblings = draw_siblings(q, 3, AfterReject::Keep, (depth, walk));
            let mut seen = Vec::new();
            siblings.retain(|token| {
                !seen.contains(token) && {
                    seen.push(*token);
                    true
                }
            });
            siblings
        };
        round(model, distinct, AfterReject::Keep, Residual::Positive, walk)
    });
    assert_caught("drawn with replacement, judged without", &wide, |model, walk| {
        let repeated = |q: &[f64], depth: usize, walk: &mut Walk| draw_siblings(q, 2, AfterReject::Keep, (depth, walk));
        round(model, repeated, AfterReject::TakeOut, Residual::Positive, walk)
    });
}

/// DSpark's appendix A: the length is chosen by a search over the whole block, so it depends on the drafted token.
#[test]
fn a_length_chosen_by_global_search_is_caught_and_early_stop_is_exact() {
    let model = Model::constant(&[0.7, 0.3], &[0.5, 0.5], 2);
    let throughput = [1.0, 0.5, 0.45];
    for early_stop in [false, true] {
        let law = law(|walk| {
            let first = draft(model.q(&[]), 0, walk);
            let confidence = [0.8, if first == 0 { 0.9 } else { 0.0 }];
            let length = scheduled(&confidence, &throughput, early_stop);
            if length == 0 {
                return vec![walk.draw(Ask { depth: 0, purpose: Purpose::Bonus, index: 1 }, model.p(&[])) as u32];
            }
            let second = draft(model.q(&[first]), 1, walk);
            crate::reference::judge_chain(&model, &[first, second][..length], walk)
        });
        if early_stop {
            law.assert_exact(&model, "early stop");
        } else {
            let found = first_token(&law, 2);
            assert!((found[0] - 0.85).abs() < TOLERANCE && (found[1] - 0.15).abs() < TOLERANCE, "{found:?}");
            assert!(law.distance(&model) > CAUGHT);
        }
    }
}

/// Drafted tokens to verify for one request: the best expected tokens per time, or the last before a decrease.
pub fn scheduled(confidence: &[f64], throughput: &[f64], early_stop: bool) -> usize {
    let (mut survival, mut expected) = (1.0, 1.0);
    let mut rates = vec![throughput[0]];
    for (c, speed) in confidence.iter().zip(&throughput[1..]) {
        survival *= c;
        expected += survival;
        rates.push(expected * speed);
    }
    let mut best = 0;
    for length in 1..rates.len() {
        if early_stop && rates[length] < rates[length - 1] {
            break;
        }
        if rates[length] > rates[best] {
            best = length;
        }
    }
    best
}

/// The harness itself must see that a correct rule is correct: the smallest mistake caught lies far above the error of
/// the right rules on the same models.
#[test]
fn right_rules_on_the_same_models_show_no_distance() {
    for model in toys() {
        for (_, rule) in CHAIN_RULES {
            let law = law(|walk| emitted(chain_round(&model, Chain::Sampled, rule, |_| false, walk)));
            assert!(law.distance(&model) < TOLERANCE);
        }
    }
}
