//! Worked values of the losses of one position.

use serde_json::Value;
use spectrain_core::loss::*;

use crate::vectors::{all_close, close, counts, group, logs, number, numbers};

const DIGITS: f64 = 1e-12;

fn row(p: &[f64], q: &[f64]) -> Row {
    Row::new(&logs(p), &logs(q), None, Temperature::Draft(1.0)).unwrap()
}

fn check_case(case: &Value) {
    let temperature = Temperature::Draft(number(&case["T"]));
    let row = Row::new(&logs(&numbers(&case["p"])), &numbers(&case["z"]), None, temperature).unwrap();
    let q: Vec<f64> = row.log_q().iter().map(|x| x.exp()).collect();
    all_close(&q, &numbers(&case["q"]), DIGITS);
    let overlap = row.overlap();
    close(overlap.alpha(), number(&case["alpha"]), DIGITS);
    close(overlap.log_under.exp(), number(&case["S"]), DIGITS);
    close(overlap.log_over.exp(), 1.0 - number(&case["S"]), DIGITS);
    close(Loss::CrossEntropy.evaluate(&row).unwrap().value, number(&case["ce"]), DIGITS);

    let eta = number(&case["eta"]);
    close(mixing_weight(eta, overlap.alpha()), number(&case["lam"]), DIGITS);
    let mut expected = vec![
        (Loss::TotalVariation, "tv", "grad_tv"),
        (Loss::LkAlpha, "lk_alpha", "grad_lk_alpha"),
        (Loss::Kl, "kl_pq", "grad_kl"),
        (Loss::CrossEntropy, "ce", "grad_kl"),
        (Loss::LkLambda { eta }, "lk_lambda", "grad_lk_lambda"),
    ];
    if case.get("rkl_qp").is_some() {
        expected.push((Loss::ReverseKl, "rkl_qp", "grad_rkl"));
    } else {
        assert_eq!(Loss::ReverseKl.evaluate(&row), Err(LossError::Unbounded));
    }
    for (loss, value, gradient) in expected {
        let found = loss.evaluate(&row).unwrap();
        close(found.value, number(&case[value]), DIGITS);
        all_close(&found.logits, &numbers(&case[gradient]), DIGITS);
    }
}

#[test]
fn group_losses() {
    let cases = group("losses");
    assert_eq!(cases.as_array().unwrap().len(), 6);
    cases.as_array().unwrap().iter().for_each(check_case);
}

#[test]
fn a_temperature_on_both_sides_is_another_number() {
    let (p, q) = ([0.5, 0.3, 0.15, 0.05], [0.25, 0.25, 0.4, 0.1]);
    let row = Row::new(&logs(&p), &logs(&q), None, Temperature::Both(0.7)).unwrap();
    let lk = lk_alpha(&row).unwrap();
    close(row.overlap().alpha(), 0.6005193913, 1e-10);
    close(lk.value, 0.5099603461, 1e-10);
    all_close(&lk.logits, &[-0.2965030966, -0.2965030966, 0.5210899496, 0.0719162436], 1e-10);
    let draft_only = Row::new(&logs(&p), &logs(&q), None, Temperature::Draft(0.7)).unwrap();
    close(draft_only.overlap().alpha(), 0.6731337150, 1e-10);
}

#[test]
fn group_log_space_alpha() {
    let cases = group("log_space_alpha");
    let far = &cases[0];
    let row = Row::new(&numbers(&far["log_p"]), &numbers(&far["log_q"]), None, Temperature::Draft(1.0)).unwrap();
    close(row.overlap().log_alpha, number(&far["log_alpha"]), DIGITS);
    assert_eq!(row.overlap().alpha(), 0.0, "the linear form has nothing left");
    let lk = lk_alpha(&row).unwrap();
    assert!(lk.logits.iter().all(|g| g.is_finite()));
    close(lk.logits.iter().sum(), 0.0, DIGITS);
    assert!(lk.logits[1] < -0.3, "{:?}", lk.logits);

    let cold = &cases[1];
    let size = number(&cold["V"]) as usize;
    let mut target = vec![f64::NEG_INFINITY; size];
    target[77] = 0.0;
    let row = Row::new(&target, &vec![0.0; size], None, Temperature::Draft(1.0)).unwrap();
    let lk = lk_alpha(&row).unwrap();
    close(lk.value, number(&cold["loss"]), DIGITS);
    close(lk.logits[77], number(&cold["grad_target"]), DIGITS);
    close(lk.logits[77], -(1.0 - 1.0 / size as f64), DIGITS);
    assert!(row.overlap().alpha() < 1e-5, "a clamp at 1e-5 would have cut this gradient off");
    let ce = cross_entropy(&row).unwrap();
    all_close(&lk.logits, &ce.logits, DIGITS);
}

#[test]
fn group_kl_vs_alpha_order_flip() {
    let case = group("kl_vs_alpha_order_flip");
    let p = numbers(&case["p"]);
    let rows = ["qA", "qB"].map(|q| row(&p, &numbers(&case[q])));
    let divergences = rows.clone().map(|row| kl(&row).unwrap().value);
    let overlaps = rows.map(|row| row.overlap().alpha());
    all_close(&divergences, &numbers(&case["kl"]), DIGITS);
    all_close(&overlaps, &numbers(&case["alpha"]), DIGITS);
    assert!(divergences[0] < divergences[1] && overlaps[0] < overlaps[1]);
}

#[test]
fn group_mode_order_flip() {
    let case = group("mode_order_flip");
    let p = numbers(&case["p"]);
    let rows = ["qA", "qB"].map(|q| row(&p, &numbers(&case[q])));
    let sampled = rows.clone().map(|row| row.overlap().alpha());
    let target_only = rows.map(|row| (-Loss::Coverage { k: 1 }.evaluate(&row).unwrap().value).exp());
    all_close(&sampled, &numbers(&case["alpha_sampled"]), DIGITS);
    all_close(&target_only, &numbers(&case["alpha_target_only"]), DIGITS);
    assert!(sampled[0] > sampled[1] && target_only[0] < target_only[1]);
}

#[test]
fn group_truncated_vocab() {
    for case in group("truncated_vocab").as_array().unwrap() {
        let (p, ids) = (numbers(&case["p"]), counts(&case["draft_vocab"]));
        let q = logs(&numbers(&case["q"]));
        let row = Row::new(&logs(&p), &q, Some(&ids), Temperature::Draft(1.0)).unwrap();
        close(row.overlap().alpha(), number(&case["alpha_true"]), DIGITS);
        close(total_variation(&row).value, 1.0 - number(&case["alpha_true"]), DIGITS);
        close(row.log_ceiling().exp(), number(&case["ceiling"]), DIGITS);
        let lk = lk_alpha(&row).unwrap();
        all_close(&lk.logits, &numbers(&case["grad_lk_true"]), DIGITS);

        let renormalised = row.log_p_renormalised().unwrap();
        let other = Row::new(&renormalised, &q, None, Temperature::Draft(1.0)).unwrap();
        close(other.overlap().alpha(), number(&case["alpha_renormalised"]), DIGITS);
        // The cross-entropy family renormalises, so it cannot tell the two rows apart.
        for loss in [Loss::CrossEntropy, Loss::Kl, Loss::ReverseKl, Loss::JensenShannon] {
            let (a, b) = (loss.evaluate(&row).unwrap(), loss.evaluate(&other).unwrap());
            close(a.value, b.value, DIGITS);
            all_close(&a.logits, &b.logits, DIGITS);
        }
    }
}

#[test]
fn mixing_weights_fall_with_acceptance() {
    let table = [
        (0.1, [0.904837, 0.740818, 0.367879]),
        (0.5, [0.606531, 0.223130, 0.006738]),
        (0.9, [0.406570, 0.067206, 0.000123]),
    ];
    for (alpha, expected) in table {
        all_close(&[1.0, 3.0, 10.0].map(|eta| mixing_weight(eta, alpha)), &expected, 1e-6);
    }
}

#[test]
fn a_target_outside_the_draft_vocabulary_has_a_metric_and_no_gradient() {
    let target = [f64::NEG_INFINITY, f64::NEG_INFINITY, 0.0];
    let row = Row::new(&target, &[0.0, 1.0], Some(&[0, 1]), Temperature::Draft(1.0)).unwrap();
    assert_eq!(row.overlap().alpha(), 0.0);
    close(total_variation(&row).value, 1.0, DIGITS);
    assert_eq!(total_variation(&row).logits, [0.0, 0.0]);
    for loss in [Loss::LkAlpha, Loss::Kl, Loss::CrossEntropy, Loss::Coverage { k: 2 }] {
        assert_eq!(loss.evaluate(&row), Err(LossError::NoTargetMass));
    }
}

#[test]
fn equal_distributions_lose_nothing() {
    let p = [0.5, 0.3, 0.2];
    let row = row(&p, &p);
    for loss in [
        Loss::Kl,
        Loss::ReverseKl,
        Loss::JensenShannon,
        Loss::TotalVariation,
        Loss::LkAlpha,
        Loss::LkLambda { eta: 3.0 },
    ] {
        let found = loss.evaluate(&row).unwrap();
        close(found.value, 0.0, 1e-15);
        all_close(&found.logits, &[0.0; 3], 1e-15);
    }
}

#[test]
fn a_tie_is_not_under_covered() {
    let nothing = f64::NEG_INFINITY;
    // p = (.5, .5, 0) and q = (.5, 0, .5): token 0 ties, token 1 alone is under-covered, and has no draft mass.
    let row = Row::new(&[0.0, 0.0, nothing], &[0.0, nothing, 0.0], None, Temperature::Draft(1.0)).unwrap();
    assert_eq!(row.overlap().log_under, nothing);
    close(row.overlap().alpha(), 0.5, DIGITS);
    assert_eq!(total_variation(&row).logits, [0.0; 3]);
    assert_eq!(lk_alpha(&row).unwrap().logits, [0.0; 3]);
}

#[test]
fn jensen_shannon_by_its_definition() {
    let (p, q) = ([0.5, 0.3, 0.15, 0.05], [0.25, 0.25, 0.4, 0.1]);
    let middle = |i: usize| 0.5 * (p[i] + q[i]);
    let divergence = |from: &[f64; 4]| -> f64 { (0..4).map(|i| from[i] * (from[i] / middle(i)).ln()).sum() };
    let found = jensen_shannon(&row(&p, &q)).unwrap();
    close(found.value, 0.5 * (divergence(&p) + divergence(&q)), DIGITS);
    let disjoint = jensen_shannon(&row(&[1.0, 0.0], &[0.0, 1.0])).unwrap();
    close(disjoint.value, std::f64::consts::LN_2, DIGITS);
}

#[test]
fn smooth_l1_joins_its_two_branches() {
    let (value, gradient) = smooth_l1(&[0.5, 3.0, -2.0, 1.0], &[0.0, 1.0, 0.0, 1.0]).unwrap();
    close(value, (0.125 + 1.5 + 1.5) / 4.0, DIGITS);
    all_close(&gradient, &[0.125, 0.25, -0.25, 0.0], DIGITS);
}

#[test]
fn dspark_adds_its_terms() {
    let row = row(&[0.5, 0.3, 0.2], &[0.2, 0.5, 0.3]);
    let logit = (0.5f64 / 0.5).ln();
    let found = dspark(&row, Some(1), logit, DsparkWeights::default()).unwrap();
    close(found.terms.cross_entropy, -(0.5f64.ln()), DIGITS);
    close(found.terms.l1, 0.6, DIGITS);
    close(found.terms.confidence, std::f64::consts::LN_2, DIGITS);
    let expected = 0.1 * std::f64::consts::LN_2 + 0.9 * 0.6 + std::f64::consts::LN_2;
    close(found.value, expected, DIGITS);
    close(found.confidence_logit, -0.2, DIGITS);
    // TV gradient: S = .2, so token 0 gets -.2 * .8 and the others q * .2; the L1 term doubles it.
    let by_hand = [0.9 * 2.0 * -0.16 + 0.1 * 0.2, 0.9 * 2.0 * 0.10 + 0.1 * -0.5, 0.9 * 2.0 * 0.06 + 0.1 * 0.3];
    all_close(&found.logits, &by_hand, DIGITS);
    all_close(&block_weights(3, 4.0), &[1.0, 0.7788007831, 0.6065306597], 1e-9);
}

#[test]
fn rows_refuse_what_is_no_distribution() {
    let t = Temperature::Draft(1.0);
    let two = [0.0, 0.0];
    assert!(matches!(Row::new(&[], &two, None, t), Err(LossError::Empty { .. })));
    assert!(matches!(Row::new(&[0.0; 3], &two, None, t), Err(LossError::Length { .. })));
    assert!(matches!(Row::new(&[f64::NAN, 0.0], &two, None, t), Err(LossError::NotLogits { .. })));
    let masked = [f64::NEG_INFINITY; 2];
    assert!(matches!(Row::new(&masked, &two, None, t), Err(LossError::NotLogits { .. })));
    for bad in [0.0, -1.0, f64::NAN] {
        let both = Temperature::Both(bad);
        assert!(matches!(Row::new(&two, &two, None, both), Err(LossError::Range { .. })));
    }
    for ids in [[1, 0], [1, 1], [0, 2]] {
        let index = 1;
        assert_eq!(Row::new(&two, &two, Some(&ids), t), Err(LossError::Vocabulary { index }));
    }
}
