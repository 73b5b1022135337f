//! A training batch: packed conversations with their features, and which token each unroll step must predict.
//!
//! Unroll step `k` of row `t` reads the features at `t`, the token `x[t+1+k]`, and predicts `x[t+2+k]`; it is
//! supervised exactly when that token is.

use crate::dropout::Dropout;
use crate::feature_noise::FeatureNoise;
use burn::tensor::{Device, Tensor, TensorData};
use spectrain_data::store::FeatureRow;
use spectrain_kernels::unroll_attention::{UnrollPlan, UnrollSegment};
use std::sync::Arc;

/// Conversations packed for one optimiser step. Tensors are plain: features carry no gradient.
pub struct TrainBatch {
    /// Which rows belong together, and which of them ask.
    pub plan: Arc<UnrollPlan>,
    /// `x[t+1]` of every key row `t`.
    pub next: Vec<u32>,
    /// Fused taps of every key row, `[keys, taps · hidden]`.
    pub taps: Tensor<2>,
    /// For each unroll step the token `x[t+1+k]` of every query row (any token where the sequence has ended).
    pub tokens: Vec<Vec<u32>>,
    /// For each unroll step the supervised query rows and, for each, its row of the target tables.
    pub supervised: Vec<Vec<(usize, usize)>>,
    /// Head inputs of the target at the rows that predict a supervised token, `[targets, hidden]`.
    pub target_hidden: Tensor<2>,
    /// Log denominator of the target's full distribution at those rows, `[targets]`.
    pub target_lse: Tensor<1>,
    /// The token that each of those rows predicts, `[targets]`.
    pub labels: Vec<u32>,
    /// The request that each of those rows belongs to, `[targets]`.
    pub requests: Vec<u64>,
    /// Number of the batch in the run, from 1; 0 outside training.
    pub number: usize,
    /// Tokens of the conversation of every key row, `[keys]`.
    pub lengths: Vec<usize>,
    /// What is added to the taps, in training.
    pub noise: Option<FeatureNoise>,
    /// What the layer does not get to read, in training.
    pub dropout: Option<Dropout>,
}

/// Where the rows of one conversation go.
struct Placement<'a> {
    row: &'a FeatureRow,
    segment: UnrollSegment,
}

/// The rows of a conversation that unrolling `steps` steps needs; `None` when no step is supervised.
fn place(row: &FeatureRow, steps: usize) -> Option<Placement<'_>> {
    let wanted = |t: usize| (0..steps).any(|k| row.loss_mask.get(t + 2 + k) == Some(&true));
    let count = row.ids.len().saturating_sub(2);
    let first_query = (0..count).find(|&t| wanted(t))?;
    let last = (0..count).rfind(|&t| wanted(t))?;
    let segment = UnrollSegment { keys: last + 1, first_query, queries: last + 1 - first_query };
    Some(Placement { row, segment })
}

/// Key rows that `row` brings to a batch of `steps` unroll steps: the measure of a batch's size.
pub fn packed_rows(row: &FeatureRow, steps: usize) -> usize {
    place(row, steps).map_or(0, |p| p.segment.keys)
}

/// Supervised tokens that `row` brings to a batch of `steps` unroll steps: what a mean is taken over.
pub fn supervised_tokens(row: &FeatureRow, steps: usize) -> usize {
    place(row, steps).map_or(0, |p| p.row.loss_mask.iter().skip(1).filter(|&&m| m).count())
}

impl TrainBatch {
    /// Packs `rows` for `steps` unroll steps; `None` when nothing in them is supervised.
    pub fn new(rows: &[&FeatureRow], steps: usize, device: &Device) -> Option<Self> {
        let placed: Vec<_> = rows.iter().filter_map(|row| place(row, steps)).collect();
        let plan = Arc::new(UnrollPlan { segments: placed.iter().map(|p| p.segment).collect() });
        let (mut next, mut taps, mut hidden, mut lse) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (mut labels, mut requests) = (Vec::new(), Vec::new());
        let mut tokens = vec![Vec::new(); steps];
        let mut supervised = vec![Vec::new(); steps];
        let mut query = 0;
        for Placement { row, segment } in &placed {
            let (n, width) = (row.ids.len(), row.last_hidden.len() / row.ids.len());
            let tap_width = row.taps.len() / n;
            next.extend((0..segment.keys).map(|t| row.ids[t + 1]));
            taps.extend(row.taps[..segment.keys * tap_width].iter().map(|v| v.to_f32()));
            // Row i of the target predicts token i + 1.
            let mut target_row = vec![None; n];
            for i in (0..n - 1).filter(|&i| row.loss_mask[i + 1]) {
                target_row[i] = Some(lse.len());
                hidden.extend(row.last_hidden[i * width..(i + 1) * width].iter().map(|v| v.to_f32()));
                lse.push(row.logsumexp[i]);
                labels.push(row.ids[i + 1]);
                requests.push(row.request);
            }
            for k in 0..steps {
                for q in 0..segment.queries {
                    let t = segment.first_query + q;
                    tokens[k].push(row.ids[(t + 1 + k).min(n - 1)]);
                    if let Some(target) = target_row.get(t + 1 + k).copied().flatten() {
                        supervised[k].push((query + q, target));
                    }
                }
            }
            query += segment.queries;
        }
        if lse.is_empty() {
            return None;
        }
        let table = |values: Vec<f32>, rows: usize| {
            let width = values.len() / rows;
            Tensor::<2>::from_data(TensorData::new(values, [rows, width]), device)
        };
        let targets = lse.len();
        Some(Self {
            next,
            taps: table(taps, plan.keys()),
            tokens,
            supervised,
            target_hidden: table(hidden, targets),
            target_lse: Tensor::from_data(TensorData::new(lse, [targets]), device),
            labels,
            requests,
            number: 0,
            plan,
            lengths: placed.iter().flat_map(|p| vec![p.row.ids.len(); p.segment.keys]).collect(),
            noise: None,
            dropout: None,
        })
    }

    /// Supervised tokens: what means are taken over.
    pub fn supervised_tokens(&self) -> usize {
        self.target_lse.dims()[0]
    }
}
