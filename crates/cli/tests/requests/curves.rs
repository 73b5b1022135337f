//! `eval` from outside: curves as a table, as JSON and as a page, over suites in the forms of others.

use crate::place::Place;
use serde_json::Value;
use std::fs;
use std::process::Output;

/// A place with a trained drafter and a suite of three tasks in Spec-Bench's form, listed task after task.
fn trained() -> Place {
    trained_with(&[])
}

/// The same with keys of the recipe overridden.
fn trained_with(sets: &[&str]) -> Place {
    let place = Place::new();
    let output = place.run(&[&["fit", "recipe.toml"], sets].concat());
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let row = |id: usize, task: &str| {
        format!(
            "{{\"question_id\": {id}, \"category\": \"{task}\", \"turns\": [\"w{id} w2 w{}\", \"never asked\"]}}\n",
            id + 5
        )
    };
    let suite: String = (0..9).map(|id| row(id + 3, ["qa", "rag", "<math>"][id / 3])).collect();
    fs::write(place.path("suite.jsonl"), suite).unwrap();
    place
}

fn done(place: &Place, arguments: &[&str]) -> Output {
    let output = place.run(&[&["eval", "runs/small/best"], arguments].concat());
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

fn axis<T: Clone + PartialEq>(rows: &[Value], of: impl Fn(&Value) -> T) -> Vec<T> {
    rows.iter().map(of).fold(Vec::new(), |mut seen, value| {
        if !seen.contains(&value) {
            seen.push(value);
        }
        seen
    })
}

#[test]
fn a_suite_becomes_a_document_a_page_and_a_table() {
    let place = trained();
    let arguments = ["--prompts", "suite.jsonl", "--limit", "6", "--slo", "ttft=1000s,tpot=1000s"];
    let more = ["--json", "-", "--report", "page.html", "--task", "--max-new-tokens", "6"];
    let output = done(&place, &[arguments.as_slice(), &more].concat());
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = document["rows"].as_array().unwrap();
    assert_eq!(axis(rows, |r| r["temperature"].as_f64().unwrap()), [0.0, 0.6, 1.0]);
    assert_eq!(axis(rows, |r| r["length"].as_u64().unwrap()), (0..8).collect::<Vec<_>>());
    let whole: Vec<&Value> = rows.iter().filter(|r| r["task"].is_null()).collect();
    assert_eq!(whole.len(), 3 * 8);
    for row in &whole {
        let length = row["length"].as_u64().unwrap();
        assert_eq!(row["estimated"], [2, 4, 6].contains(&length), "{row}");
        assert_eq!(row["questions"], 6);
        let tokens = row["tokens_per_target_call"].as_f64().unwrap();
        assert!(if length == 0 { tokens == 1.0 } else { tokens >= 1.0 && tokens <= length as f64 + 1.0 }, "{row}");
        // Nobody waits that long, so all output is good.
        let (rate, good) = (&row["tokens_per_second"], &row["goodput"]);
        assert_eq!(rate.is_null(), row["estimated"].as_bool().unwrap());
        assert!(rate.is_null() || (rate.as_f64().unwrap() / good.as_f64().unwrap() - 1.0).abs() < 1e-9, "{row}");
    }
    // Two of each task were taken, though the file lists task after task.
    let tasks: Vec<&Value> = rows.iter().filter(|r| r["task"].is_string()).collect();
    assert!(tasks.iter().all(|r| r["questions"] == 2), "{tasks:?}");
    assert_eq!(document["settings"]["prompts"][0]["taken"], 6);
    assert_eq!(document["settings"]["slo"]["tpot"], 1000.0);
    assert_eq!(document["fastest"].as_array().unwrap().len(), 3);
    let table = String::from_utf8(output.stderr).unwrap();
    let said = |part: &str| table.lines().filter(|l| l.contains(part)).count();
    assert_eq!((said("fastest"), said("estimated"), said(" qa (2)")), (3, 9, 24), "{table}");
    let page = fs::read_to_string(place.path("page.html")).unwrap();
    for part in ["Acceptance length", "Output tokens per second", "Where the time goes", "Transcripts", "&lt;math&gt;"]
    {
        assert!(page.contains(part), "{part}");
    }
    assert!(page.contains("class=\"drafted\"") || page.contains("class=\"written\""));
}

#[test]
fn one_point_is_one_measurement_beside_plain_decoding() {
    let place = trained();
    let output = done(&place, &["--temperature", "0", "--length", "2", "--json", "one.json"]);
    let table = String::from_utf8(output.stdout).unwrap();
    assert_eq!(table.lines().count(), 5, "{table}");
    let document: Value = serde_json::from_slice(&fs::read(place.path("one.json")).unwrap()).unwrap();
    let last = document["rows"].as_array().unwrap().iter().rfind(|r| r["task"].is_null()).unwrap();
    assert_eq!((&last["guarantee"], &last["rule"], &last["length"]), (&"greedy".into(), &"greedy".into(), &2.into()));
    let calls = last["target_calls"].as_f64().unwrap();
    let tokens = last["output_tokens"].as_f64().unwrap();
    assert!((last["as_sglang"].as_f64().unwrap() - tokens / calls).abs() < 1e-12, "{last}");
    assert!(last["latency"]["ttft"]["p99"].as_f64().unwrap() > 0.0);
    assert_eq!(last["same_text"], last["questions"]);
}

#[test]
fn a_waterfall_adds_up_to_a_perfect_drafter() {
    let place = trained_with(&["--set", "drafter.draft_vocab=8"]);
    let rules = [("token", 1.0), ("sampled-match", 1.0), ("token", 0.0)];
    for (rule, temperature) in rules {
        let (shown, file) = (temperature.to_string(), format!("{rule}-{temperature}.json"));
        let point = ["--rule", rule, "--temperature", &shown, "--length", "3", "--waterfall", "--json", &file];
        let table = String::from_utf8(done(&place, &[point.as_slice(), &["--report", "fall.html"]].concat()).stdout);
        assert!(table.unwrap().contains("− vocabulary"));
        assert!(fs::read_to_string(place.path("fall.html")).unwrap().contains("Where the tokens go"));
        let document: Value = serde_json::from_slice(&fs::read(place.path(&file)).unwrap()).unwrap();
        let fall = &document["waterfalls"][0];
        let lost = |cause: &str| {
            let losses = fall["losses"].as_array().unwrap();
            losses.iter().find(|l| l["cause"] == cause).unwrap()["tokens"].as_f64().unwrap()
        };
        let measured = fall["tokens_per_target_call"].as_f64().unwrap();
        let causes = ["text-end", "vocabulary", "capacity", "exposure", "sampling-mode", "runtime"];
        let sum: f64 = causes.iter().map(|cause| lost(cause)).sum();
        assert!((sum + measured - 4.0).abs() < 1e-9, "{fall}");
        assert!(lost("text-end") >= 0.0 && lost("capacity") > 0.0, "it is no perfect drafter: {fall}");
        // Greedy text may keep to words that the drafter has.
        let missing = lost("vocabulary");
        assert!(if temperature > 0.0 { missing > 0.0 } else { missing >= 0.0 }, "words are missing: {fall}");
        assert_eq!(lost("sampling-mode") != 0.0, rule == "sampled-match", "{fall}");
        // Greedy texts are the same on both sides, but for the stored features' rounding.
        assert!(temperature > 0.0 || lost("runtime").abs() < 0.05, "{fall}");
    }
}

#[test]
fn prompts_without_room_are_left_out_aloud() {
    let place = trained();
    let long = vec!["w5"; 300].join(" ");
    let suite = format!("{{\"prompt\": \"w3 w4\"}}\n{{\"prompt\": \"{long}\"}}\n");
    fs::write(place.path("mixed.jsonl"), suite).unwrap();
    let one = ["--temperature", "0", "--lengths", "1", "--max-new-tokens", "4"];
    let output = done(&place, &[&["--prompts", "mixed.jsonl"], one.as_slice()].concat());
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("mixed.jsonl: 1 prompts left out"), "{error}");
    fs::write(place.path("long.jsonl"), format!("{{\"prompt\": \"{long}\"}}\n")).unwrap();
    place.refused(
        &["eval", "runs/small/best", "--prompts", "long.jsonl"],
        &["no prompt leaves room", "--max-new-tokens"],
    );
}

#[test]
fn trees_stand_beside_chains_of_as_many_nodes() {
    let place = trained();
    for (tree, rule, chain_rule, nodes) in [
        ("static:3,2", "sampled-match", "sampled-match", 10),
        ("dynamic:7", "sampled-match", "sampled-match", 7),
        ("sampled:2,2", "traversal", "block", 7),
        ("sequoia:6", "sequoia", "token", 6),
    ] {
        let what = ["--tree", tree, "--rule", rule, "--temperature", "0,1", "--limit", "4", "--max-new-tokens", "6"];
        let output = done(&place, &[what.as_slice(), &["--prompts", "suite.jsonl", "--json", "-"]].concat());
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(document["settings"]["tree"], tree);
        let rows = document["rows"].as_array().unwrap();
        let measured: Vec<&Value> = rows.iter().filter(|r| r["tree"] == tree && r["task"].is_null()).collect();
        assert_eq!(measured.len(), 2, "{tree}: one a temperature");
        for row in measured {
            let (chain, sampled) = (&row["chain_of_as_many_nodes"], row["temperature"] == 1.0);
            assert_eq!(row["rule"], if sampled { rule } else { "greedy" });
            assert_eq!(chain["rule"], if sampled { chain_rule } else { "greedy" });
            assert_eq!(
                (&row["nodes"], &chain["nodes"], &chain["tree"]),
                (&nodes.into(), &nodes.into(), &"chain".into())
            );
            assert_eq!(chain["length"], nodes - 1);
        }
        let table = String::from_utf8(output.stderr).unwrap();
        assert!(table.contains("trees beside chains of as many nodes"), "{table}");
        assert_eq!(table.contains("fitted to the same prompts"), tree.starts_with("sequoia"), "{table}");
    }
}

#[test]
fn a_recipes_trees_are_measured_by_fit() {
    let place = trained_with(&["--set", "eval.tree=static:2,2", "--set", "verifier.rule=sampled-match"]);
    for temperature in ["0", "1"] {
        let file = place.path(&format!("runs/small/eval/T{temperature}-static-2-2.json"));
        let tree: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
        assert_eq!((&tree["nodes"], &tree["chain"]["length"]), (&7.into(), &6.into()));
    }
    let page = fs::read_to_string(place.path("runs/small/report.html")).unwrap();
    assert!(page.contains("static:2,2 trees, T = 1") && page.contains("a chain of as many nodes"));
    // What is about chains measures chains.
    let table = done(&place, &["--temperature", "0", "--length", "2", "--max-new-tokens", "6", "--advice"]).stdout;
    assert!(!String::from_utf8(table).unwrap().contains("static"));
}

#[test]
fn the_marginal_rule_and_the_fastest_tree_read_the_costs_that_were_measured() {
    let place = trained();
    let at = ["--prompts", "suite.jsonl", "--temperature", "0", "--batch", "2", "--max-new-tokens", "12", "--length"];
    let marginal = |length| [&at, [length, "--length-policy", "marginal"].as_slice()].concat();
    let refused = |length, parts: &[&str]| {
        place.refused(&[&["eval", "runs/small/best"], marginal(length).as_slice()].concat(), parts);
    };
    refused("2", &["--length-policy marginal", "not known", "--profile --temperature 0 --batch 2"]);
    let tree = [&["eval", "runs/small/best"], at.as_slice(), &["2", "--tree", "sequoia:best"]].concat();
    place.refused(&tree, &["--tree sequoia:best", "not known", "--profile --temperature 0 --batch 2"]);
    done(&place, &[at.as_slice(), &["1,2", "--profile"]].concat());
    refused("3", &["drafts up to 2, and 3 is asked for"]);
    let best = done(&place, &[at.as_slice(), &["2", "--tree", "sequoia:best", "--json", "-"]].concat());
    let document: Value = serde_json::from_slice(&best.stdout).unwrap();
    let of_tree = |r: &&Value| r["tree"].as_str().is_some_and(|t| t.starts_with("sequoia")) && r["task"].is_null();
    let measured: Vec<&Value> = document["rows"].as_array().unwrap().iter().filter(of_tree).collect();
    assert_eq!(measured.len(), 1);
    let nodes = measured[0]["nodes"].as_u64().unwrap();
    assert!((2..=3).contains(&nodes) && measured[0]["tree"] == format!("sequoia:{nodes}"), "{}", measured[0]);
    assert_eq!(measured[0]["same_text"], measured[0]["questions"]);
    let output = done(&place, &[marginal("2").as_slice(), &["--json", "-"]].concat());
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["settings"]["length_policy"], "marginal");
    let rows = document["rows"].as_array().unwrap();
    let row = rows.iter().find(|r| r["length"] == 2 && r["task"].is_null()).unwrap();
    assert_eq!((&row["same_text"], &row["questions"]), (&9.into(), &9.into()), "{row}");
}

#[test]
fn a_policy_needs_what_it_reads() {
    let place = trained();
    let eval = ["eval", "--proposer", "ngram", "--target", "target", "--length-policy"];
    place.refused(&[eval.as_slice(), &["marginal"]].concat(), &["--length-policy marginal", "no checkpoint"]);
    place.refused(&[eval.as_slice(), &["confidence:0.5"]].concat(), &["confidence:0.5", "without a distribution"]);
    place.refused(&[eval.as_slice(), &["confidence:2"]].concat(), &["confidence:2", "share from 0 to 1"]);
    // A drafter that is never sure enough drafts nothing.
    let unsure = ["--length-policy", "confidence:1", "--temperature", "0", "--length", "2", "--max-new-tokens", "6"];
    let output = done(&place, &[unsure.as_slice(), &["--json", "-"]].concat());
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = document["rows"].as_array().unwrap();
    let row = rows.iter().find(|r| r["length"] == 2 && r["task"].is_null()).unwrap();
    assert_eq!(row["tokens_per_target_call"], 1.0, "{row}");
}

#[test]
fn what_cannot_be_measured_is_refused_before_any_work() {
    let place = trained();
    let eval = |more: &[&str], parts: &[&str]| place.refused(&[&["eval", "runs/small/best"], more].concat(), parts);
    eval(&["--rule", "typical"], &["--rule typical", "the target's law"]);
    eval(&["--rule", "greedy", "--temperature", "1"], &["temperature 0"]);
    eval(&["--tree", "bush"], &["bush", "static:2,2,1", "dynamic:32"]);
    eval(&["--tree", "dynamic:8"], &["--rule token", "--tree dynamic:8", "take sampled-match"]);
    eval(&["--tree", "static:2,2", "--rule", "sequoia"], &["no draws", "take sampled trees"]);
    eval(&["--rule", "traversal"], &["--tree chain", "sampled:2,2,1"]);
    eval(&["--tree", "static:2,2", "--rule", "sampled-match", "--lengths", "3"], &["--lengths", "their own depth"]);
    eval(&["--tree", "dynamic:8", "--profile"], &["--tree", "--profile"]);
    eval(&["--report", "nowhere/page.html"], &["nowhere/page.html", "no directory nowhere"]);
    eval(&["--prompts", "absent.jsonl"], &["--prompts", "absent.jsonl"]);
}
