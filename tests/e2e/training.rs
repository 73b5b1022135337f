//! The training loss: right in value, right in gradient, aligned with what each step must predict.

use crate::support::{assert_close, noise, random_drafter, random_target, train_config, values};
use burn::tensor::{Device, Tensor, activation};
use half::bf16;
use spectrain_core::loss::{Loss, Row, Temperature};
use spectrain_data::store::FeatureRow;
use spectrain_draft::{Eagle3, Eagle3Drafter, Objective, StepLoss, TrainBatch};
use spectrain_kernels::draft_loss::{DraftLoss, log_denominator};
use spectrain_kernels::rope::indices;
use spectrain_model::{Llama, host_rows};
use spectrain_train::{MetricSink, Record, Start, TrainConfig, Trainer};

const VOCABULARY: usize = 40;
const STEPS: usize = 3;

fn rounded(values: Vec<f32>) -> Vec<bf16> {
    values.into_iter().map(bf16::from_f32).collect()
}

/// A conversation as `capture` stores it: taps, head input and normaliser of the target itself.
pub fn captured(target: &Llama, ids: Vec<u32>, prompt: usize) -> FeatureRow {
    let found = target.forward_full(&[&ids], &[0, 1, 2]);
    let hidden = rounded(values(found.hidden));
    let width = target.config().hidden_size;
    let floats: Vec<f32> = hidden.iter().map(|v| v.to_f32()).collect();
    let device = Device::flex();
    let table = Tensor::<1>::from_floats(floats.as_slice(), &device).reshape([ids.len(), width]);
    FeatureRow {
        request: 0,
        loss_mask: (0..ids.len()).map(|i| i >= prompt).collect(),
        taps: rounded(values(Tensor::cat(found.taps, 1))),
        last_hidden: hidden,
        logsumexp: values(log_denominator(target.logits(table))),
        temperature: 1.0,
        off_policy: false,
        ids,
    }
}

pub fn rows(target: &Llama) -> Vec<FeatureRow> {
    let ids = |n: u32, seed: u32| (0..n).map(|i| (i * i * 5 + i + seed) % VOCABULARY as u32).collect::<Vec<_>>();
    vec![captured(target, ids(17, 1), 6), captured(target, ids(9, 3), 1), captured(target, ids(30, 8), 28)]
}

pub fn objective(loss: DraftLoss) -> Objective {
    Objective::new(loss, vec![1.0, 0.7, 0.4])
}

/// The whole loss on the tape, in plain operations, one step after the other.
fn on_tape(drafter: &Eagle3Drafter, weights: &Eagle3, batch: &TrainBatch, objective: &Objective) -> Tensor<1> {
    let device = weights.fc.val().device();
    let target = drafter.target_head.logits(batch.target_hidden.clone());
    let head = weights.head.as_ref().map_or_else(|| drafter.head.rows().clone(), |head| head.val());
    let mut total = Tensor::<1>::zeros([1], &device);
    drafter.unroll(weights, batch, |k, hidden| {
        let pick = |i: &[usize]| indices(i.iter().copied(), &device);
        let (asks, targets): (Vec<usize>, Vec<usize>) = batch.supervised[k].iter().copied().unzip();
        let hidden = hidden.select(0, pick(&asks));
        let distance = (hidden.clone() - batch.target_hidden.clone().select(0, pick(&targets))).abs();
        let smooth = distance.clone().clamp_max(1.0).square() * 0.5 + (distance - 1.0).clamp_min(0.0);
        let feature = smooth.mean_dim(1).sum() * objective.feature_weight;
        let log_q = activation::log_softmax(hidden.matmul(head.clone().transpose()), 1);
        let t = target.clone().select(0, pick(&targets));
        let log_p = match objective.loss {
            DraftLoss::Kl => activation::log_softmax(t, 1),
            _ => t - batch.target_lse.clone().select(0, pick(&targets)).unsqueeze_dim(1),
        };
        let loss = match objective.loss {
            DraftLoss::Kl => (log_p.clone().exp() * (log_p - log_q)).sum(),
            _ => log_p.min_pair(log_q).exp().sum_dim(1).log().neg().sum(),
        };
        total = total.clone() + (loss + feature) * (objective.step_weights[k] / batch.supervised_tokens() as f32);
    });
    total
}

fn compare(objective: &Objective) {
    compare_with(objective, false);
}

/// With `own` the drafter has a head of its own, another than the target's.
fn compare_with(objective: &Objective, own: bool) {
    let dir = tempfile::tempdir().unwrap();
    let (target, device) = (random_target(dir.path(), VOCABULARY, 21), Device::flex().autodiff());
    let (drafter, weights) = random_drafter(&target, 25, 6, &device);
    let weights = if own { weights.with_head(&drafter.head.rows().clone().flip([0])) } else { weights };
    let stored = rows(&target);
    let batch = TrainBatch::new(&stored.iter().collect::<Vec<_>>(), STEPS, target.device()).unwrap();
    let (surrogate, sums) = drafter.loss(&weights, &batch, objective);
    let ours = surrogate.backward();
    let whole = on_tape(&drafter, &weights, &batch, objective);
    let value: f32 = whole.clone().into_scalar();
    let plain = whole.backward();
    let tokens = batch.supervised_tokens() as f64;
    let mean: f64 = sums.iter().zip(&objective.step_weights).map(|(s, w)| s.loss * f64::from(*w)).sum::<f64>() / tokens;
    assert!((mean - f64::from(value)).abs() < 1e-4 * f64::from(value), "{mean} against {value}");
    let pairs =
        [(&weights.fc, "fc"), (&weights.q, "q"), (&weights.kv, "kv"), (&weights.o, "o"), (&weights.down, "down")];
    for (parameter, name) in pairs.into_iter().chain(weights.head.iter().map(|head| (head, "head"))) {
        let grad = |grads| values(parameter.val().grad(grads).unwrap());
        assert_close(name, &grad(&ours), &grad(&plain), 2e-4);
    }
    for parameter in [&weights.hidden_norm, &weights.norm] {
        let grad = |grads| values(parameter.val().grad(grads).unwrap());
        assert_close("norm", &grad(&ours), &grad(&plain), 2e-4);
    }
}

#[test]
fn lk_gradient_equals_that_of_the_whole_tape() {
    compare(&objective(DraftLoss::Lk));
}

#[test]
fn kl_gradient_equals_that_of_the_whole_tape() {
    compare(&objective(DraftLoss::Kl));
}

#[test]
fn gradients_with_a_trained_head_equal_those_of_the_whole_tape() {
    compare_with(&objective(DraftLoss::Lk), true);
    compare_with(&objective(DraftLoss::Kl), true);
}

#[test]
fn feature_loss_gradient_equals_that_of_the_whole_tape() {
    compare(&Objective { feature_weight: 20.0, ..objective(DraftLoss::Kl) });
}

#[test]
fn step_sums_equal_the_f64_reference() {
    let dir = tempfile::tempdir().unwrap();
    let (target, device) = (random_target(dir.path(), VOCABULARY, 22), Device::flex());
    let (drafter, weights) = random_drafter(&target, 25, 7, &device);
    let stored = rows(&target);
    let batch = TrainBatch::new(&stored.iter().collect::<Vec<_>>(), STEPS, &device).unwrap();
    let full = host_rows(target.logits(batch.target_hidden.clone()));
    let mut draft = Vec::new();
    drafter.unroll(&weights, &batch, |_, hidden| draft.push(host_rows(drafter.head.logits(hidden.without_autodiff()))));
    let wide = |v: &[f32]| v.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
    let vocabulary: Vec<usize> = drafter.vocab.d2t.iter().map(|&t| t as usize).collect();
    for (loss, reference) in [(DraftLoss::Lk, Loss::LkAlpha), (DraftLoss::Kl, Loss::Kl)] {
        let (_, sums) = drafter.loss(&weights, &batch, &objective(loss));
        for (k, found) in sums.iter().enumerate() {
            let mut expected = StepLoss { rows: batch.supervised[k].len(), ..StepLoss::default() };
            for &(ask, at) in &batch.supervised[k] {
                let p = wide(&full[at * VOCABULARY..(at + 1) * VOCABULARY]);
                let q = wide(&draft[k][ask * 25..(ask + 1) * 25]);
                let row = Row::new(&p, &q, Some(&vocabulary), Temperature::Both(1.0)).unwrap();
                expected.loss += reference.evaluate(&row).unwrap().value;
                expected.accepted += row.overlap().log_alpha.exp();
            }
            assert_eq!(found.rows, expected.rows);
            assert!((found.loss / expected.loss - 1.0).abs() < 1e-3, "step {k}: {found:?} against {expected:?}");
            assert!(
                (found.accepted / expected.accepted - 1.0).abs() < 1e-3,
                "step {k}: {found:?} against {expected:?}"
            );
        }
    }
}

/// Forgets everything but the last loss.
#[derive(Default)]
struct Last(f64);

impl MetricSink for Last {
    fn record(&mut self, record: &Record) -> std::io::Result<()> {
        if let Record::Step { loss, .. } = record {
            self.0 = *loss;
        }
        Ok(())
    }
}

const CONVERSATIONS: u64 = 600;

/// Random tokens that only the features tell: tap `k` at row `t` is the code of token `t + ahead + k`.
pub fn canary(target: &Llama, ahead: usize) -> Vec<FeatureRow> {
    let width = target.config().hidden_size;
    let code = noise(77, 0, VOCABULARY * width, 1.0);
    let head = target.head().rows().clone();
    let head = host_rows(head);
    let n = 24;
    (0..CONVERSATIONS)
        .map(|c| {
            let ids: Vec<u32> = noise(5, c, n, 1e3).into_iter().map(|v| v.abs() as u32 % VOCABULARY as u32).collect();
            let at = |i: usize| ids.get(i).map_or(0, |&id| id as usize);
            let told = (0..n).flat_map(|t| (0..3).map(move |k| t + ahead + k));
            let taps = told.flat_map(|i| code[at(i) * width..(at(i) + 1) * width].to_vec()).collect();
            // The target is certain: its head input points far along the head row of the next token.
            let row = |i: usize| &head[at(i + 1) * width..(at(i + 1) + 1) * width];
            let hidden: Vec<f32> = (0..n).flat_map(|i| row(i).iter().map(|v| v * 40.0).collect::<Vec<_>>()).collect();
            let table = Tensor::<1>::from_floats(hidden.as_slice(), &Device::flex()).reshape([n, width]);
            FeatureRow {
                request: c,
                loss_mask: vec![true; n],
                taps: rounded(taps),
                logsumexp: values(log_denominator(target.logits(table))),
                last_hidden: rounded(hidden),
                temperature: 0.0,
                off_policy: false,
                ids: ids.clone(),
            }
        })
        .collect()
}

fn trained(ahead: usize) -> f64 {
    let dir = tempfile::tempdir().unwrap();
    let target = random_target(dir.path(), VOCABULARY, 31);
    let (drafter, weights) = random_drafter(&target, VOCABULARY, 8, &Device::flex().autodiff());
    let rows = canary(&target, ahead);
    let objective = Objective::new(DraftLoss::Kl, vec![1.0; STEPS]);
    let config = TrainConfig { epochs: 10, ..train_config() };
    let trainer = Trainer {
        drafter: &drafter,
        objective: &objective,
        config: &config,
        rows: &rows,
        stop: &|| false,
        measure: None,
    };
    let mut last = Last::default();
    trainer.run(Start::Fresh(Box::new(weights)), &mut last, &mut |_| Ok(())).unwrap();
    last.0 / STEPS as f64
}

#[test]
fn loss_vanishes_only_when_features_and_tokens_are_aligned() {
    // Step k of row t predicts token t + 2 + k. One row late, the last step's token is told nowhere it can see.
    let (aligned, late) = (trained(2), trained(1));
    assert!(aligned < 0.1, "aligned features leave a loss of {aligned} nats a step");
    assert!(late > 1.0, "features one row late reach {late} nats a step all the same");
}
