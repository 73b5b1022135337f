//! Facts for a person: one aligned line each, from the same JSON that `--json` writes.

use indicatif::{HumanBytes, HumanCount};
use serde_json::{Number, Value, json};

/// One line a fact: nested keys joined by dots, values aligned.
pub fn lines(facts: &Value) -> String {
    let mut rows = Vec::new();
    flatten(String::new(), facts, &mut rows);
    let width = rows.iter().map(|(key, _)| key.chars().count()).max().unwrap_or(0);
    rows.iter().map(|(key, value)| format!("{key:width$}  {value}\n")).collect()
}

/// Least, middle, mean and largest of some counts, and their sum.
pub fn spread(counts: impl IntoIterator<Item = usize>) -> Value {
    let mut counts: Vec<usize> = counts.into_iter().collect();
    counts.sort_unstable();
    let total: usize = counts.iter().sum();
    let mean = total as f64 / counts.len() as f64;
    match counts.as_slice() {
        [] => Value::Null,
        [min, ..] => json!({
            "total": total, "min": min, "median": counts[counts.len() / 2], "mean": mean, "max": counts.last(),
        }),
    }
}

fn flatten(key: String, value: &Value, rows: &mut Vec<(String, String)>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let key = if key.is_empty() { name.clone() } else { format!("{key}.{name}") };
                flatten(key, value, rows);
            }
        }
        Value::Array(items) if items.iter().any(Value::is_object) => {
            rows.extend(items.iter().map(|item| (key.clone(), on_one_line(item))));
        }
        _ => {
            let text = scalar(&key, value);
            rows.push((key, text));
        }
    }
}

/// An item of a list: its fields, one behind the other.
fn on_one_line(item: &Value) -> String {
    let mut rows = Vec::new();
    flatten(String::new(), item, &mut rows);
    let parts: Vec<String> = rows.iter().map(|(key, value)| format!("{key} {value}")).collect();
    parts.join(", ")
}

fn scalar(key: &str, value: &Value) -> String {
    match value {
        Value::Null => "none".to_owned(),
        Value::String(text) => text.clone(),
        Value::Number(n) => number(key, n),
        Value::Array(items) if items.is_empty() => "none".to_owned(),
        Value::Array(items) => items.iter().map(|item| scalar(key, item)).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

fn number(key: &str, n: &Number) -> String {
    let last = key.rsplit('.').next().unwrap_or_default();
    match (n.as_u64(), n.as_f64()) {
        (Some(seed), _) if last == "seed" => seed.to_string(),
        (Some(bytes), _) if last == "bytes" => format!("{} ({})", HumanCount(bytes), HumanBytes(bytes)),
        (Some(count), _) => HumanCount(count).to_string(),
        (None, Some(x)) => real(x),
        _ => n.to_string(),
    }
}

/// A short number as it is, a long one with five figures or so.
fn real(x: f64) -> String {
    let text = x.to_string();
    let powered = format!("{x:e}");
    match x.abs() {
        _ if text.len() <= 7 => text,
        _ if powered.len() <= 7 => powered,
        1e-3..1e6 => format!("{x:.4}"),
        _ => format!("{x:.4e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_facts_are_aligned_lines() {
        let facts = json!({
            "kind": "store", "bytes": 2_097_152, "meta": {"seed": 20260101, "taps": [2, 15, 27], "rate": 5e-4, "eps": 1e-8},
            "tokens": 153790, "mean": 118.777_777, "absent": null, "none": [], "empty": {},
            "rounds": [{"rule": "token", "length": 5}, {"rule": "block", "length": 12345}],
        });
        let expected = "\
kind       store
bytes      2,097,152 (2.00 MiB)
meta.seed  20260101
meta.taps  2, 15, 27
meta.rate  0.0005
meta.eps   1e-8
tokens     153,790
mean       118.7778
absent     none
none       none
rounds     rule token, length 5
rounds     rule block, length 12,345
";
        assert_eq!(lines(&facts), expected);
    }

    #[test]
    fn a_spread_is_sorted() {
        let right = json!({"total": 15, "min": 1, "median": 4, "mean": 3.75, "max": 6});
        assert_eq!((spread([6, 1, 4, 4]), spread([])), (right, Value::Null));
    }
}
