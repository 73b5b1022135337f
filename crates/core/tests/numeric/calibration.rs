//! Calibration measures, the confidence loss and sequential temperature scaling.

use spectrain_core::loss::confidence_bce;
use spectrain_core::rng::{Key, Purpose};
use spectrain_core::stats::calibration::*;
use spectrain_core::stats::temperature_scaling::{default_grid, fit, sigmoid};
use spectrain_core::stats::{StatsError, length};

use crate::vectors::{all_close, close, group, number, numbers};

const DIGITS: f64 = 1e-12;

fn logit(p: f64) -> f64 {
    (p / (1.0 - p)).ln()
}

#[test]
fn group_confidence() {
    let case = group("confidence");
    let (pd, pt) = (numbers(&case["pd"]), numbers(&case["pt"]));
    let distance: f64 = pd.iter().zip(&pt).map(|(a, b)| (a - b).abs()).sum();
    let label = number(&case["label"]);
    close(1.0 - 0.5 * distance, label, DIGITS);
    for at in [".5", ".7", ".9"] {
        let found = confidence_bce(logit(at.parse::<f64>().unwrap()), label).unwrap();
        close(found.value, number(&case["bce_at"][at]), DIGITS);
        close(found.gradient, number(&case["grad_logit_at"][at]), DIGITS);
        let least = number(&case["bce_at"][".7"]);
        close(found.excess, found.value - least, DIGITS);
    }
    let survival = length::survival(&numbers(&case["survival_of"]));
    all_close(&survival, &numbers(&case["survival"]), DIGITS);
    close(survival.iter().sum(), number(&case["expected_len"]), DIGITS);
    let far = confidence_bce(-800.0, 1.0).unwrap();
    close(far.value, 800.0, DIGITS);
    assert!(confidence_bce(0.0, 1.1).is_err() && confidence_bce(f64::NAN, 0.5).is_err());
}

#[test]
fn group_calibration() {
    let case = group("calibration");
    let (pred, obs) = (numbers(&case["pred"]), numbers(&case["obs"]));
    let bins = reliability(&pred, &obs, &[0.8, 1.0]).unwrap();
    assert_eq!((bins[0].count, bins[1].count), (2, 4));
    close(bins[1].mean_predicted, 0.9, DIGITS);
    close(bins[1].mean_observed, 0.75, DIGITS);
    close(expected_calibration_error(&bins), number(&case["ece"]), DIGITS);
    close(brier_score(&pred, &obs).unwrap(), number(&case["brier"]), DIGITS);

    // Three of four rows at confidence .9 are accepted: the temperature that maps .9 to .75 is found.
    let logits = vec![logit(0.9); 4];
    let found = fit(&logits, &[1, 1, 1, 0], 1, &default_grid(), &[0.8, 1.0]).unwrap();
    let expected = number(&case["temperature_mapping_0_9_to_0_75"]);
    close(found[0], expected, DIGITS);
    close(sigmoid(logit(0.6) / found[0]), number(&case["maps_0_6_to"]), DIGITS);
}

#[test]
fn bins_are_closed_above() {
    let bins = reliability(&[0.0, 0.25, 0.5, 0.50001, 1.0], &[1.0; 5], &[0.5, 1.0]).unwrap();
    assert_eq!((bins[0].count, bins[1].count), (3, 2));
    assert_eq!(equal_width_edges(4), [0.25, 0.5, 0.75, 1.0]);
    for edges in [&[0.5][..], &[0.5, 0.5, 1.0], &[1.0, 0.5], &[0.0, 1.0], &[]] {
        assert!(reliability(&[0.5], &[1.0], edges).is_err(), "{edges:?}");
    }
    assert!(matches!(brier_score(&[0.5], &[]), Err(StatsError::Length { .. })));
    assert!(matches!(brier_score(&[1.5], &[1.0]), Err(StatsError::Range { .. })));
}

#[test]
fn auroc_counts_ties_half() {
    let positive = [false, true, false, true];
    close(auroc(&[0.1, 0.9, 0.2, 0.8], &positive).unwrap(), 1.0, DIGITS);
    close(auroc(&[0.9, 0.1, 0.8, 0.2], &positive).unwrap(), 0.0, DIGITS);
    close(auroc(&[0.5; 4], &positive).unwrap(), 0.5, DIGITS);
    close(auroc(&[0.5, 0.5, 0.2, 0.1], &positive).unwrap(), 0.375, DIGITS);
    assert_eq!(auroc(&[0.5, 0.6], &[true, true]), None);
}

/// Chains whose true conditional acceptance is `sigmoid(logit / truth[j])`.
fn overconfident(rows: usize, truth: &[f64]) -> (Vec<f64>, Vec<usize>) {
    let (mut logits, mut accepted) = (Vec::new(), Vec::new());
    for row in 0..rows as u64 {
        let key = Key::new(11, row, 0, Purpose::Data);
        let mut alive = true;
        let mut reached = 0;
        for (j, temperature) in truth.iter().enumerate() {
            let value = 6.0 * key.uniform_at(2 * j as u64) - 1.0;
            alive &= key.uniform_at(2 * j as u64 + 1) < sigmoid(value / temperature);
            reached += usize::from(alive);
            logits.push(value);
        }
        accepted.push(reached);
    }
    (logits, accepted)
}

fn prefix_error(logits: &[f64], accepted: &[usize], temperatures: &[f64], position: usize) -> f64 {
    let predicted: Vec<f64> = logits
        .chunks(temperatures.len())
        .map(|row| (0..=position).map(|j| sigmoid(row[j] / temperatures[j])).product())
        .collect();
    let observed: Vec<f64> = accepted.iter().map(|&l| f64::from(u8::from(l > position))).collect();
    let bins = reliability(&predicted, &observed, &equal_width_edges(10)).unwrap();
    expected_calibration_error(&bins)
}

#[test]
fn sequential_scaling_recovers_the_temperatures() {
    let truth = [1.5, 2.5, 2.0];
    let (logits, accepted) = overconfident(20_000, &truth);
    let edges = equal_width_edges(10);
    let found = fit(&logits, &accepted, 3, &default_grid(), &edges).unwrap();
    for (f, t) in found.iter().zip(&truth) {
        assert!((f / t).ln().abs() < 0.15, "found {found:?}, truth {truth:?}");
    }
    let (fresh, outcome) = overconfident(40_000, &truth);
    for position in 0..3 {
        let before = prefix_error(&fresh[60_000..], &outcome[20_000..], &[1.0; 3], position);
        let after = prefix_error(&fresh[60_000..], &outcome[20_000..], &found, position);
        assert!(after < 0.02 && after < before / 3.0, "position {position}: {before} to {after}");
    }
    // Earlier positions do not look at later ones.
    let first: Vec<f64> = logits.iter().copied().step_by(3).collect();
    let reached: Vec<usize> = accepted.iter().map(|&l| l.min(1)).collect();
    assert_eq!(fit(&first, &reached, 1, &default_grid(), &edges).unwrap()[0], found[0]);
}

#[test]
fn scaling_refuses_what_does_not_fit() {
    let edges = [0.5, 1.0];
    assert!(matches!(fit(&[], &[], 1, &[1.0], &edges), Err(StatsError::Empty { .. })));
    assert!(matches!(fit(&[0.0], &[0], 2, &[1.0], &edges), Err(StatsError::Length { .. })));
    assert!(matches!(fit(&[0.0], &[2], 1, &[1.0], &edges), Err(StatsError::Range { .. })));
    assert!(matches!(fit(&[0.0], &[1], 1, &[0.0], &edges), Err(StatsError::Range { .. })));
    assert!(matches!(fit(&[f64::NAN], &[1], 1, &[1.0], &edges), Err(StatsError::Range { .. })));
}
