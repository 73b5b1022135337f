//! The definitions of other projects on rounds made by hand, each way in which they come apart.

use spectrain_core::stats::{Acceptance, Call, Definitions, Finish, Round};

/// A round of four drafts in the middle of a text.
fn whole(accepted: usize) -> Call {
    Call { kept: Round { drafted: 4, accepted, committed: accepted + 1 }, accepted, stop: None, end: None }
}

/// Ours, then EAGLE's, vLLM's, SGLang's and DeepSpec's tokens over `calls`, for `answers` answers.
fn tokens(calls: &[Call], answers: usize) -> [f64; 5] {
    let kept: Vec<Round> = calls.iter().map(|c| c.kept).collect();
    let ours = Acceptance::of(&kept, 4).unwrap().committed_tokens as f64;
    let d = Definitions::of(calls, answers);
    let over = |value: Option<f64>| value.unwrap() * calls.len() as f64;
    [ours, over(d.as_eagle), over(d.as_vllm), over(d.as_sglang), over(d.as_deepspec)]
}

#[test]
fn in_the_middle_of_a_text_only_the_prompts_token_tells_them_apart() {
    assert_eq!(tokens(&[whole(2), whole(0), whole(4)], 1), [9.0, 9.0, 9.0, 10.0, 9.0]);
    assert_eq!(tokens(&[whole(2), whole(0), whole(4)], 3), [9.0, 9.0, 9.0, 12.0, 9.0]);
}

#[test]
fn a_stop_inside_the_accepted_drafts() {
    // Three of four drafts are accepted, the second of them is a stop: two tokens stay, and no extra one.
    let kept = Round { drafted: 4, accepted: 2, committed: 2 };
    let last = Call { kept, accepted: 3, stop: Some(2), end: Some(Finish::Stop) };
    assert_eq!(tokens(&[whole(1), last], 1), [4.0, 6.0, 6.0, 5.0, 4.0]);
}

#[test]
fn a_stop_as_the_last_accepted_draft_has_no_extra_token() {
    let kept = Round { drafted: 4, accepted: 4, committed: 4 };
    let last = Call { kept, accepted: 4, stop: Some(4), end: Some(Finish::Stop) };
    assert_eq!(tokens(&[last], 1), [4.0, 5.0, 5.0, 5.0, 4.0]);
}

#[test]
fn a_stop_as_the_extra_token_is_counted_by_all() {
    let kept = Round { drafted: 4, accepted: 2, committed: 3 };
    let last = Call { kept, accepted: 2, stop: Some(3), end: Some(Finish::Stop) };
    assert_eq!(tokens(&[last], 1), [3.0, 3.0, 3.0, 4.0, 3.0]);
}

#[test]
fn the_cap_is_overshot_by_all_but_sglang_and_us() {
    let kept = Round { drafted: 4, accepted: 1, committed: 1 };
    let last = Call { kept, accepted: 3, stop: None, end: Some(Finish::Length) };
    assert_eq!(tokens(&[last], 1), [1.0, 4.0, 4.0, 2.0, 4.0]);
    // A stop behind the cap, among the accepted drafts, is where DeepSpec ends.
    let behind = Call { stop: Some(3), ..last };
    assert_eq!(tokens(&[behind], 1), [1.0, 4.0, 4.0, 2.0, 3.0]);
}

#[test]
fn rounds_without_drafts_are_not_vllms() {
    let plain = [Call::plain(None), Call::plain(Some(Finish::Length))];
    let found = Definitions::of(&plain, 1);
    assert_eq!((found.as_eagle, found.as_vllm, found.as_sglang), (Some(1.0), None, Some(1.5)));
    let mixed = Definitions::of(&[plain[0], whole(3)], 1);
    assert_eq!((mixed.as_eagle, mixed.as_vllm), (Some(2.5), Some(4.0)));
    assert_eq!(Definitions::of(&[], 2), Definitions::default());
}

#[test]
fn a_shorter_draft_keeps_what_it_reaches() {
    let round = |drafted, accepted, committed| Round { drafted, accepted, committed };
    assert_eq!(whole(3).truncated(2), round(2, 2, 3));
    assert_eq!(whole(2).truncated(2), round(2, 2, 3));
    assert_eq!(whole(1).truncated(2), round(2, 1, 2));
    let stopped = Call { kept: round(4, 2, 2), accepted: 3, stop: Some(2), end: Some(Finish::Stop) };
    assert_eq!(stopped.truncated(3), round(3, 2, 2));
    assert_eq!(stopped.truncated(2), round(2, 2, 2), "the stop is the second draft");
    assert_eq!(stopped.truncated(1), round(1, 1, 2), "the stop would have been the extra token");
}
