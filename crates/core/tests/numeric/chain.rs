//! Multi-step losses: worked values, and the exact length against enumeration.

use spectrain_core::loss::*;
use spectrain_core::rng::{Key, Purpose};

use crate::vectors::{all_close, close, group, logs, matrix, number, numbers};

const DIGITS: f64 = 1e-12;

fn row(p: &[f64], q: &[f64]) -> Row {
    Row::new(&logs(p), &logs(q), None, Temperature::Draft(1.0)).unwrap()
}

#[test]
fn group_e2e_tv() {
    let case = group("e2e_tv");
    let found = length_product(&numbers(&case["alpha"]));
    all_close(&found.prefix, &numbers(&case["prefix"]), DIGITS);
    close(found.length, number(&case["expected_len"]), DIGITS);
    close(1.0 - found.length / 3.0, number(&case["loss"]), DIGITS);
    all_close(&found.weights, &numbers(&case["weights_W"]), DIGITS);
    let slopes: Vec<f64> = found.weights.iter().map(|w| -w / 3.0).collect();
    all_close(&slopes, &numbers(&case["dloss_dalpha"]), DIGITS);
    assert_eq!(length_product(&[0.5, 0.0, 0.5]).weights, [1.0, 0.75, 0.0]);
}

#[test]
fn group_e2e_tv_reversed() {
    for name in ["e2e_tv_reversed", "e2e_tv"] {
        let case = group(name);
        let alpha = numbers(&case["alpha"]);
        let rows: Vec<Row> = alpha.iter().map(|a| row(&[*a, 1.0 - a], &[1.0, 0.0])).collect();
        let found = end_to_end_tv(&rows).unwrap();
        close(found.value, number(&case["loss"]), DIGITS);
        let length = (1.0 - found.value) * alpha.len() as f64;
        close(length, number(&case["expected_len"]), DIGITS);
        let mean_tv = rows.iter().map(|row| total_variation(row).value).sum::<f64>() / 3.0;
        close(mean_tv, number(&case["mean_tv"]), DIGITS);
    }
}

/// The worked two-step chain.
struct Worked {
    p1: Vec<f64>,
    q1: Vec<f64>,
    /// By the first token.
    p2: Vec<Vec<f64>>,
    q2: Vec<Vec<f64>>,
}

fn worked_chain() -> Worked {
    let case = group("chain_exact_len");
    Worked { p1: numbers(&case["p1"]), q1: numbers(&case["q1"]), p2: matrix(&case["p2"]), q2: matrix(&case["q2"]) }
}

fn worked_steps(first: usize) -> Vec<ChainStep> {
    let Worked { p1, q1, p2, q2 } = worked_chain();
    let step = |p: &[f64], q: &[f64], token| ChainStep { row: row(p, q), token: Some(token) };
    vec![step(&p1, &q1, first), step(&p2[first], &q2[first], 0)]
}

#[test]
fn group_chain_exact_len() {
    let case = group("chain_exact_len");
    let Worked { p1, q1, p2, q2 } = worked_chain();
    close(row(&p1, &q1).overlap().alpha(), number(&case["alpha1"]), DIGITS);
    let alpha2: Vec<f64> = (0..3).map(|x| row(&p2[x], &q2[x]).overlap().alpha()).collect();
    all_close(&alpha2, &numbers(&case["alpha2"]), DIGITS);
    let ratios: Vec<f64> = (0..3).map(|x| (q1[x] / p1[x]).min(1.0)).collect();
    all_close(&ratios, &numbers(&case["is_weights"]), DIGITS);

    let estimates: Vec<f64> = (0..3).map(|x| length_of_target_sample(&worked_steps(x))).collect();
    all_close(&estimates, &numbers(&case["per_sample_is_estimate"]), DIGITS);
    let mean = |law: &[f64], values: &[f64]| -> f64 { law.iter().zip(values).map(|(p, v)| p * v).sum() };
    let exact = number(&case["expected_len_exact"]);
    close(mean(&p1, &estimates), exact, DIGITS);
    let own: Vec<f64> = (0..3).map(|x| length_of_draft_sample(&worked_steps(x))).collect();
    close(mean(&q1, &own), exact, DIGITS);

    // Gradients of the length, averaged over the target's token: 2 steps, loss 1 - length/2.
    let gradients: Vec<ChainGradient> = (0..3).map(|x| exact_length(&worked_steps(x)).unwrap()).collect();
    all_close(&averaged(&p1, &gradients), &numbers(&case["grad_len_z1"]), DIGITS);
    for (x, expected) in matrix(&case["grad_len_z2"]).iter().enumerate() {
        let second: Vec<f64> = gradients[x].logits[1].iter().map(|g| -2.0 * p1[x] * g).collect();
        all_close(&second, expected, DIGITS);
    }
}

fn averaged(law: &[f64], gradients: &[ChainGradient]) -> Vec<f64> {
    let entry = |j: usize| law.iter().zip(gradients).map(|(p, g)| -2.0 * p * g.logits[0][j]).sum();
    (0..law.len()).map(entry).collect()
}

#[test]
fn the_unweighted_product_is_another_number() {
    let case = group("chain_exact_len");
    let p1 = worked_chain().p1;
    let products: Vec<ChainGradient> = (0..3)
        .map(|x| end_to_end_tv(&worked_steps(x).into_iter().map(|step| step.row).collect::<Vec<_>>()).unwrap())
        .collect();
    let length: f64 = p1.iter().zip(&products).map(|(p, g)| p * 2.0 * (1.0 - g.value)).sum();
    close(length, number(&case["expected_len_teacher_forced_product"]), DIGITS);
    all_close(&averaged(&p1, &products), &[0.37674, -0.24219, -0.13455], DIGITS);
    let second = [[0.1, -0.07, -0.03], [-0.03648, 0.056544, -0.020064], [-0.018, -0.0216, 0.0396]];
    for x in 0..3 {
        let found: Vec<f64> = products[x].logits[1].iter().map(|g| -2.0 * p1[x] * g).collect();
        all_close(&found, &second[x], DIGITS);
    }
}

/// A random conditional law on `size` tokens, one for each (model, prefix).
fn law(model: u64, prefix: &[usize], size: usize) -> Vec<f64> {
    let address = prefix.iter().fold(1, |code, x| code * size as u64 + *x as u64);
    let key = Key::new(5, model, address, Purpose::Data);
    let raw: Vec<f64> = (0..size as u64).map(|v| -(1.0 - key.uniform_at(v)).ln() + 1e-3).collect();
    let total: f64 = raw.iter().sum();
    raw.into_iter().map(|x| x / total).collect()
}

/// Sums over all chains: exact length, both weighted estimates and the unweighted product.
fn enumerate(model: u64, size: usize, steps: usize) -> [f64; 4] {
    let mut sums = [0.0; 4];
    let chains = size.pow(steps as u32);
    for code in 0..chains {
        let tokens: Vec<usize> = (0..steps).map(|i| code / size.pow(i as u32) % size).collect();
        let (mut by_p, mut by_q, mut by_min) = (1.0, 1.0, 1.0);
        let mut chain = Vec::new();
        for (i, &token) in tokens.iter().enumerate() {
            let p = law(2 * model, &tokens[..i], size);
            let q = law(2 * model + 1, &tokens[..i], size);
            by_p *= p[token];
            by_q *= q[token];
            by_min *= p[token].min(q[token]);
            // P(L > i) is the sum of by_min over chains of i + 1 tokens; each is seen size^(steps-i-1) times.
            sums[0] += by_min / size.pow((steps - i - 1) as u32) as f64;
            chain.push(ChainStep { row: row(&p, &q), token: Some(token) });
        }
        sums[1] += by_p * length_of_target_sample(&chain);
        sums[2] += by_q * length_of_draft_sample(&chain);
        let alpha: Vec<f64> = chain.iter().map(|step| step.row.overlap().alpha()).collect();
        sums[3] += by_p * length_product(&alpha).length;
    }
    sums
}

#[test]
fn both_weighted_estimates_equal_enumeration() {
    let mut worst_product = 0.0f64;
    for model in 0..20 {
        for (size, steps) in [(2, 1), (2, 3), (3, 2), (3, 3), (4, 3)] {
            let [exact, target, draft, product] = enumerate(model, size, steps);
            close(target, exact, DIGITS);
            close(draft, exact, DIGITS);
            worst_product = worst_product.max((product / exact - 1.0).abs());
        }
    }
    assert!(worst_product > 0.05, "the product is biased, here by {worst_product} at most");
}

#[test]
fn a_token_outside_the_draft_vocabulary_ends_the_chain() {
    let step = |token| ChainStep { row: row(&[0.6, 0.4], &[0.4, 0.6]), token };
    close(length_of_target_sample(&[step(None), step(Some(0))]), 0.8, DIGITS);
    let gradient = exact_length(&[step(None), step(Some(0))]).unwrap();
    assert_eq!(gradient.logits[1], [0.0, 0.0]);
    assert!(matches!(exact_length(&[]), Err(LossError::Empty { .. })));
    assert!(matches!(exact_length(&[step(Some(2))]), Err(LossError::Range { .. })));
}
