//! Copying drafts against a quadratic search.

use spectrain_core::rng::{Key, Purpose};
use spectrain_core::stats::lookup::Lookup;

const SUFFIX: Lookup = Lookup { min_match: 1, max_match: usize::MAX };

/// The same rule by comparing every place.
fn quadratic(rule: Lookup, text: &[u32], length: usize) -> Vec<u32> {
    let n = text.len();
    let mut best = (0, 0);
    for end in 1..n {
        let agreed = (0..end).take_while(|&i| text[end - 1 - i] == text[n - 1 - i]).count();
        let agreed = agreed.min(rule.max_match);
        if agreed >= rule.min_match && agreed > 0 && agreed >= best.0 {
            best = (agreed, end);
        }
    }
    let mut copied = text.to_vec();
    if best.0 > 0 {
        (0..length).for_each(|i| copied.push(copied[best.1 + i]));
    }
    copied.split_off(n)
}

#[test]
fn the_longest_and_then_the_latest_match_is_copied() {
    let text = [7, 1, 2, 3, 9, 9, 5, 2, 3, 8, 8, 1, 2, 3];
    assert_eq!(SUFFIX.propose(&text, 2), [9, 9], "1 2 3 agrees longest");
    let bigram = Lookup { min_match: 1, max_match: 2 };
    assert_eq!(bigram.propose(&text, 2), [8, 8], "2 3 is found again later");
    let long = Lookup { min_match: 4, max_match: 8 };
    assert!(long.propose(&text, 2).is_empty());
}

#[test]
fn a_repeating_text_goes_on() {
    assert_eq!(SUFFIX.propose(&[4, 4, 4], 5), [4; 5]);
    assert_eq!(SUFFIX.propose(&[1, 2, 1, 2, 1], 6), [2, 1, 2, 1, 2, 1]);
}

#[test]
fn nothing_is_proposed_without_a_match() {
    for text in [&[][..], &[1], &[1, 2, 3]] {
        assert!(SUFFIX.propose(text, 4).is_empty(), "{text:?}");
    }
    assert!(SUFFIX.propose(&[1, 1], 0).is_empty());
}

#[test]
fn linear_time_finds_what_the_quadratic_search_finds() {
    for case in 0..3000 {
        let key = Key::new(31, case, 0, Purpose::Data);
        let size = key.below_at(0, 40);
        let symbols = 1 + key.below_at(1, 4);
        let text: Vec<u32> = (0..size as u64).map(|i| key.below_at(4 + i, symbols) as u32).collect();
        let rule = Lookup { min_match: 1 + key.below_at(2, 3), max_match: [3, 5, usize::MAX][key.below_at(3, 3)] };
        assert_eq!(rule.propose(&text, 7), quadratic(rule, &text, 7), "{rule:?} {text:?}");
    }
}
