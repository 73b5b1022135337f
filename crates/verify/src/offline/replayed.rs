//! Rounds that a server really made, estimated again: along the text that followed, and along what was drafted.

use super::{Along, Chains, Offline, OfflineError, Place, Scored, answer, places};
use rayon::prelude::*;
use spectrain_core::stats::bootstrap::ratio_of_sums;
use spectrain_core::stats::replay::{DraftedToken, Drawn, along_draft, along_text};
use spectrain_core::stats::{Interval, Ratio, Resampling};
use spectrain_data::store::FeatureRow;
use spectrain_data::traces::{Trace, TracedRow, TracesMeta};
use spectrain_draft::TrainBatch;
use spectrain_kernels::rope::indices;
use spectrain_model::host_rows;
use std::collections::HashMap;

impl Scored {
    /// Accepted tokens expected of a round of `length` that starts after `t` tokens, from the text behind.
    pub fn accepted_after(&self, t: usize, length: usize) -> f64 {
        let (n, longest) = (self.tokens, self.longest);
        let depth = length.min(n - t);
        let row = t * longest..t * longest + depth;
        match &self.along {
            Along::Sampled { log_p, log_q } => along_text(&log_p[t..t + depth], &log_q[row]),
            Along::Argmax { hits } => hits[row].iter().take_while(|hit| **hit).count() as f64,
        }
    }
}

/// Drafted tokens of a round that could become text: up to the first end token, within the longest answer.
fn in_text<'a>(trace: &'a Trace, round: usize, meta: &TracesMeta) -> &'a [u32] {
    let round = &trace.rounds[round];
    let room = (trace.prompt.len() + meta.max_new_tokens).saturating_sub(round.root + 1);
    let stop = round.drafted.iter().position(|token| meta.stop.contains(token));
    let end = stop.map_or(round.drafted.len(), |stop| stop + 1);
    &round.drafted[..end.min(room)]
}

/// A drafted token by its stored row: for the drafter that drew it.
fn as_drawn(row: &TracedRow, token: u32) -> DraftedToken {
    let at = row.place(token).map_or((0.0, 0.0), |at| (f64::from(row.p[at]), f64::from(row.q[at])));
    let overlap = row.overlap(row.q.iter().map(|&q| f64::from(q)), f64::from(row.tail_q));
    DraftedToken { p: at.0, q: at.1, drawn: at.1, overlap }
}

/// Accepted tokens expected of every round of `trace`, from the stored masses alone.
pub fn as_served(trace: &Trace, meta: &TracesMeta) -> Vec<Drawn> {
    let of_round = |round: usize| {
        let tokens = in_text(trace, round, meta);
        let rows = &trace.rounds[round].rows;
        along_draft(&rows.iter().zip(tokens).map(|(row, &token)| as_drawn(row, token)).collect::<Vec<_>>())
    };
    (0..trace.rounds.len()).map(of_round).collect()
}

/// Where a drafted token's distribution is read.
struct Asked {
    /// Number of the round.
    round: usize,
    /// Query row.
    query: usize,
    /// Step, from 0.
    step: usize,
}

impl Offline<'_> {
    /// As [`as_served`] for the weights at hand, of `traces[i]` with the features `rows[i]`: the drafter is led along the
    /// branches that were drafted, and every token counts by how much more or less likely it draws it than the drafter
    /// that was at work. No pass of the target is needed: what it said there is stored. `None` for chains that are not
    /// drawn, of which another drafter's tell nothing.
    ///
    /// # Errors
    /// As [`Offline::score`].
    pub fn along_drafts(
        &self,
        rows: &[&FeatureRow],
        traces: &[&Trace],
        meta: &TracesMeta,
    ) -> Result<Option<Vec<Vec<Drawn>>>, OfflineError> {
        let Chains::Sampled(temperature) = self.chains else { return Ok(None) };
        let mut found = Vec::with_capacity(rows.len());
        for (row, trace) in rows.iter().zip(traces) {
            let place = answer(row)?;
            let batch = TrainBatch::new(&[row], self.longest, self.target.device());
            let (Some(mut batch), true) = (batch, place.1 > 0) else {
                found.push(Vec::new());
                continue;
            };
            let place = places(&batch, &[(0, place)]).remove(0);
            found.push(self.branches(&mut batch, &place, trace, meta, temperature));
        }
        Ok(Some(found))
    }

    /// All rounds of one conversation.
    fn branches(
        &self,
        batch: &mut TrainBatch,
        place: &Place,
        trace: &Trace,
        meta: &TracesMeta,
        temperature: f64,
    ) -> Vec<Drawn> {
        let mut asked = Vec::new();
        for (number, round) in trace.rounds.iter().enumerate() {
            let query = place.first_query + round.root - place.answer;
            // Step k reads the token that step k − 1 drafted.
            for (k, &token) in (1..self.longest).zip(&round.drafted) {
                batch.tokens[k][query] = token;
            }
            let steps = in_text(trace, number, meta).len().min(self.longest);
            asked.extend((0..steps).map(|step| Asked { round: number, query, step }));
        }
        let mut chains: Vec<Vec<DraftedToken>> = vec![Vec::new(); trace.rounds.len()];
        let t2d = self.drafter.vocab.t2d();
        self.drafter.unroll(self.weights, batch, |step, hidden| {
            let here: Vec<&Asked> = asked.iter().filter(|a| a.step == step).collect();
            if here.is_empty() {
                return;
            }
            let picked = hidden.select(0, indices(here.iter().map(|a| a.query), self.target.device()));
            let logits = host_rows(self.drafter.head.logits(picked));
            let width = logits.len() / here.len();
            let token = |(logits, a): (&[f32], &&Asked)| {
                let round = &trace.rounds[a.round];
                drafted_now(&round.rows[step], round.drafted[step], logits, temperature, &t2d)
            };
            let tokens: Vec<DraftedToken> = logits.par_chunks(width).zip(&here).map(token).collect();
            here.iter().zip(tokens).for_each(|(a, token)| chains[a.round].push(token));
        });
        chains.iter().map(|chain| along_draft(chain)).collect()
    }
}

/// A drafted token for a drafter whose `logits` over the draft vocabulary are these.
fn drafted_now(row: &TracedRow, token: u32, logits: &[f32], temperature: f64, t2d: &[Option<u32>]) -> DraftedToken {
    let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let mass = |logit: f32| ((f64::from(logit) - largest) / temperature).exp();
    let all: f64 = logits.iter().map(|&logit| mass(logit)).sum();
    let q = |id: &u32| t2d[*id as usize].map_or(0.0, |entry| mass(logits[entry as usize]) / all);
    let kept: Vec<f64> = row.ids.iter().map(q).collect();
    let overlap = row.overlap(kept.iter().copied(), (1.0 - kept.iter().sum::<f64>()).max(0.0));
    DraftedToken { q: q(&token), overlap, ..as_drawn(row, token) }
}

/// Accepted tokens a round, from both sides.
#[derive(Debug, Clone)]
pub struct Sides {
    /// Rounds.
    pub rounds: usize,
    /// Along the text.
    pub text: f64,
    /// Along the drafts, without bias and between its bounds.
    pub draft: Drawn,
    /// The first less the second, by drafted tokens alone, resampled by prompt.
    pub difference: Interval,
}

impl Sides {
    /// Accepted tokens a round by which the sides may differ for good: stored features are rounded to bf16, which now and
    /// then moves the likeliest token.
    const ROUNDING: f64 = 0.005;

    /// Whether the two differ beyond noise and rounding: then the drafter was not conditioned in the server as it is
    /// along the text.
    pub fn disagree(&self) -> bool {
        self.difference.low > Self::ROUNDING || self.difference.high < -Self::ROUNDING
    }
}

/// Whose drafts the second side is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drafts {
    /// The drafter's that was at work: stored masses alone.
    Served,
    /// Those that the weights at hand would draw.
    Now,
}

impl Offline<'_> {
    /// Both sides on `rows`, which are those of `traces`; chains as long as the drafter's steps here at most. `None` where
    /// there is no round, or where [`Offline::along_drafts`] has none.
    ///
    /// # Errors
    /// As [`Offline::score`].
    pub fn sides(
        &self,
        rows: &[FeatureRow],
        traces: &[&Trace],
        meta: &TracesMeta,
        drafts: Drafts,
        resampling: &Resampling,
    ) -> Result<Option<Sides>, OfflineError> {
        let drafted = match drafts {
            Drafts::Served => Some(traces.iter().map(|trace| as_served(trace, meta)).collect()),
            Drafts::Now => self.along_drafts(&rows.iter().collect::<Vec<_>>(), traces, meta)?,
        };
        let Some(drafted) = drafted else { return Ok(None) };
        // By prompt: text, drafted tokens, and their least and largest.
        let mut number: HashMap<&[u32], usize> = HashMap::new();
        let mut sums: [Vec<Ratio>; 4] = Default::default();
        let mut rounds = 0;
        for scored in self.score(rows)? {
            let trace = traces[scored.row];
            let next = number.len();
            let at = *number.entry(&trace.prompt).or_insert(next);
            for (round, &Drawn { by_token, low, high }) in trace.rounds.iter().zip(&drafted[scored.row]) {
                let text =
                    scored.accepted_after(round.root - trace.prompt.len(), round.drafted.len().min(self.longest));
                for (sum, value) in sums.iter_mut().zip([text, by_token, low, high]) {
                    sum.resize(number.len(), Ratio { numerator: 0.0, denominator: 0.0 });
                    sum[at].numerator += value;
                    sum[at].denominator += 1.0;
                }
                rounds += 1;
            }
        }
        if rounds == 0 {
            return Ok(None);
        }
        let difference = resampling.paired_difference(&sums[0], &sums[1])?;
        let [text, by_token, low, high] = sums.map(|side| ratio_of_sums(&side));
        Ok(Some(Sides { rounds, text, draft: Drawn { by_token, low, high }, difference }))
    }
}
