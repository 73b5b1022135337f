//! What ends a request before its text does: a flag that its owner sets, or a deadline.
//!
//! It is asked at every point of a round. What was committed stays; of the round under way nothing does.

use spectrain_model::Finish;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Where in a round a request may leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Point {
    /// Before anything is drafted; also while the request waits for room.
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

/// Says whether a request is to end.
pub trait Ending: Sync {
    /// The reason, once there is one.
    fn ended(&self, point: Point) -> Option<Finish>;
}

/// Set by the request's owner to take it back.
impl Ending for AtomicBool {
    fn ended(&self, _: Point) -> Option<Finish> {
        self.load(Ordering::Relaxed).then_some(Finish::Cancelled)
    }
}

/// The moment at which the request's time is over.
impl Ending for Instant {
    fn ended(&self, _: Point) -> Option<Finish> {
        (Self::now() >= *self).then_some(Finish::Deadline)
    }
}

/// The first of two that has a reason.
impl<A: Ending, B: Ending> Ending for (A, B) {
    fn ended(&self, point: Point) -> Option<Finish> {
        self.0.ended(point).or_else(|| self.1.ended(point))
    }
}
