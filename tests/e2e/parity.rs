//! Our target against `transformers`: golden values made from the original files, never from what we converted.

use crate::support::{BOUND, assert_close, smollm2, values};
use burn::tensor::Device;
use safetensors::SafeTensors;
use serde_json::Value;
use spectrain_model::Llama;
use std::path::{Path, PathBuf};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/model/fixtures")
}

fn floats(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
}

#[test]
fn smollm2_matches_transformers_on_the_original_gguf() {
    let Some(dir) = smollm2() else { return };
    let target = Llama::load(&dir, &Device::flex()).unwrap();
    let golden: Value =
        serde_json::from_slice(&std::fs::read(fixtures().join("smollm2_parity.json")).unwrap()).unwrap();
    let taps = [2, 15, 27, 30];
    let texts = golden["texts"].as_array().unwrap();
    assert_eq!(texts.len(), 20);
    // Ragged and packed: each text must come out as if it were alone.
    let sequences: Vec<Vec<u32>> = texts.iter().map(|t| ids(&t["ids"])).collect();
    let borrowed: Vec<&[u32]> = sequences.iter().map(Vec::as_slice).collect();
    let found = target.forward_full(&borrowed, &taps);
    let width = target.config().hidden_size;
    let hidden: Vec<(String, Vec<f32>)> = taps
        .iter()
        .map(ToString::to_string)
        .zip(found.taps)
        .chain([("last".to_string(), found.hidden.clone())])
        .map(|(name, t)| (name, values(t)))
        .collect();
    let mut start = 0;
    for (text, sequence) in texts.iter().zip(&sequences) {
        let rows = found.hidden.clone().narrow(0, start, sequence.len());
        let logits = values(target.logits(rows));
        let vocabulary = target.config().vocab_size;
        check_argmax(text, &logits, vocabulary);
        for point in text["points"].as_array().unwrap() {
            let position = point["position"].as_u64().unwrap() as usize;
            check_logits(point, &logits[position * vocabulary..(position + 1) * vocabulary]);
            for (name, all) in &hidden {
                let row = (start + position) * width;
                check_hidden(
                    &format!("{} at {position}, {name}", text["name"]),
                    &point["hidden"][name],
                    &all[row..row + width],
                );
            }
        }
        start += sequence.len();
    }
}

fn check_argmax(text: &Value, logits: &[f32], vocabulary: usize) {
    let margins = floats(&text["margin"]);
    for (row, (best, margin)) in ids(&text["argmax"]).into_iter().zip(margins).enumerate() {
        let found = spectrain_model::sample::argmax(&logits[row * vocabulary..(row + 1) * vocabulary]);
        assert!(found == best || margin <= 1e-3, "{} row {row}: {found} against {best}", text["name"]);
    }
}

fn check_logits(point: &Value, row: &[f32]) {
    let range = floats(&point["logit_range"]);
    let unit = f64::from(range[1] - range[0]);
    for (id, expected) in ids(&point["top_ids"]).into_iter().zip(floats(&point["top_logits"])) {
        let off = f64::from((row[id as usize] - expected).abs()) / unit;
        assert!(off <= BOUND, "logit {id}: {} against {expected}", row[id as usize]);
    }
    let top = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let lse = f64::from(top) + row.iter().map(|l| f64::from(l - top).exp()).sum::<f64>().ln();
    assert!((lse - point["logsumexp"].as_f64().unwrap()).abs() <= BOUND * unit);
}

fn check_hidden(what: &str, expected: &Value, row: &[f32]) {
    let range = floats(&expected["range"]);
    let unit = f64::from(range[1] - range[0]);
    for (i, e) in floats(&expected["first"]).into_iter().enumerate() {
        let off = f64::from((row[i] - e).abs()) / unit;
        assert!(off <= BOUND, "{what}[{i}]: {} against {e}, {off:.1e} of the range", row[i]);
    }
    let dot: f64 = row.iter().enumerate().map(|(i, x)| f64::from(*x) * (0.37 * i as f64 + 0.1).cos()).sum();
    let off = (dot - expected["dot"].as_f64().unwrap()).abs() / unit;
    assert!(off <= BOUND * (row.len() as f64).sqrt(), "{what}: projection off by {off:.1e}");
}

fn tiny(name: &str) {
    let dir = fixtures().join(name);
    let target = Llama::load(&dir, &Device::flex()).unwrap();
    let bytes = std::fs::read(dir.join("expected.safetensors")).unwrap();
    let golden = SafeTensors::deserialize(&bytes).unwrap();
    let floats = |name: &str| -> Vec<f32> {
        let view = golden.tensor(name).unwrap();
        view.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    };
    let sequences: Vec<Vec<u32>> = (0..3)
        .map(|s| {
            let view = golden.tensor(&format!("{s}.ids")).unwrap();
            view.data().chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap()) as u32).collect()
        })
        .collect();
    let borrowed: Vec<&[u32]> = sequences.iter().map(Vec::as_slice).collect();
    let taps: Vec<usize> = (0..=target.config().layers).collect();
    let found = target.forward_full(&borrowed, &taps);
    let mut start = 0;
    for (s, sequence) in sequences.iter().enumerate() {
        let n = sequence.len();
        let hidden = found.hidden.clone().narrow(0, start, n);
        assert_close(&format!("{name} last"), &values(hidden.clone()), &floats(&format!("{s}.last")), BOUND);
        assert_close(&format!("{name} logits"), &values(target.logits(hidden)), &floats(&format!("{s}.logits")), BOUND);
        for (i, tap) in found.taps.iter().enumerate() {
            let expected = floats(&format!("{s}.tap.{i}"));
            assert_close(&format!("{name} tap {i}"), &values(tap.clone().narrow(0, start, n)), &expected, BOUND);
        }
        start += n;
    }
}

#[test]
fn tiny_checkpoint_without_grouping_matches_transformers() {
    tiny("tiny_gqa1_f32");
}

#[test]
fn tiny_sharded_untied_checkpoint_matches_transformers() {
    tiny("tiny_gqa3_bf16");
}

#[test]
fn tiny_checkpoint_with_its_own_head_width_matches_transformers() {
    tiny("tiny_gqa4_f16");
}
