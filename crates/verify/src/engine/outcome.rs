//! What a run tells: answers as they grow, answers that have ended, and what all of it took.

use spectrain_core::constraint::ConstraintError;
use spectrain_core::evaluation::Memory;
use spectrain_core::stats::{Call, Round as Counts, Timeline};
use spectrain_model::Finish;
use std::time::Duration;

/// An answer and how it came about.
#[derive(Debug, Clone)]
pub struct Transcript {
    /// The request's number.
    pub id: u64,
    /// Written tokens, a stop token included.
    pub ids: Vec<u32>,
    /// Why it ended.
    pub finish: Finish,
    /// Every verify call; the prefill call and its token are not among them, nor is a last call that found no token
    /// that could follow.
    pub calls: Vec<Call>,
    /// When the tokens came; the first arrival is the prefill call's. A request that left before it was let in has the
    /// moment of that for its admission.
    pub timeline: Timeline,
    /// Rejections without residual mass that fell back to the target.
    pub fallbacks: usize,
    /// How often the first accepted token was the root's child of each rank, from 0.
    pub ranks: Vec<usize>,
    /// Set where the request's constraint gave up, which ended the answer.
    pub failure: Option<ConstraintError>,
}

impl Transcript {
    /// The empty answer of a request that left, `at` seconds after the start, before it was ever let in.
    pub(super) fn unbegun(id: u64, finish: Finish, at: f64) -> Self {
        let (ids, calls, ranks, timeline) = (Vec::new(), Vec::new(), Vec::new(), Timeline::starting(at));
        Self { id, ids, finish, calls, timeline, fallbacks: 0, ranks, failure: None }
    }

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

/// What a run took.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cost {
    /// Where the time went.
    pub times: Times,
    /// What was held.
    pub memory: Memory,
    /// How often a request gave way: to older ones for want of room, or since it was told to.
    pub preempted: usize,
    /// Prompt tokens that were not run, since an earlier text began with them.
    pub reused: usize,
}

impl Cost {
    /// Adds a run of the same decoder: the times add up, and of the memory the larger counts.
    pub fn add(&mut self, other: Self) {
        let Times { draft, verify, sample, state, total } = other.times;
        self.times.draft += draft;
        self.times.verify += verify;
        self.times.sample += sample;
        self.times.state += state;
        self.times.total += total;
        self.preempted += other.preempted;
        self.reused += other.reused;
        if other.memory.total() > self.memory.total() {
            self.memory = other.memory;
        }
    }
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
