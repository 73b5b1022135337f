//! What makes a request leave its round: a flag that its owner sets or a deadline, which end it before its text does, or
//! somebody more urgent, to whom it gives way and behind whom it goes on.
//!
//! It is asked at every point of a round. What was committed stays; of the round under way nothing does.

use spectrain_model::Finish;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Where in a round a request may leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Point {
    /// Before anything is drafted; also while the request waits to be let in.
    Start,
    /// Behind the drafts.
    Drafted,
    /// Behind the target pass.
    Passed,
    /// Behind the verdict, before anything of it is committed.
    Judged,
}

impl Point {
    /// All of them, in order.
    pub const ALL: [Self; 4] = [Self::Start, Self::Drafted, Self::Passed, Self::Judged];
}

/// How a request leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Departure {
    /// Its answer ends as it is.
    End(Finish),
    /// Its pages are free at once, and one that waits is let in before it. It comes back with its text as it was and then
    /// stays until it has committed something, so that no answer to this keeps it, or the run, from ending.
    GiveWay,
}

/// Says whether a request is to leave.
pub trait Departing: Sync {
    /// How, once there is a reason.
    fn departs(&self, point: Point) -> Option<Departure>;
}

/// Set by the request's owner to take it back.
impl Departing for AtomicBool {
    fn departs(&self, _: Point) -> Option<Departure> {
        self.load(Ordering::Relaxed).then_some(Departure::End(Finish::Cancelled))
    }
}

/// The moment at which the request's time is over.
impl Departing for Instant {
    fn departs(&self, _: Point) -> Option<Departure> {
        (Self::now() >= *self).then_some(Departure::End(Finish::Deadline))
    }
}

/// The first of two that has a reason; one to end goes before one to give way.
impl<A: Departing, B: Departing> Departing for (A, B) {
    fn departs(&self, point: Point) -> Option<Departure> {
        let both = [self.0.departs(point), self.1.departs(point)];
        both.into_iter().flatten().min_by_key(|departure| *departure == Departure::GiveWay)
    }
}
