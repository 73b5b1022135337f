//! What the real decoder and the real drafter did, written down between the two.

use crate::engine::SpeculativeDecoder;
use crate::judge::Round as Judged;
use crate::length::Fixed;
use crate::task::Task;
use burn::tensor::Tensor;
use spectrain_core::form::Form;
use spectrain_core::process::{Processors, RowError};
use spectrain_core::rng::{Key, Purpose};
use spectrain_core::rules::{RuleError, Verdict};
use spectrain_draft::proposer::{Draft, DrafterMemory, Observed, Pick, Plan, Proposer, Wanted};
use spectrain_model::sample::argmax;
use spectrain_model::{Llama, Request};
use std::collections::BTreeMap;

/// Tokens written behind every prompt.
const TOKENS: usize = 24;
/// Requests at a time: fewer than conversations, so that slots are used again.
const BATCH: usize = 2;
/// Seed of the number of drafts that are kept.
const SEED: u64 = 0x7265_636f;

/// One conversation as run time saw it.
pub(super) struct Trace {
    /// Prompt and answer.
    pub text: Vec<u32>,
    /// What the decoder handed to the drafter, in order.
    pub handed: Vec<Handed>,
    /// The drafts, in order.
    pub rounds: Vec<Round>,
}

/// Rows that the decoder handed to the drafter.
pub(super) struct Handed {
    /// Tokens of the rows.
    pub next: Vec<u32>,
    /// Features of the rows, one `[rows, hidden]` a tap.
    pub features: Vec<Tensor<2>>,
}

/// One draft.
pub(super) struct Round {
    /// Tokens of the text that were known.
    pub known: usize,
    /// What was proposed.
    pub draft: Draft,
}

/// Tokens that `prompt` must leave room for.
pub(super) fn room(length: usize) -> usize {
    TOKENS + length + 1
}

/// Runs `prompts` through the decoder and writes down what passes between it and `proposer`.
///
/// How many drafts stay is drawn, not judged: rounds of every outcome happen however bad the drafter is, and what it
/// says is compared on whatever text comes of it.
pub(super) fn trace(
    target: &Llama,
    proposer: &mut dyn Proposer,
    prompts: &[&[u32]],
    length: usize,
) -> Result<Vec<Trace>, RuleError> {
    let judge = |round: &Judged| {
        let tokens = &round.draft.tokens;
        let key = Key::new(SEED, round.prefix.request.id, round.position() as u64, Purpose::Accept);
        let kept = key.below_at(0, tokens.len() + 1);
        let next = Some(argmax(round.row(kept)));
        Ok(Verdict { path: (1..=kept).collect(), tokens: tokens[..kept].to_vec(), next, fallbacks: 0 })
    };
    let request = |(id, prompt): (usize, &&[u32])| Request {
        id: id as u64,
        prompt: prompt.to_vec(),
        max_new_tokens: TOKENS,
        sampling: Processors::greedy(),
        seed: SEED,
        form: Form::default(),
    };
    let mut recorder = Recorder { inner: proposer, slots: Vec::new(), logs: Vec::new() };
    let plan = Plan::chain(length, Pick::Argmax);
    let decoder = SpeculativeDecoder { target, stop: &[], batch: BATCH };
    let mut answers = BTreeMap::new();
    let tasks = Task::alike(prompts.iter().enumerate().map(request), &plan, &judge, &Fixed);
    decoder.run(tasks, &mut recorder, |t| drop(answers.insert(t.id, t.ids)))?;
    let traced = |((log, prompt), answer): ((Log, &&[u32]), Vec<u32>)| Trace {
        text: [prompt, answer.as_slice()].concat(),
        handed: log.handed,
        rounds: log.rounds,
    };
    Ok(recorder.logs.into_iter().zip(prompts).zip(answers.into_values()).map(traced).collect())
}

#[derive(Default)]
struct Log {
    handed: Vec<Handed>,
    rounds: Vec<Round>,
}

/// A drafter whose dealings are written down. Requests are admitted in their order, each clears its slot first.
struct Recorder<'a> {
    inner: &'a mut dyn Proposer,
    /// Log of each slot's request.
    slots: Vec<usize>,
    logs: Vec<Log>,
}

impl Proposer for Recorder<'_> {
    fn taps(&self) -> &[usize] {
        self.inner.taps()
    }

    fn draft_to_target(&self) -> &[u32] {
        self.inner.draft_to_target()
    }

    fn open(&mut self, slots: usize, capacity: usize) {
        self.slots = vec![0; slots];
        self.inner.open(slots, capacity);
    }

    fn clear(&mut self, slot: usize) {
        self.slots[slot] = self.logs.len();
        self.logs.push(Log::default());
        self.inner.clear(slot);
    }

    fn observe(&mut self, observed: &[Observed], features: Vec<Tensor<2>>) {
        let mut first = 0;
        for o in observed.iter().filter(|o| !o.next.is_empty()) {
            let rows = o.next.len();
            let own = features.iter().map(|tap| tap.clone().narrow(0, first, rows)).collect();
            self.logs[self.slots[o.slot]].handed.push(Handed { next: o.next.clone(), features: own });
            first += rows;
        }
        self.inner.observe(observed, features);
    }

    fn draft(&mut self, wanted: &[Wanted]) -> Result<Vec<Draft>, RowError> {
        let drafts = self.inner.draft(wanted)?;
        for (w, draft) in wanted.iter().zip(&drafts) {
            let log = &mut self.logs[self.slots[w.slot]];
            let known = 1 + log.handed.iter().map(|h| h.next.len()).sum::<usize>();
            log.rounds.push(Round { known, draft: draft.clone() });
        }
        Ok(drafts)
    }

    fn memory(&self, plan: &Plan) -> DrafterMemory {
        self.inner.memory(plan)
    }

    fn committed(&self, slot: usize) -> usize {
        self.inner.committed(slot)
    }
}
