//! Requests that leave within a round: their provisional rows go with them, and the round goes on without them.

use super::{Active, Batch, Entry, Listener, Transcript};
use crate::departure::{Departure, Point};
use spectrain_draft::proposer::Proposer;
use spectrain_model::Finish;

impl Active<'_> {
    /// The answer as it is, ended by `finish`.
    pub(super) fn transcript(self, finish: Finish) -> Transcript {
        let Self { task, answer, calls, timeline, fallbacks, ranks, follower, .. } = self;
        let (id, failure) = (task.request.id, follower.failure(finish));
        Transcript { id, ids: answer, finish, calls, timeline, fallbacks, ranks, failure }
    }

    /// How the request leaves at `point`. It gives way once at most between two commits.
    fn departs(&mut self, point: Point) -> Option<Departure> {
        let departure = self.task.departing?.departs(point)?;
        let written = Some(self.answer.len());
        let again = departure == Departure::GiveWay && std::mem::replace(&mut self.gave_way, written) == written;
        (!again).then_some(departure)
    }
}

impl<'a> Batch<'a> {
    /// Empties `slot`: its pages and the drafter's rows are free at once.
    pub(super) fn vacate(&mut self, slot: usize, proposer: &mut dyn Proposer) -> Option<Active<'a>> {
        self.cache.clear(slot);
        proposer.clear(slot);
        self.slots[slot].take()
    }

    /// Lets the requests leave that are to leave at `point`, at the start those in no slot included; whether any did.
    pub(super) fn leave(&mut self, point: Point, proposer: &mut dyn Proposer, listener: &mut Listener) -> bool {
        let mut any = point == Point::Start && self.line.leave(self.begun.elapsed().as_secs_f64(), listener);
        for slot in 0..self.slots.len() {
            let Some(departure) = self.slots[slot].as_mut().and_then(|active| active.departs(point)) else { continue };
            any = true;
            let Some(active) = self.vacate(slot, proposer) else { continue };
            match departure {
                Departure::End(finish) => (listener.done)(active.transcript(finish)),
                Departure::GiveWay => {
                    self.preempted += 1;
                    self.line.step_back(active);
                }
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
