//! Which weights of a run are kept, when it ends early, and which steps are not taken.

use crate::support::{random_drafter, random_target, train_config, values};
use crate::training::{canary, objective};
use burn::tensor::Device;
use half::bf16;
use spectrain_data::store::FeatureRow;
use spectrain_draft::batch::packed_rows;
use spectrain_draft::{Eagle3, Eagle3Drafter, Objective};
use spectrain_kernels::draft_loss::DraftLoss;
use spectrain_train::{
    Batches, Measured, MetricSink, Record, Snapshot, Start, TrainConfig, TrainError, Trainer, Update,
};
use std::cell::RefCell;
use std::path::Path;

const VOCABULARY: usize = 40;

/// Keeps every record.
#[derive(Default)]
struct Kept(Vec<Record>);

impl MetricSink for Kept {
    fn record(&mut self, record: &Record) -> std::io::Result<()> {
        self.0.push(record.clone());
        Ok(())
    }
}

/// A drafter with rows to train on.
struct Run {
    drafter: Eagle3Drafter,
    fresh: Eagle3,
    rows: Vec<FeatureRow>,
    objective: Objective,
}

impl Run {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let target = random_target(dir.path(), VOCABULARY, 31);
        let (drafter, fresh) = random_drafter(&target, VOCABULARY, 8, &Device::flex().autodiff());
        Self { drafter, fresh, rows: canary(&target, 2)[..60].to_vec(), objective: objective(DraftLoss::Kl) }
    }

    fn trainer<'a>(
        &'a self,
        config: &'a TrainConfig,
        measure: Option<&'a spectrain_train::Measure<'a>>,
    ) -> Trainer<'a> {
        let Self { drafter, objective, rows, .. } = self;
        Trainer { drafter, objective, config, rows, stop: &|| false, measure }
    }

    fn start(&self) -> Start {
        Start::Fresh(Box::new(self.fresh.clone()))
    }
}

/// What identifies weights here.
fn fusion(weights: &Eagle3) -> Vec<f32> {
    values(weights.fc.val())
}

/// An epoch's end as the caller sees it.
#[derive(Debug, PartialEq)]
struct Told {
    length: f64,
    best: bool,
    over_training: bool,
}

/// Trains with measured lengths that are written beforehand; tells every epoch's end, the best weights that were handed
/// out, and the weights that were measured.
fn scripted(run: &Run, config: &TrainConfig, script: &[f64], dir: &Path) -> (Vec<Told>, Vec<f32>, Vec<Vec<f32>>) {
    let measured = RefCell::new(Vec::new());
    let measure = |weights: &Eagle3| {
        measured.borrow_mut().push(fusion(weights));
        Ok(Measured::from(script[measured.borrow().len() - 1]))
    };
    let (mut told, mut best, mut last) = (Vec::new(), Vec::new(), Vec::new());
    let mut on_step = |update: Update| {
        if let Some(v) = &update.validated {
            told.push(Told {
                length: v.expected_length.unwrap(),
                best: v.best.is_some(),
                over_training: v.over_training,
            });
            best = v.best.map_or(std::mem::take(&mut best), fusion);
        }
        let Some(due) = update.checkpoint else { return Ok(()) };
        last = fusion(due.weights);
        due.save_state(dir).map_err(|e| e.to_string())
    };
    let ended = run.trainer(config, Some(&measure)).run(run.start(), &mut Kept::default(), &mut on_step).unwrap();
    assert_eq!(fusion(&ended), last, "the end is a checkpoint, and what is kept is what is returned");
    let measured = measured.into_inner();
    (told, best, measured)
}

#[test]
fn the_longest_measured_weights_are_best_and_patience_ends_the_run() {
    let (run, dir) = (Run::new(), tempfile::tempdir().unwrap());
    let config = TrainConfig { epochs: 9, validation_share: 0.2, patience: 2, ..train_config() };
    let script = [1.5, 1.8, 1.7, 1.6, 3.0, 4.0];
    let (told, best, measured) = scripted(&run, &config, &script, dir.path());
    let expected = [(1.5, true, false), (1.8, true, false), (1.7, false, true), (1.6, false, true)];
    let expected = expected.map(|(length, best, over_training)| Told { length, best, over_training });
    assert_eq!(told, expected, "two epochs in a row without a longer length end the run");
    assert_eq!(best, measured[1]);
    assert_ne!(best, measured[3]);
    // The state remembers that the run is over.
    let device = Device::flex().autodiff();
    let snapshot = Snapshot::load(dir.path(), &run.drafter.config, &device).unwrap();
    let mut more = 0;
    let resumed = Start::Resumed(Box::new(snapshot));
    let mut on_step = |_: Update| {
        more += 1;
        Ok(())
    };
    let measure = |_: &Eagle3| Ok(Measured::from(9.0));
    run.trainer(&config, Some(&measure)).run(resumed, &mut Kept::default(), &mut on_step).unwrap();
    assert_eq!(more, 0);
    let patient = TrainConfig { patience: 0, epochs: 5, ..config };
    let (told, best, measured) = scripted(&run, &patient, &script, dir.path());
    assert_eq!((told.len(), told[4].best), (5, true));
    assert_eq!(best, measured[4]);
}

#[test]
fn the_average_is_what_is_measured_and_kept() {
    let (run, device) = (Run::new(), Device::flex().autodiff());
    let trained = |ema: f64| {
        let dir = tempfile::tempdir().unwrap();
        let config = TrainConfig { epochs: 2, validation_share: 0.2, ema, checkpoint_every: 1, ..train_config() };
        let (mut by_hand, mut measured, mut states) = (fusion(&run.fresh), RefCell::new(Vec::new()), Vec::new());
        let measure = |weights: &Eagle3| {
            measured.borrow_mut().push(fusion(weights));
            Ok(Measured::from(measured.borrow().len() as f64))
        };
        let mut on_step = |update: Update| {
            let due = update.checkpoint.unwrap();
            due.save_state(dir.path()).map_err(|e| e.to_string())?;
            let snapshot = Snapshot::load(dir.path(), &run.drafter.config, &device).unwrap();
            let kept = ema.min((1.0 + update.step as f64) / (10.0 + update.step as f64)) as f32;
            let weights = fusion(&snapshot.weights);
            by_hand.iter_mut().zip(&weights).for_each(|(a, w)| *a = kept * *a + (1.0 - kept) * w);
            let off = by_hand.iter().zip(fusion(due.weights)).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(off < 1e-6, "step {}: {off} off", update.step);
            if let Some(best) = update.validated.and_then(|v| v.best) {
                assert_eq!(&fusion(best), measured.borrow().last().unwrap());
                assert_eq!(fusion(best), fusion(due.weights));
            }
            states.push(weights);
            Ok(())
        };
        run.trainer(&config, Some(&measure)).run(run.start(), &mut Kept::default(), &mut on_step).unwrap();
        assert_eq!(measured.get_mut().len(), 2);
        states
    };
    assert_eq!(trained(0.9), trained(0.0), "the average does not touch training");
}

#[test]
fn a_spike_is_skipped_and_its_requests_are_named() {
    let mut run = Run::new();
    // Two conversations a batch; one in a batch so late that there is a median.
    let config = TrainConfig { epochs: 1, batch_tokens: 48, checkpoint_every: 1, ..train_config() };
    let sizes = run.rows.iter().map(|row| packed_rows(row, run.objective.step_weights.len())).collect();
    let odd = Batches::new(sizes, config.batch_tokens, config.seed).epoch(0)[20][0];
    run.rows[odd].last_hidden.iter_mut().for_each(|v| *v = bf16::from_f32(v.to_f32() * 1000.0));
    run.objective.feature_weight = 0.01;
    let trained = |spike: f64| {
        let config = TrainConfig { spike, ..config.clone() };
        let (mut kept, mut weights, mut skipped) = (Kept::default(), vec![fusion(&run.fresh)], Vec::new());
        let mut on_step = |update: Update| {
            weights.push(fusion(update.checkpoint.unwrap().weights));
            skipped.extend(update.skipped.map(|s| (update.step, s.requests)));
            Ok(())
        };
        run.trainer(&config, None).run(run.start(), &mut kept, &mut on_step).unwrap();
        let same: Vec<usize> = (1..weights.len()).filter(|&i| weights[i] == weights[i - 1]).collect();
        (kept.0, skipped, same)
    };
    let (_, skipped, same) = trained(0.0);
    assert!(skipped.is_empty() && same.is_empty(), "without a guard every step is taken");
    let (records, skipped, same) = trained(4.0);
    let [(step, requests)] = &skipped[..] else { panic!("{skipped:?}") };
    assert_eq!(*step, 21);
    assert!(requests.contains(&(odd as u64)) && requests.len() <= 2, "{requests:?}");
    assert_eq!(same, [*step], "that step, and no other, left the weights alone");
    let told = records.iter().find_map(|r| match r {
        Record::Skipped { step, loss, median, requests } => Some((*step, loss / median, requests.clone())),
        _ => None,
    });
    let (at, times, named) = told.unwrap();
    assert!(at == *step && times > 4.0 && named == *requests, "{at}, {times}");
    assert!(records.iter().all(|r| !matches!(r, Record::Step { step: s, .. } if s == step)), "its loss is in no mean");
}

#[test]
fn a_loss_that_is_no_number_stops_the_run_and_names_its_batch() {
    let mut run = Run::new();
    const ODD: usize = 17;
    run.rows[ODD].taps[40] = bf16::NAN;
    for accumulate in [1, 4] {
        let config = TrainConfig { epochs: 1, batch_tokens: 48, accumulate, spike: 4.0, ..train_config() };
        let error = run.trainer(&config, None).run(run.start(), &mut Kept::default(), &mut |_| Ok(())).err().unwrap();
        let text = error.to_string();
        let TrainError::Diverged { step, loss, requests, .. } = error else { panic!("{text}") };
        assert!(loss.is_nan() && step >= 1 && requests.contains(&(ODD as u64)), "{text}");
        assert!(requests.len() <= 2, "the batch and not the whole step: {text}");
        assert!(text.contains(&format!("at step {step}, in the batch of request")), "{text}");
    }
}
