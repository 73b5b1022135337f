//! Batched speculative decoding.
//!
//! A round is a transaction: the drafter writes provisional rows, the target writes provisional rows behind its
//! committed ones, the verdict says which of them stay, and only then do both caches and the text advance. The accepted
//! path of a tree is moved together in the target's cache; that of a chain lies where it belongs. A new request's prompt
//! runs in the same target pass as the drafts of the others.

mod inspect;
mod leaving;
mod line;
mod outcome;
mod room;
mod rounds;

#[doc(hidden)]
pub use inspect::{Inspector, Kept};
pub use outcome::{Committed, Cost, Times, Transcript};
pub use room::{Room, RunError, TooLarge};

use crate::departure::Point;
use crate::judge::Round;
use crate::length::Seen;
use crate::task::Task;
use line::Line;
use rayon::prelude::*;
use spectrain_core::evaluation::Memory;
use spectrain_core::form::Follower;
use spectrain_core::rules::{RuleError, Verdict};
use spectrain_core::stats::{Arrival, Call, Round as Counts, Timeline};
use spectrain_core::stopping::Outcome;
use spectrain_core::tree::Tree;
use spectrain_draft::proposer::{Draft, Observed, Proposer, Wanted};
use spectrain_kernels::rope::indices;
use spectrain_model::{Features, Finish, KvCache, Llama, NoPages, Pages, Prefix, SlotRows, host_rows};
use std::ops::{ControlFlow, Range};
use std::time::Instant;

/// A speculative decoder for chains and trees, whatever each request of a batch asks for.
pub struct SpeculativeDecoder<'a> {
    /// The model whose law the text follows.
    pub target: &'a Llama,
    /// Tokens that end an answer.
    pub stop: &'a [u32],
    /// Requests at a time.
    pub batch: usize,
}

/// Who is told how the answers grow.
struct Listener<'a> {
    committed: &'a mut dyn FnMut(Committed) -> ControlFlow<()>,
    done: &'a mut dyn FnMut(Transcript),
    /// Who looks into the run: tests.
    inspector: Option<&'a mut dyn Inspector>,
}

struct Active<'a> {
    task: Task<'a>,
    answer: Vec<u32>,
    calls: Vec<Call>,
    timeline: Timeline,
    fallbacks: usize,
    ranks: Vec<usize>,
    follower: Follower,
    /// Number in the order of admission.
    age: usize,
    /// Tokens of the answer when it was last told to give way.
    gave_way: Option<usize>,
}

impl<'a> Active<'a> {
    fn new(task: Task<'a>, stop: &[u32], at: f64, age: usize) -> Self {
        let (answer, calls, ranks) = (Vec::new(), Vec::new(), Vec::new());
        let (timeline, follower) = (Timeline::starting(at), task.request.follow(stop));
        Self { task, answer, calls, timeline, fallbacks: 0, ranks, follower, age, gave_way: None }
    }

    /// The text so far; `stop` ends it.
    fn prefix<'b>(&'b self, stop: &'b [u32]) -> Prefix<'b> {
        let (Task { request, script, .. }, state) = (&self.task, self.follower.state());
        Prefix { request, answer: &self.answer, end_tokens: stop, state, script: *script }
    }

    fn newest(&self) -> Option<u32> {
        self.answer.last().copied()
    }

    /// Adds what a call at `at` seconds wrote: how many of the `tokens` of the verdict stay, how many of these were
    /// drafted, and what ends the text. `tree` is what was judged; `None` for the prompt's call.
    fn add(&mut self, tree: Option<&Tree>, verdict: &Verdict, tokens: &[u32], at: f64) -> Added {
        let Outcome { kept, stop, finish } = self.follower.commit(tokens);
        self.answer.extend_from_slice(&tokens[..kept]);
        let end = finish.or(verdict.next.is_none().then_some(Finish::Masked));
        let accepted = verdict.accepted().min(kept);
        if kept > 0 {
            self.timeline.arrivals.push(Arrival { at, tokens: kept });
        }
        if let Some(tree) = tree.filter(|_| kept > 0) {
            let kept = Counts { drafted: tree.max_depth(), accepted, committed: kept };
            self.calls.push(Call { kept, accepted: verdict.accepted(), stop, end });
            self.fallbacks += verdict.fallbacks;
            self.count_rank(tree, verdict);
        }
        Added { kept, accepted, end }
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
}

/// What a call added to an answer.
struct Added {
    /// Tokens that stay.
    kept: usize,
    /// How many of them were drafted.
    accepted: usize,
    /// What ends the text with them.
    end: Option<Finish>,
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
    /// The rows as the target's cache takes them.
    fn slot_rows(&self) -> SlotRows {
        let Some((Draft { parents: Some(_), .. }, tree)) = &self.draft else {
            return SlotRows::chain(self.slot, self.rows.len());
        };
        let parents = (0..tree.len()).map(|node| tree.parent(node)).collect();
        SlotRows::tree(self.slot, tree.len(), parents).expect("the nodes of a tree stand behind their parents")
    }
}

/// Running state of a batch.
struct Batch<'a> {
    begun: Instant,
    slots: Vec<Option<Active<'a>>>,
    cache: KvCache,
    times: Times,
    /// Requests in no slot.
    line: Line<'a>,
    /// Requests at a time that there was no room beside, until one of them ends.
    crowd: Option<usize>,
    /// Whether a request that ran alone was refused pages since the last round.
    refused: bool,
    preempted: usize,
    reused: usize,
}

impl<'a> Batch<'a> {
    fn new(slots: usize, cache: KvCache, tasks: Vec<Task<'a>>) -> Self {
        let (begun, slots) = (Instant::now(), (0..slots).map(|_| None).collect());
        let (times, line) = (Times::default(), Line::new(tasks));
        Self { begun, slots, cache, times, line, crowd: None, refused: false, preempted: 0, reused: 0 }
    }

    /// Requests without an end.
    fn unfinished(&self) -> usize {
        self.busy() + self.line.len()
    }
}

impl SpeculativeDecoder<'_> {
    /// Answers all `tasks`; `done` is called as each ends.
    ///
    /// # Errors
    /// [`RuleError`] when a distribution is none: a fault of the models, not of the request.
    pub fn run(
        &self,
        tasks: Vec<Task>,
        proposer: &mut dyn Proposer,
        done: impl FnMut(Transcript),
    ) -> Result<Cost, RuleError> {
        self.run_watched(tasks, proposer, |_| ControlFlow::Continue(()), done)
    }

    /// As [`Self::run`], and `committed` is called after every target call, once a request, with what the call added;
    /// the first is the prompt's. When it breaks, that request is taken back: what the call added stays, and where the text
    /// does not end with it the answer is `done` as [`Finish::Cancelled`]. The others go on.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn run_watched(
        &self,
        tasks: Vec<Task>,
        proposer: &mut dyn Proposer,
        mut committed: impl FnMut(Committed) -> ControlFlow<()>,
        mut done: impl FnMut(Transcript),
    ) -> Result<Cost, RuleError> {
        let listener = Listener { committed: &mut committed, done: &mut done, inspector: None };
        self.rounds(tasks, Room::default(), proposer, listener).map_err(RunError::of_a_roomy_run)
    }

    /// As [`Self::run`] with a target cache of limited `room`: requests may give way to older ones, and come back.
    ///
    /// # Errors
    /// [`RunError::Room`] before anything is run, if a request alone has not enough; [`RunError::Pages`] if pages were
    /// withheld from one alone; else as [`Self::run`].
    pub fn run_within(
        &self,
        room: Room,
        tasks: Vec<Task>,
        proposer: &mut dyn Proposer,
        mut done: impl FnMut(Transcript),
    ) -> Result<Cost, RunError> {
        room.check(&tasks)?;
        let listener = Listener { committed: &mut |_| ControlFlow::Continue(()), done: &mut done, inspector: None };
        self.rounds(tasks, room, proposer, listener)
    }

    fn rounds(
        &self,
        tasks: Vec<Task>,
        room: Room,
        proposer: &mut dyn Proposer,
        mut listener: Listener,
    ) -> Result<Cost, RunError> {
        let slots = self.batch.min(tasks.len());
        let (cache, memory) = self.open(&tasks, slots, room, proposer);
        let mut batch = Batch::new(slots, cache, tasks);
        loop {
            self.admit(&mut batch, proposer)?;
            if batch.leave(Point::Start, proposer, &mut listener) {
                continue;
            }
            if batch.busy() == 0 {
                break;
            }
            self.round(&mut batch, proposer, &mut listener)?;
        }
        if let Some(inspector) = listener.inspector {
            inspector.over(&batch.cache);
        }
        batch.times.total = batch.begun.elapsed();
        Ok(Cost { times: batch.times, memory, preempted: batch.preempted, reused: batch.reused })
    }

    /// Slots for the longest of `tasks` and what the largest plan writes behind it, in a cache of `room`; what that takes.
    fn open(&self, tasks: &[Task], slots: usize, room: Room, proposer: &mut dyn Proposer) -> (KvCache, Memory) {
        let largest = |of: &dyn Fn(&Task) -> usize| tasks.iter().map(of).max().unwrap_or(0);
        let (longest, drafted) = (largest(&|t| t.longest()), largest(&|t| t.plan.drafted()));
        let expanded = largest(&|t| t.plan.expanded());
        proposer.open(slots, longest + expanded.max(drafted) + 1);
        let capacity = longest + drafted + 1;
        let cache = self.target.cache_of(slots, capacity, room.pages.unwrap_or_else(|| Pages::full(slots, capacity)));
        let cache = if room.prefixes && proposer.taps().is_empty() { cache.keeping_prefixes() } else { cache };
        let widest = tasks.iter().max_by_key(|t| t.plan.expanded());
        let drafter = widest.map_or_else(Default::default, |task| proposer.memory(task.plan));
        let memory = Memory {
            target_weights: self.target.bytes(),
            drafter_weights: drafter.weights,
            target_cache: cache.bytes(),
            drafter_cache: drafter.cache,
            provisional: slots * (drafted + 1) * cache.bytes_per_token() + drafter.provisional,
        };
        (cache, memory)
    }

    /// One target call with what belongs to it, or none if all requests left before it.
    fn round(&self, batch: &mut Batch, proposer: &mut dyn Proposer, listener: &mut Listener) -> Result<(), RunError> {
        batch.make_room(proposer);
        self.restore(batch, proposer, listener)?;
        let mut entries = self.propose(batch, proposer)?;
        batch.leave(Point::Drafted, proposer, listener);
        let Some((features, logits)) = self.target_pass(batch, &mut entries, proposer, listener)? else {
            return Ok(());
        };
        batch.leave(Point::Passed, proposer, listener);
        let verdicts = self.verdicts(batch, &entries, &logits, proposer.draft_to_target())?;
        batch.leave(Point::Judged, proposer, listener);
        self.commit(batch, entries, verdicts, features, proposer, listener);
        Ok(())
    }

    /// Drafts for every slot whose prompt was read and that asks for it, and lays out the rows of the target pass.
    fn propose(&self, batch: &mut Batch, proposer: &mut dyn Proposer) -> Result<Vec<Entry>, RuleError> {
        let start = Instant::now();
        let active = || batch.slots.iter().enumerate().filter_map(|(slot, a)| a.as_ref().map(|a| (slot, a)));
        let answering = active().filter(|(_, a)| !a.answer.is_empty());
        let busy = batch.unfinished();
        let wanted: Vec<Wanted> = answering
            .filter_map(|(slot, a)| a.task.wanted(slot, a.prefix(self.stop), Seen { past: &a.calls, busy }))
            .collect();
        let drafts = if wanted.is_empty() { Vec::new() } else { proposer.draft(&wanted)? };
        let mut drafts = wanted.iter().map(|w| w.slot).zip(drafts).peekable();
        let mut entries = Vec::new();
        let mut end = 0;
        for (slot, active) in active() {
            let draft = match active.newest() {
                Some(newest) => {
                    let draft = drafts.next_if(|(own, _)| *own == slot).map_or_else(Draft::default, |(_, draft)| draft);
                    let tree = draft.tree(newest, active.prefix(self.stop).position(&[]) - 1)?;
                    Some((draft, tree))
                }
                None => None,
            };
            let unread = active.task.request.prompt.len().saturating_sub(batch.cache.len(slot));
            let rows = draft.as_ref().map_or(unread, |(_, tree)| tree.len());
            entries.push(Entry { slot, rows: end..end + rows, draft });
            end += rows;
        }
        batch.times.draft += start.elapsed();
        Ok(entries)
    }

    /// Runs prompts and drafts through the target: features of all rows, logits `[.., vocabulary]` of the last prompt
    /// rows and of all drafted rows, in order. The entries of requests that left are dropped; `None` if none is left.
    fn target_pass(
        &self,
        batch: &mut Batch,
        entries: &mut Vec<Entry>,
        proposer: &mut dyn Proposer,
        listener: &mut Listener,
    ) -> Result<Option<(Features, Vec<f32>)>, NoPages> {
        let start = Instant::now();
        let staying = |batch: &Batch| {
            let staying = entries.iter().filter(|entry| batch.slots[entry.slot].is_some());
            staying.map(Entry::slot_rows).collect()
        };
        let Some(plan) = batch.plan(staying, proposer, listener)? else { return Ok(None) };
        batch.refused = false;
        batch.drop_entries(entries);
        let mut ids = Vec::new();
        let mut judged = Vec::new();
        for entry in entries.iter() {
            let active = batch.slots[entry.slot].as_ref().expect("entries are active");
            match &entry.draft {
                None => {
                    ids.extend_from_slice(&active.task.request.prompt[batch.cache.len(entry.slot)..]);
                    judged.push(entry.rows.end - 1);
                }
                Some((_, tree)) => {
                    ids.extend_from_slice(tree.tokens());
                    judged.extend(entry.rows.clone());
                }
            }
        }
        let features = self.target.forward(&ids, &plan, &mut batch.cache, proposer.taps());
        let hidden = features.hidden.clone().select(0, indices(judged, self.target.device()));
        let logits = host_rows(self.target.logits(hidden));
        batch.times.verify += start.elapsed();
        Ok(Some((features, logits)))
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
                end += if entry.draft.is_some() { entry.rows.len() } else { 1 };
                (entry, &logits[first * vocabulary..end * vocabulary])
            })
            .collect();
        let slots = &batch.slots;
        let verdict = |(entry, logits): &(&Entry, &[f32])| {
            let Some(active) = &slots[entry.slot] else { return Ok(Verdict::default()) };
            let prefix = active.prefix(self.stop);
            match &entry.draft {
                Some((draft, tree)) => (active.task.judge)(&Round { tree, draft, d2t, logits, vocabulary, prefix }),
                None => Ok(Verdict { next: prefix.choose(logits)?, ..Verdict::default() }),
            }
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
    ) {
        let start = Instant::now();
        let at = start.duration_since(batch.begun).as_secs_f64();
        let mut observed = Vec::new();
        let mut kept_rows = Vec::new();
        for (entry, verdict) in entries.into_iter().zip(verdicts) {
            let slot = &mut batch.slots[entry.slot];
            // The request may have left since.
            let Some(active) = slot else { continue };
            let tokens: Vec<u32> = verdict.emitted().collect();
            let Added { kept, accepted, end } =
                active.add(entry.draft.as_ref().map(|(_, tree)| tree), &verdict, &tokens, at);
            let told = Committed { id: active.task.request.id, tokens: &tokens[..kept], accepted };
            let taken_back = (listener.committed)(told).is_break();
            if let Some(finish) = end.or(taken_back.then_some(Finish::Cancelled)) {
                if let Some(active) = slot.take() {
                    (listener.done)(active.transcript(finish));
                }
                continue;
            }
            // Rows whose tokens are now committed: the whole prompt, or the root and the accepted drafts.
            let (rows, next): (Vec<usize>, _) = match entry.draft {
                Some(_) => (std::iter::once(0).chain(verdict.path).collect(), tokens),
                None => ((0..entry.rows.len()).collect(), [&active.task.request.prompt[1..], &tokens].concat()),
            };
            batch.cache.compact(entry.slot, &rows);
            batch.cache.publish(entry.slot, || active.text());
            listener.show(entry.slot, active, &mut batch.cache);
            if !active.task.drafts() {
                continue;
            }
            kept_rows.extend(rows.into_iter().map(|row| entry.rows.start + row));
            observed.push(Observed { slot: entry.slot, next });
        }
        batch.times.state += start.elapsed();
        if kept_rows.is_empty() {
            return;
        }
        let start = Instant::now();
        let index = indices(kept_rows, self.target.device());
        let taps = features.taps.into_iter().map(|t| t.select(0, index.clone())).collect();
        proposer.observe(&observed, taps);
        batch.times.draft += start.elapsed();
    }
}
