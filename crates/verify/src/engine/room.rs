//! A target's cache with less room than all requests together may need: who is let in, who gives way, who comes back.
//!
//! The rows of a round are counted before anything of it is written. Where pages are lacking the youngest request gives
//! way: its pages are free at once, its text so far is kept, and once another request has ended it is read again, prompt
//! and answer in one pass. No draw and no round is repeated or lost by that, so the text is the same.

use super::{Active, Batch, SpeculativeDecoder};
use crate::task::Task;
use spectrain_core::rules::RuleError;
use spectrain_draft::proposer::{Observed, Proposer};
use spectrain_kernels::rope::indices;
use spectrain_model::{Pages, SlotRows};
use std::collections::VecDeque;
use std::time::Instant;

/// What the target's cache has room for.
#[derive(Debug, Clone, Copy, Default)]
pub struct Room {
    /// Its pages; `None` for as many as all requests at their longest take.
    pub pages: Option<Pages>,
    /// Whether a prompt starts behind a beginning that it shares with an earlier text. A drafter that reads the target's
    /// features must have those of every prompt row, which only running the row gives, so then nothing is shared.
    pub prefixes: bool,
}

/// A request that no pre-emption makes room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("request {id} needs {needed} tokens of cache, drafts included; {available} are available")]
pub struct TooLarge {
    /// The request's number.
    pub id: u64,
    /// Tokens of its longest text and a round's drafts behind it.
    pub needed: usize,
    /// Tokens of all pages.
    pub available: usize,
}

/// Why a run in limited room ended without all answers.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A request can never fit; nothing was run.
    #[error(transparent)]
    Room(#[from] TooLarge),
    /// A distribution is none.
    #[error(transparent)]
    Rule(#[from] RuleError),
}

impl Room {
    /// Refuses `tasks` of which one alone can pass the room.
    ///
    /// # Errors
    /// [`TooLarge`].
    pub fn check(&self, tasks: &[Task]) -> Result<(), TooLarge> {
        let Some(pages) = self.pages else { return Ok(()) };
        let needed = |t: &Task| match t.request.max_new_tokens {
            0 | 1 => t.request.prompt.len(),
            // The newest token is the root of the last round, and the one that ends the text is not run.
            most => t.request.prompt.len() + most - 1 + t.plan.drafted(),
        };
        match tasks.iter().find(|t| pages.holding(needed(t)) > pages.count) {
            None => Ok(()),
            Some(t) => Err(TooLarge { id: t.request.id, needed: needed(t), available: pages.capacity() }),
        }
    }
}

impl Active<'_> {
    /// Prompt and answer.
    pub(super) fn text(&self) -> Vec<u32> {
        [self.task.request.prompt.as_slice(), &self.answer].concat()
    }

    /// Tokens whose rows belong in the cache before the next round: the newest of an answer is the round's root.
    fn settled(&self) -> usize {
        self.task.request.prompt.len() + self.answer.len().saturating_sub(1)
    }
}

impl<'a> Batch<'a> {
    pub(super) fn busy(&self) -> usize {
        self.slots.iter().flatten().count()
    }

    /// Slots with their requests.
    fn active(&self) -> impl Iterator<Item = (usize, &Active<'a>)> {
        self.slots.iter().enumerate().filter_map(|(slot, active)| Some((slot, active.as_ref()?)))
    }

    /// The next request to let in: one that gave way before any new one.
    fn next(&mut self, waiting: &mut VecDeque<Task<'a>>, stop: &[u32]) -> Option<Active<'a>> {
        self.parked.pop().or_else(|| {
            let age = self.admitted;
            let task = waiting.pop_front()?;
            self.waiting = waiting.len();
            self.admitted += 1;
            Some(Active::new(task, stop, self.begun.elapsed().as_secs_f64(), age))
        })
    }
}

impl SpeculativeDecoder<'_> {
    /// Whether there are pages for the next round of all requests.
    fn fits(&self, batch: &Batch) -> bool {
        let rows = |slot: usize, active: &Active| {
            let drafts = if active.answer.is_empty() { 0 } else { active.task.plan.drafted() + 1 };
            active.settled() - batch.cache.len(slot) + drafts
        };
        let missing: usize = batch.active().map(|(slot, active)| batch.cache.missing(slot, rows(slot, active))).sum();
        missing <= batch.cache.available()
    }

    /// Lets requests into free slots while there is room for them.
    pub(super) fn admit<'a>(
        &self,
        batch: &mut Batch<'a>,
        waiting: &mut VecDeque<Task<'a>>,
        proposer: &mut dyn Proposer,
    ) {
        let free: Vec<usize> = (0..batch.slots.len()).filter(|&slot| batch.slots[slot].is_none()).collect();
        free.iter().for_each(|&slot| batch.cache.clear(slot));
        if batch.crowd.is_some_and(|crowd| batch.busy() >= crowd) {
            return;
        }
        batch.crowd = None;
        for slot in free {
            let Some(active) = batch.next(waiting, self.stop) else { return };
            let known = batch.cache.attach(slot, &active.text()[..active.settled()]);
            batch.slots[slot] = Some(active);
            if !self.fits(batch) {
                batch.cache.clear(slot);
                batch.parked.extend(batch.slots[slot].take());
                return;
            }
            batch.reused += known;
            match batch.slots[slot].as_ref().map(|active| &active.task) {
                Some(task) if task.drafts() => proposer.start(slot, &task.request.prompt),
                _ => proposer.clear(slot),
            }
        }
    }

    /// Lets the youngest requests give way until there are pages for the round of the others.
    pub(super) fn give_way(&self, batch: &mut Batch, proposer: &mut dyn Proposer) {
        while !self.fits(batch) {
            let youngest = batch.active().max_by_key(|(_, active)| active.age).map(|(slot, _)| slot);
            let slot = youngest.filter(|_| batch.busy() > 1).expect("one request alone always has room");
            batch.cache.clear(slot);
            proposer.clear(slot);
            batch.parked.extend(batch.slots[slot].take());
            batch.preempted += 1;
            batch.crowd = Some(batch.busy());
        }
    }

    /// Reads again, in a pass of their own, the texts of requests that gave way, and tells them to the drafter as if it
    /// heard of them for the first time.
    pub(super) fn restore(&self, batch: &mut Batch, proposer: &mut dyn Proposer) {
        let start = Instant::now();
        let (mut rows, mut ids) = (Vec::new(), Vec::new());
        let (mut observed, mut followed) = (Vec::new(), Vec::new());
        for (slot, active) in batch.active() {
            let (cached, settled) = (batch.cache.len(slot), active.settled());
            if active.answer.is_empty() || cached == settled {
                continue;
            }
            let text = active.text();
            rows.push(SlotRows::chain(slot, settled - cached));
            ids.extend_from_slice(&text[cached..settled]);
            if active.task.drafts() {
                followed.extend(ids.len() - (settled - cached)..ids.len());
                observed.push(Observed { slot, next: text[1..].to_vec() });
            }
        }
        if rows.is_empty() {
            return;
        }
        let plan = batch.cache.plan(&rows);
        let features = self.target.forward(&ids, &plan, &mut batch.cache, proposer.taps());
        rows.iter().for_each(|r| batch.cache.commit(r.slot, r.rows));
        batch.times.verify += start.elapsed();
        let start = Instant::now();
        if !observed.is_empty() {
            let followed = indices(followed, self.target.device());
            let taps = features.taps.into_iter().map(|t| t.select(0, followed.clone())).collect();
            proposer.observe(&observed, taps);
        }
        batch.times.draft += start.elapsed();
    }
}
