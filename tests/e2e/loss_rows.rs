//! Rows by round starts, processors drawn for conversations, and a trained head on its way to a file and back.

use crate::support::{random_drafter, random_target, values};
use crate::training::{objective, rows};
use burn::tensor::{Device, Tensor};
use spectrain_core::loss::Policy;
use spectrain_core::recipe::RowWeighting;
use spectrain_draft::checkpoint::Provenance;
use spectrain_draft::objective::Evaluated;
use spectrain_draft::{Checkpoint, Eagle3Drafter, Objective, OutputHeads, TrainBatch};
use spectrain_kernels::draft_loss::DraftLoss;

const VOCABULARY: usize = 40;

fn evaluated(drafter: &Eagle3Drafter, hidden: &[Tensor<2>], batch: &TrainBatch, objective: &Objective) -> Evaluated {
    let (target, whole, ids) = (&drafter.target_head, &drafter.whole_head, drafter.vocab.d2t.as_slice());
    let t2d = drafter.vocab.t2d();
    let labels = batch.labels.iter().map(|&token| t2d[token as usize]).collect();
    objective.evaluate(hidden.to_vec(), batch, OutputHeads { target, whole, ids, own: None }, labels)
}

#[test]
fn rows_weigh_by_the_chance_that_a_round_starts_there() {
    let dir = tempfile::tempdir().unwrap();
    let (target, device) = (random_target(dir.path(), VOCABULARY, 21), Device::flex());
    let (drafter, weights) = random_drafter(&target, 25, 6, &device);
    let stored = rows(&target);
    let all = objective(DraftLoss::Lk);
    let batch = TrainBatch::new(&[&stored[0]], all.step_weights.len(), &device).unwrap();
    let mut hidden = Vec::new();
    drafter.unroll(&weights, &batch, |_, input| hidden.push(input));
    let by_start = Objective { rows: RowWeighting::RoundStart, ..all.clone() };
    let [plain, weighed] = [&all, &by_start].map(|objective| evaluated(&drafter, &hidden, &batch, objective));
    let first = batch.supervised[0][0].0;
    let mut seen = Vec::new();
    for (k, ((a, sum_a), (b, sum_b))) in plain.steps.iter().zip(&weighed.steps).enumerate() {
        let width = a.dims()[1];
        let (a, b) = (values(a.clone()), values(b.clone()));
        assert_eq!((sum_a.accepted, sum_a.rows), (sum_b.accepted, sum_b.rows), "acceptance is that of all rows");
        for &(query, _) in &batch.supervised[k] {
            let at = query * width..(query + 1) * width;
            let square: f32 = a[at.clone()].iter().map(|x| x * x).sum();
            let ratio = a[at.clone()].iter().zip(&b[at.clone()]).map(|(a, b)| a * b).sum::<f32>() / square;
            a[at.clone()].iter().zip(&b[at]).for_each(|(a, b)| assert!((ratio * a - b).abs() < 1e-6));
            assert!((-1e-6..=1.0 + 1e-6).contains(&ratio), "query {query}: {ratio}");
            let certain = if query <= first { Some(0.0) } else { (query == first + 1).then_some(1.0) };
            certain.iter().for_each(|c: &f32| assert!((ratio - c).abs() < 1e-6, "query {query}: {ratio}"));
            seen.push(ratio);
        }
        assert!(sum_b.loss < sum_a.loss);
    }
    assert!(seen.iter().any(|r| *r > 0.01 && *r < 0.999), "{seen:?}");
}

#[test]
fn a_batch_draws_its_policies_by_conversation_and_number_only() {
    let dir = tempfile::tempdir().unwrap();
    let (target, device) = (random_target(dir.path(), VOCABULARY, 21), Device::flex());
    let (drafter, weights) = random_drafter(&target, 25, 6, &device);
    let mut stored = rows(&target);
    stored.iter_mut().enumerate().for_each(|(i, row)| row.request = i as u64);
    let list = vec![Policy::default(), Policy { temperature: 0.5, top_k: 4, ..Policy::default() }];
    let mixed = Objective { policies: list, seed: 9, ..objective(DraftLoss::Lk) };
    let sums = |order: &[usize], number: usize| {
        let rows: Vec<_> = order.iter().map(|&i| &stored[i]).collect();
        let mut batch = TrainBatch::new(&rows, mixed.step_weights.len(), &device).unwrap();
        batch.number = number;
        drafter.loss(&weights, &batch, &mixed).1
    };
    let rows_of = |number: usize| sums(&[0, 1, 2], number)[0].policies.iter().map(|p| p.rows).collect::<Vec<_>>();
    let other = sums(&[2, 0, 1], 4);
    for (a, b) in sums(&[0, 1, 2], 4).iter().zip(&other) {
        assert_eq!(
            a.policies.iter().map(|p| p.rows).collect::<Vec<_>>(),
            b.policies.iter().map(|p| p.rows).collect::<Vec<_>>()
        );
        assert!((a.loss - b.loss).abs() < 1e-4 * a.loss);
        assert_eq!(a.policies.iter().map(|p| p.rows).sum::<usize>(), a.rows);
        let accepted: f64 = a.policies.iter().map(|p| p.accepted).sum();
        assert!((accepted - a.accepted).abs() < 1e-6);
    }
    assert!((1..20).any(|number| rows_of(number) != rows_of(0)), "every batch draws anew");
}

#[test]
fn a_trained_head_is_kept_read_and_served() {
    let dir = tempfile::tempdir().unwrap();
    let beside = tempfile::tempdir().unwrap();
    let (target, device) = (random_target(beside.path(), VOCABULARY, 21), Device::flex());
    let (drafter, weights) = random_drafter(&target, 25, 6, &device);
    let own = drafter.target_head.rows().clone().flip([0]);
    let weights = weights.with_head(&own);
    Checkpoint::save(dir.path(), &weights, &drafter, &Provenance::default()).unwrap();
    let (served, read) = Checkpoint::open(dir.path()).unwrap().eagle3(&target, &device).unwrap();
    assert_eq!(values(read.head.unwrap().val()), values(own.clone()));
    assert_eq!(values(served.head.rows().clone()), values(own));
    assert_eq!(values(served.target_head.rows().clone()), values(drafter.target_head.rows().clone()));
}
