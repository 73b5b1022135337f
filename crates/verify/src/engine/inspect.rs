//! What a request keeps between rounds, shown to tests: they compare it, and plant what should have been rolled back.

use super::{Active, Committed, Listener, Room, SpeculativeDecoder, Transcript};
use crate::task::Task;
use spectrain_core::form::Follower;
use spectrain_core::rules::RuleError;
use spectrain_draft::proposer::Proposer;
use spectrain_model::KvCache;
use std::ops::ControlFlow;

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

impl Listener<'_> {
    /// Shows what `active` keeps in `slot`, where somebody looks.
    pub(super) fn show(&mut self, slot: usize, active: &mut Active, cache: &mut KvCache) {
        if let Some(kept) = &mut self.kept {
            let Active { task, answer, follower, .. } = active;
            kept(Kept { id: task.request.id, slot, cache, follower, answer });
        }
    }
}

impl SpeculativeDecoder<'_> {
    /// As [`Self::run_watched`], and `kept` is shown the state of every request that goes on.
    ///
    /// # Errors
    /// As [`Self::run`].
    #[doc(hidden)]
    pub fn run_inspected(
        &self,
        tasks: Vec<Task>,
        proposer: &mut dyn Proposer,
        mut committed: impl FnMut(Committed) -> ControlFlow<()>,
        mut done: impl FnMut(Transcript),
        mut kept: impl FnMut(Kept),
    ) -> Result<(), RuleError> {
        let listener = Listener { committed: &mut committed, done: &mut done, kept: Some(&mut kept) };
        self.rounds(tasks, Room::default(), proposer, listener).map(drop)
    }
}
