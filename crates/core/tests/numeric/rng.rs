//! The keyed counter generator: published answers, uniformity over every part of the address, inverse sampling.

use spectrain_core::rng::{Key, Purpose, philox4x64, sample_index};
use spectrain_core::stats::chi_square::goodness_of_fit;

const PURPOSES: [Purpose; 9] = [
    Purpose::Target,
    Purpose::Draft,
    Purpose::Accept,
    Purpose::Residual,
    Purpose::Bonus,
    Purpose::Data,
    Purpose::Init,
    Purpose::Noise,
    Purpose::Bootstrap,
];

/// The known-answer file of the Random123 distribution, philox4x64 with 10 rounds.
#[test]
fn philox_gives_the_published_answers() {
    let ones = u64::MAX;
    let cases = [
        ([0; 4], [0; 2], [0x16554d9eca36314c, 0xdb20fe9d672d0fdc, 0xd7e772cee186176b, 0x7e68b68aec7ba23b]),
        ([ones; 4], [ones; 2], [0x87b092c3013fe90b, 0x438c3c67be8d0224, 0x9cc7d7c69cd777b6, 0xa09caebf594f0ba0]),
        (
            [0x243f6a8885a308d3, 0x13198a2e03707344, 0xa4093822299f31d0, 0x082efa98ec4e6c89],
            [0x452821e638d01377, 0xbe5466cf34e90c6c],
            [0xa528f45403e61d95, 0x38c72dbd566e9788, 0xa5a1610e72fd18b5, 0x57bd43b5e52b7fe6],
        ),
    ];
    for (counter, key, expected) in cases {
        assert_eq!(philox4x64(counter, key), expected);
    }
}

#[test]
fn a_key_is_a_value() {
    let key = Key::new(7, 3, 11, Purpose::Accept);
    assert_eq!(key.uniform(), key.uniform_at(0));
    assert_eq!(key.uniform_at(9), Key::new(7, 3, 11, Purpose::Accept).uniform_at(9));
    let draws: Vec<f64> = (0..8).map(|index| key.uniform_at(index)).collect();
    assert!(draws.iter().all(|u| (0.0..1.0).contains(u)));
    assert!(draws.windows(2).all(|pair| pair[0] != pair[1]));
}

#[test]
fn sampling_never_returns_an_entry_without_mass() {
    let p = [0.0, 0.25, 0.0, 0.75, 0.0];
    assert_eq!(sample_index(&p, 0.0), 1);
    assert_eq!(sample_index(&p, 0.25_f64.next_down()), 1);
    assert_eq!(sample_index(&p, 0.25), 3);
    assert_eq!(sample_index(&p, 1.0_f64.next_down()), 3);
    let short = [0.1; 9];
    assert_eq!(sample_index(&short, 0.95), 8, "run-off takes the last positive entry");
}

/// Two-sided check that pairs of uniforms fill a 16 x 16 grid evenly, neither too badly nor too well.
fn pairs_are_uniform(pairs: impl Iterator<Item = (f64, f64)>, what: &str) {
    const SIDE: usize = 16;
    let mut cells = vec![0u64; SIDE * SIDE];
    for (a, b) in pairs {
        cells[(a * SIDE as f64) as usize * SIDE + (b * SIDE as f64) as usize] += 1;
    }
    let fit = goodness_of_fit(&cells, &vec![1.0; SIDE * SIDE]).unwrap();
    let plausible = 1e-6..1.0 - 1e-6;
    assert!(plausible.contains(&fit.p_value), "{what}: p-value {}", fit.p_value);
}

/// Neighbours that differ in one part of the address only, and low-entropy addresses throughout.
#[test]
fn neighbours_in_one_part_of_the_address_are_independent() {
    const DRAWS: u64 = 1 << 16;
    type Draw = fn(u64) -> f64;
    let axes: [(&str, Draw); 5] = [
        ("seed", |i| Key::new(i, 0, 0, Purpose::Target).uniform()),
        ("request", |i| Key::new(0, i, 0, Purpose::Target).uniform()),
        ("position", |i| Key::new(0, 0, i, Purpose::Target).uniform()),
        ("index", |i| Key::new(0, 0, 0, Purpose::Target).uniform_at(i)),
        ("high bits", |i| Key::new(0, 0, i << 40, Purpose::Target).uniform()),
    ];
    for (axis, draw) in axes {
        pairs_are_uniform((0..DRAWS).map(|i| (draw(i), draw(i + 1))), axis);
    }
    pairs_are_uniform(
        (0..DRAWS).map(|i| {
            let u = |request, position| Key::new(1, request, position, Purpose::Accept).uniform();
            (u(i, i + 1), u(i + 1, i))
        }),
        "request and position exchanged",
    );
}

#[test]
fn purposes_are_independent_of_each_other() {
    for (i, &first) in PURPOSES.iter().enumerate() {
        for &second in &PURPOSES[..i] {
            let draw = |position, purpose| Key::new(0, 0, position, purpose).uniform();
            let pairs = (0..1 << 14).map(|position| (draw(position, first), draw(position, second)));
            pairs_are_uniform(pairs, &format!("{first:?} and {second:?}"));
        }
    }
}

#[test]
fn integers_are_uniform_and_in_range() {
    let mut counts = [0u64; 7];
    for i in 0..70_000 {
        counts[Key::new(2, 0, 0, Purpose::Bootstrap).below_at(i, 7)] += 1;
    }
    let fit = goodness_of_fit(&counts, &[1.0; 7]).unwrap();
    assert!(fit.p_value > 1e-6, "{counts:?}");
}

#[test]
fn sampling_follows_the_law() {
    let law = [0.5, 0.0, 0.3, 0.2];
    let mut counts = [0u64; 4];
    for position in 0..50_000 {
        counts[sample_index(&law, Key::new(4, 0, position, Purpose::Target).uniform())] += 1;
    }
    assert!(goodness_of_fit(&counts, &law).unwrap().p_value > 1e-6, "{counts:?}");
}

#[test]
fn the_race_follows_the_law_and_its_arrivals() {
    let law = [0.5, 0.0, 3e-3, 0.3, 0.197];
    let mut counts = [0u64; 5];
    for position in 0..200_000 {
        let key = Key::new(4, 0, position, Purpose::Target);
        let winner = key.race(1, &law);
        counts[winner] += 1;
        let first = |i: &usize| key.arrival(1, *i, law[*i]);
        let earliest = [0, 2, 3, 4].into_iter().min_by(|a, b| first(a).total_cmp(&first(b)));
        assert_eq!(Some(winner), earliest);
    }
    assert!(goodness_of_fit(&counts, &law).unwrap().p_value > 1e-6, "{counts:?}");
}

/// Successive draws of one request, and equal positions of neighbouring requests, are independent.
#[test]
fn races_are_independent() {
    let cell = |key: Key| key.race(0, &[1.0; 8]);
    for (what, request) in [("next position", 0), ("next request", 1)] {
        let mut counts = [0u64; 64];
        for i in 0..1 << 17 {
            let a = Key::new(9, 5, i, Purpose::Target);
            let b = Key::new(9, 5 + request, i + 1 - request, Purpose::Target);
            counts[cell(a) * 8 + cell(b)] += 1;
        }
        let fit = goodness_of_fit(&counts, &[1.0; 64]).unwrap();
        assert!(fit.p_value > 1e-6, "{what}: {counts:?}");
    }
}
