//! Who is in no slot: requests that were never let in, and those that gave way.

use super::{Active, Listener, Transcript};
use crate::departure::{Departure, Point};
use crate::task::Task;
use spectrain_model::Finish;
use std::collections::VecDeque;

/// The requests in the order in which they are let in: those that gave way, from the oldest on, before new ones.
pub(super) struct Line<'a> {
    /// Requests that were never let in.
    waiting: VecDeque<Task<'a>>,
    /// Requests that gave way, the oldest last.
    parked: Vec<Active<'a>>,
    /// Those of them that were told to since anybody was let in, the oldest last: they go behind all others, once.
    stepped_back: Vec<Active<'a>>,
    /// Requests that were ever let in.
    admitted: usize,
    /// Whether any request may leave before its text ends.
    departing: bool,
}

/// Puts `active` where its age belongs.
fn insert<'a>(list: &mut Vec<Active<'a>>, active: Active<'a>) {
    list.insert(list.partition_point(|other| other.age > active.age), active);
}

fn end(task: &Task) -> Option<Finish> {
    match task.departing?.departs(Point::Start)? {
        Departure::End(finish) => Some(finish),
        Departure::GiveWay => None,
    }
}

impl<'a> Line<'a> {
    pub fn new(tasks: Vec<Task<'a>>) -> Self {
        let departing = tasks.iter().any(|task| task.departing.is_some());
        Self { waiting: tasks.into(), parked: Vec::new(), stepped_back: Vec::new(), admitted: 0, departing }
    }

    /// Requests in it.
    pub fn len(&self) -> usize {
        self.waiting.len() + self.parked.len() + self.stepped_back.len()
    }

    /// Takes in a request for which there is no room.
    pub fn park(&mut self, active: Active<'a>) {
        insert(&mut self.parked, active);
    }

    /// Takes in a request that was told to give way.
    pub fn step_back(&mut self, active: Active<'a>) {
        insert(&mut self.stepped_back, active);
    }

    /// The next request, which is let in `at` seconds after the start if it is new.
    pub fn next(&mut self, stop: &[u32], at: f64) -> Option<Active<'a>> {
        if let Some(parked) = self.parked.pop() {
            return Some(parked);
        }
        let Some(task) = self.waiting.pop_front() else { return self.stepped_back.pop() };
        self.admitted += 1;
        Some(Active::new(task, stop, at, self.admitted))
    }

    /// The places that were free are given away: whoever stepped back for that is in line by age again.
    pub fn close(&mut self) {
        while let Some(active) = self.stepped_back.pop() {
            self.park(active);
        }
    }

    /// Ends the requests that are to end, `at` seconds after the start; whether any did. To give way means nothing here.
    pub fn leave(&mut self, at: f64, listener: &mut Listener) -> bool {
        let before = self.len();
        if self.departing {
            for active in std::mem::take(&mut self.parked) {
                match end(&active.task) {
                    Some(finish) => (listener.done)(active.transcript(finish)),
                    None => self.parked.push(active),
                }
            }
            for task in std::mem::take(&mut self.waiting) {
                match end(&task) {
                    Some(finish) => (listener.done)(Transcript::unbegun(task.request.id, finish, at)),
                    None => self.waiting.push_back(task),
                }
            }
        }
        self.len() < before
    }
}
