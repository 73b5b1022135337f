//! Intervals by question: reproducible, of the stated coverage, wider than by round, narrower when paired.

use spectrain_core::rng::{Key, Purpose};
use spectrain_core::stats::StatsError;
use spectrain_core::stats::bootstrap::{Interval, Ratio, Resampling, ratio_of_sums};

use crate::vectors::close;

const PLAN: Resampling = Resampling { resamples: 1000, level: 0.95, seed: 9 };

fn width(interval: Interval) -> f64 {
    interval.high - interval.low
}

/// Questions of unequal length and difficulty; `shift` is added to each question's tokens per call.
fn questions(data: u64, count: u64, shift: f64) -> Vec<Ratio> {
    (0..count)
        .map(|question| {
            let key = Key::new(data, question, 0, Purpose::Data);
            let calls = 20.0 + (60.0 * key.uniform_at(0)).floor();
            let noise = 0.1 * key.uniform_at(2 + (shift > 0.0) as u64);
            Ratio { numerator: calls * (1.0 + 3.0 * key.uniform_at(1) + noise + shift), denominator: calls }
        })
        .collect()
}

#[test]
fn the_estimate_is_a_ratio_of_sums() {
    let ratio = |numerator, denominator| Ratio { numerator, denominator };
    let two = [ratio(10.0, 10.0), ratio(30.0, 10.0), ratio(40.0, 20.0)];
    close(ratio_of_sums(&two), 2.0, 1e-15);
    let found = PLAN.ratio(&two).unwrap();
    close(found.estimate, 2.0, 1e-15);
    assert!(found.low < 2.0 && 2.0 < found.high);
    assert!(found.low >= 1.0 && found.high <= 3.0);
    let one = PLAN.ratio(&two[..1]).unwrap();
    assert_eq!((one.low, one.high), (1.0, 1.0));
}

#[test]
fn a_seed_gives_one_interval() {
    let data = questions(1, 40, 0.0);
    let found = PLAN.ratio(&data).unwrap();
    assert_eq!(found, PLAN.ratio(&data).unwrap());
    let other = Resampling { seed: 10, ..PLAN }.ratio(&data).unwrap();
    assert_ne!(found, other);
    assert!((found.low - other.low).abs() < 0.3 * width(found));
    let wider = Resampling { level: 0.99, ..PLAN }.ratio(&data).unwrap();
    assert!(width(wider) > width(found));
}

#[test]
fn intervals_cover_the_truth_as_often_as_they_say() {
    // Tokens per call are uniform on [1, 4] plus noise of mean .05, independent of the calls.
    let truth = 2.55;
    let sets = 300;
    let hits = (0..sets)
        .filter(|&set| {
            let found = PLAN.ratio(&questions(100 + set, 40, 0.0)).unwrap();
            (found.low..=found.high).contains(&truth)
        })
        .count();
    let coverage = hits as f64 / sets as f64;
    assert!((0.89..=0.98).contains(&coverage), "coverage {coverage}");
}

#[test]
fn rounds_as_units_would_promise_too_much() {
    let data = questions(2, 40, 0.0);
    let by_question = width(PLAN.ratio(&data).unwrap());
    let rounds: Vec<Ratio> = data
        .iter()
        .flat_map(|q| {
            let round = Ratio { numerator: q.numerator / q.denominator, denominator: 1.0 };
            std::iter::repeat_n(round, q.denominator as usize)
        })
        .collect();
    let by_round = width(PLAN.ratio(&rounds).unwrap());
    assert!(by_round < by_question / 3.0, "{by_round} against {by_question}");
}

#[test]
fn pairing_cancels_what_the_questions_share() {
    let (worse, better) = (questions(3, 40, 0.0), questions(3, 40, 0.1));
    let paired = PLAN.paired_difference(&better, &worse).unwrap();
    close(paired.estimate, ratio_of_sums(&better) - ratio_of_sums(&worse), 1e-15);
    assert!(paired.low > 0.0, "{paired:?} shows the gain of .1");
    assert!(paired.low < 0.1 && 0.1 < paired.high + 0.02);
    let alone = width(PLAN.ratio(&better).unwrap());
    assert!(width(paired) < alone / 5.0, "{paired:?} against a width of {alone}");
    let none = PLAN.paired_difference(&worse, &worse).unwrap();
    assert_eq!((none.low, none.estimate, none.high), (0.0, 0.0, 0.0));
}

#[test]
fn a_quotient_is_free_of_what_both_sides_share() {
    let slow = questions(3, 40, 0.0);
    let twice: Vec<Ratio> = slow.iter().map(|q| Ratio { numerator: 2.0 * q.numerator, ..*q }).collect();
    let constant = PLAN.quotient(&twice, &slow).unwrap();
    [constant.low, constant.estimate, constant.high].iter().for_each(|&end| close(end, 2.0, 1e-12));
    let better = PLAN.quotient(&questions(3, 40, 0.1), &slow).unwrap();
    close(better.estimate, ratio_of_sums(&questions(3, 40, 0.1)) / ratio_of_sums(&slow), 1e-15);
    assert!(1.0 < better.low && better.low < better.estimate && better.estimate < better.high, "{better:?}");
}

#[test]
fn what_cannot_be_resampled_is_refused() {
    let good = questions(4, 3, 0.0);
    let empty = Ratio { numerator: 0.0, denominator: 0.0 };
    assert!(matches!(PLAN.ratio(&[]), Err(StatsError::Empty { .. })));
    assert!(matches!(PLAN.ratio(&[good[0], empty]), Err(StatsError::Range { index: 1, .. })));
    assert!(matches!(PLAN.paired_difference(&good, &good[..2]), Err(StatsError::Length { .. })));
    assert!(Resampling { resamples: 0, ..PLAN }.ratio(&good).is_err());
    assert!(Resampling { level: 1.0, ..PLAN }.ratio(&good).is_err());
}
