//! Reading and writing weights in the Hugging Face layout.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use half::{bf16, f16};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::json;
use spectrain_data::weights::{
    CONFIG, F32Tensor, INDEX, SINGLE, WeightDir, WeightError, WeightFile, write_atomically, write_safetensors,
};
use tempfile::TempDir;

fn tensor(name: &str, shape: &[usize], values: &[f32]) -> (String, F32Tensor<'static>) {
    (name.to_owned(), F32Tensor::new(shape, values.to_vec()))
}

fn write(path: &Path, tensors: &[(String, F32Tensor)]) {
    write_safetensors(path, tensors, &BTreeMap::new()).unwrap();
}

/// A model directory of one file with `a` [2, 2] and `b` [3].
fn single() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(CONFIG), r#"{"hidden_size": 2}"#).unwrap();
    write(
        &dir.path().join(SINGLE),
        &[tensor("a", &[2, 2], &[1.0, 2.0, 3.0, 4.0]), tensor("b", &[3], &[0.5, -0.5, 9.0])],
    );
    dir
}

/// The same tensors in two shards under an index.
fn sharded(weight_map: serde_json::Value) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(CONFIG), r#"{"hidden_size": 2}"#).unwrap();
    write(&dir.path().join("one.safetensors"), &[tensor("a", &[2, 2], &[1.0, 2.0, 3.0, 4.0])]);
    write(&dir.path().join("two.safetensors"), &[tensor("b", &[3], &[0.5, -0.5, 9.0])]);
    fs::write(dir.path().join(INDEX), json!({ "metadata": {}, "weight_map": weight_map }).to_string()).unwrap();
    dir
}

#[test]
fn one_file_and_shards_hold_the_same_tensors() {
    let shards = sharded(json!({ "a": "one.safetensors", "b": "two.safetensors" }));
    for dir in [single(), shards] {
        let weights = WeightDir::open(dir.path()).unwrap();
        assert_eq!(weights.names().collect::<Vec<_>>(), ["a", "b"]);
        assert!(weights.has("a") && !weights.has("c"));
        assert_eq!(weights.shape("b"), Some(&[3][..]));
        assert_eq!(weights.tensor_f32("a", &[2, 2]).unwrap(), [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(weights.tensor_f32("b", &[3]).unwrap(), [0.5, -0.5, 9.0]);
        assert_eq!(weights.config_json()["hidden_size"], 2);
    }
}

/// Opening must fail with one line that holds all `words`.
fn refused(dir: &Path, words: &[&str]) -> WeightError {
    let error = WeightDir::open(dir).unwrap_err();
    let line = error.to_string();
    assert!(words.iter().all(|word| line.contains(word)) && !line.contains('\n'), "{words:?}: {line}");
    error
}

#[test]
fn index_and_shards_are_checked_both_ways() {
    for (map, words) in [
        (json!({ "a": "one.safetensors" , "b": "one.safetensors" }), "tensor `b` is not in one.safetensors"),
        (json!({ "a": "one.safetensors", "b": "two.safetensors", "c": "two.safetensors" }), "tensor `c` is not in two"),
        (json!({ "a": "one.safetensors", "b": "three.safetensors" }), "shard three.safetensors is missing"),
        (json!({ "a": "two.safetensors", "b": "one.safetensors" }), "tensor `b` is not in one.safetensors"),
        (json!({ "a": 1 }), "tensor `a` is given 1"),
        (json!({}), "lists no tensor"),
    ] {
        let error = refused(sharded(map).path(), &[words, INDEX]);
        assert!(matches!(error, WeightError::Index { .. }), "{error}");
    }
    for (map, words) in [(json!([]), "`weight_map` as an object"), (json!("one.safetensors"), "`weight_map`")] {
        let error = refused(sharded(map).path(), &[words, INDEX]);
        assert!(matches!(error, WeightError::Json { .. }), "{error}");
    }
    let dir = sharded(json!({ "a": "one.safetensors", "b": "two.safetensors" }));
    write(&dir.path().join("two.safetensors"), &[tensor("b", &[3], &[0.0; 3]), tensor("hidden", &[1], &[1.0])]);
    refused(dir.path(), &["tensor `hidden` of two.safetensors is not listed"]);
    // In both shards, under a name that the index gives to the other one.
    write(&dir.path().join("two.safetensors"), &[tensor("b", &[3], &[0.0; 3]), tensor("a", &[1], &[1.0])]);
    refused(dir.path(), &["tensor `a` of two.safetensors is not listed there"]);
}

#[test]
fn an_index_cannot_lead_out_of_its_directory() {
    let outer = tempfile::tempdir().unwrap();
    write(&outer.path().join("secret.safetensors"), &[tensor("a", &[1], &[1.0])]);
    let absolute = outer.path().join("secret.safetensors").to_str().unwrap().to_owned();
    let dir = outer.path().join("model");
    fs::create_dir(&dir).unwrap();
    fs::create_dir(dir.join("sub")).unwrap();
    fs::write(dir.join(CONFIG), "{}").unwrap();
    write(&dir.join("sub/one.safetensors"), &[tensor("a", &[1], &[1.0])]);
    for file in ["../secret.safetensors", &absolute, "sub/one.safetensors", "..\\secret.safetensors", "C:x", "..", ""] {
        fs::write(dir.join(INDEX), json!({ "weight_map": { "a": file } }).to_string()).unwrap();
        let error = refused(&dir, &["tensor `a` is given", "a file of this directory"]);
        assert!(matches!(error, WeightError::Index { .. }), "{error}");
    }
}

#[test]
fn a_tensor_listed_twice_is_refused() {
    let dir = sharded(json!({}));
    let index =
        r#"{"weight_map": {"b": "one.safetensors", "a": "one.safetensors", "b": "two.safetensors"}, "metadata": {}}"#;
    fs::write(dir.path().join(INDEX), index).unwrap();
    refused(dir.path(), &[INDEX, "tensor `b` is listed twice"]);
}

#[test]
fn weights_that_the_index_does_not_name_are_ignored_unless_others_would_load_them() {
    let dir = sharded(json!({ "a": "one.safetensors", "b": "two.safetensors" }));
    write(&dir.path().join("consolidated.safetensors"), &[tensor("c", &[1], &[1.0])]);
    fs::write(dir.path().join("three.safetensors"), "not even a weight file").unwrap();
    assert_eq!(WeightDir::open(dir.path()).unwrap().names().collect::<Vec<_>>(), ["a", "b"]);
    write(&dir.path().join(SINGLE), &[tensor("a", &[2, 2], &[0.0; 4])]);
    refused(dir.path(), &[INDEX, "model.safetensors lies beside it"]);
    // Some writers add an index to a model of one file.
    let dir = single();
    fs::write(dir.path().join(INDEX), json!({ "weight_map": { "a": SINGLE, "b": SINGLE } }).to_string()).unwrap();
    assert_eq!(WeightDir::open(dir.path()).unwrap().names().count(), 2);
}

#[test]
fn types_may_differ_between_shards_and_within_one() {
    let dir = sharded(json!({ "a": "one.safetensors", "b": "two.safetensors", "c": "two.safetensors" }));
    let values = [1.0f32, 0.333, -70000.0];
    let f16s: Vec<u8> = values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect();
    let bf16s: Vec<u8> = values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect();
    let views = [
        ("b".to_owned(), TensorView::new(Dtype::F16, vec![3], &f16s).unwrap()),
        ("c".to_owned(), TensorView::new(Dtype::BF16, vec![3, 1], &bf16s).unwrap()),
    ];
    write_safetensors(&dir.path().join("two.safetensors"), &views, &BTreeMap::new()).unwrap();
    let weights = WeightDir::open(dir.path()).unwrap();
    assert_eq!(weights.tensor_f32("a", &[2, 2]).unwrap(), [1.0, 2.0, 3.0, 4.0]);
    // Beyond the largest f16 there is infinity, as the writer made it; bf16 keeps the range and loses digits.
    assert_eq!(weights.tensor_f32("b", &[3]).unwrap(), [1.0, 0.333_007_8, f32::NEG_INFINITY]);
    assert_eq!(weights.tensor_f32("c", &[3, 1]).unwrap(), [1.0, 0.33203125, -70144.0]);
}

#[test]
fn types_that_are_no_plain_floats_name_tensor_and_file() {
    let dir = sharded(json!({ "a": "one.safetensors", "q": "two.safetensors" }));
    let path = dir.path().join("two.safetensors");
    let views = [("q".to_owned(), TensorView::new(Dtype::F8_E4M3, vec![2], &[1, 2]).unwrap())];
    write_safetensors(&path, &views, &BTreeMap::new()).unwrap();
    let error = WeightDir::open(dir.path()).unwrap().tensor_f32("q", &[2]).unwrap_err().to_string();
    assert!(error.ends_with("two.safetensors: tensor `q` has type F8_E4M3, expected F32, F16 or BF16"), "{error}");
    // A type newer than this build: the header itself does not parse.
    let bytes = fs::read(&path).unwrap();
    let text = String::from_utf8_lossy(&bytes).replace("F8_E4M3", "F2_E1M0");
    fs::write(&path, text.as_bytes()).unwrap();
    let error = refused(dir.path(), &["two.safetensors: tensor `q` has type F2_E1M0, expected F32, F16 or BF16"]);
    assert!(matches!(error, WeightError::Dtype { .. }), "{error}");
}

#[test]
fn wrong_requests_name_tensor_file_and_shapes() {
    let dir = single();
    let weights = WeightDir::open(dir.path()).unwrap();
    let error = weights.tensor_f32("a", &[4]).unwrap_err();
    assert!(matches!(error, WeightError::Shape { .. }));
    assert!(error.to_string().contains("model.safetensors: tensor `a` has shape [2, 2], expected [4]"), "{error}");
    let error = weights.tensor_f32("lm_head.weight", &[5, 2]).unwrap_err();
    assert!(matches!(error, WeightError::Missing { .. }));
    assert!(error.to_string().contains("`lm_head.weight` is missing (expected shape [5, 2])"), "{error}");
}

#[test]
fn half_types_widen_and_integers_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.safetensors");
    let values = [1.0f32, -2.5, 65504.0, 6e-8];
    let f16s: Vec<u8> = values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect();
    let bf16s: Vec<u8> = values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect();
    let views = [
        ("f16".to_owned(), TensorView::new(Dtype::F16, vec![4], &f16s).unwrap()),
        ("bf16".to_owned(), TensorView::new(Dtype::BF16, vec![2, 2], &bf16s).unwrap()),
        ("ids".to_owned(), TensorView::new(Dtype::I64, vec![1], &f16s).unwrap()),
    ];
    write_safetensors(&path, &views, &BTreeMap::new()).unwrap();
    let file = WeightFile::open(&path).unwrap();
    assert_eq!(file.tensor_f32("f16", &[4]).unwrap(), values.map(|v| f16::from_f32(v).to_f32()));
    assert_eq!(file.tensor_f32("bf16", &[2, 2]).unwrap(), values.map(|v| bf16::from_f32(v).to_f32()));
    let error = file.tensor_f32("ids", &[1]).unwrap_err();
    assert!(matches!(error, WeightError::Dtype { .. }) && error.to_string().contains("`ids` has type I64"), "{error}");
}

#[test]
fn a_file_of_the_wrong_length_is_refused() {
    let dir = single();
    let path = dir.path().join(SINGLE);
    let bytes = fs::read(&path).unwrap();
    for len in 0..bytes.len() {
        fs::write(&path, &bytes[..len]).unwrap();
        let error = WeightDir::open(dir.path()).unwrap_err();
        assert!(matches!(error, WeightError::Length { found, .. } if found == len as u64), "{len}: {error}");
        assert!(error.to_string().contains("model.safetensors: truncated"), "{error}");
    }
    fs::write(&path, [&bytes[..], b"more"].concat()).unwrap();
    let error = WeightDir::open(dir.path()).unwrap_err().to_string();
    assert!(error.contains("too long"), "{error}");
    fs::write(&path, [&bytes[..8], &vec![b'x'; bytes.len() - 8]].concat()).unwrap();
    assert!(matches!(WeightDir::open(dir.path()), Err(WeightError::Header { .. })));
}

#[test]
fn a_directory_that_is_no_model_says_what_it_lacks() {
    let dir = tempfile::tempdir().unwrap();
    let error = WeightDir::open(dir.path()).unwrap_err();
    assert!(matches!(error, WeightError::NotAModel { need: CONFIG, .. }), "{error}");
    fs::write(dir.path().join(CONFIG), "{}").unwrap();
    assert!(matches!(WeightDir::open(dir.path()), Err(WeightError::NotAModel { need: SINGLE, .. })));
    fs::write(dir.path().join(CONFIG), "{").unwrap();
    assert!(matches!(WeightDir::open(dir.path()), Err(WeightError::Json { .. })));
    fs::write(dir.path().join(CONFIG), "{}").unwrap();
    fs::write(dir.path().join("pytorch_model.bin"), "").unwrap();
    refused(dir.path(), &["no model.safetensors but pytorch_model.bin", "convert it to safetensors"]);
    fs::write(dir.path().join("model-00001-of-00002.safetensors"), "").unwrap();
    refused(dir.path(), &[INDEX, "model-00001-of-00002.safetensors"]);
    let error = WeightDir::open(&dir.path().join("none")).unwrap_err();
    assert!(matches!(error, WeightError::Io { .. }) && error.to_string().contains("none"), "{error}");
}

#[test]
fn the_hash_sees_every_byte() {
    let dir = single();
    let hash = || WeightDir::open(dir.path()).unwrap().content_hash().to_owned();
    let first = hash();
    assert_eq!((first.len(), hash()), (64, first.clone()));
    let path = dir.path().join(SINGLE);
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, &bytes).unwrap();
    let second = hash();
    assert_ne!(first, second);
    fs::write(dir.path().join(CONFIG), r#"{"hidden_size": 3}"#).unwrap();
    assert_ne!(second, hash());
}

#[test]
fn equal_input_gives_equal_bytes_and_metadata_returns() {
    let dir = tempfile::tempdir().unwrap();
    let metadata: BTreeMap<String, String> = (0..20).map(|n| (format!("key{n}"), format!("ü\"{n}"))).collect();
    let tensors = [tensor("z", &[1], &[1.0]), tensor("a", &[0, 3], &[]), tensor("m", &[], &[7.0])];
    let path = dir.path().join("x.safetensors");
    let bytes = || {
        write_safetensors(&path, &tensors, &metadata).unwrap();
        fs::read(&path).unwrap()
    };
    assert_eq!(bytes(), bytes());
    let file = WeightFile::open(&path).unwrap();
    assert_eq!(file.metadata(), metadata);
    assert_eq!(file.names(), ["a", "m", "z"]);
    assert_eq!(file.tensor_f32("m", &[]).unwrap(), [7.0]);
    assert!(file.tensor_f32("a", &[0, 3]).unwrap().is_empty());
    // Another reader agrees.
    let bytes = bytes();
    assert_eq!(
        safetensors::SafeTensors::deserialize(&bytes).unwrap().tensor("z").unwrap().data(),
        1.0f32.to_le_bytes()
    );
}

#[test]
fn a_failed_write_leaves_the_old_file_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    write_atomically(&path, |out| out.write_all(b"old")).unwrap();
    let failed = write_atomically(&path, |out| {
        out.write_all(b"half")?;
        Err(std::io::Error::other("disk full"))
    });
    assert_eq!(failed.unwrap_err().to_string(), "disk full");
    assert_eq!(fs::read(&path).unwrap(), b"old");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    let twice = [tensor("a", &[1], &[1.0]), tensor("a", &[1], &[2.0])];
    assert!(matches!(write_safetensors(&path, &twice, &BTreeMap::new()), Err(WeightError::Twice { .. })));
    let nowhere = dir.path().join("x/y.safetensors");
    let error = write_safetensors(&nowhere, &twice[..1], &BTreeMap::new()).unwrap_err();
    assert!(matches!(error, WeightError::Io { .. }) && error.to_string().contains("y.safetensors"), "{error}");
}
