//! A target's cache with less room than all requests together may need: who is let in, who gives way, who comes back.
//!
//! The rows of a round are counted before anything of it is written. Where pages are lacking the youngest request gives
//! way: its pages are free at once, its text so far is kept, and once another request has ended it is read again, prompt
//! and answer in one pass. No draw and no round is repeated or lost by that, so the text is the same. Pages that were
//! there at the count and are refused to a pass are answered likewise, and the pass is planned again for the others.

use super::{Active, Batch, Listener, SpeculativeDecoder};
use crate::task::Task;
use spectrain_core::rules::RuleError;
use spectrain_draft::proposer::{Observed, Proposer};
use spectrain_kernels::cached_attention::CachedPlan;
use spectrain_kernels::rope::indices;
use spectrain_model::{NoPages, Pages, SlotRows};
use std::sync::Arc;
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
    /// Pages were withheld, and one request alone was refused those that it needs.
    #[error("a request that has the cache for itself is refused: {0}")]
    Pages(#[from] NoPages),
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

impl RunError {
    /// The fault of a run whose cache has room for all requests at their longest, and is shared with nobody.
    pub(super) fn of_a_roomy_run(self) -> RuleError {
        match self {
            Self::Rule(error) => error,
            short => unreachable!("pages for all requests, and {short}"),
        }
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

    /// Whether there are pages for the next round of all requests.
    fn fits(&self) -> Result<(), NoPages> {
        let rows = |slot: usize, active: &Active| {
            let drafts = if active.answer.is_empty() { 0 } else { active.task.plan.drafted() + 1 };
            active.settled() - self.cache.len(slot) + drafts
        };
        let missing = self.active().map(|(slot, active)| self.cache.missing(slot, rows(slot, active))).sum();
        let available = self.cache.available();
        if missing <= available { Ok(()) } else { Err(NoPages { missing, available }) }
    }

    /// Lets the youngest request of `slots` give way. Nobody is let in beside the others until one of them ends.
    fn give_way(&mut self, slots: impl Iterator<Item = usize>, proposer: &mut dyn Proposer) {
        let age = |slot: &usize| self.slots[*slot].as_ref().map(|active| active.age);
        let Some(youngest) = slots.max_by_key(age) else { return };
        if let Some(active) = self.vacate(youngest, proposer) {
            self.line.park(active);
            self.preempted += 1;
            self.crowd = Some(self.busy()).filter(|&busy| busy > 0);
        }
    }

    /// Lets the youngest requests give way until there are pages for the round of the others.
    pub(super) fn make_room(&mut self, proposer: &mut dyn Proposer) {
        while self.fits().is_err() {
            let slots: Vec<usize> = self.active().map(|(slot, _)| slot).collect();
            self.give_way(slots.into_iter(), proposer);
        }
    }

    /// The plan of a pass over `rows`, asked again whenever the pages were refused and the youngest request among them
    /// gave way; `None` once there are none. A request that is refused when nobody else runs comes back, once.
    ///
    /// # Errors
    /// [`NoPages`] if it is refused again before any round was run.
    pub(super) fn plan(
        &mut self,
        rows: impl Fn(&Self) -> Vec<SlotRows>,
        proposer: &mut dyn Proposer,
        listener: &mut Listener,
    ) -> Result<Option<Arc<CachedPlan>>, NoPages> {
        loop {
            let rows = rows(self);
            if rows.is_empty() {
                return Ok(None);
            }
            match listener.asking(&mut self.cache, &rows) {
                Ok(plan) => return Ok(Some(plan)),
                Err(short) if self.busy() == 1 && std::mem::replace(&mut self.refused, true) => return Err(short),
                Err(_) => self.give_way(rows.iter().map(|r| r.slot), proposer),
            }
        }
    }

    /// Rows of the texts of requests that gave way and are back.
    fn returned(&self) -> Vec<SlotRows> {
        let unread = |(slot, active): (usize, &Active)| match active.settled() - self.cache.len(slot) {
            0 => None,
            rows => (!active.answer.is_empty()).then(|| SlotRows::chain(slot, rows)),
        };
        self.active().filter_map(unread).collect()
    }
}

impl SpeculativeDecoder<'_> {
    /// Lets requests into free slots while there is room for them.
    ///
    /// # Errors
    /// [`NoPages`] if there is none for one alone.
    pub(super) fn admit(&self, batch: &mut Batch, proposer: &mut dyn Proposer) -> Result<(), NoPages> {
        let free: Vec<usize> = (0..batch.slots.len()).filter(|&slot| batch.slots[slot].is_none()).collect();
        free.iter().for_each(|&slot| batch.cache.clear(slot));
        batch.crowd = batch.crowd.filter(|&crowd| batch.busy() >= crowd);
        let places = if batch.crowd.is_some() { Vec::new() } else { free };
        let short = places.into_iter().find_map(|slot| self.let_in(batch, slot, proposer).err());
        batch.line.close();
        short.filter(|_| batch.busy() == 0).map_or(Ok(()), Err)
    }

    /// Lets the next request, if there is one, into the free `slot`, or nobody if there is no room for it.
    fn let_in(&self, batch: &mut Batch, slot: usize, proposer: &mut dyn Proposer) -> Result<(), NoPages> {
        let Some(active) = batch.line.next(self.stop, batch.begun.elapsed().as_secs_f64()) else { return Ok(()) };
        let known = batch.cache.attach(slot, &active.text()[..active.settled()]);
        batch.slots[slot] = Some(active);
        if let Err(short) = batch.fits() {
            batch.cache.clear(slot);
            batch.slots[slot].take().into_iter().for_each(|active| batch.line.park(active));
            return Err(short);
        }
        batch.reused += known;
        match batch.slots[slot].as_ref().map(|active| &active.task) {
            Some(task) if task.drafts() => proposer.start(slot, &task.request.prompt),
            _ => proposer.clear(slot),
        }
        Ok(())
    }

    /// Reads again, in a pass of their own, the texts of requests that gave way, and tells them to the drafter as if it
    /// heard of them for the first time.
    ///
    /// # Errors
    /// As [`Batch::plan`].
    pub(super) fn restore(
        &self,
        batch: &mut Batch,
        proposer: &mut dyn Proposer,
        listener: &mut Listener,
    ) -> Result<(), NoPages> {
        let start = Instant::now();
        let Some(plan) = batch.plan(Batch::returned, proposer, listener)? else { return Ok(()) };
        let rows = batch.returned();
        let mut ids = Vec::new();
        let (mut observed, mut followed) = (Vec::new(), Vec::new());
        for SlotRows { slot, rows, .. } in &rows {
            let active = batch.slots[*slot].as_ref().expect("rows are of requests that are back");
            let text = active.text();
            ids.extend_from_slice(&text[active.settled() - rows..active.settled()]);
            if active.task.drafts() {
                followed.extend(ids.len() - rows..ids.len());
                observed.push(Observed { slot: *slot, next: text[1..].to_vec() });
            }
        }
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
        Ok(())
    }
}
