//! DSpark: the Markov head, Algorithm 1, and the counter-example to a search without early stop.

use std::collections::HashMap;

use serde_json::Value;
use spectrain_core::loss::{log_space::log_softmax, markov_logits};
use spectrain_core::stats::schedule::{schedule, throughput_curve};

use crate::vectors::{all_close, close, counts, group, matrix, number, numbers};

const DIGITS: f64 = 1e-12;

fn rates(table: &Value) -> impl Fn(usize) -> f64 {
    let table: HashMap<usize, f64> =
        table.as_object().unwrap().iter().map(|(tokens, rate)| (tokens.parse().unwrap(), number(rate))).collect();
    move |tokens| table[&tokens]
}

#[test]
fn group_dspark_scheduler() {
    let case = group("dspark_scheduler");
    let conf = matrix(&case["conf"]);
    let sps = rates(&case["SPS"]);
    all_close(&throughput_curve(&conf, &sps), &numbers(&case["theta_trace"]), DIGITS);
    let found = schedule(&conf, &sps);
    assert_eq!(found.lengths, counts(&case["lengths"]));
    close(found.tokens_per_second, number(&case["theta"]), DIGITS);
}

#[test]
fn group_dspark_appendix_a() {
    let case = group("dspark_appendix_A");
    let sps = rates(&case["SPS"]);
    let conf = |c2: &str| vec![vec![number(&case["a1"]), number(&case[c2])]];
    let high = throughput_curve(&conf("c2_high"), &sps);
    let low = throughput_curve(&conf("c2_low"), &sps);
    let theta = [high[0], high[1], high[2], low[2]];
    all_close(&theta, &numbers(&case["theta"]), DIGITS);

    // Looking past the first candidate that does not pay, the second draft's confidence decides about the first.
    let greatest = |curve: &[f64]| (0..curve.len()).max_by(|&a, &b| curve[a].total_cmp(&curve[b])).unwrap();
    assert_eq!(greatest(&high), number(&case["len_no_early_stop_high"]) as usize);
    assert_eq!(greatest(&low), number(&case["len_no_early_stop_low"]) as usize);
    let stop = number(&case["len_early_stop"]) as usize;
    for c2 in ["c2_high", "c2_low"] {
        assert_eq!(schedule(&conf(c2), &sps).lengths, [stop]);
    }

    // Token 0 is followed by a high confidence and token 1 by a low one.
    let (p, q) = (numbers(&case["p"]), numbers(&case["q"]));
    let output = |verified: [bool; 2]| -> Vec<f64> {
        let mut law = vec![0.0; 2];
        for first in 0..2 {
            if verified[first] {
                let accept = (p[first] / q[first]).min(1.0);
                law[first] += q[first] * accept;
                law[1 - first] += q[first] * (1.0 - accept);
            } else {
                law.iter_mut().zip(&p).for_each(|(l, p)| *l += q[first] * p);
            }
        }
        law
    };
    let searched = output([greatest(&high) > 0, greatest(&low) > 0]);
    all_close(&searched, &numbers(&case["biased_output"]), DIGITS);
    all_close(&output([stop > 0; 2]), &p, DIGITS);
}

#[test]
fn a_flat_rate_verifies_everything_and_a_steep_one_nothing() {
    let conf = vec![vec![0.9, 0.1], vec![0.2]];
    assert_eq!(schedule(&conf, |_| 5.0).lengths, [2, 1]);
    assert_eq!(schedule(&conf, |tokens| 1.0 / (tokens * tokens) as f64).lengths, [0, 0]);
    assert_eq!(schedule(&[], |_| 1.0).tokens_per_second, 0.0);
    let even = vec![vec![0.5, 1.0], vec![0.5]];
    let three = |tokens: usize| if tokens <= 4 { 1.0 } else { 0.0 };
    assert_eq!(schedule(&even, three).lengths, [2, 0], "equals keep the order of requests");
}

fn softmax(logits: &[f64]) -> Vec<f64> {
    log_softmax(logits).into_iter().map(f64::exp).collect()
}

#[test]
fn group_markov_head() {
    let case = group("markov_head");
    let (w1, w2, base) = (matrix(&case["W1"]), matrix(&case["W2"]), matrix(&case["U"]));
    for (token, expected) in matrix(&case["B"]).iter().enumerate() {
        let bias = markov_logits(&[0.0; 3], &w1[token], &w2).unwrap();
        all_close(&bias, expected, DIGITS);
    }
    let anchor = number(&case["anchor"]) as usize;
    let first = softmax(&markov_logits(&base[0], &w1[anchor], &w2).unwrap());
    all_close(&first, &numbers(&case["pos1"]), DIGITS);
    let mut block = 0.0;
    for token in 0..3 {
        let second = softmax(&markov_logits(&base[1], &w1[token], &w2).unwrap());
        all_close(&second, &numbers(&case["pos2_given"][token.to_string()]), DIGITS);
        block += first[token] * second.iter().sum::<f64>();
        if token == 0 {
            close(first[0] * second[1], 0.1291280308, 1e-10);
        }
    }
    close(block, 1.0, DIGITS);
    all_close(&softmax(&base[1]), &numbers(&case["pos2_without"]), DIGITS);
    // Without rank the head is the parallel drafter.
    assert_eq!(markov_logits(&base[1], &[], &[]).unwrap(), base[1]);
    assert!(markov_logits(&base[1], &w1[0], &w2[..1]).is_err());
    assert!(markov_logits(&base[1][..2], &w1[0], &w2).is_err());
}
