//! What a run keeps and asks for, shown to tests: they compare it, plant what should have been rolled back, and take pages
//! away in the middle of a round.

use super::{Active, Committed, Cost, Listener, Room, RunError, SpeculativeDecoder, Transcript};
use crate::task::Task;
use spectrain_core::form::Follower;
use spectrain_draft::proposer::Proposer;
use spectrain_kernels::cached_attention::CachedPlan;
use spectrain_model::{KvCache, NoPages, SlotRows};
use std::ops::ControlFlow;
use std::sync::Arc;

/// The state of a request that goes on, behind the commit of a round.
#[doc(hidden)]
pub struct Kept<'a> {
    /// The request's number.
    pub id: u64,
    /// Its slot in the target's cache.
    pub slot: usize,
    /// The target's cache.
    pub cache: &'a mut KvCache,
    /// Stop strings and constraint.
    pub follower: &'a mut Follower,
    /// The answer's tokens.
    pub answer: &'a mut Vec<u32>,
}

/// Who looks into a run.
#[doc(hidden)]
pub trait Inspector {
    /// A request goes on behind a round.
    fn kept(&mut self, _: Kept) {}

    /// A pass is about to ask the target's cache for pages.
    fn asked(&mut self, _: &mut KvCache) {}

    /// The cache has answered, and given them or not.
    fn answered(&mut self, _: &mut KvCache, _given: bool) {}

    /// The last request has ended.
    fn over(&mut self, _: &KvCache) {}
}

impl Listener<'_> {
    /// Shows what `active` keeps in `slot`, where somebody looks.
    pub(super) fn show(&mut self, slot: usize, active: &mut Active, cache: &mut KvCache) {
        if let Some(inspector) = &mut self.inspector {
            let Active { task, answer, follower, .. } = active;
            inspector.kept(Kept { id: task.request.id, slot, cache, follower, answer });
        }
    }

    /// Asks `cache` for the pages of a pass over `rows`, in view of whoever looks.
    pub(super) fn asking(&mut self, cache: &mut KvCache, rows: &[SlotRows]) -> Result<Arc<CachedPlan>, NoPages> {
        let Some(inspector) = &mut self.inspector else { return cache.try_plan(rows) };
        inspector.asked(cache);
        let plan = cache.try_plan(rows);
        inspector.answered(cache, plan.is_ok());
        plan
    }
}

impl SpeculativeDecoder<'_> {
    /// As [`Self::run_within`], and `inspector` looks on.
    ///
    /// # Errors
    /// As [`Self::run_within`].
    #[doc(hidden)]
    pub fn run_inspected(
        &self,
        room: Room,
        tasks: Vec<Task>,
        proposer: &mut dyn Proposer,
        mut committed: impl FnMut(Committed) -> ControlFlow<()>,
        mut done: impl FnMut(Transcript),
        inspector: &mut dyn Inspector,
    ) -> Result<Cost, RunError> {
        room.check(&tasks)?;
        let listener = Listener { committed: &mut committed, done: &mut done, inspector: Some(inspector) };
        self.rounds(tasks, room, proposer, listener)
    }
}
