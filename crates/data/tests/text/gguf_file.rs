//! Reading GGUF: values against the `gguf` package, and files that are wrong in one place.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use spectrain_data::gguf::{Gguf, GgufError, GgufValue};

use crate::builder::{Builder, Meta, grid, tiny_llama};

fn open(bytes: &[u8]) -> Result<Gguf, GgufError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.gguf");
    fs::write(&path, bytes).unwrap();
    Gguf::open(&path)
}

#[test]
fn every_type_reads_as_the_reference_reads_it() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/gguf");
    let expected: BTreeMap<String, Vec<u32>> =
        serde_json::from_slice(&fs::read(dir.join("blocks.json")).unwrap()).unwrap();
    let gguf = Gguf::open(&dir.join("blocks.gguf")).unwrap();
    assert_eq!(gguf.names().collect::<Vec<_>>(), ["f16", "f32", "q4_1", "q8_0"]);
    for (name, bits) in &expected {
        let found: Vec<u32> = gguf.tensor_f32(name, &[3, 64]).unwrap().into_iter().map(f32::to_bits).collect();
        assert_eq!(found, *bits, "{name}");
    }
    assert_eq!(gguf.float("blocks.epsilon").unwrap(), 1e-5);
    assert_eq!(gguf.value("blocks.negative"), Some(&GgufValue::Int(-3)));
    assert_eq!(gguf.value("blocks.yes"), Some(&GgufValue::Bool(true)));
    assert_eq!(gguf.array("blocks.words", "texts", GgufValue::as_str).unwrap(), ["one", "zwölf", ""]);
}

#[test]
fn versions_two_and_three_are_read_and_no_other() {
    let mut gguf = tiny_llama();
    for version in [2, 3] {
        gguf.version = version;
        let read = open(&gguf.bytes()).unwrap();
        assert_eq!(read.shape("blk.0.ffn_down.weight"), Some(&[8, 12][..]));
        assert_eq!(read.tensor_f32("blk.0.ffn_down.weight", &[8, 12]).unwrap(), grid(8, 12));
    }
    for version in [0, 1, 4, 3u32.swap_bytes()] {
        gguf.version = version;
        assert!(matches!(open(&gguf.bytes()), Err(GgufError::Version { version: v, .. }) if v == version));
    }
}

#[test]
fn a_file_of_another_kind_is_refused() {
    for bytes in [&b""[..], b"GGU", b"PK\x03\x04 a zip", &[0; 64]] {
        assert!(matches!(open(bytes), Err(GgufError::Magic { .. })), "{bytes:?}");
    }
}

#[test]
fn truncation_anywhere_is_seen() {
    let bytes = tiny_llama().bytes();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.gguf");
    fs::write(&path, &bytes).unwrap();
    Gguf::open(&path).unwrap();
    let file = fs::File::options().write(true).open(&path).unwrap();
    for len in (4..bytes.len()).rev() {
        file.set_len(len as u64).unwrap();
        let error = Gguf::open(&path).unwrap_err();
        assert!(matches!(error, GgufError::Truncated { found, .. } if found == len as u64), "{len}: {error}");
    }
    let error = open(&bytes[..bytes.len() - 1]).unwrap_err().to_string();
    assert!(error.contains("x.gguf") && error.contains("tensor `blk.0.ffn_norm.weight`"), "{error}");
}

#[test]
fn an_absurd_length_is_truncation_not_memory() {
    let mut bytes = Builder::new().meta("k", Meta::Texts(vec![])).bytes();
    let count = bytes.len() - 8 - (bytes.len() - 8) % 8;
    let at = bytes.windows(12).position(|w| w == [9, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0]).unwrap_or(count) + 8;
    bytes[at..at + 8].copy_from_slice(&u64::MAX.to_le_bytes());
    assert!(matches!(open(&bytes), Err(GgufError::Truncated { .. })));
}

#[test]
fn an_unsupported_type_is_named_with_its_tensor() {
    let mut gguf = Builder::new();
    gguf.tensors.push(("some.weight".into(), vec![2, 256], 12, vec![0; 288]));
    let error = open(&gguf.bytes()).unwrap().tensor_f32("some.weight", &[2, 256]).unwrap_err();
    assert!(matches!(error, GgufError::Type { .. }));
    assert!(error.to_string().contains("`some.weight` has type Q4_K"), "{error}");
}

#[test]
fn wrong_shapes_and_names_are_told() {
    let gguf = open(&tiny_llama().bytes()).unwrap();
    let error = gguf.tensor_f32("token_embd.weight", &[9, 8]).unwrap_err().to_string();
    assert!(error.contains("`token_embd.weight` has shape [8, 8], expected [9, 8]"), "{error}");
    let error = gguf.tensor_f32("output.weight", &[8, 8]).unwrap_err().to_string();
    assert!(error.contains("`output.weight` is missing (expected shape [8, 8])"), "{error}");
    let error = gguf.uint("general.architecture").unwrap_err().to_string();
    assert!(error.contains("`general.architecture`: expected a non-negative integer, found text"), "{error}");
    assert!(gguf.text("general.none").unwrap_err().to_string().contains("found nothing"));
}

#[test]
fn malformed_headers_are_refused() {
    let mut ragged = Builder::new();
    ragged.tensors.push(("odd".into(), vec![2, 40], 8, vec![0; 96]));
    let mut twice = Builder::new();
    twice.f32s("t", &[1], &[0.0]).f32s("t", &[1], &[0.0]);
    let mut huge = Builder::new();
    huge.tensors.push(("huge".into(), vec![u64::MAX / 2, 4], 0, vec![0; 4]));
    let mut deep = Builder::new();
    deep.tensors.push(("deep".into(), vec![1; 5], 0, vec![0; 4]));
    let mut key_twice = Builder::new();
    key_twice.meta = vec![("k".into(), Meta::Bool(true)), ("k".into(), Meta::Bool(false))];
    let mut alignment = Builder::new();
    alignment.meta("general.alignment", Meta::U32(24));
    for (gguf, word) in [
        (ragged, "`odd`"),
        (twice, "`t`"),
        (huge, "`huge`"),
        (deep, "`deep`"),
        (key_twice, "`k`"),
        (alignment, "alignment"),
    ] {
        let error = open(&gguf.bytes()).unwrap_err();
        assert!(matches!(error, GgufError::Malformed { .. }) && error.to_string().contains(word), "{error}");
    }
}
