//! Committed tokens per target call without decoding: the drafter is led along answers that the target wrote, and the
//! rounds that a verifier would have made of them are counted with their probabilities
//! ([`spectrain_core::stats::renewal`]).
//!
//! The drafter drafts from its own states at run time exactly as the unroll of training does, so one unroll over a
//! stored answer gives every step of the chains that start behind any of its tokens, and with them all draft lengths
//! at once. The first token of an answer is the prompt pass's, so the text that rounds cover begins behind it.
//!
//! Stored features are rounded to bf16, the verifier's are f32. `tests/e2e/offline.rs` holds what that moves below
//! 0.5 %; on 400 greedy answers of the tiny target it was 0.01 %.

mod imagined;
mod replayed;

pub use replayed::{Drafts, Sides, as_served};

use burn::tensor::{Int, Tensor};
use rayon::prelude::*;
use spectrain_core::offline::OfflineEstimate;
use spectrain_core::rules::Rule;
use spectrain_core::stats::bootstrap::{Ratio, ratio_of_sums};
use spectrain_core::stats::renewal::{Renewal, deterministic, sampled_chain};
use spectrain_core::stats::{Resampling, StatsError};
use spectrain_data::store::FeatureRow;
use spectrain_draft::{Eagle3, Eagle3Drafter, TrainBatch};
use spectrain_kernels::draft_loss::log_denominator;
use spectrain_kernels::rope::indices;
use spectrain_model::{Llama, host_rows, sample::argmax};
use std::collections::HashMap;
use std::ops::Range;

/// Rows whose logits exist at a time.
const ROW_BLOCK: usize = 512;

/// Tokens of the conversations that are unrolled together.
const BATCH_TOKENS: usize = 2048;

/// Why there is no estimate.
#[derive(Debug, thiserror::Error)]
pub enum OfflineError {
    /// Rounds of this rule do not follow from the text alone.
    #[error("rule {0} has no offline estimate; it exists for token, sampled-match and greedy")]
    Rule(Rule),
    /// The supervised tokens of a row are not the end of it.
    #[error(
        "request {request}: its supervised tokens are not one answer behind a prompt; capture the target's answers again"
    )]
    Row {
        /// The row's request.
        request: u64,
    },
    /// No answer has a second token.
    #[error("no answer has two tokens or more, so no round starts: give longer answers")]
    Empty,
    /// The probabilities are none.
    #[error(transparent)]
    Stats(#[from] StatsError),
}

/// How chains are drafted and judged.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Chains {
    /// Tokens drawn at this temperature on both sides, under the token rule.
    Sampled(f64),
    /// The drafter's most likely tokens, accepted where the text has them: the greedy and the sampled-match rule.
    Argmax,
}

impl Chains {
    /// Chains as `rule` judges them at `temperature`.
    ///
    /// # Errors
    /// [`OfflineError::Rule`] for a rule whose rounds the text does not tell.
    pub fn of(rule: Rule, temperature: f64) -> Result<Self, OfflineError> {
        match rule.at(temperature) {
            Rule::Greedy | Rule::SampledMatch => Ok(Self::Argmax),
            Rule::Token => Ok(Self::Sampled(temperature)),
            other => Err(OfflineError::Rule(other)),
        }
    }
}

/// What drafter and target say along one answer of `n` tokens behind its first.
#[derive(Debug, Clone)]
enum Along {
    /// `log p` `[n]`; `log q` `[n, longest]` of step `i` of the chain that starts after `t` tokens.
    Sampled { log_p: Vec<f64>, log_q: Vec<f64> },
    /// `[n, longest]`: whether the most likely token of that step is the text's.
    Argmax { hits: Vec<bool> },
}

/// One answer, ready for rounds of any length up to the longest.
#[derive(Debug, Clone)]
pub struct Scored {
    /// Number of its row.
    pub row: usize,
    /// The prompt that it answers.
    pub prompt: Vec<u32>,
    tokens: usize,
    longest: usize,
    /// Whether each token is in the draft vocabulary.
    known: Vec<bool>,
    along: Along,
}

impl Scored {
    /// Tokens that rounds cover: all but the answer's first.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// The rounds of chains of `length` along this answer.
    ///
    /// # Errors
    /// When a probability is none.
    pub fn renewal(&self, length: usize) -> Result<Renewal, StatsError> {
        assert!(length <= self.longest, "scored up to {} drafts", self.longest);
        match &self.along {
            Along::Sampled { log_p, log_q } => {
                let log_q: Vec<f64> = log_q.chunks(self.longest).flat_map(|row| &row[..length]).copied().collect();
                sampled_chain(log_p, &log_q, length)
            }
            Along::Argmax { hits } => {
                let depth = |row: &[bool]| row[..length].iter().take_while(|hit| **hit).count();
                deterministic(&hits.chunks(self.longest).map(depth).collect::<Vec<_>>())
            }
        }
    }
}

/// A drafter with its target, and what is asked of them.
pub struct Offline<'a> {
    /// The target that wrote the answers.
    pub target: &'a Llama,
    /// The drafter's frozen side.
    pub drafter: &'a Eagle3Drafter,
    /// Its weights, on the target's device and without a tape.
    pub weights: &'a Eagle3,
    /// How chains are drafted and judged.
    pub chains: Chains,
    /// Longest chain.
    pub longest: usize,
}

/// Where the rows of one conversation lie in a batch.
struct Place {
    /// Its row.
    row: usize,
    /// Position of the answer's first token.
    answer: usize,
    /// Tokens behind it.
    tokens: usize,
    /// Query row of the chain that starts behind the answer's first token.
    first_query: usize,
    /// Target row that predicts the token behind the answer's first.
    first_target: usize,
}

impl Place {
    /// Positions of the tokens that rounds cover.
    fn text(&self) -> Range<usize> {
        self.answer + 1..self.answer + 1 + self.tokens
    }
}

/// Position of the first answer token, and the tokens behind it.
fn answer(row: &FeatureRow) -> Result<(usize, usize), OfflineError> {
    let n = row.ids.len();
    let first = row.loss_mask.iter().position(|&m| m).unwrap_or(n);
    if first == 0 || row.loss_mask[first..].contains(&false) {
        return Err(OfflineError::Row { request: row.request });
    }
    Ok((first, n.saturating_sub(first + 1)))
}

impl Offline<'_> {
    /// Leads the drafter along `rows`; answers of one token have no round and are left out.
    ///
    /// # Errors
    /// [`OfflineError::Row`] for rows that are no single answer.
    pub fn score(&self, rows: &[FeatureRow]) -> Result<Vec<Scored>, OfflineError> {
        let mut scored = Vec::new();
        let mut group: Vec<(usize, (usize, usize))> = Vec::new();
        let mut filled = 0;
        for (index, row) in rows.iter().enumerate() {
            let found = answer(row)?;
            if found.1 == 0 {
                continue;
            }
            if filled > 0 && filled + row.ids.len() > BATCH_TOKENS {
                scored.extend(self.score_batch(rows, &group));
                group.clear();
                filled = 0;
            }
            filled += row.ids.len();
            group.push((index, found));
        }
        scored.extend(self.score_batch(rows, &group));
        Ok(scored)
    }

    /// Unrolls the conversations of one batch.
    fn score_batch(&self, rows: &[FeatureRow], group: &[(usize, (usize, usize))]) -> Vec<Scored> {
        let picked: Vec<&FeatureRow> = group.iter().map(|(index, _)| &rows[*index]).collect();
        let Some(batch) = TrainBatch::new(&picked, self.longest, self.target.device()) else { return Vec::new() };
        let places = places(&batch, group);
        let mut along: Vec<Along> = match self.chains {
            Chains::Argmax => {
                places.iter().map(|p| Along::Argmax { hits: vec![false; p.tokens * self.longest] }).collect()
            }
            Chains::Sampled(temperature) => {
                let log_p = self.log_p(&batch, &places, rows, temperature);
                let log_q = |p: &Place| vec![f64::NEG_INFINITY; p.tokens * self.longest];
                places.iter().zip(log_p).map(|(p, log_p)| Along::Sampled { log_p, log_q: log_q(p) }).collect()
            }
        };
        let t2d = self.drafter.vocab.t2d();
        self.drafter.unroll(self.weights, &batch, |step, hidden| {
            self.step(step, hidden, &places, rows, &t2d, &mut along);
        });
        let scored = |(p, along): (&Place, Along)| Scored {
            row: p.row,
            prompt: rows[p.row].ids[..p.answer].to_vec(),
            tokens: p.tokens,
            longest: self.longest,
            known: rows[p.row].ids[p.text()].iter().map(|&token| t2d[token as usize].is_some()).collect(),
            along,
        };
        places.iter().zip(along).map(scored).collect()
    }

    /// Fills in what step `step` of every chain says about its token; `hidden` is the head's input of all query rows.
    fn step(
        &self,
        step: usize,
        hidden: Tensor<2>,
        places: &[Place],
        rows: &[FeatureRow],
        t2d: &[Option<u32>],
        along: &mut [Along],
    ) {
        // (conversation, chain start, query row, token the text has there)
        let asked: Vec<(usize, usize, usize, u32)> = places
            .iter()
            .enumerate()
            .flat_map(|(i, p)| {
                let text = &rows[p.row].ids[p.text()];
                text.iter().skip(step).enumerate().map(move |(t, &token)| (i, t, p.first_query + t, token))
            })
            .collect();
        let device = self.target.device();
        for block in asked.chunks(ROW_BLOCK) {
            let picked = hidden.clone().select(0, indices(block.iter().map(|a| a.2), device));
            let logits = self.drafter.head.logits(picked);
            match self.chains {
                Chains::Argmax => {
                    let logits = host_rows(logits);
                    let d2t = &self.drafter.vocab.d2t;
                    let best: Vec<u32> = logits.par_chunks(d2t.len()).map(|row| d2t[argmax(row) as usize]).collect();
                    for (&(i, t, _, token), best) in block.iter().zip(best) {
                        if let Along::Argmax { hits } = &mut along[i] {
                            hits[t * self.longest + step] = best == token;
                        }
                    }
                }
                Chains::Sampled(temperature) => {
                    let columns: Vec<Option<usize>> =
                        block.iter().map(|a| t2d[a.3 as usize].map(|d| d as usize)).collect();
                    let known = columns.iter().map(|c| c.unwrap_or(0));
                    let values = log_probabilities(logits, temperature, known);
                    for ((&(i, t, ..), value), column) in block.iter().zip(values).zip(columns) {
                        if let (Along::Sampled { log_q, .. }, Some(_)) = (&mut along[i], column) {
                            log_q[t * self.longest + step] = value;
                        }
                    }
                }
            }
        }
    }

    /// `log p` of every covered token at `temperature`, by conversation.
    fn log_p(&self, batch: &TrainBatch, places: &[Place], rows: &[FeatureRow], temperature: f64) -> Vec<Vec<f64>> {
        let asked: Vec<(usize, usize)> = places
            .iter()
            .flat_map(|p| (p.first_target..).zip(&rows[p.row].ids[p.text()]).map(|(i, &token)| (i, token as usize)))
            .collect();
        let device = self.target.device();
        let stored: Vec<f32> = batch.target_lse.clone().into_data().try_to_vec().expect("an f32 tensor");
        // At temperature 1 the stored normaliser spares the product with the whole head.
        let normalised = temperature == 1.0 && asked.iter().all(|(i, _)| stored[*i].is_finite());
        let rows_of_head = self.target.head().rows().clone();
        let mut values = Vec::with_capacity(asked.len());
        for block in asked.chunks(ROW_BLOCK) {
            let hidden = batch.target_hidden.clone().select(0, indices(block.iter().map(|a| a.0), device));
            if normalised {
                let columns = rows_of_head.clone().select(0, indices(block.iter().map(|a| a.1), device));
                let logits = host_rows((hidden * columns).sum_dim(1));
                values.extend(block.iter().zip(logits).map(|(a, logit)| f64::from(logit - stored[a.0])));
            } else {
                values.extend(log_probabilities(self.target.logits(hidden), temperature, block.iter().map(|a| a.1)));
            }
        }
        let mut rest = values.as_slice();
        let mut take = |p: &Place| {
            let (head, tail) = rest.split_at(p.tokens);
            rest = tail;
            head.to_vec()
        };
        places.iter().map(&mut take).collect()
    }
}

/// Where each conversation of `group` lies in `batch`.
fn places(batch: &TrainBatch, group: &[(usize, (usize, usize))]) -> Vec<Place> {
    let (mut query, mut target) = (0, 0);
    assert_eq!(batch.plan.segments.len(), group.len(), "an answer of two tokens is always supervised");
    batch
        .plan
        .segments
        .iter()
        .zip(group)
        .map(|(segment, &(row, (answer, tokens)))| {
            // The chain behind token `i` is asked at the row of token `i - 1`, whose next token `i` is.
            let first_query = query + answer - 1 - segment.first_query;
            let place = Place { row, answer, tokens, first_query, first_target: target + 1 };
            query += segment.queries;
            target += tokens + 1;
            place
        })
        .collect()
}

/// Log probability at `temperature` of one column a row of `logits [rows, vocabulary]`.
fn log_probabilities(logits: Tensor<2>, temperature: f64, columns: impl Iterator<Item = usize>) -> Vec<f64> {
    let logits = if temperature == 1.0 { logits } else { logits / temperature };
    let columns: Tensor<1, Int> = indices(columns, &logits.device());
    let own = logits.clone().gather(1, columns.unsqueeze_dim(1)).squeeze_dim::<1>(1);
    let values: Vec<f32> = (own - log_denominator(logits)).into_data().try_to_vec().expect("an f32 tensor");
    values.into_iter().map(f64::from).collect()
}

/// Parts of the estimates of one draft length, one entry a question.
#[derive(Debug, Clone, Default)]
pub struct Questions {
    /// Tokens over expected rounds.
    pub all_rounds: Vec<Ratio>,
    /// The same over rounds that the end of the text does not cut short; questions without one have zeros.
    pub complete_rounds: Vec<Ratio>,
    /// The same with a start after every token.
    pub every_row: Vec<Ratio>,
}

impl Questions {
    /// Adds up the answers to each question at draft length `length`; questions are in the order in which they first
    /// appear, and one prompt is one question.
    ///
    /// # Errors
    /// When a probability is none.
    pub fn of(scored: &[Scored], length: usize) -> Result<Self, OfflineError> {
        let mut number: HashMap<&[u32], usize> = HashMap::new();
        let mut sums = Self::default();
        for answer in scored {
            let next = number.len();
            let question = *number.entry(&answer.prompt).or_insert(next);
            let renewal = answer.renewal(length)?;
            for (sums, part) in [
                (&mut sums.all_rounds, renewal.all_rounds),
                (&mut sums.complete_rounds, renewal.complete_rounds),
                (&mut sums.every_row, renewal.every_row),
            ] {
                if question == sums.len() {
                    sums.push(Ratio { numerator: 0.0, denominator: 0.0 });
                }
                sums[question].numerator += part.numerator;
                sums[question].denominator += part.denominator;
            }
        }
        if number.is_empty() {
            return Err(OfflineError::Empty);
        }
        Ok(sums)
    }

    /// The estimate with its intervals.
    ///
    /// # Errors
    /// When the intervals cannot be had.
    pub fn estimate(&self, length: usize, resampling: &Resampling) -> Result<OfflineEstimate, StatsError> {
        let filled: Vec<Ratio> = self.complete_rounds.iter().filter(|r| r.denominator > 0.0).copied().collect();
        Ok(OfflineEstimate {
            length,
            questions: self.all_rounds.len(),
            tokens: self.all_rounds.iter().map(|r| r.numerator).sum::<f64>() as usize,
            tokens_per_target_call: resampling.ratio(&self.all_rounds)?,
            complete_rounds: if filled.is_empty() { None } else { Some(resampling.ratio(&filled)?) },
            row_mean_biased: ratio_of_sums(&self.every_row),
        })
    }
}
