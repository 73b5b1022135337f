//! Requests that are taken back, run out of time or give way in the middle of a round, at every point of it: what they
//! committed stays, and nobody else's text changes.

use crate::forms::{Turns, constrained};
use crate::support::{random_drafter, random_target};
use burn::tensor::Device;
use spectrain_core::form::Form;
use spectrain_core::process::Processors;
use spectrain_core::rules::Rule;
use spectrain_core::tree::TreeKind;
use spectrain_draft::{Eagle3Proposer, Plan};
use spectrain_model::{Finish, Llama, Pages, Request};
use spectrain_verify::judge::judge;
use spectrain_verify::plan::plan;
use spectrain_verify::{
    Committed, Cost, Departing, Departure, Fixed, Point, Room, SpeculativeDecoder, Task, Transcript,
};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const VOCABULARY: usize = 12;
const REQUESTS: u64 = 6;

/// Makes a request leave at `point` of its `round`-th round.
struct At {
    point: Point,
    round: usize,
    departure: Departure,
    /// Times it was asked within a round, by point, and at a start.
    asked: [AtomicUsize; 4],
}

impl At {
    fn new(point: Point, round: usize, departure: Departure) -> Self {
        Self { point, round, departure, asked: Default::default() }
    }
}

impl Departing for At {
    fn departs(&self, point: Point) -> Option<Departure> {
        let asked = self.asked[point as usize].fetch_add(1, Ordering::Relaxed) + 1;
        let round = match point {
            // Also asked while it waits: the round to come is the one behind those that were judged.
            Point::Start => self.asked[Point::Judged as usize].load(Ordering::Relaxed) + 1,
            _ => asked,
        };
        (point == self.point && round == self.round).then_some(self.departure)
    }
}

/// Tells requests to give way whenever they are asked.
#[derive(Default)]
struct Always(AtomicUsize);

impl Departing for Always {
    fn departs(&self, _: Point) -> Option<Departure> {
        assert!(self.0.fetch_add(1, Ordering::Relaxed) < 100_000, "the run has no end");
        Some(Departure::GiveWay)
    }
}

/// Every other pair of a rule and a tree under a constraint.
fn request(id: u64, temperature: f64) -> Request {
    Request {
        id,
        prompt: (0..3 + id as u32 % 4).map(|i| (5 * i + id as u32) % VOCABULARY as u32).collect(),
        max_new_tokens: 20 + 3 * id as usize,
        sampling: Processors { frequency_penalty: 0.2, ..Processors::at(temperature) },
        seed: 4,
        form: match id % 2 {
            0 => Form::default(),
            _ => constrained(Arc::new(Turns { vocabulary: VOCABULARY as u32, step: 0 })),
        },
    }
}

/// The rules with a tree each.
const ASKED: [(Rule, &str); REQUESTS as usize] = [
    (Rule::Greedy, "static:2,2"),
    (Rule::SampledMatch, "dynamic:6"),
    (Rule::Token, "chain"),
    (Rule::Block, "chain"),
    (Rule::SpecInfer, "sampled:2,2"),
    (Rule::Traversal, "sampled:2,1"),
];

pub fn plans() -> Vec<Plan> {
    ASKED.iter().map(|(rule, tree)| plan(&tree.parse::<TreeKind>().unwrap(), *rule, 3, &[]).unwrap()).collect()
}

/// All requests; `departing` says what makes each leave.
pub fn tasks<'a, 'd: 'a>(plans: &'a [Plan], departing: impl Fn(u64) -> Option<&'d dyn Departing>) -> Vec<Task<'a>> {
    let task = |id: u64| {
        let (rule, _) = ASKED[id as usize];
        let request = request(id, if rule == Rule::Greedy { 0.0 } else { 1.0 });
        let task = Task::of(request, &plans[id as usize], judge(rule).unwrap(), &Fixed);
        Task { departing: departing(id), ..task }
    };
    (0..REQUESTS).map(task).collect()
}

pub fn target() -> Llama {
    let dir = tempfile::tempdir().unwrap();
    random_target(dir.path(), VOCABULARY, 3)
}

pub fn eagle(target: &Llama) -> Eagle3Proposer {
    let (drafter, weights) = random_drafter(target, 10, 5, &Device::flex());
    Eagle3Proposer::new(drafter, &weights)
}

pub type Answers = BTreeMap<u64, Transcript>;

/// All requests, three at a time in `room`; `departing` moves `victim`.
fn run(target: &Llama, room: Room, victim: u64, departing: Option<&dyn Departing>) -> Answers {
    run_all(target, (3, room), |id| departing.filter(|_| id == victim)).0.into_iter().map(|t| (t.id, t)).collect()
}

/// All requests, so many at a time in a room; the answers as they ended.
fn run_all<'a>(
    target: &Llama,
    (batch, room): (usize, Room),
    departing: impl Fn(u64) -> Option<&'a dyn Departing>,
) -> (Vec<Transcript>, Cost) {
    let (plans, mut answers) = (plans(), Vec::new());
    let decoder = SpeculativeDecoder { target, stop: &[], batch };
    let cost = decoder.run_within(room, tasks(&plans, departing), &mut eagle(target), |t| answers.push(t)).unwrap();
    let mut ids: Vec<u64> = answers.iter().map(|t| t.id).collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..REQUESTS).collect::<Vec<_>>(), "every request ends once");
    (answers, cost)
}

/// Pages for little more than the longest request: texts of 41 tokens with 6 drafts behind them.
pub fn tight() -> Room {
    Room { pages: Some(Pages { tokens: 2, count: 28 }), prefixes: false }
}

/// Asserts that `found` is `whole`: text, end, rounds and what came with each.
pub fn assert_undisturbed<'a>(found: impl IntoIterator<Item = &'a Transcript>, whole: &Answers, what: &str) {
    let told = |t: &Transcript| t.timeline.arrivals.iter().map(|a| a.tokens).collect::<Vec<_>>();
    for answer in found {
        let (id, full) = (answer.id, &whole[&answer.id]);
        assert_eq!((&answer.ids, answer.finish), (&full.ids, full.finish), "{what}: request {id}");
        assert_eq!(answer.calls, full.calls, "{what}: request {id}");
        assert_eq!(told(answer), told(full), "{what}: request {id}");
        assert_eq!((answer.fallbacks, &answer.ranks), (full.fallbacks, &full.ranks), "{what}: request {id}");
        assert_eq!(answer.failure, None, "{what}: request {id}");
        assert!(answer.timeline.arrivals.is_sorted_by_key(|a| a.at), "{what}: request {id}");
    }
}

/// Asserts that `cut` is `whole` but for `victim`, whose text is a beginning of the whole one with its rounds.
fn assert_left(cut: &Answers, whole: &Answers, victim: u64, finish: Finish, what: &str) {
    assert_eq!(cut.len(), whole.len(), "{what}");
    assert_undisturbed(cut.values().filter(|t| t.id != victim), whole, what);
    let (answer, full) = (&cut[&victim], &whole[&victim]);
    assert_eq!(answer.finish, finish, "{what}");
    assert_eq!(answer.calls, full.calls[..answer.calls.len()], "{what}");
    let committed: usize = answer.rounds().map(|r| r.committed).sum();
    let prompt = usize::from(!answer.timeline.arrivals.is_empty());
    assert_eq!(answer.ids, full.ids[..prompt + committed], "{what}");
    let told: usize = answer.timeline.arrivals.iter().map(|a| a.tokens).sum();
    assert_eq!(told, answer.ids.len(), "{what}: every token is told once");
}

#[test]
fn a_request_may_leave_at_every_point_of_a_round() {
    let target = target();
    let whole = run(&target, Room::default(), 0, None);
    for (victim, point) in (0..REQUESTS).flat_map(|id| Point::ALL.map(|point| (id, point))) {
        for (round, finish) in [(1, Finish::Cancelled), (2, Finish::Deadline), (5, Finish::Cancelled)] {
            let what = format!("request {victim} leaves at {point:?}, round {round}");
            let cut = run(&target, Room::default(), victim, Some(&At::new(point, round, Departure::End(finish))));
            assert_left(&cut, &whole, victim, finish, &what);
            // The call under way is not among the finished ones; the first is the prompt's.
            assert_eq!(cut[&victim].timeline.arrivals.len(), round - 1, "{what}");
        }
    }
}

/// Where there is hardly any room requests give way at every other round, and those that left must have freed theirs.
#[test]
fn pages_of_requests_that_left_come_back() {
    let target = target();
    let whole = run(&target, Room::default(), 0, None);
    let crowded = run(&target, tight(), 0, None);
    for (id, answer) in &crowded {
        assert_eq!((&answer.ids, &answer.calls), (&whole[id].ids, &whole[id].calls), "request {id} gave way");
    }
    for (victim, point) in (0..REQUESTS).flat_map(|id| Point::ALL.map(|point| (id, point))) {
        for round in [1, 4] {
            let what = format!("request {victim} leaves at {point:?}, round {round}, in hardly any room");
            let cut = run(&target, tight(), victim, Some(&At::new(point, round, Departure::End(Finish::Cancelled))));
            assert_left(&cut, &whole, victim, Finish::Cancelled, &what);
        }
    }
}

#[test]
fn flags_and_deadlines_end_requests() {
    let target = target();
    let whole = run(&target, Room::default(), 0, None);
    let (set, unset) = (AtomicBool::new(true), AtomicBool::new(false));
    let (past, future) = (Instant::now(), Instant::now() + Duration::from_secs(3600));
    let none = (AtomicBool::new(false), future);
    for unending in [&unset as &dyn Departing, &future, &none] {
        let answers = run(&target, Room::default(), 1, Some(unending));
        assert_eq!((&answers[&1].ids, answers[&1].finish), (&whole[&1].ids, whole[&1].finish));
    }
    for (ending, finish) in [(&set as &dyn Departing, Finish::Cancelled), (&past, Finish::Deadline)] {
        let answers = run(&target, Room::default(), 1, Some(ending));
        assert_left(&answers, &whole, 1, finish, "from the start");
        assert!(answers[&1].ids.is_empty());
    }
}

#[test]
fn a_request_may_give_way_at_every_point_of_a_round_and_goes_on() {
    let target = target();
    let whole = run(&target, Room::default(), 0, None);
    for (victim, point) in (0..REQUESTS).flat_map(|id| Point::ALL.map(|point| (id, point))) {
        for round in [1, 2, 5] {
            for room in [Room::default(), tight()] {
                let what = format!("request {victim} gives way at {point:?}, round {round}, in {room:?}");
                let at = At::new(point, round, Departure::GiveWay);
                let departing = |id| (id == victim).then_some(&at as &dyn Departing);
                let (found, cost) = run_all(&target, (3, room), departing);
                assert_undisturbed(&found, &whole, &what);
                // In little room others give way, too.
                assert!(cost.preempted == 1 || cost.preempted > 1 && room.pages.is_some(), "{what}: {cost:?}");
            }
        }
    }
}

/// Each round is run in vain as often as requests may give way, but none twice.
#[test]
fn requests_that_always_give_way_come_to_their_end() {
    let target = target();
    let whole = run(&target, Room::default(), 0, None);
    let tokens: usize = whole.values().map(|t| t.timeline.arrivals.len()).sum();
    for batch in [1, 3] {
        for room in [Room::default(), tight()] {
            let always = Always::default();
            let (found, cost) = run_all(&target, (batch, room), |_| Some(&always));
            assert_undisturbed(&found, &whole, "all give way");
            assert!(cost.preempted >= tokens, "{} times for {tokens} rounds", cost.preempted);
            // A deadline is heard beside it.
            let over = (Always::default(), Instant::now());
            let (found, _) = run_all(&target, (batch, room), |id| (id == 1).then_some(&over as &dyn Departing));
            let found = found.into_iter().find(|t| t.id == 1).unwrap();
            assert_eq!((found.ids.len(), found.finish), (0, Finish::Deadline));
        }
    }
}

#[test]
fn who_gives_way_lets_one_that_waits_in() {
    let target = target();
    let at = At::new(Point::Drafted, 2, Departure::GiveWay);
    let (found, _) = run_all(&target, (1, Room::default()), |id| (id == 0).then_some(&at as &dyn Departing));
    assert_eq!(found.iter().map(|t| t.id).collect::<Vec<_>>(), [1, 0, 2, 3, 4, 5]);
}

#[test]
fn of_those_that_gave_way_the_oldest_comes_back_first() {
    let (target, plans) = (target(), plans());
    let at = [0, 1].map(|_| At::new(Point::Judged, 2, Departure::GiveWay));
    let mut told = Vec::new();
    let committed = |c: Committed| {
        told.push(c.id);
        ControlFlow::Continue(())
    };
    let decoder = SpeculativeDecoder { target: &target, stop: &[], batch: 2 };
    let tasks = tasks(&plans, |id| at.get(id as usize).map(|at| at as &dyn Departing));
    decoder.run_watched(tasks, &mut eagle(&target), committed, drop).unwrap();
    assert_eq!(told[..4], [0, 1, 2, 3], "both give way to those that wait");
    let back = |id| 4 + told[4..].iter().position(|&t| t == id).unwrap();
    assert!(back(0) < back(1) && back(1) < back(4), "{told:?}");
}

#[test]
fn a_request_may_leave_before_it_was_ever_let_in() {
    let target = target();
    let whole = run(&target, Room::default(), 0, None);
    for room in [Room::default(), tight()] {
        for (victim, at) in [(3, 0), (5, 0), (5, 2), (5, 4)] {
            let what = format!("request {victim} leaves at the start of round {at}, in {room:?}");
            let departing = Waiting { round: at, asked: AtomicUsize::new(0) };
            let (found, _) = run_all(&target, (3, room), |id| (id == victim).then_some(&departing as &dyn Departing));
            let place = found.iter().position(|t| t.id == victim).unwrap();
            assert_eq!(place, 0, "{what}: it does not wait for a place");
            let answers: Answers = found.into_iter().map(|t| (t.id, t)).collect();
            assert_left(&answers, &whole, victim, Finish::Deadline, &what);
            let left = &answers[&victim];
            assert!(left.ids.is_empty() && left.timeline.ttft().is_none(), "{what}");
            // The first request is in every round: it left between two of them.
            let rounds = &answers[&0].timeline.arrivals;
            let admitted = left.timeline.admitted;
            assert!(admitted < rounds[at].at && (at == 0 || admitted > rounds[at - 1].at), "{what}: {admitted}");
        }
    }
}

/// Ends a request at the start of a `round`, the first of which is 0.
struct Waiting {
    round: usize,
    asked: AtomicUsize,
}

impl Departing for Waiting {
    fn departs(&self, point: Point) -> Option<Departure> {
        assert_eq!(point, Point::Start, "it is in no round");
        let asked = self.asked.fetch_add(1, Ordering::Relaxed);
        (asked == self.round).then_some(Departure::End(Finish::Deadline))
    }
}
