//! The groups of `fixtures/vectors.json` that concern rules, pruning, trees and processors.

use crate::enumerate::{Law, TOLERANCE, Walk, assert_close, first_token, law};
use crate::model::{Model, unit};
use crate::reference::{AfterReject, Residual, judge_siblings};
use crate::rounds::{CHAIN_RULES, Chain, SAMPLED_RULES, chain_round, draft, emitted, grow, sampled_round};
use serde_json::Value;
use spectrain_core::process::{Context, Processors};
use spectrain_core::rng::Purpose;
use spectrain_core::rules::candidate::{CandidateError, Decision, acceptance_probability, verify_candidate};
use spectrain_core::rules::{Ask, Chance, ZeroResidual, sampled_match};
use spectrain_core::tree::Tree;

fn group(name: &str) -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/vectors.json");
    let all: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    all[name].clone()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(f64::NAN) // "nan" is written as a string.
}

fn row(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(number).collect()
}

fn rows(value: &Value) -> Vec<Vec<f64>> {
    value.as_array().unwrap().iter().map(row).collect()
}

fn candidate(line: &Value) -> Result<Decision, CandidateError> {
    let token = line["token"].as_u64().map_or(usize::MAX, |token| token as usize); // -1 has no unsigned form.
    verify_candidate(&row(&line["target"]), &row(&line["draft"]), token, number(&line["uniform"]), ZeroResidual::Strict)
}

#[test]
fn verify_candidate_rows() {
    for line in group("verify_candidate").as_array().unwrap() {
        let token = line["token"].as_u64().unwrap() as usize;
        let probability = acceptance_probability(row(&line["target"])[token], row(&line["draft"])[token]);
        assert!((probability - number(&line["accept_probability"])).abs() < TOLERANCE, "{line}");
        match candidate(line).unwrap() {
            Decision::Accepted => assert_eq!((&line["accept"], &line["residual"]), (&Value::Bool(true), &Value::Null)),
            Decision::Rejected { residual, fallback } => {
                assert_eq!((&line["accept"], fallback), (&Value::Bool(false), false), "{line}");
                assert_close(&residual, &row(&line["residual"]), "residual");
            }
        }
    }
}

#[test]
fn verify_candidate_errors() {
    for line in group("verify_candidate_errors").as_array().unwrap() {
        let error = candidate(line).unwrap_err();
        let said = line["error"].as_str().unwrap();
        let fits = match error {
            CandidateError::Token { .. } => said.starts_with("token must index"),
            CandidateError::Misaligned { .. } => said.contains("aligned"),
            CandidateError::NotProbability { .. } => said.contains("finite and non-negative"),
            CandidateError::NotNormalised { .. } => said.contains("sum to one"),
            CandidateError::Uniform(_) => said.starts_with("uniform"),
            CandidateError::ImpossibleDraft(_) => said.starts_with("draft could not"),
            CandidateError::NoResidual => false,
        };
        assert!(fits, "{error} where {said}");
    }
}

/// Every reference row again through the token rule.
#[test]
fn verify_candidate_rows_by_the_token_rule() {
    for line in group("verify_candidate").as_array().unwrap() {
        let (p, q, token) = (row(&line["target"]), row(&line["draft"]), line["token"].as_u64().unwrap() as u32);
        let mut drawn = Vec::new();
        let mut chance = Recorder { uniform: number(&line["uniform"]), drawn: &mut drawn };
        let proposals = [spectrain_core::rules::Proposal::Sampled(&q)];
        let verdict =
            spectrain_core::rules::token::verify(&[token], &proposals, &[&p, &p], ZeroResidual::Strict, &mut chance)
                .unwrap();
        assert_eq!(verdict.accepted() == 1, line["accept"].as_bool().unwrap(), "{line}");
        let expected = if verdict.accepted() == 1 { p } else { row(&line["residual"]) };
        assert_close(&drawn, &expected, "the row the extra token is drawn from");
    }
}

struct Recorder<'a> {
    uniform: f64,
    drawn: &'a mut Vec<f64>,
}

impl Chance for Recorder<'_> {
    fn uniform(&mut self, _: Ask) -> f64 {
        self.uniform
    }

    fn draw(&mut self, _: Ask, row: &[f64]) -> usize {
        self.drawn.extend_from_slice(row);
        0
    }
}

fn two_step_model() -> Model {
    let vector = group("chain_exact_len");
    let (p2, q2) = (rows(&vector["p2"]), rows(&vector["q2"]));
    Model::from_fn(3, 2, |path| match path {
        [] => (row(&vector["p1"]), row(&vector["q1"])),
        [first, ..] => (p2[*first as usize].clone(), q2[*first as usize].clone()),
    })
}

fn chain_law(model: &Model, rule: usize) -> Law {
    law(|walk| emitted(chain_round(model, Chain::Sampled, CHAIN_RULES[rule].1, |_| false, walk)))
}

#[test]
fn chain_lossless() {
    let (vector, model) = (group("chain_lossless"), two_step_model());
    let law = chain_law(&model, 0);
    law.assert_exact(&model, "token rule");
    let mut joint = vec![0.0; 9];
    law.completed(&model).iter().enumerate().for_each(|(text, mass)| joint[text / 3] += mass);
    assert_close(&joint, &rows(&vector["joint"]).concat(), "law of two tokens");
    let mut lengths = vec![0.0; 3];
    law.emitted.iter().for_each(|(tokens, mass)| lengths[tokens.len() - 1] += mass);
    assert_close(&lengths, &row(&vector["accept_len_pmf"]), "accepted lengths");
}

#[test]
fn chain_exact_len_by_enumeration() {
    let (vector, model) = (group("chain_exact_len"), two_step_model());
    let lengths = [0, 1].map(|rule| chain_law(&model, rule).length() - 1.0);
    assert_close(
        &lengths,
        &[number(&vector["expected_len_exact"]), number(&vector["block_verification_len"])],
        "length",
    );
}

fn one_level(p: &[f64], q: &[f64], mut round: impl FnMut(&mut Walk) -> u32) -> Vec<f64> {
    let model = Model::constant(p, q, 0);
    let law = law(|walk| vec![round(walk)]);
    first_token(&law, model.vocabulary)
}

#[test]
fn wrong_residuals() {
    let vector = group("wrong_residuals");
    let (p, q) = (row(&vector["p"]), row(&vector["q"]));
    for (residual, name) in
        [(Residual::Positive, "correct"), (Residual::WrongSign, "sign_flipped"), (Residual::Target, "resample_from_p")]
    {
        let output = one_level(&p, &q, |walk| {
            let token = draft(&q, 0, walk);
            judge_siblings((&p, &q), &[token], AfterReject::Keep, residual, (0, walk)).0
        });
        assert_close(&output, &row(&vector[name]), name);
    }
    // The misprint keeps the negative parts: no distribution, as `min(p, q) + (p - q)` shows.
    let misprint: Vec<f64> = p.iter().zip(&q).map(|(p, q)| p.min(*q) + (p - q)).collect();
    assert_close(&misprint, &row(&vector["seedA_misprint"]), "misprint");
    assert!(misprint.iter().any(|&mass| mass < 0.0));
    assert_close(&first_token(&chain_law(&Model::constant(&p, &q, 1), 0), 3), &row(&vector["correct"]), "token rule");
}

#[test]
fn anticipating_prune_is_biased() {
    for vector in group("anticipating_prune_is_biased").as_array().unwrap() {
        let (p, q) = (row(&vector["p"]), row(&vector["q"]));
        let threshold = number(&vector["threshold_on_q_of_sampled_token"]);
        let output = one_level(&p, &q, |walk| {
            let token = draft(&q, 0, walk);
            let kept: &[u32] = if q[token as usize] < threshold { &[] } else { &[token] };
            judge_siblings((&p, &q), kept, AfterReject::Keep, Residual::Positive, (0, walk)).0
        });
        assert_close(&output, &row(&vector["biased_output"]), "pruned after drawing");
        // Allowed: stopping after the improbable token, and stopping by the row alone.
        let model = Model::constant(&p, &q, 2);
        let stop = |tokens: &[u32]| tokens.last().is_some_and(|&token| q[token as usize] < threshold);
        let law = law(|walk| emitted(chain_round(&model, Chain::Sampled, CHAIN_RULES[0].1, stop, walk)));
        law.assert_exact(&model, "stopped after including the token");
    }
}

#[test]
fn q_mismatch_is_biased() {
    let vector = group("q_mismatch_is_biased");
    let (p, used, sampled) = (row(&vector["p"]), row(&vector["q_used_in_ratio"]), row(&vector["q_actually_sampled"]));
    let cooled = Processors { temperature: 0.5, ..Processors::default() };
    let mut logits: Vec<f64> = used.iter().map(|q| q.ln()).collect();
    cooled.apply(&mut logits, &Context::default()).unwrap();
    assert_close(&logits, &sampled, "drafted at temperature 0.5");
    let judge = |token: u32, q: &[f64], walk: &mut Walk| {
        judge_siblings((&p, q), &[token], AfterReject::Keep, Residual::Positive, (0, walk)).0
    };
    let output = one_level(&p, &used, |walk| judge(draft(&sampled, 0, walk), &used, walk));
    assert_close(&output, &row(&vector["output"]), "q of another temperature");
    let output = one_level(&p, &used, |walk| judge(1, &used, walk));
    assert_close(&output, &row(&vector["argmax_draft_with_soft_ratio_output"]), "argmax draft with a soft ratio");
    let output = one_level(&p, &used, |walk| judge(draft(&sampled, 0, walk), &sampled, walk));
    assert_close(&output, &p, "the true q");
}

#[test]
fn dspark_appendix_a() {
    let vector = group("dspark_appendix_A");
    let speed: Vec<f64> = ["1", "2", "3"].iter().map(|batch| number(&vector["SPS"][batch])).collect();
    let [a1, high, low] = ["a1", "c2_high", "c2_low"].map(|key| number(&vector[key]));
    let theta = |c2: f64| [speed[0], (1.0 + a1) * speed[1], (1.0 + a1 + a1 * c2) * speed[2]];
    assert_close(&[&theta(high)[..], &theta(low)[2..]].concat(), &row(&vector["theta"]), "theta");
    let length = |c2: f64, early_stop: bool| crate::wrong::scheduled(&[a1, c2], &speed, early_stop) as u64;
    assert_eq!(vector["len_early_stop"], length(high, true));
    assert_eq!(vector["len_early_stop"], length(low, true));
    assert_eq!(vector["len_no_early_stop_high"], length(high, false));
    assert_eq!(vector["len_no_early_stop_low"], length(low, false));
    let (p, q) = (row(&vector["p"]), row(&vector["q"]));
    let output = one_level(&p, &q, |walk| {
        let token = draft(&q, 0, walk);
        let drafted = length(if token == 0 { high } else { low }, false) > 0;
        let kept: &[u32] = if drafted { &[token] } else { &[] };
        judge_siblings((&p, &q), kept, AfterReject::Keep, Residual::Positive, (0, walk)).0
    });
    assert_close(&output, &row(&vector["biased_output"]), "global search");
}

#[test]
fn multi_candidate() {
    let vector = group("multi_candidate");
    let (p, q) = (row(&vector["p"]), row(&vector["q"]));
    let model = Model::constant(&p, &q, 1);
    let accepted = |law: &Law| {
        law.assert_exact(&model, "several candidates");
        law.length() - 1.0
    };
    let fixed: Vec<(usize, u32)> = vector["deterministic_candidates"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| (0, t.as_u64().unwrap() as u32))
        .collect();
    let tree = Tree::new(0, 0, &fixed).unwrap();
    let matched = law(|walk| emitted(crate::rounds::match_round(&model, &tree, walk)));
    assert!((accepted(&matched) - number(&vector["deterministic_accept"])).abs() < TOLERANCE);
    for (index, key) in [(0, "iid_accept"), (1, "without_replacement_accept"), (2, "without_replacement_accept")] {
        let (name, replacement, rule) = SAMPLED_RULES[index];
        for count in 1..=4 {
            let found = accepted(&law(|w| emitted(sampled_round(&model, (replacement, rule), |_| count, w))));
            let expected = number(&vector[key][count.to_string()]);
            assert!((found - expected).abs() < TOLERANCE, "{name} with {count}: {found}, expected {expected}");
        }
    }
}

#[test]
fn mode_order_flip() {
    let vector = group("mode_order_flip");
    let p = row(&vector["p"]);
    for (index, key) in ["qA", "qB"].into_iter().enumerate() {
        let model = Model::constant(&p, &row(&vector[key]), 1);
        let sampled = chain_law(&model, 0).length() - 1.0;
        assert!((sampled - number(&vector["alpha_sampled"][index])).abs() < TOLERANCE);
        let best = Tree::chain(0, 0, &model.ranked(&[])[..1]);
        let matched = law(|walk| emitted(crate::rounds::match_round(&model, &best, walk))).length() - 1.0;
        let point =
            law(|walk| emitted(chain_round(&model, Chain::Argmax, CHAIN_RULES[0].1, |_| false, walk))).length() - 1.0;
        assert_close(&[matched, point], &[number(&vector["alpha_target_only"][index]); 2], "argmax drafts");
    }
}

#[test]
fn processors() {
    let vector = group("processors");
    let logs = |key: &Value| row(key).iter().map(|entry| entry.ln()).collect::<Vec<f64>>();
    let grammar = &vector["grammar"];
    let allowed: Vec<bool> = row(&grammar["mask"]).iter().map(|&bit| bit == 1.0).collect();
    let mask = Context { mask: Some(&allowed), ..Context::default() };
    let (mut p, mut q) = (logs(&grammar["p"]), logs(&grammar["q"]));
    Processors::default().apply(&mut p, &mask).unwrap();
    Processors::default().apply(&mut q, &mask).unwrap();
    assert_close(&p, &row(&grammar["p_masked"]), "masked target");
    assert_accepts(&p, &row(&grammar["q"]), number(&grammar["alpha_unmasked_q"]));
    assert_accepts(&p, &q, number(&grammar["alpha_masked_q"]));

    let top_p = &vector["top_p"];
    let mut p = logs(&top_p["p"]);
    Processors { top_p: 0.8, ..Processors::default() }.apply(&mut p, &Context::default()).unwrap();
    assert_close(&p, &row(&top_p["p_proc"]), "top-p target");
    assert_accepts(&p, &row(&top_p["q"]), number(&top_p["alpha_raw_q"]));
    let kept = unit(&row(&top_p["q"]).iter().zip(row(&top_p["keep"])).map(|(q, keep)| q * keep).collect::<Vec<_>>());
    assert_accepts(&p, &kept, number(&top_p["alpha_proc_q"]));
}

/// The token rule accepts with probability `alpha`, and emits exactly `p` either way.
fn assert_accepts(p: &[f64], q: &[f64], alpha: f64) {
    let model = Model::constant(p, q, 1);
    let law = chain_law(&model, 0);
    law.assert_exact(&model, "processed target");
    assert_close(&first_token(&law, p.len()), p, "output");
    assert!((law.length() - 1.0 - alpha).abs() < TOLERANCE, "{} accepted, expected {alpha}", law.length() - 1.0);
}

/// Sanity of the harness: a tree drawn from q is judged by sampled-match with the same law as any other.
#[test]
fn sampled_trees_are_exact_under_sampled_match() {
    let model = two_step_model();
    let (_, replacement, _) = SAMPLED_RULES[1];
    let law = law(|walk| {
        let sampled = grow(&model, replacement, |_| 2, walk);
        let rows = model.target_rows(sampled.tree());
        emitted(sampled_match::verify(sampled.tree(), &rows, walk).unwrap())
    });
    law.assert_exact(&model, "sampled-match on a sampled tree");
    let ask = Ask { depth: 0, purpose: Purpose::Draft, index: 0 };
    assert_eq!(Walk::default().draw(ask, &[0.0, 1.0]), 1);
}
