//! The worked vectors, read from the fixture, and the check that no group of them is left out.

use serde_json::Value;

/// Groups that this test binary checks.
const NUMERIC: [&str; 19] = [
    "losses",
    "log_space_alpha",
    "kl_vs_alpha_order_flip",
    "mode_order_flip",
    "truncated_vocab",
    "expected_tokens",
    "speedup_c_target_over_draft",
    "optimal_k",
    "chain_exact_len",
    "e2e_tv",
    "e2e_tv_reversed",
    "dspark_appendix_A",
    "dspark_scheduler",
    "markov_head",
    "confidence",
    "calibration",
    "aggregation",
    "per_position_semantics",
    "cost_table_depth",
];

/// Groups about verification rules, trees and processors, which the exact enumeration tests check.
const EXACT: [&str; 8] = [
    "verify_candidate",
    "verify_candidate_errors",
    "chain_lossless",
    "wrong_residuals",
    "anticipating_prune_is_biased",
    "q_mismatch_is_biased",
    "multi_candidate",
    "processors",
];

/// The named group of the fixture.
pub fn group(name: &str) -> Value {
    all()[name].clone()
}

fn all() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/vectors.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// A number of the fixture.
pub fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("no number: {value}"))
}

/// A list of numbers of the fixture.
pub fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(number).collect()
}

/// A list of lists of numbers of the fixture.
pub fn matrix(value: &Value) -> Vec<Vec<f64>> {
    value.as_array().unwrap().iter().map(numbers).collect()
}

/// A list of counts of the fixture.
pub fn counts(value: &Value) -> Vec<usize> {
    numbers(value).into_iter().map(|x| x as usize).collect()
}

/// Natural logarithms; negative infinity for zeros.
pub fn logs(probabilities: &[f64]) -> Vec<f64> {
    probabilities.iter().map(|p| p.ln()).collect()
}

/// Asserts that two numbers agree to `tolerance`, absolutely and relative to the expected one if that is above 1.
#[track_caller]
pub fn close(found: f64, expected: f64, tolerance: f64) {
    let allowed = tolerance * expected.abs().max(1.0);
    assert!((found - expected).abs() <= allowed, "{found} is not {expected} to {tolerance}");
}

/// Asserts that two lists agree entry by entry.
#[track_caller]
pub fn all_close(found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    for (index, (f, e)) in found.iter().zip(expected).enumerate() {
        assert!(
            (f - e).abs() <= tolerance * e.abs().max(1.0),
            "entry {index}: {found:?} is not {expected:?} to {tolerance}"
        );
    }
}

#[test]
fn every_group_is_checked_somewhere() {
    let vectors = all();
    let mut found: Vec<&str> = vectors.as_object().unwrap().keys().map(String::as_str).collect();
    let mut listed: Vec<&str> = NUMERIC.into_iter().chain(EXACT).collect();
    found.sort_unstable();
    listed.sort_unstable();
    assert_eq!(found.len(), 27);
    assert_eq!(found, listed);
}
