//! The offline estimate per round against the exact long-run value on Markov targets.

use spectrain_core::rng::{Key, Purpose, sample_index};
use spectrain_core::stats::StatsError;
use spectrain_core::stats::bootstrap::{Ratio, ratio_of_sums};
use spectrain_core::stats::renewal::{deterministic, sampled_chain};

use crate::vectors::close;

const STATES: usize = 4;
type Law = [[f64; STATES]; STATES];

/// A target that stays in an easy (0, 1) or a hard (2, 3) regime, and a drafter of another quality in each.
fn regimes(stay: f64, easy: f64, hard: f64) -> (Law, Law) {
    let (mut p, mut q) = ([[0.0; STATES]; STATES], [[0.0; STATES]; STATES]);
    for state in 0..STATES {
        let own = state / 2;
        p[state] = [(1.0 - stay) / 2.0; STATES];
        p[state][2 * own] = 0.85 * stay;
        p[state][2 * own + 1] = 0.15 * stay;
        let quality = if own == 0 { easy } else { hard };
        for next in 0..STATES {
            q[state][next] = quality * p[state][next] + (1.0 - quality) * p[state][next ^ 1];
        }
    }
    (p, q)
}

fn times(law: &[f64; STATES], kernel: &Law) -> [f64; STATES] {
    std::array::from_fn(|to| (0..STATES).map(|from| law[from] * kernel[from][to]).sum())
}

/// Committed tokens per round under the stationary law of round starts, by linear algebra alone.
fn exact_per_round(p: &Law, q: &Law, length: usize) -> f64 {
    let map = |f: fn(f64, f64) -> f64| -> Law { std::array::from_fn(|s| std::array::from_fn(|x| f(p[s][x], q[s][x]))) };
    let (accepted, residual) = (map(f64::min), map(|p, q| (p - q).max(0.0)));
    // From each start: law of the state that the round ends in, and its expected tokens.
    let mut ends = [[0.0; STATES]; STATES];
    let mut tokens = [1.0; STATES];
    for start in 0..STATES {
        let mut reach = [0.0; STATES];
        reach[start] = 1.0;
        for _ in 0..length {
            let rejected = times(&reach, &residual);
            reach = times(&reach, &accepted);
            tokens[start] += reach.iter().sum::<f64>();
            (0..STATES).for_each(|x| ends[start][x] += rejected[x]);
        }
        let extra = times(&reach, p);
        (0..STATES).for_each(|x| ends[start][x] += extra[x]);
    }
    let mut law = [0.25; STATES];
    for _ in 0..20_000 {
        law = times(&law, &ends);
    }
    (0..STATES).map(|s| law[s] * tokens[s]).sum()
}

/// Renewal parts of one text, and the mean over its rows of the expected tokens of a round that starts there.
fn estimate(p: &Law, q: &Law, length: usize, tokens: usize, text: u64) -> (Ratio, f64) {
    let mut states = vec![0];
    for t in 0..tokens {
        let u = Key::new(3, text, t as u64, Purpose::Target).uniform();
        states.push(sample_index(&p[states[t]], u));
    }
    let step = |law: &Law, t: usize| law[states[t]][states[t + 1]];
    let log_p: Vec<f64> = (0..tokens).map(|t| step(p, t).ln()).collect();
    let log_step: Vec<f64> = (0..tokens).map(|t| step(q, t).ln()).collect();
    let past = f64::NAN; // entries past the text are not read
    let log_q: Vec<f64> =
        (0..tokens * length).map(|i| log_step.get(i / length + i % length).copied().unwrap_or(past)).collect();
    let overlap: [f64; STATES] = std::array::from_fn(|s| (0..STATES).map(|x| p[s][x].min(q[s][x])).sum());
    let mut sum = 0.0;
    for t in 0..tokens - length {
        let mut reach = 1.0;
        sum += 1.0;
        for i in t..t + length {
            sum += reach * overlap[states[i]];
            reach *= (log_step[i] - log_p[i]).min(0.0).exp();
        }
    }
    let renewal = sampled_chain(&log_p, &log_q, length).unwrap();
    let mean = sum / (tokens - length) as f64;
    close(ratio_of_sums(&[renewal.every_row]), mean, 0.01 * mean);
    (renewal.all_rounds, mean)
}

#[test]
fn the_estimate_is_the_exact_length_per_round() {
    const TOKENS: usize = 100_000;
    // Longer regimes vary more: they need more text.
    for (stay, easy, hard, length, texts, exact_to_3) in
        [(0.95, 0.95, 0.3, 5, 30, 3.048), (0.9, 0.9, 0.2, 7, 30, 3.073), (0.98, 1.0, 0.0, 5, 80, 2.350)]
    {
        let (p, q) = regimes(stay, easy, hard);
        let exact = exact_per_round(&p, &q, length);
        close(exact, exact_to_3, 5e-4);
        let (parts, means): (Vec<Ratio>, Vec<f64>) =
            (0..texts).map(|text| estimate(&p, &q, length, TOKENS, text)).unzip();
        let found = ratio_of_sums(&parts);
        assert!((found / exact - 1.0).abs() < 0.005, "{found} against {exact}");
        let mean = means.iter().sum::<f64>() / means.len() as f64;
        assert!((mean / exact - 1.0).abs() > 0.005, "the mean over rows must fail: {mean} against {exact}");
        assert!(mean > 1.15 * exact, "it is far above: {mean} against {exact}");
    }
}

/// Expected (rounds, complete rounds, tokens in complete rounds) from position `t` on, by recursion over outcomes.
fn brute_force(ratio: &dyn Fn(usize, usize) -> f64, n: usize, length: usize, t: usize) -> [f64; 3] {
    if t >= n {
        return [0.0; 3];
    }
    let mut sums = [1.0, 0.0, 0.0];
    let mut reach = 1.0;
    for accepted in 0..=length {
        let end = t + accepted + 1;
        if end > n {
            break; // all that is left accepts the last token as a draft: the text cuts the round
        }
        let accept = if accepted < length { ratio(t, accepted) } else { 0.0 };
        let mass = reach * (1.0 - accept);
        let rest = brute_force(ratio, n, length, end);
        (0..3).for_each(|i| sums[i] += mass * rest[i]);
        sums[1] += mass;
        sums[2] += mass * (accepted + 1) as f64;
        reach *= accept;
    }
    sums
}

#[test]
fn steps_of_a_round_may_see_different_drafts() {
    for (n, length) in [(1, 3), (6, 0), (9, 1), (11, 3), (3, 5)] {
        let log_p: Vec<f64> = (0..n).map(|t| -1.0 - (t % 3) as f64).collect();
        let log_q: Vec<f64> =
            (0..n * length).map(|i| -4.0 * Key::new(1, 0, i as u64, Purpose::Data).uniform()).collect();
        let found = sampled_chain(&log_p, &log_q, length).unwrap();
        let ratio = |t: usize, i: usize| (log_q[t * length + i] - log_p[t + i]).exp().min(1.0);
        let [rounds, complete, tokens] = brute_force(&ratio, n, length, 0);
        close(found.all_rounds.numerator, n as f64, 0.0);
        close(found.all_rounds.denominator, rounds, 1e-12);
        close(found.complete_rounds.denominator, complete, 1e-12);
        close(found.complete_rounds.numerator, tokens, 1e-12);
    }
}

#[test]
fn limits_of_a_perfect_and_a_useless_drafter() {
    let log_p = vec![-1.0; 12];
    let same = sampled_chain(&log_p, &[-1.0; 36], 3).unwrap();
    assert_eq!(same.all_rounds, Ratio { numerator: 12.0, denominator: 3.0 });
    assert_eq!(same.complete_rounds, same.all_rounds);
    let never = sampled_chain(&log_p, &[f64::NEG_INFINITY; 36], 3).unwrap();
    assert_eq!(never.all_rounds, Ratio { numerator: 12.0, denominator: 12.0 });
    assert_eq!(never.starts, [1.0; 12]);
    assert_eq!(never.every_row, never.complete_rounds);
    // A perfect drafter commits 4 from each of the 9 rows that have room for it.
    assert_eq!(same.every_row, Ratio { numerator: 36.0, denominator: 9.0 });
}

#[test]
fn deterministic_proposals_jump_over_what_matches() {
    // Starts after 0, 3, 4 and 7 tokens; the last round reaches past the end.
    let found = deterministic(&[2, 9, 9, 0, 2, 9, 9, 5]).unwrap();
    assert_eq!(found.starts, [1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0]);
    assert_eq!(found.all_rounds, Ratio { numerator: 8.0, denominator: 4.0 });
    assert_eq!(found.complete_rounds, Ratio { numerator: 7.0, denominator: 3.0 });
    // A start after every token: those after 0, 3 and 4 fit into the text.
    assert_eq!(found.every_row, Ratio { numerator: 7.0, denominator: 3.0 });
    assert!(deterministic(&[]).is_err());
}

#[test]
fn texts_that_are_no_samples_are_refused() {
    let infinite = f64::NEG_INFINITY;
    assert!(matches!(sampled_chain(&[], &[], 3), Err(StatsError::Empty { .. })));
    assert!(matches!(sampled_chain(&[-1.0], &[-1.0; 2], 3), Err(StatsError::Length { .. })));
    let impossible = sampled_chain(&[-1.0, infinite], &[-1.0; 2], 1);
    assert!(matches!(impossible, Err(StatsError::Range { what: "log_p", index: 1, .. })));
    let unknown = sampled_chain(&[-1.0; 2], &[-1.0, -1.0, f64::NAN, -1.0], 2);
    assert!(matches!(unknown, Err(StatsError::Range { what: "log_q", index: 2, .. })));
}
