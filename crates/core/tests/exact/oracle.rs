//! The rules against rational arithmetic: `fixtures/oracles/rules.py` and its recorded output.

use crate::enumerate::{Law, TOLERANCE, assert_close, law};
use crate::model::{Model, unit};
use crate::reference::{AfterReject, ParentUpdate, Residual, draw_siblings, judge_siblings, round, traverse};
use crate::rounds::{CHAIN_RULES, Chain, SAMPLED_RULES, chain_round, emitted, grow, match_round, sampled_round};
use serde_json::Value;
use spectrain_core::tree::{Replacement, Shape};
use std::collections::HashMap;
use std::process::Command;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/oracles/");

fn recorded() -> Value {
    serde_json::from_str(&std::fs::read_to_string(format!("{FOLDER}rules.json")).unwrap()).unwrap()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|entry| entry.as_f64().unwrap()).collect()
}

fn tokens(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|entry| entry.as_u64().unwrap() as u32).collect()
}

fn model(rows: &Value) -> Model {
    let rows: HashMap<Vec<u32>, &Value> =
        rows.as_array().unwrap().iter().map(|row| (tokens(&row["history"]), row)).collect();
    Model::from_fn(3, 2, |path| (unit(&numbers(&rows[path]["p"])), unit(&numbers(&rows[path]["q"]))))
}

/// The law of one line of the record, by the rules of this crate (or the reference, for mistakes).
fn law_of(rule: &str, children: usize, model: &Model) -> Law {
    let chain =
        |index: usize| law(|walk| emitted(chain_round(model, Chain::Sampled, CHAIN_RULES[index].1, |_| false, walk)));
    let sampled = |index: usize| {
        let (_, replacement, rule) = SAMPLED_RULES[index];
        law(|walk| emitted(sampled_round(model, (replacement, rule), |_| children, walk)))
    };
    match rule {
        "token" => chain(0),
        "block" => chain(1),
        "specinfer" => sampled(0),
        "sequoia" => sampled(1),
        "traversal" => sampled(2),
        "sampled-match on top" => {
            let shape = Shape::levels(&vec![children; model.depth]);
            let tree = shape.fill(0, 0, |path| model.ranked(path)).unwrap();
            law(|walk| emitted(match_round(model, &tree, walk)))
        }
        "sampled-match on sampled" => law(|walk| {
            let tree = grow(model, Replacement::Without, |_| children, walk);
            emitted(match_round(model, tree.tree(), walk))
        }),
        "wrong: top judged by p/q" => law(|walk| {
            let top = |q: &[f64], _: usize, _: &mut crate::enumerate::Walk| {
                let mut tokens: Vec<u32> = (0..q.len() as u32).collect();
                tokens.sort_by(|&a, &b| q[b as usize].total_cmp(&q[a as usize]));
                tokens.truncate(children);
                tokens
            };
            round(model, top, AfterReject::TakeOut, Residual::Positive, walk)
        }),
        "wrong: traversal update" => law(|walk| {
            let found = traverse(model, &[], 1.0, (children, ParentUpdate::Simple), walk, &mut 0);
            found.expect("the root is never rejected")
        }),
        other => panic!("no rule named {other}"),
    }
}

#[test]
fn rules_have_the_laws_the_oracle_computes() {
    let record = recorded();
    let mut compared = 0;
    for entry in record["models"].as_array().unwrap() {
        let model = model(&entry["rows"]);
        for line in entry["results"].as_array().unwrap() {
            let rule = line["rule"].as_str().unwrap();
            let law = law_of(rule, line["children"].as_u64().unwrap() as usize, &model);
            let what = format!("{rule}, seed {}", entry["seed"]);
            for pair in line["emitted"].as_array().unwrap() {
                let found = law.emitted.get(&tokens(&pair[0])).copied().unwrap_or(0.0);
                assert!((found - pair[1].as_f64().unwrap()).abs() < TOLERANCE, "{what}: {} has {found}", pair[0]);
                compared += 1;
            }
            assert!((law.length() - line["length"].as_f64().unwrap()).abs() < TOLERANCE, "{what}");
            assert!((law.distance(&model) - line["distance"].as_f64().unwrap()).abs() < TOLERANCE, "{what}");
            if rule.starts_with("wrong: top") {
                assert!(law.distance(&model) > 0.3, "{what}");
            } else if !rule.starts_with("wrong") {
                law.assert_exact(&model, &what);
            }
        }
    }
    assert!(compared > 1000, "{compared} sequences compared");
}

/// Expected tokens on the three toy models, as the specification prints them.
#[test]
fn toy_models_have_their_published_lengths() {
    let record = recorded();
    let expected: [(&str, usize, [f64; 3]); 5] = [
        ("token", 1, [2.12248, 2.29525, 2.48951]),
        ("block", 1, [2.15699, 2.33559, 2.54833]),
        ("sequoia", 2, [2.58779, 2.64721, 2.81751]),
        ("specinfer", 2, [2.32684, 2.53276, 2.71720]),
        ("traversal", 2, [2.62112, 2.70124, 2.85222]),
    ];
    for (rule, children, lengths) in expected {
        for (entry, length) in record["models"].as_array().unwrap().iter().zip(lengths) {
            let found = law_of(rule, children, &model(&entry["rows"])).length();
            assert!((found - length).abs() < 5.1e-6, "{rule}: {found}, expected {length}");
        }
    }
}

#[test]
fn edits_of_sampled_siblings_bend_ratio_rules_only() {
    for line in recorded()["edits"].as_array().unwrap() {
        let (p, q) = (unit(&numbers(&line["p"])), unit(&numbers(&line["q"])));
        let (edit, divide) = (line["edit"].as_str().unwrap(), line["rule"] == "p/q");
        let model = Model::constant(&p, &q, 0);
        let law = law(|walk| {
            let siblings = edited(edit, draw_siblings(&q, 2, AfterReject::TakeOut, (0, walk)), &q);
            if divide {
                return vec![
                    judge_siblings((&p, &q), &siblings, AfterReject::TakeOut, Residual::Positive, (0, walk)).0,
                ];
            }
            let shape = spectrain_core::tree::Tree::new(0, 0, &siblings.iter().map(|&t| (0, t)).collect::<Vec<_>>());
            let tree = shape.unwrap();
            let rows = vec![&p[..]; tree.len()];
            let verdict = spectrain_core::rules::sampled_match::verify(&tree, &rows, &mut OneToken(walk)).unwrap();
            vec![verdict.emitted().next().unwrap()]
        });
        assert_close(&crate::enumerate::first_token(&law, 4), &numbers(&line["output"]), edit);
        let biased = line["distance"].as_f64().unwrap();
        assert!((law.distance(&model) - biased).abs() < TOLERANCE);
        let changes = divide && ["drop improbable second", "drop improbable", "reorder"].contains(&edit);
        assert_eq!(biased > 1e-3, changes, "{edit} under {}", line["rule"]);
    }
}

/// Only the first emitted token is of interest: the draw after an accepted child is not branched on.
struct OneToken<'a>(&'a mut crate::enumerate::Walk);

impl spectrain_core::rules::Chance for OneToken<'_> {
    fn uniform(&mut self, _: spectrain_core::rules::Ask) -> f64 {
        0.5
    }

    fn draw(&mut self, ask: spectrain_core::rules::Ask, row: &[f64]) -> usize {
        if ask.depth == 0 { self.0.draw(ask, row) } else { 0 }
    }
}

fn edited(edit: &str, mut siblings: Vec<u32>, q: &[f64]) -> Vec<u32> {
    let mass = |token: &u32| q[*token as usize];
    match edit {
        "drop second" => siblings.truncate(1),
        "drop improbable second" if mass(&siblings[1]) < 0.25 => siblings.truncate(1),
        "drop improbable" => siblings.retain(|token| mass(token) >= 0.2),
        "reorder" => siblings.sort_by(|a, b| mass(b).total_cmp(&mass(a))),
        _ => {}
    }
    siblings
}

/// Runs the oracle where a Python is at hand, so that the record cannot drift from its script.
#[test]
fn the_record_is_what_the_oracle_prints() {
    match Command::new("python3").arg(format!("{FOLDER}rules.py")).output() {
        Ok(output) => {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert!(printed == recorded(), "run `python3 rules.py > rules.json` and look at what changed");
        }
        Err(missing) => eprintln!("python3 not run ({missing}); the record was compared with the rules only"),
    }
}
