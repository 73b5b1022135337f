//! Waits on timelines made by hand.

use spectrain_core::stats::latency::{Spread, goodput};
use spectrain_core::stats::{Arrival, Latency, Slo, Timeline};

use crate::vectors::{all_close, close};

fn timeline(admitted: f64, arrivals: &[(f64, usize)]) -> Timeline {
    Timeline { admitted, arrivals: arrivals.iter().map(|&(at, tokens)| Arrival { at, tokens }).collect() }
}

#[test]
fn tokens_of_a_round_come_together() {
    let request = timeline(1.0, &[(1.5, 1), (2.0, 3), (3.0, 1), (3.25, 2)]);
    assert_eq!(request.tokens(), 7);
    close(request.ttft().unwrap(), 0.5, 1e-12);
    close(request.tpot().unwrap(), 1.75 / 6.0, 1e-12);
    all_close(&request.gaps(), &[0.5, 0.0, 0.0, 1.0, 0.25, 0.0], 1e-12);
    let waits = Latency::of(&[request]);
    // The mean between tokens is the time per token, however they come.
    close(waits.itl.unwrap().mean, waits.tpot.unwrap().mean, 1e-12);
    close(waits.queue.unwrap().p50, 1.0, 1e-12);
}

#[test]
fn one_token_has_no_further_one() {
    let single = timeline(0.0, &[(0.25, 1)]);
    assert_eq!((single.tpot(), single.gaps()), (None, vec![]));
    let waits = Latency::of(&[single, timeline(0.0, &[])]);
    assert_eq!((waits.tpot, waits.itl), (None, None));
    assert_eq!((waits.ttft.unwrap().count, waits.queue.unwrap().count), (1, 2));
}

#[test]
fn percentiles_are_between_neighbours() {
    let spread = Spread::of((0..=100).rev().map(f64::from).collect()).unwrap();
    assert_eq!([spread.mean, spread.p50, spread.p95, spread.p99], [50.0, 50.0, 95.0, 99.0]);
    let two = Spread::of(vec![1.0, 0.0]).unwrap();
    all_close(&[two.p50, two.p95, two.p99], &[0.5, 0.95, 0.99], 1e-12);
    assert_eq!(Spread::of(vec![]), None);
}

#[test]
fn goodput_counts_whole_requests_within_both_limits() {
    let fast = timeline(0.0, &[(0.1, 1), (0.2, 2), (0.3, 2)]);
    let late = timeline(0.0, &[(0.9, 1), (1.0, 4)]);
    let slow = timeline(0.0, &[(0.1, 1), (2.1, 4)]);
    let single = timeline(0.0, &[(0.1, 1)]);
    let requests = [fast, late, slow, single];
    let under = |text: &str| goodput(&requests, &text.parse().unwrap(), 2.0);
    close(under("ttft=500ms,tpot=100ms"), 6.0 / 2.0, 1e-12);
    close(under("ttft=500ms"), 11.0 / 2.0, 1e-12);
    close(under("tpot=0.1s"), 11.0 / 2.0, 1e-12);
    close(goodput(&requests, &Slo::default(), 2.0), 16.0 / 2.0, 1e-12);
    close(under("ttft=1ms"), 0.0, 1e-12);
}

#[test]
fn objectives_are_read_or_refused_with_the_form() {
    let read = |text: &str| text.parse::<Slo>().map_err(|e| e.to_string());
    assert_eq!(read("tpot=50ms, ttft=1.5s"), Ok(Slo { ttft: Some(1.5), tpot: Some(0.05) }));
    for (text, cause) in [
        ("", "`` sets no limit"),
        ("ttft", "`ttft` sets no limit"),
        ("itl=5ms", "`itl` is no limit"),
        ("ttft=5", "`5` is no time"),
        ("ttft=-5ms", "`-5ms` is no time"),
        ("ttft=infs", "`infs` is no time"),
        ("ttft=1s,ttft=2s", "`ttft` is set twice"),
    ] {
        let error = read(text).unwrap_err();
        assert!(error.starts_with(cause) && error.contains("ttft=500ms,tpot=50ms"), "{text}: {error}");
    }
}
