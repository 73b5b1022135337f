//! Several batches in one optimiser step give the gradient of one batch that holds them all.

use crate::offline::Silent;
use crate::support::{random_drafter, random_target, train_config, values};
use crate::training::{canary, captured, objective, rows};
use burn::module::Param;
use burn::tensor::{Device, Tensor};
use spectrain_data::store::FeatureRow;
use spectrain_draft::{Eagle3, Eagle3Drafter};
use spectrain_kernels::draft_loss::DraftLoss;
use spectrain_train::{Replica, Start, StepGradients, TrainConfig, Trainer, peak_memory_mib};

/// Every entry of a step's gradient, in the order of the parameters.
fn flat(weights: &Eagle3, found: &StepGradients) -> Vec<f64> {
    let matrix = |p: &Param<Tensor<2>>| values(found.grads.get::<2>(p.id).unwrap());
    let vector = |p: &Param<Tensor<1>>| values(found.grads.get::<1>(p.id).unwrap());
    let w = weights;
    let matrices = [&w.fc, &w.q, &w.kv, &w.o, &w.gate_up, &w.down].into_iter().chain(&w.head).map(matrix);
    let vectors = [&w.input_layernorm, &w.hidden_norm, &w.post_attention_layernorm, &w.norm].map(vector);
    matrices.chain(vectors).flatten().map(f64::from).collect()
}

/// `|a − b| / |b|`, Euclidean.
fn apart(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    norm(&mut a.iter().zip(b).map(|(a, b)| a - b)) / norm(&mut b.iter().copied())
}

#[test]
fn recomputed_steps_give_the_gradient_of_kept_ones() {
    let dir = tempfile::tempdir().unwrap();
    let (target, device) = (random_target(dir.path(), 40, 21), Device::flex().autodiff());
    let (drafter, weights) = random_drafter(&target, 25, 6, &device);
    let rows: Vec<FeatureRow> = rows(&target);
    // A text so short that all steps but the first have nothing to learn.
    let short = captured(&target, vec![5, 9, 2], 1);
    let weights = weights.with_head(drafter.target_head.rows());
    for batches in [vec![rows.iter().collect()], vec![vec![&short], vec![&rows[0], &rows[1]]]] {
        for steps in [1, 3, 4] {
            let mut objective = objective(DraftLoss::Kl);
            objective.step_weights = vec![1.0, 0.7, 0.4, 0.3][..steps].to_vec();
            let gradients = |recompute: bool| {
                let config = TrainConfig { recompute, dropout: 0.2, feature_noise: 0.01, ..train_config() };
                let (drafter, objective, rows) = (&drafter, &objective, &rows);
                let trainer = Trainer { drafter, objective, config: &config, rows, stop: &|| false, measure: None };
                trainer.gradients(&weights, &batches, 5)
            };
            let (kept, again) = (gradients(false), gradients(true));
            let apart = apart(&flat(&weights, &again), &flat(&weights, &kept));
            eprintln!("{} batches, {steps} steps: relative distance {apart:.1e}", batches.len());
            assert!(apart <= 1e-6, "{} batches, {steps} steps: relative distance {apart:.1e}", batches.len());
            assert_eq!(again.sums, kept.sums);
        }
    }
}

#[test]
fn accumulated_gradients_are_those_of_the_large_batch() {
    let dir = tempfile::tempdir().unwrap();
    let (target, device) = (random_target(dir.path(), 40, 21), Device::flex().autodiff());
    let (drafter, weights) = random_drafter(&target, 25, 6, &device);
    let rows: Vec<FeatureRow> = rows(&target);
    for loss in [DraftLoss::Lk, DraftLoss::Kl] {
        let (objective, config) = (objective(loss), train_config());
        let trainer = Trainer {
            drafter: &drafter,
            objective: &objective,
            config: &config,
            rows: &rows,
            stop: &|| false,
            measure: None,
        };
        // 11, 8 and 2 supervised tokens: batches that weigh very differently.
        let whole = trainer.gradients(&weights, &[rows.iter().collect()], 0);
        let parts = trainer.gradients(&weights, &[vec![&rows[0]], vec![&rows[1]], vec![&rows[2]]], 0);
        let two = trainer.gradients(&weights, &[vec![&rows[0], &rows[1]], vec![&rows[2]]], 0);
        let expected = flat(&weights, &whole);
        for (name, found) in [("three", &parts), ("two", &two)] {
            assert_eq!(found.tokens, whole.tokens);
            let apart = apart(&flat(&weights, found), &expected);
            eprintln!("{loss:?}, {name} batches: relative distance {apart:.1e}");
            assert!(apart <= 1e-6, "{loss:?}, {name} batches: relative distance {apart:.1e}");
            for (a, b) in found.sums.iter().zip(&whole.sums) {
                assert_eq!(a.rows, b.rows);
                assert!((a.loss / b.loss - 1.0).abs() < 1e-6, "{a:?} against {b:?}");
            }
        }
    }
}

/// `config` on so many devices; here they are all the CPU, and threads.
fn on_devices(config: TrainConfig, devices: usize, drafter: &Eagle3Drafter) -> TrainConfig {
    let replicas = (1..devices).map(|_| Replica::new(drafter, &Device::flex())).collect();
    TrainConfig { replicas, ..config }
}

#[test]
fn replicas_give_the_gradient_of_the_large_batch() {
    let dir = tempfile::tempdir().unwrap();
    let (target, device) = (random_target(dir.path(), 40, 21), Device::flex().autodiff());
    let (drafter, weights) = random_drafter(&target, 25, 6, &device);
    let rows: Vec<FeatureRow> = rows(&target);
    let weights = weights.with_head(drafter.target_head.rows());
    let objective = objective(DraftLoss::Lk);
    // 11, 8 and 2 supervised tokens.
    let one_each: Vec<Vec<&FeatureRow>> = rows.iter().map(|row| vec![row]).collect();
    let gradients = |config: TrainConfig, batches: &[Vec<&FeatureRow>]| {
        let (drafter, objective, config, rows) = (&drafter, &objective, &config, &rows);
        let trainer = Trainer { drafter, objective, config, rows, stop: &|| false, measure: None };
        trainer.gradients(&weights, batches, 5)
    };
    let whole = gradients(train_config(), &[rows.iter().collect()]);
    // Two devices, one of them with two batches; as many as batches; and one more, which idles.
    for devices in [2, 3, 4] {
        let found = gradients(on_devices(train_config(), devices, &drafter), &one_each);
        assert_eq!((found.tokens, found.odd), (whole.tokens, None));
        let apart = apart(&flat(&weights, &found), &flat(&weights, &whole));
        eprintln!("{devices} devices: relative distance {apart:.1e}");
        assert!(apart <= 1e-6, "{devices} devices: relative distance {apart:.1e}");
        for (a, b) in found.sums.iter().zip(&whole.sums) {
            assert_eq!(a.rows, b.rows);
            assert!((a.loss / b.loss - 1.0).abs() < 1e-6, "{a:?} against {b:?}");
        }
    }
    // With a batch each, the sum is that of one device which takes them in turn, to the bit, whoever is done first.
    for recompute in [false, true] {
        let config = TrainConfig { recompute, dropout: 0.2, feature_noise: 0.01, ..train_config() };
        let alone = gradients(config.clone(), &one_each);
        for devices in [3, 3, 3, 4] {
            let found = gradients(on_devices(config.clone(), devices, &drafter), &one_each);
            assert!(flat(&weights, &found) == flat(&weights, &alone), "{devices} devices, recompute {recompute}");
            assert_eq!(found.sums, alone.sums);
        }
    }
    // The batch whose loss is no number is named by its place in the step.
    let mut odd = rows.clone();
    odd[1].logsumexp.fill(f32::NAN);
    let batches: Vec<Vec<&FeatureRow>> = [0, 2, 1, 1].map(|i| vec![&odd[i]]).into();
    for devices in [1, 2, 3] {
        assert_eq!(
            gradients(on_devices(train_config(), devices, &drafter), &batches).odd,
            Some(2),
            "{devices} devices"
        );
    }
}

#[test]
fn a_run_on_replicas_is_that_of_one_device() {
    let dir = tempfile::tempdir().unwrap();
    let target = random_target(dir.path(), 40, 31);
    let (drafter, fresh) = random_drafter(&target, 40, 8, &Device::flex().autodiff());
    let rows = &canary(&target, 2)[..40];
    let objective = objective(DraftLoss::Lk);
    let matrices = |w: &Eagle3| -> Vec<f64> {
        [&w.fc, &w.q, &w.gate_up, &w.down].into_iter().flat_map(|p| values(p.val())).map(f64::from).collect()
    };
    let config = TrainConfig { epochs: 2, batch_tokens: 100, accumulate: 3, validation_share: 0.2, ..train_config() };
    let trained = |devices: usize| {
        let config = on_devices(config.clone(), devices, &drafter);
        let (drafter, objective, config) = (&drafter, &objective, &config);
        let trainer = Trainer { drafter, objective, config, rows, stop: &|| false, measure: None };
        let start = Start::Fresh(Box::new(fresh.clone()));
        let (mut steps, mut loss) = (0, 0.0);
        let ended = trainer.run(start, &mut Silent, &mut |update| {
            (steps, loss) = (update.step, update.loss);
            Ok(())
        });
        (steps, loss, matrices(&ended.unwrap()))
    };
    let (alone, two, three) = (trained(1), trained(2), trained(3));
    assert!(alone.0 > 4, "{} steps", alone.0);
    assert!(alone == three, "a batch a device: the same bits");
    let (moved, apart) = (apart(&alone.2, &matrices(&fresh)), apart(&two.2, &alone.2));
    eprintln!("two devices: {apart:.1e} from one, which moved by {moved:.1e}");
    assert!(apart < 1e-3 * moved, "two devices: {apart:.1e} from one, which moved by {moved:.1e}");
    assert!(two == trained(2), "a run on two devices repeats");
}

/// Largest resident memory while `work` runs, MiB above what was resident before.
fn growth(work: impl FnOnce()) -> f64 {
    // The kernel's way of forgetting the peak so far.
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = peak_memory_mib().unwrap();
    work();
    peak_memory_mib().unwrap() - before
}

/// For one test alone in its process: `cargo test --release --workspace --test e2e recomputed_steps_need -- --ignored`.
#[test]
#[ignore = "measures the memory of the whole process"]
fn recomputed_steps_need_less_memory() {
    let dir = tempfile::tempdir().unwrap();
    let (target, device) = (random_target(dir.path(), 40, 21), Device::flex().autodiff());
    let (drafter, weights) = random_drafter(&target, 25, 6, &device);
    let ids = |seed: u32| (0..200).map(|i| (i * i * 5 + i + seed) % 40).collect();
    let rows: Vec<FeatureRow> = (0..60).map(|seed| captured(&target, ids(seed), 1)).collect();
    let mut objective = objective(DraftLoss::Kl);
    objective.step_weights = vec![1.0; 7];
    let grown = |recompute: bool| {
        let config = TrainConfig { recompute, ..train_config() };
        let (drafter, objective, rows) = (&drafter, &objective, &rows);
        let trainer = Trainer { drafter, objective, config: &config, rows, stop: &|| false, measure: None };
        let start = std::time::Instant::now();
        let grown = growth(|| drop(trainer.gradients(&weights, &[rows.iter().collect()], 0)));
        eprintln!("recompute {recompute}: {grown:.0} MiB, {:.2} s", start.elapsed().as_secs_f64());
        grown
    };
    // The first pass warms up.
    grown(true);
    let (again, kept) = (grown(true), grown(false));
    assert!(again < 0.6 * kept, "seven steps: {again} MiB recomputed, {kept} MiB kept");
}
