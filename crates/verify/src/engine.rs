//! Batched speculative decoding.
//!
//! A round is a transaction: the drafter writes provisional rows, the target writes provisional rows behind its
//! committed ones, the verdict says which of them stay, and only then do both caches and the text advance. The accepted
//! path of a tree is moved together in the target's cache; that of a chain lies where it belongs. A new request's prompt
//! runs in the same target pass as the drafts of the others.

mod rounds;

use crate::judge::{Judge, Round, nothing_follows};
use crate::length::LengthPolicy;
use rayon::prelude::*;
use spectrain_core::constraint::{ConstraintError, restrict};
use spectrain_core::evaluation::Memory;
use spectrain_core::form::Follower;
use spectrain_core::rng::Purpose;
use spectrain_core::rules::{RuleError, Verdict, keyed};
use spectrain_core::stats::{Arrival, Call, Round as Counts, Timeline};
use spectrain_core::stopping::Outcome;
use spectrain_core::tree::{Tree, TreeError};
use spectrain_draft::proposer::{Draft, Observed, Plan, Proposer, Wanted};
use spectrain_kernels::rope::indices;
use spectrain_model::sample::choose;
use spectrain_model::{Features, Finish, KvCache, Llama, ParentOrder, Request, SlotRows, host_rows};
use std::collections::VecDeque;
use std::ops::{ControlFlow, Range};
use std::time::{Duration, Instant};

/// A speculative decoder for chains and trees.
pub struct SpeculativeDecoder<'a> {
    /// The model whose law the text follows.
    pub target: &'a Llama,
    /// Tokens that end an answer.
    pub stop: &'a [u32],
    /// Requests at a time.
    pub batch: usize,
    /// What is drafted a round.
    pub plan: Plan,
    /// The acceptance rule.
    pub judge: &'a Judge,
    /// How much of the plan's chain each request drafts in a round.
    pub lengths: &'a dyn LengthPolicy,
}

/// An answer and how it came about.
#[derive(Debug, Clone)]
pub struct Transcript {
    /// The request's number.
    pub id: u64,
    /// Written tokens, a stop token included.
    pub ids: Vec<u32>,
    /// Why it ended.
    pub finish: Finish,
    /// Every verify call; the prefill call and its token are not among them.
    pub calls: Vec<Call>,
    /// When the tokens came; the first arrival is the prefill call's.
    pub timeline: Timeline,
    /// Rejections without residual mass that fell back to the target.
    pub fallbacks: usize,
    /// How often the first accepted token was the root's child of each rank, from 0.
    pub ranks: Vec<usize>,
    /// Set where the request's constraint gave up, which ended the answer.
    pub failure: Option<ConstraintError>,
}

impl Transcript {
    /// The verify calls after trimming at the end of the text.
    pub fn rounds(&self) -> impl Iterator<Item = Counts> + Clone + '_ {
        self.calls.iter().map(|call| call.kept)
    }
}

/// What one target call added to an answer.
#[derive(Debug, Clone, Copy)]
pub struct Committed<'a> {
    /// The request's number.
    pub id: u64,
    /// The tokens, in order, after trimming at the end of the text.
    pub tokens: &'a [u32],
    /// How many of them, from the first on, were drafted; the rest is the target's own.
    pub accepted: usize,
}

/// Who is told how the answers grow.
struct Listener<'a> {
    committed: &'a mut dyn FnMut(Committed) -> ControlFlow<()>,
    done: &'a mut dyn FnMut(Transcript),
}

/// What a run took.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cost {
    /// Where the time went.
    pub times: Times,
    /// What was held.
    pub memory: Memory,
}

/// Where the time went.
#[derive(Debug, Clone, Copy, Default)]
pub struct Times {
    /// Drafter passes, the rewriting of accepted rows included.
    pub draft: Duration,
    /// Target passes with their heads.
    pub verify: Duration,
    /// Distributions, acceptance tests and draws.
    pub sample: Duration,
    /// Commit, trimming and bookkeeping.
    pub state: Duration,
    /// Everything.
    pub total: Duration,
}

struct Active {
    request: Request,
    answer: Vec<u32>,
    calls: Vec<Call>,
    timeline: Timeline,
    fallbacks: usize,
    ranks: Vec<usize>,
    follower: Follower,
}

impl Active {
    fn newest(&self) -> Option<u32> {
        self.answer.last().copied()
    }

    /// Counts the rank of the first accepted node among its siblings.
    fn count_rank(&mut self, tree: &Tree, verdict: &Verdict) {
        let Some(rank) = verdict.path.first().and_then(|&first| tree.children(0).position(|child| child == first))
        else {
            return;
        };
        if rank >= self.ranks.len() {
            self.ranks.resize(rank + 1, 0);
        }
        self.ranks[rank] += 1;
    }

    /// Appends what may stay of `tokens`.
    fn extend(&mut self, tokens: &[u32]) -> Outcome {
        let outcome = self.follower.commit(tokens);
        self.answer.extend_from_slice(&tokens[..outcome.kept]);
        outcome
    }
}

/// One slot's part of a target pass.
struct Entry {
    slot: usize,
    /// Rows of the packed pass.
    rows: Range<usize>,
    /// The proposal under test, and its tree, whose nodes are the rows; `None` while the prompt is read.
    draft: Option<(Draft, Tree)>,
}

impl Entry {
    /// Rows whose logits are judged: all of a draft's, the last of a prompt's.
    fn judged(&self) -> usize {
        if self.draft.is_some() { self.rows.len() } else { 1 }
    }

    /// The rows as the target's cache takes them.
    fn slot_rows(&self) -> Result<SlotRows, TreeError> {
        let Some((Draft { parents: Some(_), .. }, tree)) = &self.draft else {
            return Ok(SlotRows::chain(self.slot, self.rows.len()));
        };
        let parents = (0..tree.len()).map(|node| tree.parent(node)).collect();
        SlotRows::tree(self.slot, tree.len(), parents)
            .map_err(|ParentOrder { row, parent }| TreeError::Order { node: row, parent })
    }
}

/// Running state of a batch.
struct Batch {
    begun: Instant,
    slots: Vec<Option<Active>>,
    cache: KvCache,
    times: Times,
}

impl SpeculativeDecoder<'_> {
    /// Answers all `requests`; `done` is called as each ends.
    ///
    /// # Errors
    /// [`RuleError`] when a distribution is none: a fault of the models, not of the request.
    pub fn run(
        &self,
        requests: Vec<Request>,
        proposer: &mut dyn Proposer,
        done: impl FnMut(Transcript),
    ) -> Result<Cost, RuleError> {
        self.run_watched(requests, proposer, |_| ControlFlow::Continue(()), done)
    }

    /// As [`Self::run`], and `committed` is called after every target call, once a request, with what the call added;
    /// the first is the prompt's. When it breaks, the run ends at once, and answers without an end are not `done`.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn run_watched(
        &self,
        requests: Vec<Request>,
        proposer: &mut dyn Proposer,
        mut committed: impl FnMut(Committed) -> ControlFlow<()>,
        mut done: impl FnMut(Transcript),
    ) -> Result<Cost, RuleError> {
        let begun = Instant::now();
        let longest = requests.iter().map(|r| r.prompt.len() + r.max_new_tokens).max().unwrap_or(0);
        let mut waiting: VecDeque<Request> = requests.into();
        let slots: Vec<Option<Active>> = (0..self.batch.min(waiting.len())).map(|_| None).collect();
        let cache = self.open(slots.len(), longest, proposer);
        let memory = self.memory(&cache, slots.len(), proposer);
        let mut batch = Batch { begun, slots, cache, times: Times::default() };
        let mut listener = Listener { committed: &mut committed, done: &mut done };
        loop {
            self.admit(&mut batch, &mut waiting, proposer);
            if self.round(&mut batch, proposer, &mut listener)?.is_break() {
                break;
            }
        }
        batch.times.total = begun.elapsed();
        Ok(Cost { times: batch.times, memory })
    }

    /// Room for `slots` texts of up to `longest` tokens and what a round writes behind them.
    fn open(&self, slots: usize, longest: usize, proposer: &mut dyn Proposer) -> KvCache {
        proposer.open(slots, longest + self.plan.expanded().max(self.plan.drafted()) + 1);
        self.target.cache(slots, longest + self.plan.drafted() + 1)
    }

    fn memory(&self, cache: &KvCache, slots: usize, proposer: &dyn Proposer) -> Memory {
        let drafter = proposer.memory(&self.plan);
        Memory {
            target_weights: self.target.bytes(),
            drafter_weights: drafter.weights,
            target_cache: cache.bytes(),
            drafter_cache: drafter.cache,
            provisional: slots * (self.plan.drafted() + 1) * cache.bytes_per_token() + drafter.provisional,
        }
    }

    /// One target call with what belongs to it; breaks when nothing is left to do or the listener has enough.
    fn round(
        &self,
        batch: &mut Batch,
        proposer: &mut dyn Proposer,
        listener: &mut Listener,
    ) -> Result<ControlFlow<()>, RuleError> {
        let entries = self.propose(batch, proposer)?;
        if entries.is_empty() {
            return Ok(ControlFlow::Break(()));
        }
        let (features, mut logits) = self.target_pass(batch, &entries, proposer.taps())?;
        self.restrict(batch, &entries, &mut logits);
        let verdicts = self.verdicts(batch, &entries, &logits, proposer.draft_to_target())?;
        Ok(self.commit(batch, entries, verdicts, features, proposer, listener))
    }

    fn admit(&self, batch: &mut Batch, waiting: &mut VecDeque<Request>, proposer: &mut dyn Proposer) {
        for (slot, active) in batch.slots.iter_mut().enumerate().filter(|(_, a)| a.is_none()) {
            if let Some(request) = waiting.pop_front() {
                batch.cache.clear(slot);
                proposer.start(slot, &request.prompt);
                let timeline = Timeline::starting(batch.begun.elapsed().as_secs_f64());
                let (answer, calls, ranks) = (Vec::new(), Vec::new(), Vec::new());
                let follower = request.form.follow(self.stop, request.max_new_tokens);
                *active = Some(Active { request, answer, calls, timeline, fallbacks: 0, ranks, follower });
            }
        }
    }

    /// What `slot` drafts after the rounds of `past`; a tree is drafted whole.
    fn wanted(&self, slot: usize, past: &[Call]) -> Wanted {
        let longest = self.plan.depth();
        let length = match self.plan {
            Plan::Chain { .. } => self.lengths.length(past, longest).min(longest),
            _ => longest,
        };
        Wanted { slot, length }
    }

    /// Drafts for every slot whose prompt was read, and lays out the rows of the target pass.
    fn propose(&self, batch: &mut Batch, proposer: &mut dyn Proposer) -> Result<Vec<Entry>, TreeError> {
        let start = Instant::now();
        let active = |slot: usize| batch.slots[slot].as_ref();
        let wanted = |slot| active(slot).filter(|a| !a.answer.is_empty()).map(|a| self.wanted(slot, &a.calls));
        let drafting: Vec<Wanted> = (0..batch.slots.len()).filter_map(wanted).collect();
        let draws = |slot: usize| {
            let a = active(slot).expect("only active slots draft");
            keyed(a.request.seed, a.request.id, a.request.prompt.len() + a.answer.len() - 1)
        };
        let mut drafts = match drafting.is_empty() {
            true => Vec::new().into_iter(),
            false => proposer.draft_each(&drafting, &self.plan, &draws).into_iter(),
        };
        let mut entries = Vec::new();
        let mut end = 0;
        for (slot, active) in batch.slots.iter().enumerate().filter_map(|(i, a)| a.as_ref().map(|a| (i, a))) {
            let root = active.request.prompt.len() + active.answer.len() - 1;
            let draft = match active.newest() {
                Some(newest) => drafts.next().map(|d| d.tree(newest, root).map(|tree| (d, tree))).transpose()?,
                None => None,
            };
            let rows = draft.as_ref().map_or(active.request.prompt.len(), |(_, tree)| tree.len());
            entries.push(Entry { slot, rows: end..end + rows, draft });
            end += rows;
        }
        batch.times.draft += start.elapsed();
        Ok(entries)
    }

    /// Runs prompts and drafts through the target: features of all rows, logits `[.., vocabulary]` of the last prompt
    /// rows and of all drafted rows, in order.
    fn target_pass(
        &self,
        batch: &mut Batch,
        entries: &[Entry],
        taps: &[usize],
    ) -> Result<(Features, Vec<f32>), TreeError> {
        let start = Instant::now();
        let mut ids = Vec::new();
        let mut judged = Vec::new();
        for entry in entries {
            let active = batch.slots[entry.slot].as_ref().expect("entries are active");
            match &entry.draft {
                None => {
                    ids.extend_from_slice(&active.request.prompt);
                    judged.push(entry.rows.end - 1);
                }
                Some((_, tree)) => {
                    ids.extend_from_slice(tree.tokens());
                    judged.extend(entry.rows.clone());
                }
            }
        }
        let rows: Vec<SlotRows> = entries.iter().map(Entry::slot_rows).collect::<Result<_, _>>()?;
        let plan = batch.cache.plan(&rows);
        let features = self.target.forward(&ids, &plan, &mut batch.cache, taps);
        let hidden = features.hidden.clone().select(0, indices(judged, self.target.device()));
        let logits = host_rows(self.target.logits(hidden));
        batch.times.verify += start.elapsed();
        Ok((features, logits))
    }

    /// Bars in the logits of every judged row what the request's constraint forbids there. Drafts are followed on forks.
    fn restrict(&self, batch: &mut Batch, entries: &[Entry], logits: &mut [f32]) {
        let start = Instant::now();
        let follower = |entry: &Entry| &batch.slots[entry.slot].as_ref().expect("entries are active").follower;
        let masks = |entry: &Entry| match &entry.draft {
            Some((_, tree)) => follower(entry).masks(tree),
            None => follower(entry).mask().map(|mask| vec![mask]),
        };
        let masks: Vec<Option<Vec<Vec<bool>>>> = entries.par_iter().map(masks).collect();
        let mut rows = logits.chunks_mut(self.target.config().vocab_size);
        for (entry, masks) in entries.iter().zip(masks) {
            let judged = rows.by_ref().take(entry.judged());
            // Rows of a request without a constraint are passed over.
            let masks = masks.into_iter().flatten().map(Some).chain(std::iter::repeat(None));
            for (row, mask) in judged.zip(masks) {
                if let Some(mask) = mask {
                    restrict(row, &mask);
                }
            }
        }
        batch.times.sample += start.elapsed();
    }

    /// One verdict an entry; a prompt's is the first token of its answer, drawn as the plain path draws it.
    fn verdicts(
        &self,
        batch: &mut Batch,
        entries: &[Entry],
        logits: &[f32],
        d2t: &[u32],
    ) -> Result<Vec<Verdict>, RuleError> {
        let start = Instant::now();
        let vocabulary = self.target.config().vocab_size;
        let mut end = 0;
        let work: Vec<(&Entry, &[f32])> = entries
            .iter()
            .map(|entry| {
                let first = end;
                end += entry.judged();
                (entry, &logits[first * vocabulary..end * vocabulary])
            })
            .collect();
        let slots = &batch.slots;
        let verdict = |(entry, logits): &(&Entry, &[f32])| {
            let active = slots[entry.slot].as_ref().expect("entries are active");
            let request = &active.request;
            let position = request.prompt.len() + active.answer.len();
            let Some((draft, tree)) = &entry.draft else {
                let choice = || choose(logits, request.temperature, request.key(position, Purpose::Target));
                return Ok(Verdict { next: (!nothing_follows(logits)).then(choice), ..Verdict::default() });
            };
            (self.judge)(&Round {
                tree,
                draft,
                d2t,
                logits,
                vocabulary,
                temperature: request.temperature,
                key: request.key(position, Purpose::Target),
            })
        };
        let verdicts = work.par_iter().map(verdict).collect();
        batch.times.sample += start.elapsed();
        verdicts
    }

    /// Advances text and caches by what was accepted, and gives the drafter the true features of those tokens.
    fn commit(
        &self,
        batch: &mut Batch,
        entries: Vec<Entry>,
        verdicts: Vec<Verdict>,
        features: Features,
        proposer: &mut dyn Proposer,
        listener: &mut Listener,
    ) -> ControlFlow<()> {
        let start = Instant::now();
        let at = start.duration_since(batch.begun).as_secs_f64();
        let mut observed = Vec::new();
        let mut kept_rows = Vec::new();
        for (entry, verdict) in entries.into_iter().zip(verdicts) {
            let slot = &mut batch.slots[entry.slot];
            let active = slot.as_mut().expect("entries are active");
            let tokens: Vec<u32> = verdict.emitted().collect();
            let Outcome { kept, stop, finish } = active.extend(&tokens);
            let end = finish.or_else(|| verdict.next.is_none().then(|| active.follower.exhausted()));
            let accepted = verdict.accepted().min(kept);
            (listener.committed)(Committed { id: active.request.id, tokens: &tokens[..kept], accepted })?;
            active.timeline.arrivals.push(Arrival { at, tokens: kept });
            if let Some((_, tree)) = &entry.draft {
                let kept = Counts { drafted: tree.max_depth(), accepted, committed: kept };
                active.calls.push(Call { kept, accepted: verdict.accepted(), stop, end });
                active.fallbacks += verdict.fallbacks;
                active.count_rank(tree, &verdict);
            }
            if let Some(finish) = end {
                if let Some(Active { request, answer, calls, timeline, fallbacks, ranks, follower }) = slot.take() {
                    let (id, failure) = (request.id, follower.failure().cloned());
                    (listener.done)(Transcript { id, ids: answer, finish, calls, timeline, fallbacks, ranks, failure });
                }
                continue;
            }
            // Rows whose tokens are now committed: the whole prompt, or the root and the accepted drafts.
            let (rows, next): (Vec<usize>, _) = match entry.draft {
                Some(_) => (std::iter::once(0).chain(verdict.path).collect(), tokens),
                None => ((0..entry.rows.len()).collect(), [&active.request.prompt[1..], &tokens].concat()),
            };
            batch.cache.compact(entry.slot, &rows);
            kept_rows.extend(rows.into_iter().map(|row| entry.rows.start + row));
            observed.push(Observed { slot: entry.slot, next });
        }
        batch.times.state += start.elapsed();
        if kept_rows.is_empty() {
            return ControlFlow::Continue(());
        }
        let start = Instant::now();
        let index = indices(kept_rows, self.target.device());
        let taps = features.taps.into_iter().map(|t| t.select(0, index.clone())).collect();
        proposer.observe(&observed, taps);
        batch.times.draft += start.elapsed();
        ControlFlow::Continue(())
    }
}
