//! Losses under temperature and truncation, and targets known by some tokens only.

use crate::vectors::{group, number, numbers};
use proptest::prelude::*;
use spectrain_core::loss::*;

const STEP: f64 = 1e-5;
const TIE: f64 = 1e-3;

fn logs(row: &[f64]) -> Vec<f64> {
    row.iter().map(|x| x.ln()).collect()
}

/// Finite under truncation: the divergences are infinite where one kept set has a token that the other has not.
const LOSSES: [Loss; 3] = [Loss::LkAlpha, Loss::TotalVariation, Loss::JensenShannon];

#[test]
fn the_worked_vector_of_top_p() {
    let case = &group("processors")["top_p"];
    let (p, q) = (logs(&numbers(&case["p"])), logs(&numbers(&case["q"])));
    let policy = Policy { top_p: 0.65, ..Policy::default() };
    let both = Row::under(&policy, &p, &q, None).unwrap();
    assert!((both.overlap().alpha() - number(&case["alpha_proc_q"])).abs() < 1e-12);
    let processed: Vec<f64> = both.log_p().iter().map(|x| x.exp()).collect();
    processed.iter().zip(numbers(&case["p_proc"])).for_each(|(a, b)| assert!((a - b).abs() < 1e-12));
    // The same target against the drafter as it is.
    let raw = Row::new(&logs(&numbers(&case["p_proc"])), &q, None, Temperature::Both(1.0)).unwrap();
    assert!((raw.overlap().alpha() - number(&case["alpha_raw_q"])).abs() < 1e-12);
}

#[test]
fn no_policy_is_the_plain_row_and_a_temperature_the_tempered_one() {
    let (p, q) = ([0.3, -1.0, 0.8], [1.0, 0.1, -0.4]);
    for t in [1.0, 0.7] {
        let plain = Row::new(&p, &q, None, Temperature::Both(t)).unwrap();
        assert_eq!(Row::under(&Policy::at(t), &p, &q, None).unwrap(), plain);
    }
    assert!(Policy::default().is_none() && !Policy::at(0.5).truncates());
}

#[test]
fn disjoint_kept_sets_accept_nothing_and_still_teach() {
    let (p, q) = ([3.0, 1.0, 0.0], [0.0, 1.0, 3.0]);
    let policy = Policy { top_k: 1, ..Policy::default() };
    let row = Row::under(&policy, &p, &q, None).unwrap();
    assert_eq!(row.overlap().alpha(), 0.0);
    let found = Loss::LkAlpha.evaluate_under(&policy, &p, &q, None).unwrap();
    let certain = token_cross_entropy(&Row::new(&p, &q, None, Temperature::Both(1.0)).unwrap(), 0).unwrap();
    assert!((found.value - certain.value).abs() < 1e-12);
    assert!(found.logits[0] < -0.5, "{:?}", found.logits);
    assert!(matches!(Loss::Kl.evaluate_under(&policy, &p, &q, None), Err(LossError::Unbounded)));
}

fn policy() -> impl Strategy<Value = Policy> {
    (0.5..2.0, 0usize..6, 0.5..1.0, 0.0..0.2, 0u8..4).prop_map(
        |(temperature, top_k, top_p, min_p, which)| match which {
            0 => Policy::at(temperature),
            1 => Policy { temperature, top_k, ..Policy::default() },
            2 => Policy { temperature, top_p, ..Policy::default() },
            _ => Policy { temperature, top_k, top_p, min_p },
        },
    )
}

fn rows() -> impl Strategy<Value = (Vec<f64>, Vec<f64>)> {
    (3usize..10).prop_flat_map(|n| (prop::collection::vec(-3.0..3.0, n), prop::collection::vec(-3.0..3.0, n)))
}

proptest! {
    /// The kept sets are held fixed, so the differences must not cross one of their borders.
    #[test]
    fn gradients_are_those_of_the_value(policy in policy(), (p, q) in rows()) {
        let near = |x: &[f64], y: &[f64]| x.iter().zip(y).any(|(a, b)| (a - b).abs() < TIE);
        let row = Row::under(&policy, &p, &q, None).unwrap();
        prop_assume!(!near(row.log_p(), row.log_q()));
        let set = |q: &[f64]| -> Vec<bool> {
            Row::under(&policy, &p, q, None).unwrap().log_q().iter().map(|x| x.is_finite()).collect()
        };
        for loss in LOSSES {
            let Ok(found) = loss.evaluate_under(&policy, &p, &q, None) else { continue };
            for j in 0..q.len() {
                let moved = |by: f64| { let mut q = q.clone(); q[j] += by; q };
                prop_assume!(set(&moved(STEP)) == set(&q) && set(&moved(-STEP)) == set(&q));
                let value = |by: f64| loss.evaluate_under(&policy, &p, &moved(by), None).unwrap().value;
                let slope = (value(STEP) - value(-STEP)) / (2.0 * STEP);
                prop_assert!((slope - found.logits[j]).abs() < 2e-7, "{loss:?}: {slope} for {}", found.logits[j]);
            }
        }
    }

    /// What is left out of a target moves the overlap by no more than the smaller tail.
    #[test]
    fn the_likeliest_tokens_bound_the_overlap((p, q) in rows(), m in 1usize..9) {
        let whole = Row::new(&p, &q, None, Temperature::Both(1.0)).unwrap();
        let mut order: Vec<usize> = (0..p.len()).collect();
        order.sort_by(|&a, &b| whole.log_p()[b].total_cmp(&whole.log_p()[a]));
        order.truncate(m);
        let known: Vec<(usize, f64)> = order.iter().map(|&v| (v, whole.log_p()[v])).collect();
        let row = Row::of_known(&known, &q).unwrap();
        let tail = |logs: &[f64]| 1.0 - order.iter().map(|&v| logs[v].exp()).sum::<f64>();
        let lost = whole.overlap().alpha() - row.overlap().alpha();
        let bound = tail(whole.log_p()).min(tail(whole.log_q()));
        prop_assert!(lost > -1e-12 && lost < bound + 1e-12, "{lost} of {bound}");
    }
}

#[test]
fn a_certain_target_makes_lk_the_token_s_cross_entropy() {
    let q = [0.4, -1.2, 0.9, 0.0];
    let row = Row::of_known(&[(2, 0.0)], &q).unwrap();
    let (lk, ce) = (lk_alpha(&row).unwrap(), token_cross_entropy(&row, 2).unwrap());
    assert!((lk.value - ce.value).abs() < 1e-12);
    lk.logits.iter().zip(&ce.logits).for_each(|(a, b)| assert!((a - b).abs() < 1e-12));
    assert!(Row::of_known(&[(4, 0.0)], &q).is_err());
    assert!(Row::of_known(&[(0, 0.0), (1, 0.0)], &q).is_err());
}
