//! Requests that leave within a round: their provisional rows go with them, and the round goes on without them.

use super::{Active, Batch, Entry, Listener, Transcript};
use crate::ending::Point;
use spectrain_draft::proposer::Proposer;
use spectrain_model::Finish;

impl Active<'_> {
    /// The answer as it is, ended by `finish`.
    pub(super) fn transcript(self, finish: Finish) -> Transcript {
        let Self { task, answer, calls, timeline, fallbacks, ranks, follower, .. } = self;
        let (id, failure) = (task.request.id, follower.failure(finish));
        Transcript { id, ids: answer, finish, calls, timeline, fallbacks, ranks, failure }
    }

    fn ended(&self, point: Point) -> Option<Finish> {
        self.task.ending.and_then(|ending| ending.ended(point))
    }
}

impl Batch<'_> {
    /// Ends the requests that are to end at `point`, those that wait for room included; whether any did.
    pub(super) fn leave(&mut self, point: Point, proposer: &mut dyn Proposer, listener: &mut Listener) -> bool {
        let mut any = false;
        for (slot, place) in self.slots.iter_mut().enumerate() {
            let Some(finish) = place.as_ref().and_then(|active| active.ended(point)) else { continue };
            self.cache.clear(slot);
            proposer.clear(slot);
            any = true;
            if let Some(active) = place.take() {
                (listener.done)(active.transcript(finish));
            }
        }
        for i in (0..self.parked.len()).rev() {
            if let Some(finish) = self.parked[i].ended(point) {
                (listener.done)(self.parked.remove(i).transcript(finish));
                any = true;
            }
        }
        any
    }

    /// Takes the entries of requests that left out of a pass that has not been run.
    pub(super) fn drop_entries(&self, entries: &mut Vec<Entry>) {
        entries.retain(|entry| self.slots[entry.slot].is_some());
        let mut end = 0;
        for entry in entries {
            let rows = entry.rows.len();
            entry.rows = end..end + rows;
            end += rows;
        }
    }
}
