//! The written form of a measurement: its keys stay as they are, and it reads back as the value that was written.

use serde_json::Value;
use spectrain_core::evaluation::document::Document;
use spectrain_core::evaluation::{Counted, Estimate, Evaluation, Memory, Plain, Seconds, fastest};
use spectrain_core::rules::Rule;
use spectrain_core::stats::{Acceptance, Arrival, Call, Definitions, Interval, Latency, Round, Timeline};
use spectrain_core::tree::TreeKind;
use std::collections::BTreeMap;

const WRITTEN: &str = r#"{
  "guarantee": "target-sampling",
  "rule": "sampled-match",
  "temperature": 1.0,
  "length": 2,
  "tree": "chain",
  "nodes": 3,
  "chain": null,
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
  "as_eagle": 3.0,
  "as_vllm": 3.0,
  "as_sglang": 3.0,
  "as_deepspec": 3.0,
  "output_tokens": 3,
  "latency": {
    "queue": {
      "count": 1,
      "mean": 0.5,
      "p50": 0.5,
      "p95": 0.5,
      "p99": 0.5
    },
    "ttft": {
      "count": 1,
      "mean": 0.25,
      "p50": 0.25,
      "p95": 0.25,
      "p99": 0.25
    },
    "tpot": null,
    "itl": null
  },
  "goodput": 1.5,
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
      ],
      "as_eagle": null,
      "as_vllm": null,
      "as_sglang": null,
      "as_deepspec": null,
      "output_tokens": null,
      "latency": null,
      "goodput": null
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
  "speedup_interval": null,
  "same_text": null,
  "residual_fallbacks": 0,
  "memory": {
    "target_weights": 4,
    "drafter_weights": 3,
    "target_cache": 2,
    "drafter_cache": 2,
    "provisional": 1
  },
  "plain": null,
  "estimates": []
}"#;

fn evaluation() -> Evaluation {
    let round = |accepted| Round { drafted: 2, accepted, committed: accepted + 1 };
    let acceptance = Acceptance::of(&[0, 1, 1, 2].map(round), 2).unwrap();
    let interval = Interval { estimate: 2.0, low: 1.5, high: 2.5 };
    let one = Interval { low: 2.0, high: 2.0, ..interval };
    let chat = Counted {
        questions: 1,
        interval: one,
        acceptance: acceptance.clone(),
        definitions: Definitions::default(),
        output_tokens: None,
        latency: None,
        goodput: None,
    };
    let call = Call { kept: round(1), accepted: 2, stop: None, end: None };
    let timeline = Timeline { admitted: 0.5, arrivals: vec![Arrival { at: 0.75, tokens: 1 }] };
    let overall = Counted {
        questions: 2,
        interval,
        definitions: Definitions::of(&[call], 1),
        output_tokens: Some(3),
        latency: Some(Latency::of(&[timeline])),
        goodput: Some(1.5),
        ..chat.clone()
    };
    Evaluation {
        guarantee: "target-sampling".to_string(),
        rule: Rule::SampledMatch,
        temperature: 1.0,
        processors: Default::default(),
        length: 2,
        tree: TreeKind::Chain,
        nodes: Some(3),
        chain: None,
        batch: 4,
        max_new_tokens: 64,
        seed: u64::MAX,
        dtype: "f32".to_string(),
        overall,
        tasks: BTreeMap::from([("chat".to_string(), chat)]),
        seconds: Seconds { t_draft: 0.5, t_verify: 2.0, t_sample: 0.25, t_state: 0.125, speculative: 3.0, plain: 4.0 },
        tokens_per_second: 2.5,
        plain_tokens_per_second: 2.0,
        speedup: 1.25,
        speedup_interval: None,
        same_text: None,
        residual_fallbacks: 0,
        memory: Some(Memory {
            target_weights: 4,
            drafter_weights: 3,
            target_cache: 2,
            drafter_cache: 2,
            provisional: 1,
        }),
        plain: None,
        estimates: Vec::new(),
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
fn results_of_an_earlier_build_read_back() {
    let mut value: Value = serde_json::from_str(WRITTEN).unwrap();
    let new = ["as_eagle", "as_vllm", "as_sglang", "as_deepspec", "output_tokens", "latency", "goodput"];
    for key in new.iter().chain(&["memory", "plain", "estimates", "tree", "nodes", "chain", "speedup_interval"]) {
        value.as_object_mut().unwrap().remove(*key);
    }
    let read: Evaluation = serde_json::from_value(value).unwrap();
    assert_eq!((read.overall.definitions, read.memory), (Definitions::default(), None));
    assert_eq!(read.overall.acceptance, evaluation().overall.acceptance);
}

#[test]
fn keys_of_a_later_build_are_passed_over() {
    let mut value: Value = serde_json::from_str(WRITTEN).unwrap();
    value["as_medusa"] = 2.0.into();
    value["tasks"]["chat"]["as_medusa"] = 2.0.into();
    value["same_text"] = 3.into();
    let read: Evaluation = serde_json::from_value(value).unwrap();
    assert_eq!(read, Evaluation { same_text: Some(3), ..evaluation() });
}

/// Lengths 1 and 3 measured, 2 estimated, plain decoding before them.
fn curve(temperature: f64, rates: [f64; 3]) -> Vec<Evaluation> {
    let counted = evaluation().tasks["chat"].clone();
    let tasks = BTreeMap::from([("chat".to_string(), counted.clone())]);
    let plain = Plain { overall: counted.clone(), tasks: tasks.clone(), memory: Memory::default(), stints: None };
    let at = |length, rate, estimates| Evaluation {
        temperature,
        processors: Default::default(),
        length,
        tokens_per_second: rate,
        plain_tokens_per_second: rates[0],
        plain: Some(plain.clone()),
        estimates,
        ..evaluation()
    };
    let estimate = Estimate { length: 2, overall: counted.clone(), tasks };
    vec![at(1, rates[1], Vec::new()), at(3, rates[2], vec![estimate])]
}

#[test]
fn the_document_has_a_row_for_every_temperature_length_and_task() {
    let evaluations = [curve(0.0, [5.0, 6.0, 4.0]), curve(1.0, [5.0, 3.0, 4.0])].concat();
    let document = serde_json::to_value(Document::new(serde_json::json!({"seed": 7}), &evaluations)).unwrap();
    assert_eq!((&document["schema"], &document["schema_version"]), (&"spectrain-eval".into(), &1.into()));
    assert_eq!(document["settings"]["seed"], 7);
    assert_eq!(document["fastest"][0]["length"], 1);
    assert_eq!(document["fastest"][1]["length"], 0, "plain decoding is faster than either length");
    let rows = document["rows"].as_array().unwrap();
    let said =
        |row: &Value| (row["temperature"].as_f64().unwrap(), row["length"].as_u64().unwrap(), row["task"].clone());
    let keys: Vec<_> = rows.iter().map(said).collect();
    let tasks = || [Value::Null, Value::from("chat")];
    let wanted: Vec<_> =
        [0.0, 1.0].into_iter().flat_map(|t| (0..4u64).flat_map(move |k| tasks().map(|task| (t, k, task)))).collect();
    assert_eq!(keys, wanted);
    for row in rows {
        let (whole, length) = (row["task"].is_null(), row["length"].as_u64().unwrap());
        assert_eq!(row["estimated"], length == 2);
        assert_eq!(row["rule"], if length == 0 { "plain" } else { "sampled-match" });
        assert_eq!(row["tokens_per_second"].is_null(), !whole || length == 2);
        assert_eq!(row["seconds"].is_null(), !whole || length % 2 == 0);
        assert_eq!(row["memory"].is_null(), !whole || length == 2);
        assert!(row["tokens_per_target_call"].is_f64() && row["interval"]["low"].is_f64());
    }
}

#[test]
fn the_fastest_is_the_shortest_of_equals_and_a_number() {
    let at = |rates| fastest(&curve(0.0, rates).iter().collect::<Vec<_>>());
    assert_eq!(at([5.0, 5.0, 5.0]), Some(0));
    assert_eq!(at([5.0, 6.0, 6.0]), Some(1));
    assert_eq!(at([5.0, f64::NAN, 6.0]), Some(3));
    assert_eq!(fastest(&[]), None);
}
