//! Feature stores and answers files on disk: what is written is what is read, and damage is refused.
#![allow(clippy::unwrap_used)]

use std::fs::{self, OpenOptions};
use std::path::Path;

use half::bf16;
use spectrain_data::answers::{Answer, AnswersMeta, Finish, read_answers, write_answers};
use spectrain_data::store::{
    FeatureRow, MANIFEST, Manifest, StoreError, StoreMeta, StoreReader, StoreWriter, sha256_file,
};
use tempfile::TempDir;

const HIDDEN: usize = 5;
const TAPS: [usize; 3] = [2, 15, 27];
const VOCAB: usize = 1000;

fn meta(hidden: usize) -> StoreMeta {
    StoreMeta {
        target_hash: "t".repeat(64),
        answers_hash: "a".repeat(64),
        taps: TAPS.to_vec(),
        hidden,
        target_vocab: VOCAB,
        spectrain_version: "0.1.0".into(),
    }
}

/// A row whose every value depends on its number and place; all bf16 bit patterns occur.
fn row(number: usize, n: usize, hidden: usize) -> FeatureRow {
    let bits = |salt: usize, len: usize| {
        (0..len).map(|i| bf16::from_bits((number * 7919 + salt + i * 31) as u16)).collect::<Vec<_>>()
    };
    FeatureRow {
        request: (1 << 40) + number as u64,
        ids: (0..n).map(|i| ((number * 37 + i * 11) % VOCAB) as u32).collect(),
        loss_mask: (0..n).map(|i| !(i + number).is_multiple_of(3)).collect(),
        taps: bits(1, n * TAPS.len() * hidden),
        last_hidden: bits(2, n * hidden),
        logsumexp: (0..n).map(|i| if i == 0 { f32::NAN } else { (number * 100 + i) as f32 * 0.37 }).collect(),
        temperature: [0.0, 1.0, 0.7][number % 3],
        off_policy: number % 4 == 1,
    }
}

/// Equality by bits, so that NaN equals itself.
fn assert_same(a: &FeatureRow, b: &FeatureRow) {
    let half_bits = |v: &[bf16]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!((a.request, &a.ids, &a.loss_mask), (b.request, &b.ids, &b.loss_mask));
    assert_eq!(half_bits(&a.taps), half_bits(&b.taps));
    assert_eq!(half_bits(&a.last_hidden), half_bits(&b.last_hidden));
    assert_eq!(bits(&a.logsumexp), bits(&b.logsumexp));
    assert_eq!((a.temperature.to_bits(), a.off_policy), (b.temperature.to_bits(), b.off_policy));
}

fn write_store(dir: &Path, rows: &[FeatureRow], hidden: usize) -> Manifest {
    let mut writer = StoreWriter::create(dir, meta(hidden)).unwrap();
    for row in rows {
        writer.push(row.clone()).unwrap();
    }
    writer.finish().unwrap()
}

#[test]
fn rows_come_back_bit_for_bit() {
    let dir = TempDir::new().unwrap();
    let rows: Vec<FeatureRow> = (0..40).map(|i| row(i, 1 + i * 3 % 17, HIDDEN)).collect();
    let manifest = write_store(dir.path(), &rows, HIDDEN);
    let reader = StoreReader::open(dir.path()).unwrap();
    reader.verify().unwrap();
    assert_eq!(reader.manifest(), &manifest);
    assert_eq!(reader.meta(), &meta(HIDDEN));
    assert_eq!(reader.len(), 40);
    assert_eq!(reader.lens(), rows.iter().map(|r| r.ids.len()).collect::<Vec<_>>());
    assert_eq!(manifest.tokens, reader.lens().iter().sum::<usize>());
    let all = reader.read_all().unwrap();
    assert_eq!(all.len(), 40);
    for (i, want) in rows.iter().enumerate() {
        assert_same(&all[i], want);
        assert_same(&reader.read(i).unwrap(), want);
    }
    assert!(matches!(reader.read(40), Err(StoreError::OutOfRange { row: 40, rows: 40 })));
}

/// Rows of about 1.5 MB: several row groups a shard and more than one shard.
#[test]
fn shards_split_and_any_row_is_found() {
    let dir = TempDir::new().unwrap();
    let hidden = 576;
    let rows: Vec<FeatureRow> = (0..60).map(|i| row(i, 300 + i, hidden)).collect();
    let manifest = write_store(dir.path(), &rows, hidden);
    assert!(manifest.shards.len() >= 2, "{} shards", manifest.shards.len());
    for shard in &manifest.shards {
        assert!(shard.bytes < 80 << 20, "{} bytes", shard.bytes);
        assert_eq!(sha256_file(&dir.path().join(&shard.file)).unwrap(), shard.sha256);
    }
    let reader = StoreReader::open(dir.path()).unwrap();
    for i in [59, 0, 31, 30, 45, 1, 58] {
        assert_same(&reader.read(i).unwrap(), &rows[i]);
    }
    let second = reader.read_shard(1).unwrap();
    let start = manifest.shards[0].lens.len();
    assert_same(&second[0], &rows[start]);
    assert_eq!(start + second.len(), 60);
}

#[test]
fn an_empty_store_is_a_store() {
    let dir = TempDir::new().unwrap();
    let manifest = write_store(dir.path(), &[], HIDDEN);
    assert_eq!((manifest.rows, manifest.tokens, manifest.shards.len()), (0, 0, 0));
    let reader = StoreReader::open(dir.path()).unwrap();
    assert!(reader.is_empty());
    assert!(reader.read_all().unwrap().is_empty());
}

type Fault = fn(&mut FeatureRow);

#[test]
fn rows_that_do_not_fit_are_refused() {
    let dir = TempDir::new().unwrap();
    let mut writer = StoreWriter::create(dir.path(), meta(HIDDEN)).unwrap();
    writer.push(row(0, 4, HIDDEN)).unwrap();
    let faults: [(&str, Fault); 6] = [
        ("no tokens", |r| r.ids.clear()),
        ("`loss_mask` has 3 values, 4 tokens need 4", |r| r.loss_mask.truncate(3)),
        ("`taps` has 59 values, 4 tokens need 60", |r| r.taps.truncate(59)),
        ("`last_hidden` has 21 values, 4 tokens need 20", |r| r.last_hidden.push(bf16::ZERO)),
        ("`logsumexp` has 2 values, 4 tokens need 4", |r| r.logsumexp.truncate(2)),
        ("token 1000 is outside the vocabulary of 1000", |r| r.ids[3] = 1000),
    ];
    for (what, fault) in faults {
        let mut bad = row(1, 4, HIDDEN);
        fault(&mut bad);
        let error = writer.push(bad).unwrap_err().to_string();
        assert_eq!(error, format!("row 1 (request {}): {what}", (1u64 << 40) + 1));
    }
    writer.finish().unwrap();
    assert_eq!(StoreReader::open(dir.path()).unwrap().len(), 1);
}

#[test]
fn without_a_manifest_there_is_no_store() {
    let dir = TempDir::new().unwrap();
    let mut writer = StoreWriter::create(dir.path(), meta(576)).unwrap();
    for i in 0..60 {
        writer.push(row(i, 300, 576)).unwrap();
    }
    assert!(dir.path().join("features-00000.parquet").exists());
    drop(writer);
    assert!(matches!(StoreReader::open(dir.path()), Err(StoreError::NoManifest { .. })));
    // The next capture starts afresh and leaves nothing of the first one.
    write_store(dir.path(), &[row(7, 3, HIDDEN)], HIDDEN);
    assert_eq!(StoreReader::open(dir.path()).unwrap().lens(), [3]);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
}

#[test]
fn a_finished_store_is_not_overwritten() {
    let dir = TempDir::new().unwrap();
    write_store(dir.path(), &[row(0, 3, HIDDEN)], HIDDEN);
    let again = StoreWriter::create(dir.path(), meta(HIDDEN));
    assert!(matches!(again, Err(StoreError::Exists { .. })));
    assert_eq!(StoreReader::open(dir.path()).unwrap().len(), 1);
}

#[test]
fn damaged_shards_are_refused() {
    let dir = TempDir::new().unwrap();
    let rows: Vec<FeatureRow> = (0..9).map(|i| row(i, 20, HIDDEN)).collect();
    write_store(dir.path(), &rows, HIDDEN);
    let shard = dir.path().join("features-00000.parquet");
    let whole = fs::read(&shard).unwrap();

    let file = OpenOptions::new().write(true).open(&shard).unwrap();
    file.set_len(whole.len() as u64 - 100).unwrap();
    let error = StoreReader::open(dir.path()).err().unwrap().to_string();
    assert!(error.contains("features-00000.parquet") && error.contains("truncated"), "{error}");

    // The right size with a wrong byte: found by its hash.
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 1;
    fs::write(&shard, flipped).unwrap();
    let error = StoreReader::open(dir.path()).unwrap().verify().unwrap_err().to_string();
    assert!(error.contains("features-00000.parquet") && error.contains("SHA-256"), "{error}");

    // The right size and no Parquet file at all.
    fs::write(&shard, vec![0u8; whole.len()]).unwrap();
    let reader = StoreReader::open(dir.path()).unwrap();
    assert!(matches!(reader.read(0), Err(StoreError::Parquet { .. })));
    assert!(matches!(reader.read_all(), Err(StoreError::Parquet { .. })));

    fs::remove_file(&shard).unwrap();
    assert!(matches!(StoreReader::open(dir.path()), Err(StoreError::Io { .. })));
}

#[test]
fn contradicting_manifests_are_refused() {
    let dir = TempDir::new().unwrap();
    write_store(dir.path(), &[row(0, 6, HIDDEN), row(1, 4, HIDDEN)], HIDDEN);
    let path = dir.path().join(MANIFEST);
    let text = fs::read_to_string(&path).unwrap();
    let error_with = |from: &str, to: &str| {
        assert!(text.contains(from), "{from} is not in {text}");
        fs::write(&path, text.replacen(from, to, 1)).unwrap();
        match StoreReader::open(dir.path()) {
            Err(error) => error.to_string(),
            Ok(reader) => reader.read_all().unwrap_err().to_string(),
        }
    };
    assert!(error_with("\"format\":1", "\"format\":2").contains("store format 2"));
    assert!(error_with("\"tokens\":10", "\"tokens\":11").contains("sums"));
    assert!(error_with("[6,4]", "[4,6]").contains("row 0 has 6 tokens"));
    assert!(error_with("\"hidden\":5", "\"hidden\":6").contains("`taps` has 90 values"));
    assert!(error_with("features-00000", "../features-00000").contains("shard 0 is named"));
    assert!(error_with("{", "").contains("metadata"));
}

fn answers() -> (AnswersMeta, Vec<Answer>) {
    let meta = AnswersMeta {
        target_hash: "t".repeat(64),
        tokenizer_hash: "k".repeat(64),
        template_hash: "c".repeat(64),
        seed: u64::MAX,
        processors: serde_json::json!([{"kind": "top_p", "p": 0.9}]),
        spectrain_version: "0.1.0".into(),
    };
    let rows = (0..3000)
        .map(|i: u64| Answer {
            prompt_id: format!("chat-{i:03}"),
            task: ["chat", "math", "Übung"][i as usize % 3].into(),
            request: i,
            prompt_ids: (0..i as u32 % 90).collect(),
            answer_ids: (0..1 + i as u32 % 40).map(|k| k * 7 + i as u32).collect(),
            temperature: (i % 2) as f32,
            seed: u64::MAX - i,
            finish: if i.is_multiple_of(5) { Finish::Length } else { Finish::Stop },
            off_policy: i.is_multiple_of(7),
        })
        .collect();
    (meta, rows)
}

#[test]
fn answers_come_back() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("answers.parquet");
    let (meta, rows) = answers();
    write_answers(&path, &meta, &rows).unwrap();
    assert_eq!(read_answers(&path).unwrap(), (meta.clone(), rows));
    write_answers(&path, &meta, &[]).unwrap();
    assert_eq!(read_answers(&path).unwrap(), (meta, vec![]));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file is left");
}

#[test]
fn bad_answers_files_are_refused() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("answers.parquet");
    let (meta, rows) = answers();
    write_answers(&path, &meta, &rows).unwrap();
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() - 9]).unwrap();
    assert!(matches!(read_answers(&path), Err(StoreError::Parquet { .. })));

    // A feature shard is Parquet, too, but holds no answers.
    write_store(dir.path(), &[row(0, 3, HIDDEN)], HIDDEN);
    let error = read_answers(&dir.path().join("features-00000.parquet")).unwrap_err().to_string();
    assert!(error.contains("not an answers file"), "{error}");

    let nowhere = dir.path().join("no/answers.parquet");
    assert!(matches!(write_answers(&nowhere, &meta, &rows), Err(StoreError::Io { .. })));
}
