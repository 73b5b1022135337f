//! Requests that are taken back, run out of time or give way in the middle of a round, at every point of it: what they
//! committed stays, and nobody else's text changes.

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
use spectrain_verify::{Ending, Fixed, Point, Room, SpeculativeDecoder, Task, Transcript};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const VOCABULARY: usize = 12;
const REQUESTS: u64 = 6;

/// Ends a request when it is asked at `point` for the `times`-th time.
struct At {
    point: Point,
    times: usize,
    asked: AtomicUsize,
    finish: Finish,
}

impl At {
    fn new(point: Point, times: usize, finish: Finish) -> Self {
        Self { point, times, asked: AtomicUsize::new(0), finish }
    }
}

impl Ending for At {
    fn ended(&self, point: Point) -> Option<Finish> {
        let asked = (point == self.point).then(|| self.asked.fetch_add(1, Ordering::Relaxed) + 1);
        (asked == Some(self.times)).then_some(self.finish)
    }
}

fn request(id: u64, temperature: f64) -> Request {
    Request {
        id,
        prompt: (0..3 + id as u32 % 4).map(|i| (5 * i + id as u32) % VOCABULARY as u32).collect(),
        max_new_tokens: 20 + 3 * id as usize,
        sampling: Processors::at(temperature),
        seed: 4,
        form: Form::default(),
    }
}

/// The rules with a tree each.
const ASKED: [(Rule, &str); 6] = [
    (Rule::Greedy, "static:2,2"),
    (Rule::SampledMatch, "dynamic:6"),
    (Rule::Token, "chain"),
    (Rule::Block, "chain"),
    (Rule::SpecInfer, "sampled:2,2"),
    (Rule::Traversal, "sampled:2,1"),
];

fn plans() -> Vec<Plan> {
    ASKED.iter().map(|(rule, tree)| plan(&tree.parse::<TreeKind>().unwrap(), *rule, 3, &[]).unwrap()).collect()
}

type Answers = BTreeMap<u64, Transcript>;

/// All requests, three at a time in `room`; `ending` ends that of `victim`.
fn run(target: &Llama, room: Room, victim: u64, ending: Option<&dyn Ending>) -> Answers {
    let plans = plans();
    let task = |id: u64| {
        let (rule, _) = ASKED[id as usize];
        let request = request(id, if rule == Rule::Greedy { 0.0 } else { 1.0 });
        let task = Task::of(request, &plans[id as usize], judge(rule).unwrap(), &Fixed);
        Task { ending: ending.filter(|_| id == victim), ..task }
    };
    let (drafter, weights) = random_drafter(target, 10, 5, &Device::flex());
    let mut answers = BTreeMap::new();
    let decoder = SpeculativeDecoder { target, stop: &[], batch: 3 };
    let tasks = (0..REQUESTS).map(task).collect();
    let mut proposer = Eagle3Proposer::new(drafter, &weights);
    decoder.run_within(room, tasks, &mut proposer, |t| assert!(answers.insert(t.id, t).is_none())).unwrap();
    answers
}

/// Pages for little more than the longest request: texts of 41 tokens with 6 drafts behind them.
fn tight() -> Room {
    Room { pages: Some(Pages { tokens: 2, count: 28 }), prefixes: false }
}

/// Asserts that `cut` is `whole` but for `victim`, whose text is a beginning of the whole one with its rounds.
fn assert_left(cut: &Answers, whole: &Answers, victim: u64, finish: Finish, what: &str) {
    assert_eq!(cut.len(), whole.len(), "{what}");
    for (id, answer) in cut {
        let full = &whole[id];
        if *id != victim {
            assert_eq!((&answer.ids, answer.finish), (&full.ids, full.finish), "{what}: request {id}");
            assert_eq!(answer.calls, full.calls, "{what}: request {id}");
            continue;
        }
        assert_eq!(answer.finish, finish, "{what}");
        assert_eq!(answer.calls, full.calls[..answer.calls.len()], "{what}");
        let committed: usize = answer.rounds().map(|r| r.committed).sum();
        let prompt = usize::from(!answer.timeline.arrivals.is_empty());
        assert_eq!(answer.ids, full.ids[..prompt + committed], "{what}");
        let told: usize = answer.timeline.arrivals.iter().map(|a| a.tokens).sum();
        assert_eq!(told, answer.ids.len(), "{what}: every token is told once");
    }
}

#[test]
fn a_request_may_leave_at_every_point_of_a_round() {
    let dir = tempfile::tempdir().unwrap();
    let target = random_target(dir.path(), VOCABULARY, 3);
    let whole = run(&target, Room::default(), 0, None);
    for (victim, point) in (0..REQUESTS).flat_map(|id| Point::ALL.map(|point| (id, point))) {
        for (times, finish) in [(1, Finish::Cancelled), (2, Finish::Deadline), (5, Finish::Cancelled)] {
            let what = format!("request {victim} leaves at {point:?}, round {times}");
            let cut = run(&target, Room::default(), victim, Some(&At::new(point, times, finish)));
            assert_left(&cut, &whole, victim, finish, &what);
            // The call under way is not among the finished ones; the first is the prompt's.
            assert_eq!(cut[&victim].timeline.arrivals.len(), times - 1, "{what}");
        }
    }
}

/// Where there is hardly any room requests give way at every other round, and those that left must have freed theirs.
#[test]
fn pages_of_requests_that_left_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let target = random_target(dir.path(), VOCABULARY, 3);
    let whole = run(&target, Room::default(), 0, None);
    let crowded = run(&target, tight(), 0, None);
    for (id, answer) in &crowded {
        assert_eq!((&answer.ids, &answer.calls), (&whole[id].ids, &whole[id].calls), "request {id} gave way");
    }
    for (victim, point) in (0..REQUESTS).flat_map(|id| Point::ALL.map(|point| (id, point))) {
        for times in [1, 4] {
            let what = format!("request {victim} leaves at {point:?}, round {times}, in hardly any room");
            let cut = run(&target, tight(), victim, Some(&At::new(point, times, Finish::Cancelled)));
            assert_left(&cut, &whole, victim, Finish::Cancelled, &what);
        }
    }
}

#[test]
fn flags_and_deadlines_end_requests() {
    let dir = tempfile::tempdir().unwrap();
    let target = random_target(dir.path(), VOCABULARY, 3);
    let whole = run(&target, Room::default(), 0, None);
    let (set, unset) = (AtomicBool::new(true), AtomicBool::new(false));
    let (past, future) = (Instant::now(), Instant::now() + Duration::from_secs(3600));
    let none = (AtomicBool::new(false), future);
    for unending in [&unset as &dyn Ending, &future, &none] {
        let answers = run(&target, Room::default(), 1, Some(unending));
        assert_eq!((&answers[&1].ids, answers[&1].finish), (&whole[&1].ids, whole[&1].finish));
    }
    for (ending, finish) in [(&set as &dyn Ending, Finish::Cancelled), (&past, Finish::Deadline)] {
        let answers = run(&target, Room::default(), 1, Some(ending));
        assert_left(&answers, &whole, 1, finish, "from the start");
        assert!(answers[&1].ids.is_empty());
    }
}
