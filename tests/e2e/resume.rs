//! A run that is stopped and goes on ends as if it never had been: weights, moments and metrics, bit for bit.

use crate::support::{random_drafter, random_target, train_config, values};
use crate::training::{canary, objective};
use burn::tensor::Device;
use burn_pack::Reader;
use serde_json::Value;
use spectrain_core::loss::Policy;
use spectrain_core::recipe::ScheduleShape;
use spectrain_data::weights::WeightFile;
use spectrain_draft::Eagle3;
use spectrain_kernels::draft_loss::DraftLoss;
use spectrain_train::{
    JsonLines, MatrixUpdate, Measured, OptimiserConfig, Snapshot, Start, TrainConfig, TrainError, Trainer, snapshot,
};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path;

const VOCABULARY: usize = 40;

/// What a killed run may have written after its last checkpoint: a record, and half of one.
const LATER: &[u8] = b"{\"event\":\"validation\",\"step\":9999,\"loss\":0,\"loss_step\":[],\"alpha_step\":[]}\n{\"eve";

/// Moments and counters of an optimiser by name; the file's own order is that of a hash table.
fn moments(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let reader = Reader::from_file(dir.join("state/optimizer.bpk")).unwrap();
    let scalars = reader.scalars().iter().map(|(name, value)| (name.clone(), format!("{value:?}").into_bytes()));
    let mut all: BTreeMap<_, _> = scalars.collect();
    for name in reader.tensor_names() {
        all.insert(name.to_owned(), reader.tensor_data(name).unwrap());
    }
    all
}

/// Bits of every weight in a checkpoint's state.
fn weights(dir: &Path, file: &str) -> Vec<(String, Vec<u32>)> {
    let file = WeightFile::open(&dir.join("state").join(file)).unwrap();
    let values = |name: &str| file.tensor_f32(name, file.shape(name).unwrap()).unwrap();
    let bits = |name: &str| values(name).iter().map(|v| v.to_bits()).collect();
    let mut names = file.names();
    names.sort();
    names.into_iter().map(|name| (name.clone(), bits(&name))).collect()
}

/// Records without what clock and memory say.
fn records(dir: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(dir.join("metrics.jsonl")).unwrap();
    let timeless = |line: &str| {
        let mut record: Value = serde_json::from_str(line).unwrap();
        for measured in ["tokens_per_second", "memory_mib"] {
            record.as_object_mut().unwrap().remove(measured);
        }
        record
    };
    text.lines().map(timeless).collect()
}

/// A run with held-out conversations.
fn config(matrices: MatrixUpdate, dropout: f64) -> TrainConfig {
    TrainConfig {
        dropout,
        optimiser: OptimiserConfig { matrices, betas: (0.9, 0.95), eps: 1e-8, weight_decay: 0.01 },
        validation_share: 0.2,
        // No divisor of the stops: a stop falls between two records.
        log_every: 4,
        ..train_config()
    }
}

/// Everything that the loop remembers or draws at once.
fn everything() -> TrainConfig {
    TrainConfig {
        batch_tokens: 100,
        accumulate: 2,
        schedule: ScheduleShape::Wsd,
        feature_noise: 0.01,
        ema: 0.9,
        // So slow that losses scatter about one level, and so strict that some steps are skipped.
        learning_rate: 1e-4,
        spike: 1.01,
        ..config(MatrixUpdate::Muon, 0.1)
    }
}

/// Trains in `dir`, stopping after the steps in `stops`; the state of the end lies in `dir` then.
fn train(dir: &Path, config: &TrainConfig, stops: &[usize]) {
    let target_dir = tempfile::tempdir().unwrap();
    let target = random_target(target_dir.path(), VOCABULARY, 31);
    let device = Device::flex().autodiff();
    let rows = &canary(&target, 2)[..60];
    let (drafter, fresh) = random_drafter(&target, VOCABULARY, 8, &device);
    let mut objective = objective(DraftLoss::Lk);
    let mut fresh = fresh;
    if config.ema > 0.0 {
        fresh = fresh.with_head(drafter.target_head.rows());
        objective.policies = vec![Policy::default(), Policy { temperature: 0.7, top_p: 0.9, ..Policy::default() }];
    }
    // A figure of the weights; what it means is no matter here.
    let measure =
        |weights: &Eagle3| Ok(Measured::from(values(weights.norm.val()).iter().map(|&v| f64::from(v)).sum::<f64>()));
    let mut start: Start = Start::Fresh(Box::new(fresh));
    let mut stops = stops.iter();
    loop {
        let next = stops.next().copied();
        let reached = Cell::new(if let Start::Resumed(s) = &start { s.step() } else { 0 });
        let stop = || next.is_some_and(|n| reached.get() + 1 >= n);
        let (drafter, objective, stop) = (&drafter, &objective, &stop);
        let trainer = Trainer { drafter, objective, config, rows, stop, measure: Some(&measure) };
        let path = dir.join("metrics.jsonl");
        let mut sink = match &start {
            Start::Fresh(_) => JsonLines::create(&path).unwrap(),
            Start::Resumed(s) => JsonLines::resume(&path, s.step()).unwrap(),
        };
        let mut on_step = |update: spectrain_train::Update| {
            reached.set(update.step);
            update.checkpoint.map_or(Ok(()), |due| due.save_state(dir).map_err(|e| e.to_string()))
        };
        match trainer.run(start, &mut sink, &mut on_step) {
            Ok(_) => return,
            Err(TrainError::Stopped { step, .. }) => assert_eq!(Some(step), next),
            Err(other) => panic!("{other}"),
        }
        // What came after the checkpoint is not to be believed.
        std::fs::OpenOptions::new()
            .append(true)
            .open(&path)
            .and_then(|mut file| {
                use std::io::Write;
                file.write_all(LATER)
            })
            .unwrap();
        start = Start::Resumed(Box::new(Snapshot::load(dir, &drafter.config, &device).unwrap()));
    }
}

#[test]
fn a_resumed_run_ends_with_the_bits_of_an_uninterrupted_one() {
    let runs = [config(MatrixUpdate::AdamW, 0.2), config(MatrixUpdate::Muon, 0.2), everything()];
    for (name, config) in ["AdamW", "Muon", "everything"].iter().zip(runs) {
        let (whole, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        train(whole.path(), &config, &[]);
        train(parts.path(), &config, &[1, 6, 7, 13]);
        let step = |dir: &Path| {
            let text = std::fs::read_to_string(dir.join("state/progress.json")).unwrap();
            serde_json::from_str::<Value>(&text).unwrap()["step"].as_u64().unwrap()
        };
        assert!(step(whole.path()) > 13, "the run ends after the last stop");
        assert_eq!(step(whole.path()), step(parts.path()));
        for file in ["weights.safetensors", "average.safetensors"].iter().take(1 + usize::from(config.ema > 0.0)) {
            assert_eq!(weights(whole.path(), file), weights(parts.path(), file), "{name}, {file}");
        }
        let remembered = |dir: &Path| std::fs::read_to_string(dir.join("state/progress.json")).unwrap();
        assert_eq!(remembered(whole.path()), remembered(parts.path()), "{name}");
        let (a, b) = (moments(whole.path()), moments(parts.path()));
        assert!(a.len() >= 20, "every parameter has its moments: {:?}", a.keys());
        assert_eq!(a, b, "{name}");
        assert_eq!(records(whole.path()), records(parts.path()), "{name}");
        let skipped = records(whole.path()).iter().filter(|r| r["event"] == "skipped").count();
        assert_eq!(skipped > 0, config.spike > 0.0, "{name}: {skipped} steps skipped");
    }
}

#[test]
fn a_state_that_is_cut_off_is_an_error_and_no_panic() {
    let dir = tempfile::tempdir().unwrap();
    train(dir.path(), &TrainConfig { ema: 0.9, ..config(MatrixUpdate::AdamW, 0.0) }, &[]);
    let target_dir = tempfile::tempdir().unwrap();
    let target = random_target(target_dir.path(), VOCABULARY, 31);
    let device = Device::flex().autodiff();
    let (drafter, _): (_, Eagle3) = random_drafter(&target, VOCABULARY, 8, &device);
    for file in ["weights.safetensors", "average.safetensors", "optimizer.bpk", "progress.json"] {
        let path = dir.path().join(snapshot::DIR).join(file);
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
        let error = Snapshot::load(dir.path(), &drafter.config, &device).err().expect(file).to_string();
        assert!(error.contains(file), "{error}");
        std::fs::write(&path, &bytes).unwrap();
    }
    assert!(Snapshot::load(dir.path(), &drafter.config, &device).is_ok());
}

/// Held-out losses of a run.
fn held_out(dir: &Path) -> Vec<f64> {
    let validation = |r: &Value| (r["event"] == "validation").then(|| r["loss"].as_f64().unwrap());
    records(dir).iter().filter_map(validation).collect()
}

#[test]
fn dropout_noise_and_schedule_reach_training_and_no_optimiser_is_the_other() {
    let trained = |config: TrainConfig| {
        let dir = tempfile::tempdir().unwrap();
        train(dir.path(), &config, &[]);
        held_out(dir.path())
    };
    let run = |matrices, dropout| trained(config(matrices, dropout));
    let plain = run(MatrixUpdate::AdamW, 0.0);
    assert_eq!(plain.len(), 3, "one validation an epoch");
    assert_ne!(plain, run(MatrixUpdate::AdamW, 0.2));
    assert_ne!(plain, run(MatrixUpdate::Muon, 0.0));
    assert_ne!(plain, trained(TrainConfig { feature_noise: 0.01, ..config(MatrixUpdate::AdamW, 0.0) }));
    assert_ne!(plain, trained(TrainConfig { schedule: ScheduleShape::Linear, ..config(MatrixUpdate::AdamW, 0.0) }));
}
