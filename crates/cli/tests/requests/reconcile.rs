//! The reconciliation gate from outside: what passes, what is refused, and how the fault is named.

use crate::place::Place;
use serde_json::Value;
use std::fs;
use std::process::Output;

/// A place with a run of the small recipe, on prompts that can be told apart.
fn fitted() -> (Place, Output) {
    let place = Place::new();
    let prompt =
        |i: usize| format!("{{\"id\": \"p{i}\", \"prompt\": \"w{} w{} w{}\"}}\n", i + 3, 2 * i + 5, i * i % 90 + 2);
    fs::write(place.path("prompts.jsonl"), (0..24).map(prompt).collect::<String>()).unwrap();
    let fit = place.run(&["fit", "recipe.toml", "--set", "store.batch_tokens=64"]);
    (place, fit)
}

fn eval(place: &Place, more: &[&str]) -> (Option<i32>, String) {
    let point = ["eval", "runs/small/best", "--temperature", "0,1", "--lengths", "1,3", "--max-new-tokens", "16"];
    let output = place.run(&[&point, more].concat());
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

#[test]
fn a_run_reconciles_and_says_so() {
    let (place, fit) = fitted();
    let error = String::from_utf8(fit.stderr).unwrap();
    assert_eq!(fit.status.code(), Some(0), "{error}");
    assert!(error.contains("reconcile: training and run time agree"), "{error}");
    let found: Value =
        serde_json::from_slice(&fs::read(place.path("runs/small/reconciliation.json")).unwrap()).unwrap();
    assert!(found["fault"].is_null() && found["steps"].as_u64().unwrap() >= 40, "{found}");
    assert!(found["renderings"].as_u64().unwrap() > 10, "{found}");
    assert!(number(&found["largest"]) < number(&found["bound"]) / 10.0, "{found}");
    assert!(fs::read_to_string(place.path("runs/small/report.html")).unwrap().contains("training and run time agree"));
    let (code, error) = eval(&place, &["--json", "found.json"]);
    assert_eq!(code, Some(0), "{error}");
    let document: Value = serde_json::from_slice(&fs::read(place.path("found.json")).unwrap()).unwrap();
    let figures = document["reconciliation"]["figures"].as_array().unwrap();
    assert_eq!(figures.len(), 4, "{document}");
    for figure in figures {
        let same = document["rows"].as_array().unwrap().iter().find(|row| {
            row["task"].is_null() && row["length"] == figure["length"] && row["temperature"] == figure["temperature"]
        });
        let measured = number(&same.unwrap()["tokens_per_target_call"]);
        assert!((number(&figure["verifier"]) - measured).abs() < 1e-9, "{figure} beside {measured}");
        // Greedy text is one text.
        let apart = number(&figure["difference"]["estimate"]).abs();
        assert!(figure["agrees"] == true && (number(&figure["temperature"]) > 0.0 || apart < 0.01), "{figure}");
    }
}

#[test]
fn another_chat_template_fails_the_evaluation_by_name() {
    let (place, _) = fitted();
    let path = place.path("target/tokenizer_config.json");
    let config = fs::read_to_string(&path).unwrap();
    fs::write(&path, config.replace("{{ m.content }}", "w9 {{ m.content }}")).unwrap();
    let (code, error) = eval(&place, &[]);
    assert_eq!(code, Some(1), "{error}");
    let line = error.lines().find(|line| line.starts_with("error: ")).unwrap();
    for part in ["template: prompt p", "position 0", "token 9"] {
        assert!(line.contains(part), "{line}");
    }
    let (code, error) = eval(&place, &["--no-reconcile"]);
    assert_eq!(code, Some(0), "{error}");
    assert!(!error.contains("reconcile"), "{error}");
    // Other prompts under the same names say nothing about the template.
    let prompts = fs::read_to_string(place.path("prompts.jsonl")).unwrap();
    fs::write(place.path("prompts.jsonl"), prompts.replace("w5", "w6")).unwrap();
    let (code, error) = eval(&place, &[]);
    assert_eq!(code, Some(0), "{error}");
}
