//! Conversations that share a batch do not see each other: whatever one of them holds, nothing of the other moves by a
//! bit, at any unroll step. Peers' packed training leaks exactly here.

use crate::support::{random_drafter, random_target, values};
use crate::training::{captured, objective};
use burn::module::Param;
use burn::tensor::{Device, Tensor};
use half::bf16;
use spectrain_data::store::FeatureRow;
use spectrain_draft::{Eagle3, Eagle3Drafter, StepLoss, TrainBatch};
use spectrain_kernels::draft_loss::DraftLoss;
use spectrain_kernels::unroll_attention::{UnrollPlan, UnrollSegment};
use spectrain_model::Llama;
use std::sync::Arc;

const VOCABULARY: usize = 40;
const STEPS: usize = 3;
/// Tokens of the conversation that changes, and of the one that must not notice.
const CHANGED: usize = 13;
const KEPT: usize = 17;

/// Everything that training draws from the second conversation of a batch.
#[derive(Debug, PartialEq)]
struct Seen {
    /// Head input of its rows, by unroll step.
    hidden: Vec<Vec<f32>>,
    /// Token read and label's target row, by unroll step; target rows are counted from its first.
    labels: Vec<Vec<(u32, usize)>>,
    /// Loss of its rows alone, by unroll step.
    loss: Vec<StepLoss>,
    /// Gradient of that loss with respect to the parameters and to its own features.
    gradients: Vec<Vec<f32>>,
    /// Its gradient with respect to the other's features; only zeros are right.
    across: Vec<f32>,
}

/// How the rows of a batch are told apart.
type Divide = fn(&UnrollPlan) -> UnrollPlan;

/// As the trainer has it.
fn by_conversation(plan: &UnrollPlan) -> UnrollPlan {
    UnrollPlan { segments: plan.segments.clone() }
}

/// The fault that this test is for: one segment over all rows, causal as before.
fn not_at_all(plan: &UnrollPlan) -> UnrollPlan {
    let rows = plan.keys();
    UnrollPlan { segments: vec![UnrollSegment { keys: rows, first_query: 0, queries: rows }] }
}

/// What training sees of the second of two conversations, all of whose rows ask.
fn seen(drafter: &Eagle3Drafter, weights: &Eagle3, pair: [&FeatureRow; 2], divide: Divide) -> Seen {
    let device = weights.fc.val().device();
    let mut batch = TrainBatch::new(&pair, STEPS, &Device::flex()).unwrap();
    let first = batch.plan.segments[0].keys;
    assert!(batch.plan.segments.iter().all(|s| s.queries == s.keys), "rows and queries are the same rows");
    batch.plan = Arc::new(divide(&batch.plan));
    let features = batch.taps.clone().into_data();
    batch.taps = Tensor::<2>::from_data(features, &device).require_grad();
    // Only the second conversation is supervised, so that every figure is its own.
    batch.supervised.iter_mut().for_each(|pairs| pairs.retain(|(query, _)| *query >= first));
    let target = batch.supervised[0][0].1;
    let label = |k: usize| {
        let tokens = &batch.tokens[k];
        batch.supervised[k].iter().map(|&(q, t)| (tokens[q], t - target)).collect()
    };
    let labels = (0..STEPS).map(label).collect();
    let mut hidden = Vec::new();
    let rows = batch.plan.queries();
    drafter.unroll(weights, &batch, |_, h| hidden.push(values(h.narrow(0, first, rows - first).without_autodiff())));
    let (surrogate, loss) = drafter.loss(weights, &batch, &objective(DraftLoss::Kl));
    let grads = surrogate.backward();
    let matrix = |p: &Param<Tensor<2>>| values(p.val().grad(&grads).unwrap());
    let vector = |p: &Param<Tensor<1>>| values(p.val().grad(&grads).unwrap());
    let w = weights;
    let matrices = [&w.fc, &w.q, &w.kv, &w.o, &w.gate_up, &w.down].map(matrix);
    let vectors = [&w.input_layernorm, &w.hidden_norm, &w.post_attention_layernorm, &w.norm].map(vector);
    let features = batch.taps.grad(&grads).unwrap();
    let across = values(features.clone().narrow(0, 0, first));
    let own = values(features.narrow(0, first, rows - first));
    assert!(own.iter().any(|g| *g != 0.0));
    let gradients = matrices.into_iter().chain(vectors).chain([own]).collect();
    Seen { hidden, labels, loss, gradients, across }
}

fn ids(n: usize, seed: u32) -> Vec<u32> {
    (0..n as u32).map(|i| (i * i * 5 + i + seed) % VOCABULARY as u32).collect()
}

/// The first conversation in other words and with other features, each change by itself.
fn changed(row: &FeatureRow) -> Vec<(&'static str, FeatureRow)> {
    let (mut token, mut tap, mut teacher) = (row.clone(), row.clone(), row.clone());
    let middle = row.ids.len() / 2;
    token.ids[middle] = (token.ids[middle] + 7) % VOCABULARY as u32;
    let width = row.taps.len() / row.ids.len();
    tap.taps[middle * width] = bf16::from_f32(tap.taps[middle * width].to_f32() * 3.0 + 5.0);
    let width = row.last_hidden.len() / row.ids.len();
    teacher.last_hidden[middle * width..(middle + 1) * width].fill(bf16::from_f32(2.5));
    teacher.logsumexp[middle] += 1.0;
    vec![("a token", token), ("a feature", tap), ("a target row", teacher)]
}

/// The changes that the second conversation notices.
fn noticed(target: &Llama, divide: Divide) -> Vec<&'static str> {
    let (drafter, weights) = random_drafter(target, 25, 6, &Device::flex().autodiff());
    // One token of prompt: every row asks, so that the faulty division keeps the order of rows.
    let (other, kept) = (captured(target, ids(CHANGED, 3), 1), captured(target, ids(KEPT, 11), 1));
    let before = seen(&drafter, &weights, [&other, &kept], divide);
    assert_eq!(before.loss.len(), STEPS);
    let notices = |other: &FeatureRow| seen(&drafter, &weights, [other, &kept], divide) != before;
    let same = before.across.iter().any(|g| *g != 0.0).then_some("a gradient across");
    same.into_iter().chain(changed(&other).iter().filter(|(_, row)| notices(row)).map(|(name, _)| *name)).collect()
}

#[test]
fn packed_conversations_do_not_see_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let target = random_target(dir.path(), VOCABULARY, 21);
    assert_eq!(noticed(&target, by_conversation), Vec::<&str>::new());
    // The same checks catch rows that are not kept apart. A target row is read by its own row alone in any case.
    assert_eq!(noticed(&target, not_at_all), ["a gradient across", "a token", "a feature"]);
}
