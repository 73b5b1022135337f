//! The target reads its own answers; its features go to the store.

use super::generate::load;
use super::setup::{RunDir, Setup};
use crate::exit::{Blame, Failure};
use crate::progress::Progress;
use anyhow::anyhow;
use burn::tensor::{DType, Tensor, TensorData};
use half::bf16;
use spectrain_core::recipe::{Drafter, Recipe};
use spectrain_data::answers::{Answer, shared_beginning};
use spectrain_data::store::{FeatureRow, StoreMeta, StoreReader, StoreWriter, sha256_file};
use spectrain_kernels::draft_loss::log_denominator;
use spectrain_kernels::rope::indices;
use spectrain_model::Llama;
use std::path::{Path, PathBuf};

/// Rows whose full-vocabulary logits exist at a time.
const HEAD_ROWS: usize = 512;

/// The directory of a run's store.
pub fn store_dir(recipe: &Recipe, run: &RunDir) -> PathBuf {
    recipe.store.dir.clone().unwrap_or_else(|| run.join("store"))
}

/// Runs the target over the answers in `file` and writes the store of `recipe`, which is resolved.
pub fn capture(setup: &Setup, recipe: &Recipe, file: &Path, run: &RunDir) -> Result<(), Failure> {
    let answers = load(setup, file)?;
    let Drafter::Eagle3(drafter) = &recipe.drafter;
    let taps = drafter.taps_for(setup.target.config().layers).unwrap_or_default();
    let meta = StoreMeta {
        target_hash: setup.target_hash.clone(),
        answers_hash: sha256_file(file).work()?,
        taps: taps.clone(),
        hidden: setup.target.config().hidden_size,
        target_vocab: setup.target.config().vocab_size,
        spectrain_version: env!("CARGO_PKG_VERSION").to_string(),
    };
    let dir = store_dir(recipe, run);
    if let Ok(store) = StoreReader::open(&dir) {
        if *store.meta() == meta {
            eprintln!("capture: {} is complete and kept", dir.display());
            return Ok(());
        }
        let text =
            format!("{} holds features of other answers, taps or target: remove it or set store.dir", dir.display());
        return Err(anyhow!(text)).request();
    }
    // Prompts can be learned from as well, behind what they all begin with.
    let shared = shared_beginning(answers.iter().map(|a| a.prompt_ids.as_slice()));
    let mut writer = StoreWriter::create(&dir, meta).work()?;
    let progress = Progress::new("capture", answers.iter().map(tokens).sum::<usize>() as u64, "tokens");
    for batch in batches(&answers, recipe.store.batch_tokens) {
        for row in features(&setup.target, batch, &taps, |_| shared) {
            writer.push(row).work()?;
        }
        progress.inc(batch.iter().map(tokens).sum::<usize>() as u64);
    }
    progress.finish();
    writer.finish().work()?;
    Ok(())
}

fn tokens(answer: &Answer) -> usize {
    answer.prompt_ids.len() + answer.answer_ids.len()
}

/// `answers` in groups of at most `budget` tokens, or of one longer answer.
pub(super) fn batches(answers: &[Answer], budget: usize) -> impl Iterator<Item = &[Answer]> {
    let mut rest = answers;
    std::iter::from_fn(move || {
        let mut sum = 0;
        let fits = |a: &&Answer| {
            sum += tokens(a);
            sum <= budget
        };
        let count = rest.iter().take_while(fits).count().max(1).min(rest.len());
        let (batch, later) = rest.split_at(count);
        rest = later;
        (!batch.is_empty()).then_some(batch)
    })
}

/// Features of a few conversations, from one packed pass. The normaliser is there for what predicts the tokens from
/// `predicted` on.
pub(super) fn features(
    target: &Llama,
    batch: &[Answer],
    taps: &[usize],
    predicted: impl Fn(&Answer) -> usize,
) -> Vec<FeatureRow> {
    let ids: Vec<Vec<u32>> = batch.iter().map(|a| [a.prompt_ids.as_slice(), &a.answer_ids].concat()).collect();
    let sequences: Vec<&[u32]> = ids.iter().map(Vec::as_slice).collect();
    let found = target.forward_full(&sequences, taps);
    // The normaliser belongs to the stored, rounded hidden state, so that the recomputed distribution sums to one.
    let hidden = found.hidden.cast(DType::BF16);
    let mut end = 0;
    let predicting = batch.iter().zip(&ids).flat_map(|(answer, ids)| {
        end += ids.len();
        end - ids.len() + predicted(answer) - 1..end - 1
    });
    let logsumexp = normalisers(target, hidden.clone().cast(DType::F32), &predicting.collect::<Vec<_>>());
    let fused = Tensor::cat(found.taps, 1).cast(DType::BF16);
    let (fused, hidden) = (host(fused), host(hidden));
    let total = logsumexp.len();
    let (tap_width, width) = (fused.len() / total, hidden.len() / total);
    let mut start = 0;
    batch
        .iter()
        .zip(ids)
        .map(|(answer, ids)| {
            let range = start..start + ids.len();
            start = range.end;
            FeatureRow {
                request: answer.request,
                loss_mask: (0..ids.len()).map(|i| i >= answer.prompt_ids.len()).collect(),
                taps: fused[range.start * tap_width..range.end * tap_width].to_vec(),
                last_hidden: hidden[range.start * width..range.end * width].to_vec(),
                logsumexp: logsumexp[range].to_vec(),
                temperature: answer.temperature,
                off_policy: answer.off_policy,
                ids,
            }
        })
        .collect()
}

/// Log denominators of the target's distribution at `rows`, NaN at all others.
fn normalisers(target: &Llama, hidden: Tensor<2>, rows: &[usize]) -> Vec<f32> {
    let mut found = vec![f32::NAN; hidden.dims()[0]];
    for block in rows.chunks(HEAD_ROWS) {
        let selected = hidden.clone().select(0, indices(block.iter().copied(), target.device()));
        let values: Vec<f32> =
            log_denominator(target.logits(selected)).into_data().try_to_vec().expect("an f32 tensor");
        block.iter().zip(values).for_each(|(&row, value)| found[row] = value);
    }
    found
}

fn host(tensor: Tensor<2>) -> Vec<bf16> {
    let data: TensorData = tensor.into_data();
    data.try_to_vec().expect("a bf16 tensor")
}
