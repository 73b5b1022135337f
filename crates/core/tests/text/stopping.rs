//! Where answers end: against a search that reads one byte after the other, for every way to split a text into rounds.

use crate::token_bytes::{byte_fallback, byte_level, tokenizer};
use proptest::prelude::*;
use serde_json::Value;
use spectrain_core::stats::Finish;
use spectrain_core::stopping::{EmptyStopString, Outcome, Progress, StopStrings, Stopping};
use spectrain_core::token_bytes::TokenBytes;
use std::sync::{Arc, LazyLock};

/// Pieces of characters and of words; the last is special and ends an answer.
const BYTE_LEVEL: [&str; 9] = ["a", "b", "ab", "Ã", "©", "bÃ", "aba", "Ġ", "<end>"];
const FALLBACK: [&str; 9] = ["a", "b", "ab", "<0xC3>", "<0xA9>", "bé", "aba", "▁", "<end>"];
const END: u32 = 8;

fn bytes(tokens: &[&str], decoder: &Value) -> Arc<TokenBytes> {
    Arc::new(tokenizer(tokens, decoder).token_bytes().unwrap())
}

static BYTES: LazyLock<[Arc<TokenBytes>; 2]> =
    LazyLock::new(|| [bytes(&BYTE_LEVEL, &byte_level()), bytes(&FALLBACK, &byte_fallback())]);

fn stopping(strings: &[&str], bytes: &Arc<TokenBytes>, max_tokens: usize) -> Stopping {
    let strings: Vec<String> = strings.iter().map(|s| (*s).to_owned()).collect();
    let strings = StopStrings::new(&strings, bytes.clone()).unwrap();
    Stopping { strings, end_tokens: vec![END], max_tokens, min_tokens: 0 }
}

/// Tokens that stay, their text, the finish.
type Answer = (usize, String, Option<Finish>);

/// The rule as it is written, one byte after the other.
fn by_bytes(strings: &[&str], bytes: &TokenBytes, (min, max): (usize, usize), tokens: &[u32]) -> Answer {
    let mut text = Vec::new();
    for (i, &token) in tokens.iter().enumerate().take(max) {
        let mut cut = None;
        for &byte in bytes.text(token) {
            text.push(byte);
            let longest = strings.iter().filter(|s| text.ends_with(s.as_bytes())).map(|s| s.len()).max();
            cut = cut.or(longest.filter(|_| i >= min).map(|length| text.len() - length));
        }
        let stopped = i >= min && (cut.is_some() || token == END);
        if stopped || i + 1 == max {
            text.truncate(cut.unwrap_or(text.len()));
            let finish = if stopped { Finish::Stop } else { Finish::Length };
            return (i + 1, String::from_utf8_lossy(&text).into_owned(), Some(finish));
        }
    }
    (tokens.len().min(max), String::from_utf8_lossy(&text).into_owned(), None)
}

/// Commits `tokens` in rounds that end where a bit of `split` is set, and checks what is streamed on the way.
fn in_rounds(stopping: &Stopping, tokens: &[u32], split: usize) -> Answer {
    let mut progress = Progress::new(stopping.clone());
    let mut streamed = String::new();
    let (mut kept, mut start) = (0, 0);
    for end in (1..=tokens.len()).filter(|&end| end == tokens.len() || split >> (end - 1) & 1 == 1) {
        let outcome = progress.advance(&tokens[start..end]);
        start = end;
        kept += outcome.kept;
        streamed += &progress.release();
        assert_eq!(progress.tokens(), kept);
        let shown = progress.text();
        assert!(shown.starts_with(&streamed), "{streamed:?} was shown, and the text is {shown:?}");
        if outcome.finish.is_some() {
            assert_eq!(streamed, shown, "nothing is held back at the end, nothing shown twice");
            assert_eq!(progress.advance(&tokens[end..]), Outcome { kept: 0, stop: None, finish: None });
            assert_eq!((progress.text(), progress.release()), (shown.clone(), String::new()));
            return (kept, shown, outcome.finish);
        }
    }
    streamed += &progress.finish();
    assert_eq!(streamed, progress.text());
    (kept, streamed, None)
}

fn check(strings: &[&str], bytes: &Arc<TokenBytes>, max: usize, tokens: &[u32]) -> Option<Finish> {
    let expected = by_bytes(strings, bytes, (0, max), tokens);
    let stopping = stopping(strings, bytes, max);
    for split in 0..1 << tokens.len().saturating_sub(1) {
        let found = in_rounds(&stopping, tokens, split);
        assert_eq!(found, expected, "{strings:?}, at most {max}, {tokens:?} split at {split:b}");
    }
    expected.2
}

#[test]
fn every_split_of_every_short_text_ends_alike() {
    let mut ends = [0, 0, 0];
    for strings in [&["ab"][..], &["aa", "aba"], &["é"], &["béa", "b"], &[" ", "aé"]] {
        for bytes in &*BYTES {
            for text in 0..9_u32.pow(4) {
                let tokens: Vec<u32> = (0..4).map(|i| text / 9_u32.pow(i) % 9).collect();
                match check(strings, bytes, 4, &tokens) {
                    Some(Finish::Stop) => ends[0] += 1,
                    Some(Finish::Length) => ends[1] += 1,
                    None => ends[2] += 1,
                    Some(end) => unreachable!("no text ends so: {end:?}"),
                }
            }
        }
    }
    assert!(ends[0] > 10_000 && ends[1] > 10_000 && ends[2] == 0, "{ends:?}");
}

#[test]
fn the_earliest_end_wins_at_every_position() {
    // A block of eight: one end token, one stop string, one cap, anywhere or nowhere.
    for (end, string, cap) in (0..9).flat_map(|e| (0..9).flat_map(move |s| (1..10).map(move |c| (e, s, c)))) {
        let mut tokens = [0; 8];
        if string < 8 {
            tokens[string] = 1;
        }
        if end < 8 {
            tokens[end] = END;
        }
        let string = if string == end { 9 } else { string };
        let stop = end.min(string);
        let mut progress = Progress::new(stopping(&["b"], &BYTES[0], cap));
        let outcome = progress.advance(&tokens);
        let expected = match stop < cap && stop < 8 {
            true => (stop + 1, Some(Finish::Stop)),
            false => (cap.min(8), (cap <= 8).then_some(Finish::Length)),
        };
        assert_eq!((outcome.kept, outcome.finish), expected, "end {end}, string {string}, cap {cap}");
        assert_eq!(outcome.stop, (stop < 8).then_some(stop + 1), "also where it lies behind the cap");
        assert_eq!(progress.text(), "a".repeat(expected.0 - usize::from(expected.1 == Some(Finish::Stop))));
        for split in [0, 0x55, 0x7f] {
            assert_eq!(in_rounds(&stopping(&["b"], &BYTES[0], cap), &tokens, split).0, expected.0);
        }
    }
}

#[test]
fn what_may_become_a_stop_string_is_held_back() {
    let mut progress = Progress::new(stopping(&["aba", "é!"], &BYTES[0], 99));
    let mut push = |token: u32| {
        progress.advance(&[token]);
        progress.release()
    };
    // "b", then "ab" which may become "aba" and does not, then half a character which becomes "é" which may go on.
    assert_eq!([1, 0, 1, 1, 3, 4, 0].map(&mut push), ["b", "", "", "abb", "", "", "é"]);
    assert_eq!(progress.text(), "babbéa");
    assert_eq!(progress.advance(&[1, 0]), Outcome { kept: 2, stop: Some(2), finish: Some(Finish::Stop) });
    assert_eq!((progress.release(), progress.text()), (String::new(), "babbé".into()), "it was, and is dropped");
}

#[test]
fn an_end_that_comes_too_early_is_text() {
    let at_least = |min_tokens| Stopping { min_tokens, ..stopping(&["ab"], &BYTES[0], 9) };
    let tokens = [2, END, 2, 0, 1, END];
    for (min, expected) in [(0, (1, "")), (1, (2, "ab")), (2, (3, "ab")), (3, (5, "abab")), (5, (6, "ababab"))] {
        for split in 0..32 {
            let (kept, text, finish) = in_rounds(&at_least(min), &tokens, split);
            assert_eq!(((kept, text.as_str()), finish), (expected, Some(Finish::Stop)), "at least {min}");
        }
        assert_eq!(by_bytes(&["ab"], &BYTES[0], (min, 9), &tokens).0, expected.0);
    }
}

#[test]
fn no_string_or_an_empty_one() {
    assert_eq!(StopStrings::new(&["a".into(), String::new()], BYTES[0].clone()).unwrap_err(), EmptyStopString);
    assert!(StopStrings::new(&[], BYTES[0].clone()).unwrap().is_empty());
    let mut progress = Progress::new(stopping(&[], &BYTES[0], 3));
    assert_eq!(progress.advance(&[0, 1]), Outcome { kept: 2, stop: None, finish: None });
    assert_eq!(progress.advance(&[END, 0]), Outcome { kept: 1, stop: Some(1), finish: Some(Finish::Stop) });
}

proptest! {
    #[test]
    fn random_texts_end_alike(
        tokens in prop::collection::vec(0u32..9, 1..9),
        strings in prop::collection::vec("[ab é]{1,4}", 1..4),
        max in 1usize..10,
        which in 0usize..2,
    ) {
        let strings: Vec<&str> = strings.iter().map(String::as_str).collect();
        check(&strings, &BYTES[which], max, &tokens);
    }
}
