//! Several batches in one optimiser step give the gradient of one batch that holds them all.

use crate::support::{random_drafter, random_target, train_config, values};
use crate::training::{objective, rows};
use burn::module::Param;
use burn::tensor::{Device, Tensor};
use spectrain_data::store::FeatureRow;
use spectrain_draft::Eagle3;
use spectrain_kernels::draft_loss::DraftLoss;
use spectrain_train::{StepGradients, Trainer};

/// Every entry of a step's gradient, in the order of the parameters.
fn flat(weights: &Eagle3, found: &StepGradients) -> Vec<f64> {
    let matrix = |p: &Param<Tensor<2>>| values(found.grads.get::<2>(p.id).unwrap());
    let vector = |p: &Param<Tensor<1>>| values(found.grads.get::<1>(p.id).unwrap());
    let w = weights;
    let matrices = [&w.fc, &w.q, &w.kv, &w.o, &w.gate_up, &w.down].map(matrix);
    let vectors = [&w.input_layernorm, &w.hidden_norm, &w.post_attention_layernorm, &w.norm].map(vector);
    matrices.into_iter().chain(vectors).flatten().map(f64::from).collect()
}

/// `|a − b| / |b|`, Euclidean.
fn apart(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    norm(&mut a.iter().zip(b).map(|(a, b)| a - b)) / norm(&mut b.iter().copied())
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
