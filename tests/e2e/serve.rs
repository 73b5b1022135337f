//! What training unrolls is what the runtime runs.

use crate::support::{BOUND, assert_close, random_drafter, random_target, request, values, wanted};
use burn::tensor::{DType, Device, Tensor};
use half::bf16;
use spectrain_data::store::FeatureRow;
use spectrain_draft::proposer::{Observed, Pick, Plan, Proposer, Wanted};
use spectrain_draft::{Eagle3Proposer, TrainBatch};
use spectrain_model::Llama;

/// Taps of a sequence as the store keeps them: rounded to bf16.
fn taps(target: &Llama, ids: &[u32], taps: &[usize]) -> Vec<Tensor<2>> {
    let found = target.forward_full(&[ids], taps).taps;
    found.into_iter().map(|t| t.cast(DType::BF16).cast(DType::F32)).collect()
}

fn prompt(n: usize, seed: u32) -> Vec<u32> {
    (0..n as u32).map(|i| (i * i * 7 + i * 3 + seed) % 40).collect()
}

#[test]
fn draft_step_equals_unroll_step() {
    const STEPS: usize = 5;
    let dir = tempfile::tempdir().unwrap();
    let (target, device) = (random_target(dir.path(), 40, 11), Device::flex());
    let (drafter, weights) = random_drafter(&target, 30, 2, &device);
    let mut proposer = Eagle3Proposer::new(drafter.clone(), &weights);
    let prompts = [prompt(9, 1), prompt(23, 2), prompt(4, 3), prompt(61, 4)];
    proposer.open(prompts.len(), 80);
    // Each slot has committed its prompt, whose last token has no features yet.
    for (slot, ids) in prompts.iter().enumerate() {
        let known = taps(&target, &ids[..ids.len() - 1], &drafter.config.taps);
        proposer.observe(&[Observed { slot, next: ids[1..].to_vec() }], known);
    }
    let (plan, asked) = (Plan::chain(STEPS, Pick::Argmax), request(0, 0));
    let all: Vec<Wanted> = (0..prompts.len()).map(|slot| wanted(slot, &plan, &asked)).collect();
    let drafts = proposer.draft(&all).unwrap();

    // In training the drafted tokens are the teacher's.
    let rows: Vec<FeatureRow> = prompts
        .iter()
        .zip(&drafts)
        .map(|(prompt, draft)| {
            let ids = [prompt.as_slice(), &draft.tokens].concat();
            let features = Tensor::cat(taps(&target, &ids, &drafter.config.taps), 1);
            let n = ids.len();
            FeatureRow {
                request: 0,
                loss_mask: (0..n).map(|i| i >= prompt.len()).collect(),
                taps: values(features).into_iter().map(bf16::from_f32).collect(),
                last_hidden: vec![bf16::ZERO; n * target.config().hidden_size],
                logsumexp: vec![0.0; n],
                temperature: 0.0,
                off_policy: false,
                ids,
            }
        })
        .collect();
    let batch = TrainBatch::new(&rows.iter().collect::<Vec<_>>(), STEPS, &device).unwrap();
    let mut first = 0;
    let asking: Vec<usize> = batch
        .plan
        .segments
        .iter()
        .zip(&prompts)
        .map(|(segment, prompt)| {
            let row = first + (prompt.len() - 2) - segment.first_query;
            first += segment.queries;
            row
        })
        .collect();
    drafter.unroll(&weights, &batch, |k, hidden| {
        let logits = drafter.head.logits(hidden.without_autodiff());
        for (slot, &row) in asking.iter().enumerate() {
            let unrolled = values(logits.clone().narrow(0, row, 1));
            assert_close(&format!("step {k}, slot {slot}"), &drafts[slot].logits[k], &unrolled, BOUND);
        }
    });
}

#[test]
fn accepted_rows_are_rewritten_from_true_features() {
    let dir = tempfile::tempdir().unwrap();
    let (target, device) = (random_target(dir.path(), 40, 12), Device::flex());
    let (drafter, weights) = random_drafter(&target, 40, 4, &device);
    let mut proposer = Eagle3Proposer::new(drafter.clone(), &weights);
    let ids = prompt(20, 6);
    let at = |n: usize| taps(&target, &ids[..n], &drafter.config.taps);
    let rest = |from: usize, to: usize| at(to).into_iter().map(|t| t.narrow(0, from, to - from)).collect::<Vec<_>>();
    proposer.open(2, 40);
    proposer.observe(&[Observed { slot: 0, next: ids[1..11].to_vec() }], at(10));
    let (four, asked) = (Plan::chain(4, Pick::Argmax), request(0, 0));
    for (from, to) in [(10, 13), (13, 14), (14, 19)] {
        proposer.draft(&[wanted(0, &four, &asked)]).unwrap();
        proposer.observe(&[Observed { slot: 0, next: ids[from + 1..to + 1].to_vec() }], rest(from, to));
    }
    proposer.observe(&[Observed { slot: 1, next: ids[1..].to_vec() }], at(19));
    assert_eq!(proposer.committed(0), proposer.committed(1));
    let drafts = proposer.draft(&[0, 1].map(|slot| wanted(slot, &four, &asked))).unwrap();
    assert_eq!(drafts[0].tokens, drafts[1].tokens);
    for (a, b) in drafts[0].logits.iter().zip(&drafts[1].logits) {
        assert_close("logits after rounds against a fresh prefill", a, b, BOUND);
    }
}
