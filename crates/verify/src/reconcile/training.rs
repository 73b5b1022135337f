//! What training's unroll says where run time drafted.

use super::Trained;
use super::trace::Trace;
use burn::tensor::Tensor;
use half::bf16;
use spectrain_data::store::FeatureRow;
use spectrain_draft::TrainBatch;
use spectrain_kernels::rope::indices;
use spectrain_model::host_rows;

/// Logits over the draft vocabulary of one conversation, by round and step.
pub(super) type Logits = Vec<Vec<Vec<f32>>>;

/// Hidden states that enter each of `layers` along a text, `[tokens, hidden]` each.
pub(super) fn features(trained: &Trained, text: &[u32], layers: &[usize]) -> Vec<Tensor<2>> {
    trained.target.forward_full(&[text], layers).taps
}

/// The unroll along `trace`. Every round is a conversation of its own: the text that was known, and behind it the
/// drafted tokens, which training feeds as the teacher's. `taps` are features along the text.
pub(super) fn unrolled(trained: &Trained, trace: &Trace, taps: &[Tensor<2>]) -> Logits {
    let Trained { target, drafter, weights } = *trained;
    let steps = trace.rounds.iter().map(|r| r.draft.tokens.len()).max().unwrap_or(0);
    let fused = Tensor::cat(taps.to_vec(), 1);
    let [_, tap_width] = fused.dims();
    let row = |known: usize, tokens: &[u32]| {
        let ids = [&trace.text[..known], tokens].concat();
        let n = ids.len();
        FeatureRow {
            request: 0,
            loss_mask: (0..n).map(|i| i >= known).collect(),
            // Put in below, un-rounded.
            taps: vec![bf16::ZERO; n * tap_width],
            last_hidden: vec![bf16::ZERO; n * target.config().hidden_size],
            logsumexp: vec![0.0; n],
            temperature: 0.0,
            off_policy: false,
            ids,
        }
    };
    let rows: Vec<FeatureRow> = trace.rounds.iter().map(|r| row(r.known, &r.draft.tokens)).collect();
    let Some(mut batch) = TrainBatch::new(&rows.iter().collect::<Vec<_>>(), steps, target.device()) else {
        return Vec::new();
    };
    // Drafted tokens have no features; no asking row sees theirs.
    let own = batch.plan.segments.iter().zip(&trace.rounds).map(|(segment, round)| {
        let seen = round.known - 1;
        let unseen = Tensor::zeros([segment.keys - seen, tap_width], target.device());
        Tensor::cat(vec![fused.clone().narrow(0, 0, seen), unseen], 0)
    });
    batch.taps = Tensor::cat(own.collect(), 0);
    let mut first = 0;
    let asking: Vec<usize> = batch
        .plan
        .segments
        .iter()
        .zip(&trace.rounds)
        .map(|(segment, round)| {
            // The newest row joins the newest known token with the features before it.
            let row = first + round.known - 2 - segment.first_query;
            first += segment.queries;
            row
        })
        .collect();
    let mut logits: Logits = vec![Vec::new(); trace.rounds.len()];
    drafter.unroll(weights, &batch, |_, hidden| {
        let picked = hidden.select(0, indices(asking.iter().copied(), target.device()));
        let found = host_rows(drafter.head.logits(picked.without_autodiff()));
        let width = found.len() / asking.len();
        logits.iter_mut().zip(found.chunks(width)).for_each(|(round, row)| round.push(row.to_vec()));
    });
    logits
}
