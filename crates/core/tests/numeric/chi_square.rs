//! The chi-square test: tabulated values, published sample sizes, and a bias that it must see.

use spectrain_core::rng::{Key, Purpose, sample_index};
use spectrain_core::stats::StatsError;
use spectrain_core::stats::chi_square::*;
use spectrain_core::stats::special::{gamma_q, ln_gamma};

use crate::vectors::{close, group, numbers};

#[test]
fn gamma_has_its_known_values() {
    close(ln_gamma(0.5), 0.5 * std::f64::consts::PI.ln(), 1e-14);
    close(ln_gamma(1.0), 0.0, 1e-14);
    close(ln_gamma(11.0), 3_628_800f64.ln(), 1e-14);
    close(ln_gamma(101.0), 363.739_375_555_563_5, 1e-14);
    for x in [0.01f64, 0.7, 1.9, 2.1, 30.0, 300.0] {
        let (one, two) = ((-x).exp(), (1.0 + x) * (-x).exp());
        assert!((gamma_q(1.0, x) / one - 1.0).abs() < 1e-12, "x {x}");
        assert!((gamma_q(2.0, x) / two - 1.0).abs() < 1e-12, "x {x}");
    }
    assert_eq!((gamma_q(3.0, 0.0), gamma_q(3.0, f64::INFINITY)), (1.0, 0.0));
    // Median of the distribution with many degrees of freedom, where the two expansions meet.
    close(gamma_q(500.0, 499.666_72), 0.5, 1e-5);
}

#[test]
fn critical_values_are_the_tabulated_ones() {
    let table = [
        (1, 0.05, 3.841_458_820_694),
        (2, 0.05, 5.991_464_547_108),
        (10, 0.05, 18.307_038_053_275),
        (1, 1e-3, 10.827_566_170_663),
        (100, 0.01, 135.806_723_171_027),
    ];
    for (dof, level, expected) in table {
        close(critical_value(dof, level), expected, 1e-10);
        close(survival(expected, dof), level, 1e-10);
    }
}

#[test]
fn sample_sizes_are_the_required_ones() {
    let table = [(1e-3, [31.6, 37.9, 45.4, 55.2]), (1e-6, [52.1, 59.5, 68.5, 80.8])];
    for (level, expected) in table {
        for (dof, lambda) in [1, 3, 7, 15].into_iter().zip(expected) {
            close(noncentrality(dof, level, 0.99), lambda, 0.06 / lambda);
        }
    }
    let bug = group("wrong_residuals");
    let effect = effect_size(&numbers(&bug["resample_from_p"]), &numbers(&bug["p"]));
    close(effect, 0.09, 1e-12);
    let needed = sample_size(effect, 2, 1e-6, 0.99);
    assert!((620.0..=640.0).contains(&needed), "{needed}");
    // A shift of one part in a hundred needs many more.
    let shifted = sample_size(4.1e-4, 2, 1e-6, 0.99);
    assert!((1.3e5..1.5e5).contains(&shifted), "{shifted}");
}

fn counts_of(law: &[f64], samples: u64, request: u64) -> Vec<u64> {
    let mut counts = vec![0; law.len()];
    for position in 0..samples {
        let u = Key::new(21, request, position, Purpose::Target).uniform();
        counts[sample_index(law, u)] += 1;
    }
    counts
}

#[test]
fn the_bias_is_seen_and_the_truth_is_not_blamed() {
    let bug = group("wrong_residuals");
    let (p, biased) = (numbers(&bug["p"]), numbers(&bug["resample_from_p"]));
    let samples = sample_size(effect_size(&biased, &p), 2, 1e-6, 0.99) as u64;
    let runs = 400;
    let rejected = |law: &[f64]| {
        let rejects = |run: &u64| goodness_of_fit(&counts_of(law, samples, *run), &p).unwrap().p_value < 1e-6;
        (0..runs).filter(rejects).count()
    };
    assert_eq!(rejected(&p), 0);
    let power = rejected(&biased) as f64 / runs as f64;
    assert!((0.97..=1.0).contains(&power), "power {power}");
}

#[test]
fn p_values_of_a_true_law_are_uniform() {
    let law = [0.4, 0.3, 0.15, 0.1, 0.05];
    let mut tenths = [0u64; 10];
    for run in 0..2000 {
        let p = goodness_of_fit(&counts_of(&law, 500, 10_000 + run), &law).unwrap().p_value;
        tenths[((10.0 * p) as usize).min(9)] += 1;
    }
    let fit = goodness_of_fit(&tenths, &[0.1; 10]).unwrap();
    assert!(fit.p_value > 1e-6, "{tenths:?}");
}

#[test]
fn rare_outcomes_share_a_bin_and_impossible_ones_refute() {
    let fit = goodness_of_fit(&[90, 6, 1, 3], &[0.9, 0.06, 0.02, 0.02]).unwrap();
    // Expected 90, 6, 2, 2: the two rare ones make 4, and take in the 6.
    assert_eq!(fit.dof, 1);
    close(fit.statistic, 0.0, 1e-12);
    close(fit.p_value, 1.0, 1e-12);
    let refuted = goodness_of_fit(&[50, 49, 1], &[0.5, 0.5, 0.0]).unwrap();
    assert_eq!((refuted.statistic, refuted.p_value), (f64::INFINITY, 0.0));
    assert_eq!(goodness_of_fit(&[3, 2], &[0.5, 0.5]), Err(StatsError::TooFewSamples));
    assert_eq!(goodness_of_fit(&[0, 0], &[0.5, 0.5]), Err(StatsError::TooFewSamples));
    assert!(matches!(goodness_of_fit(&[3], &[0.5, 0.5]), Err(StatsError::Length { .. })));
    assert!(matches!(goodness_of_fit(&[3, 4], &[1.5, -0.5]), Err(StatsError::Range { index: 1, .. })));
}
