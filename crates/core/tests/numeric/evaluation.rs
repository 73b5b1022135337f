//! The written form of a measurement: its keys stay as they are, and it reads back as the value that was written.

use serde_json::Value;
use spectrain_core::evaluation::{Counted, Evaluation, Seconds};
use spectrain_core::rules::Rule;
use spectrain_core::stats::{Acceptance, Interval, Round};
use std::collections::BTreeMap;

const WRITTEN: &str = r#"{
  "guarantee": "target-sampling",
  "rule": "sampled-match",
  "temperature": 1.0,
  "length": 2,
  "batch": 4,
  "max_new_tokens": 64,
  "seed": 18446744073709551615,
  "dtype": "f32",
  "questions": 2,
  "interval": {
    "estimate": 2.0,
    "low": 1.5,
    "high": 2.5
  },
  "target_calls": 4,
  "committed_tokens": 8,
  "tokens_per_target_call": 2.0,
  "accepted_per_target_call": 1.0,
  "target_calls_per_output_token": 0.5,
  "accept_rate_draft": 0.5,
  "accept_prefix": [
    0.75,
    0.25
  ],
  "accept_cond": [
    0.75,
    0.3333333333333333
  ],
  "accept_len_hist": [
    1,
    2,
    1
  ],
  "tasks": {
    "chat": {
      "questions": 1,
      "interval": {
        "estimate": 2.0,
        "low": 2.0,
        "high": 2.0
      },
      "target_calls": 4,
      "committed_tokens": 8,
      "tokens_per_target_call": 2.0,
      "accepted_per_target_call": 1.0,
      "target_calls_per_output_token": 0.5,
      "accept_rate_draft": 0.5,
      "accept_prefix": [
        0.75,
        0.25
      ],
      "accept_cond": [
        0.75,
        0.3333333333333333
      ],
      "accept_len_hist": [
        1,
        2,
        1
      ]
    }
  },
  "seconds": {
    "t_draft": 0.5,
    "t_verify": 2.0,
    "t_sample": 0.25,
    "t_state": 0.125,
    "speculative": 3.0,
    "plain": 4.0
  },
  "tokens_per_second": 2.5,
  "plain_tokens_per_second": 2.0,
  "speedup": 1.25,
  "same_text": null,
  "residual_fallbacks": 0
}"#;

fn evaluation() -> Evaluation {
    let round = |accepted| Round { drafted: 2, accepted, committed: accepted + 1 };
    let acceptance = Acceptance::of(&[0, 1, 1, 2].map(round), 2).unwrap();
    let interval = Interval { estimate: 2.0, low: 1.5, high: 2.5 };
    let one = Interval { low: 2.0, high: 2.0, ..interval };
    let chat = Counted { questions: 1, interval: one, acceptance: acceptance.clone() };
    Evaluation {
        guarantee: "target-sampling".to_string(),
        rule: Rule::SampledMatch,
        temperature: 1.0,
        length: 2,
        batch: 4,
        max_new_tokens: 64,
        seed: u64::MAX,
        dtype: "f32".to_string(),
        overall: Counted { questions: 2, interval, acceptance },
        tasks: BTreeMap::from([("chat".to_string(), chat)]),
        seconds: Seconds { t_draft: 0.5, t_verify: 2.0, t_sample: 0.25, t_state: 0.125, speculative: 3.0, plain: 4.0 },
        tokens_per_second: 2.5,
        plain_tokens_per_second: 2.0,
        speedup: 1.25,
        same_text: None,
        residual_fallbacks: 0,
    }
}

#[test]
fn the_written_form_does_not_change() {
    assert_eq!(serde_json::to_string_pretty(&evaluation()).unwrap(), WRITTEN);
}

#[test]
fn what_was_written_reads_back() {
    assert_eq!(serde_json::from_str::<Evaluation>(WRITTEN).unwrap(), evaluation());
}

#[test]
fn keys_of_a_later_build_are_passed_over() {
    let mut value: Value = serde_json::from_str(WRITTEN).unwrap();
    value["as_eagle"] = 2.0.into();
    value["tasks"]["chat"]["as_eagle"] = 2.0.into();
    value["same_text"] = 3.into();
    let read: Evaluation = serde_json::from_value(value).unwrap();
    assert_eq!(read, Evaluation { same_text: Some(3), ..evaluation() });
}
