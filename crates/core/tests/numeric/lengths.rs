//! Expected tokens, speed-up, best length, and the counted statistics of rounds.

use spectrain_core::stats::acceptance::{Acceptance, Round};
use spectrain_core::stats::{StatsError, length::*};

use crate::vectors::{all_close, close, group, matrix, number, numbers};

const DIGITS: f64 = 1e-12;

#[test]
fn group_expected_tokens() {
    let cases = group("expected_tokens");
    assert_eq!(cases.as_array().unwrap().len(), 20);
    for case in cases.as_array().unwrap() {
        let (a, k) = (number(&case["a"]), number(&case["k"]) as usize);
        let found = expected_tokens_constant(a, k);
        close(found, number(&case["E"]), DIGITS);
        close(found, (1.0 - a.powi(k as i32 + 1)) / (1.0 - a), DIGITS);
    }
    close(expected_tokens_constant(1.0, 7), 8.0, DIGITS);
}

#[test]
fn group_speedup_c_target_over_draft() {
    for case in group("speedup_c_target_over_draft").as_array().unwrap() {
        let (a, k, c) = (number(&case["a"]), number(&case["k"]) as usize, number(&case["c"]));
        close(speedup_constant(a, k, c), number(&case["S"]), DIGITS);
    }
    let round = RoundTime { draft: 15.0, verify: 33.0, state: 2.0 };
    let expected = expected_tokens_constant(0.8, 5);
    close(speedup(expected, 30.0, round), 2.21357, 1e-5);
    close(speedup(expected, 30.0, RoundTime { state: 0.0, ..round }), 2.30580, 1e-5);
}

#[test]
fn group_optimal_k() {
    let cases = group("optimal_k");
    assert_eq!(cases.as_array().unwrap().len(), 30);
    for case in cases.as_array().unwrap() {
        let (a, c) = (number(&case["a"]), number(&case["c"]));
        let k = optimal_length(a, c, 200);
        assert_eq!(k, number(&case["k"]) as usize, "a {a}, c {c}");
        close(speedup_constant(a, k, c), number(&case["S"]), DIGITS);
        let best = (0..200).map(|k| speedup_constant(a, k, c)).fold(0.0, f64::max);
        close(speedup_constant(a, k, c), best, DIGITS);
        // The continuous optimum lies within one token: a^{x+1} (1 - (c + x) ln a) falls through 1.
        let excess = |x: f64| a.powf(x + 1.0) * (1.0 - (c + x) * a.ln()) - 1.0;
        assert!(k == 0 || excess(k as f64 - 1.0) > 0.0, "a {a}, c {c}");
        assert!(excess(k as f64 + 1.0) < 0.0, "a {a}, c {c}");
        assert_eq!(optimal_length(a, c, 1) == 1, a > 1.0 / c, "one draft pays iff a > 1/c");
    }
    assert_eq!(optimal_length(1.0, 10.0, 7), 7);
}

#[test]
fn group_cost_table_depth() {
    let case = group("cost_table_depth");
    let per_token = number(&case["T_draft_per_token"]);
    let verify = numbers(&case["T_verify"]);
    let table = CostTable { draft: (0..verify.len()).map(|k| per_token * k as f64).collect(), verify, state: 0.0 };
    let survival = survival(&numbers(&case["cond"]));
    all_close(&table.rates(&survival), &numbers(&case["rate"]), DIGITS);
    assert_eq!(table.best_length(&survival), number(&case["best_depth"]) as usize);
    // The marginal rule says at each length whether the next is faster.
    let rates = table.rates(&survival);
    let time = |k: usize| table.draft[k] + table.verify[k];
    for k in 1..rates.len() {
        let gain = extends(survival[k - 1], time(k) - time(k - 1), expected_tokens(&survival[..k - 1]), time(k - 1));
        assert_eq!(gain, rates[k] > rates[k - 1]);
    }
}

#[test]
fn a_step_in_the_cost_is_looked_past() {
    let table = CostTable { draft: vec![0.0; 4], verify: vec![10.0, 10.0, 19.0, 19.0], state: 0.0 };
    assert_eq!(table.best_length(&[0.9, 0.8, 0.75]), 1);
    assert_eq!(table.best_length(&[0.95, 0.95, 0.95]), 3, "3.85/19 is above 1.95/10");
    let flat = CostTable { verify: vec![10.0, 16.0, 16.0, 16.0], ..table };
    assert_eq!(flat.best_length(&[0.5, 0.5, 0.5]), 3, "the first draft alone does not pay");
}

#[test]
fn group_aggregation() {
    let case = group("aggregation");
    let contexts = matrix(&case["alpha_by_context"]);
    let length = |alpha: &[f64]| survival(alpha).iter().sum::<f64>();
    let by_context: f64 = contexts.iter().map(|alpha| length(alpha)).sum::<f64>() / 2.0;
    close(by_context, number(&case["mean_of_products"]), DIGITS);
    let means: Vec<f64> = (0..2).map(|j| 0.5 * (contexts[0][j] + contexts[1][j])).collect();
    close(length(&means), number(&case["product_of_means"]), DIGITS);
}

/// 1000 rounds of 3 drafts whose survival is the group's.
fn rounds_of(prefix: &[f64]) -> Vec<Round> {
    let reached: Vec<usize> = prefix.iter().map(|s| (1000.0 * s).round() as usize).collect();
    (0..1000)
        .map(|i| {
            let accepted = reached.iter().filter(|&&count| i < count).count();
            Round { drafted: 3, accepted, committed: accepted + 1 }
        })
        .collect()
}

#[test]
fn group_per_position_semantics() {
    let case = group("per_position_semantics");
    let prefix = numbers(&case["vllm_prefix_rates"]);
    close(expected_tokens(&prefix), number(&case["accept_len"]), DIGITS);
    let cond = numbers(&case["conditional"]);
    all_close(&conditional(&prefix), &cond, DIGITS);
    all_close(&survival(&cond), &prefix, DIGITS);
    let misread = number(&case["wrong_if_read_as_conditional"]);
    close(expected_tokens(&survival(&prefix)), misread, DIGITS);

    let found = Acceptance::of(&rounds_of(&prefix), 3).unwrap();
    close(found.tokens_per_target_call, number(&case["accept_len"]), DIGITS);
    close(found.accepted_per_target_call, number(&case["accept_len"]) - 1.0, DIGITS);
    all_close(&found.accept_prefix, &prefix, DIGITS);
    all_close(&found.accept_cond, &cond, DIGITS);
    assert_eq!(found.accept_len_hist, [367, 229, 140, 264]);
    close(found.accept_rate_draft, 1.301 / 3.0, DIGITS);
    close(found.target_calls_per_output_token, 1.0 / 2.301, DIGITS);
    assert_eq!(found.ratio().numerator, 2301.0);
}

#[test]
fn a_text_that_ends_inside_a_draft_has_no_extra_token() {
    let round = |drafted, accepted, committed| Round { drafted, accepted, committed };
    let found = Acceptance::of(&[round(4, 4, 5), round(4, 2, 2), round(0, 0, 1)], 4).unwrap();
    close(found.tokens_per_target_call, 8.0 / 3.0, DIGITS);
    close(found.accepted_per_target_call, 2.0, DIGITS);
    close(found.accept_prefix.iter().sum(), found.accepted_per_target_call, DIGITS);
    all_close(&found.accept_prefix, &[2.0 / 3.0, 2.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0], DIGITS);
    let plain = Acceptance::of(&[round(0, 0, 1); 5], 0).unwrap();
    close(plain.tokens_per_target_call, 1.0, DIGITS);
    let none = Acceptance::of(&[round(2, 0, 1)], 2).unwrap();
    assert_eq!(none.accept_cond, [0.0], "past an unreached length there is nothing to divide by");
}

#[test]
fn impossible_rounds_are_refused() {
    let round = |drafted, accepted, committed| Round { drafted, accepted, committed };
    assert!(matches!(Acceptance::of(&[], 3), Err(StatsError::Empty { .. })));
    for bad in [round(4, 0, 1), round(2, 3, 4), round(3, 2, 4), round(3, 2, 1), round(3, 0, 0)] {
        let rounds = [round(3, 1, 2), bad];
        let refused = Acceptance::of(&rounds, 3);
        assert!(matches!(refused, Err(StatsError::Range { index: 1, .. })), "{bad:?}");
    }
}
