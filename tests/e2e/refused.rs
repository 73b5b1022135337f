//! Pages that are refused to a pass in the middle of a round: the youngest give way, and no text, round or draft differs.

use crate::leaving::{Answers, assert_undisturbed, eagle, plans, target, tasks, tight};
use crate::rollback::same_law;
use crate::tree_rows::Dice;
use burn::tensor::Tensor;
use spectrain_core::process::RowError;
use spectrain_core::rules::Rule;
use spectrain_core::stats::lookup::Lookup;
use spectrain_draft::proposer::{Draft, DrafterMemory, Observed, Pick, Plan, Proposer, Wanted};
use spectrain_draft::untrained::NgramProposer;
use spectrain_draft::untrained::ngram::Ngrams;
use spectrain_model::{KvCache, Llama, Pages};
use spectrain_verify::judge::judge;
use spectrain_verify::{
    Cost, Departing, Departure, Inspector, Kept, Point, Room, RunError, SpeculativeDecoder, Task, Transcript,
};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Mutex;

/// A request's drafts by the length of the answer before them.
type Drafts = BTreeMap<(u64, usize), Draft>;

/// A drafter whose drafts are written down, with the rows that it holds in each slot after the last change.
struct Recorded<'a> {
    inner: &'a mut dyn Proposer,
    drafts: Drafts,
    held: &'a Mutex<Vec<usize>>,
}

impl Recorded<'_> {
    fn look(&self, slots: impl IntoIterator<Item = usize>) {
        slots.into_iter().for_each(|slot| self.held.lock().unwrap()[slot] = self.inner.committed(slot));
    }
}

impl Proposer for Recorded<'_> {
    fn taps(&self) -> &[usize] {
        self.inner.taps()
    }

    fn draft_to_target(&self) -> &[u32] {
        self.inner.draft_to_target()
    }

    fn open(&mut self, slots: usize, capacity: usize) {
        *self.held.lock().unwrap() = vec![0; slots];
        self.inner.open(slots, capacity);
    }

    fn clear(&mut self, slot: usize) {
        self.inner.clear(slot);
        self.look([slot]);
    }

    fn start(&mut self, slot: usize, prompt: &[u32]) {
        self.inner.start(slot, prompt);
        self.look([slot]);
    }

    fn observe(&mut self, observed: &[Observed], features: Vec<Tensor<2>>) {
        self.inner.observe(observed, features);
        self.look(observed.iter().map(|o| o.slot));
    }

    /// A round that is drafted again is drafted as before.
    fn draft(&mut self, wanted: &[Wanted]) -> Result<Vec<Draft>, RowError> {
        let drafts = self.inner.draft(wanted)?;
        for (w, draft) in wanted.iter().zip(&drafts) {
            let at = (w.prefix.request.id, w.prefix.answer.len());
            if let Some(before) = self.drafts.insert(at, draft.clone()) {
                assert_alike(&at, draft, &before);
            }
        }
        Ok(drafts)
    }

    fn memory(&self, plan: &Plan) -> DrafterMemory {
        self.inner.memory(plan)
    }

    fn committed(&self, slot: usize) -> usize {
        self.inner.committed(slot)
    }
}

/// Asserts that two drafts have the same tokens from distributions that differ by rounding.
fn assert_alike(at: &(u64, usize), found: &Draft, expected: &Draft) {
    assert_eq!((&found.tokens, &found.parents), (&expected.tokens, &expected.parents), "{at:?}");
    assert!(same_law(found, expected), "{at:?}");
}

/// When pages are refused.
#[derive(Debug, Clone, Copy)]
enum Refusal {
    /// At the so many-th asking, from 1; never for 0.
    Once(usize),
    /// At every so many-th asking.
    Every(usize),
    /// From there on, whenever a pass asks.
    Passes(usize),
    /// From there on, also where requests are let in.
    Always(usize),
}

/// Withholds all pages where they are to be refused.
struct Refusing {
    refusal: Refusal,
    asked: usize,
    refused: usize,
    /// Pages that are held when all requests have ended.
    left: Option<usize>,
}

impl Inspector for Refusing {
    fn asked(&mut self, cache: &mut KvCache) {
        self.asked += 1;
        assert!(self.asked < 10_000, "the run has no end");
        let refuses = match self.refusal {
            Refusal::Once(nth) => self.asked == nth,
            Refusal::Every(period) => self.asked.is_multiple_of(period),
            Refusal::Passes(first) | Refusal::Always(first) => self.asked >= first,
        };
        if refuses {
            cache.withhold(cache.pages().count);
        }
    }

    fn answered(&mut self, cache: &mut KvCache, given: bool) {
        self.refused += usize::from(!given);
        if !matches!(self.refusal, Refusal::Always(first) if self.asked >= first) {
            cache.withhold(0);
        }
    }

    fn over(&mut self, cache: &KvCache) {
        self.left = Some(cache.pages().count - cache.available());
    }
}

/// What a run wrote and drafted, and what it took.
struct Ran {
    answers: Answers,
    drafts: Drafts,
    result: Result<Cost, RunError>,
}

fn ran(
    target: &Llama,
    room: Room,
    tasks: Vec<Task>,
    proposer: &mut dyn Proposer,
    inspector: &mut dyn Inspector,
) -> Ran {
    let (held, mut answers) = (Mutex::default(), Answers::new());
    let mut proposer = Recorded { inner: proposer, drafts: Drafts::new(), held: &held };
    let decoder = SpeculativeDecoder { target, stop: &[], batch: 3 };
    let done = |t: Transcript| assert!(answers.insert(t.id, t).is_none());
    let committed = |_: spectrain_verify::Committed| ControlFlow::Continue(());
    let result = decoder.run_inspected(room, tasks, &mut proposer, committed, done, inspector);
    Ran { answers, drafts: proposer.drafts, result }
}

/// A run of all rules and trees under `refusal`.
fn refusing(target: &Llama, room: Room, refusal: Refusal) -> (Ran, Refusing) {
    let mut inspector = Refusing { refusal, asked: 0, refused: 0, left: None };
    let plans = plans();
    (ran(target, room, tasks(&plans, |_| None), &mut eagle(target), &mut inspector), inspector)
}

fn assert_same(found: &Ran, whole: &Ran, what: &str) {
    assert_eq!(found.answers.len(), whole.answers.len(), "{what}");
    assert_undisturbed(found.answers.values(), &whole.answers, what);
    assert!(found.drafts.keys().eq(whole.drafts.keys()), "{what}: other rounds were drafted");
    found.drafts.iter().for_each(|(at, draft)| assert_alike(at, draft, &whole.drafts[at]));
}

#[test]
fn after_a_refusal_at_any_asking_the_texts_rounds_and_drafts_are_the_same() {
    let target = target();
    let (whole, _) = refusing(&target, Room::default(), Refusal::Once(0));
    let roomy = Room { pages: Some(Pages { tokens: 2, count: 3 * 28 }), prefixes: false };
    for room in [roomy, tight()] {
        let (usual, all) = refusing(&target, room, Refusal::Once(0));
        assert_same(&usual, &whole, "nothing is refused");
        assert_eq!((all.refused, all.left), (0, Some(0)), "{room:?}");
        let mut refused = 0;
        for nth in 1..=all.asked {
            let what = format!("asking {nth} of {} is refused, in {room:?}", all.asked);
            let (found, seen) = refusing(&target, room, Refusal::Once(nth));
            assert_same(&found, &whole, &what);
            assert_eq!(seen.left, Some(0), "{what}: pages held at the end");
            // A pass whose pages its slots still have needs none.
            assert!(seen.refused <= 1, "{what}");
            assert!(found.result.unwrap().preempted >= seen.refused, "{what}");
            refused += seen.refused;
        }
        eprintln!("{room:?}: {refused} of {} askings refused", all.asked);
        assert!(4 * refused > 3 * all.asked, "{refused} of {}", all.asked);
    }
}

/// Also one that is left alone goes on, as long as it gets its pages every other time: those of its text, and of a round.
#[test]
fn refusals_again_and_again_change_nothing() {
    let target = target();
    let (whole, all) = refusing(&target, Room::default(), Refusal::Once(0));
    for (period, room) in (3..9).flat_map(|period| [(period, Room::default()), (period, tight())]) {
        let (found, seen) = refusing(&target, room, Refusal::Every(period));
        assert_same(&found, &whole, &format!("every {period}th asking is refused, in {room:?}"));
        assert_eq!(seen.left, Some(0));
        assert!(room.pages.is_none() || seen.refused > all.asked / 10, "{} refusals", seen.refused);
    }
}

/// The one that is left alone may come back, once.
#[test]
fn refusals_without_end_are_an_error() {
    let target = target();
    let (whole, all) = refusing(&target, tight(), Refusal::Once(0));
    for first in 1..=all.asked - 3 {
        for refusal in [Refusal::Passes(first), Refusal::Always(first)] {
            let (found, seen) = refusing(&target, tight(), refusal);
            let error = found.result.unwrap_err();
            assert!(matches!(error, RunError::Pages(short) if short.available == 0), "{refusal:?}: {error}");
            assert!(error.to_string().contains("more pages, and 0 are available"), "{error}");
            assert_eq!(seen.left, None);
            assert_undisturbed(found.answers.values(), &whole.answers, &format!("{refusal:?}"));
        }
    }
}

/// Takes and gives back pages at every asking, but leaves room for the longest request alone.
struct Moody {
    dice: Dice,
    refused: usize,
}

impl Inspector for Moody {
    fn kept(&mut self, kept: Kept) {
        self.asked(kept.cache);
    }

    fn asked(&mut self, cache: &mut KvCache) {
        let most = cache.pages().count - tight().pages.unwrap().count;
        cache.withhold(self.dice.below(most + 1));
    }

    fn answered(&mut self, _: &mut KvCache, given: bool) {
        self.refused += usize::from(!given);
    }
}

#[test]
fn room_that_shrinks_and_grows_changes_no_text() {
    let target = target();
    let (whole, _) = refusing(&target, Room::default(), Refusal::Once(0));
    let room = Room { pages: Some(Pages { tokens: 2, count: 60 }), prefixes: false };
    let plans = plans();
    let (mut refused, mut preempted) = (0, 0);
    for seed in 0..20 {
        let mut moody = Moody { dice: Dice::new(seed), refused: 0 };
        let found = ran(&target, room, tasks(&plans, |_| None), &mut eagle(&target), &mut moody);
        assert_same(&found, &whole, &format!("room by dice {seed}"));
        refused += moody.refused;
        preempted += found.result.unwrap().preempted;
    }
    assert!(refused > 20 && preempted > refused, "hardly anything was refused: {refused}, {preempted}");
}

/// Where beginnings are kept, pages of a text that gave way are found again, or refused, too.
#[test]
fn refusals_leave_known_beginnings_in_order() {
    let (target, plans) = (target(), plans());
    let plan = Plan::chain(3, Pick::Argmax);
    let room = Room { pages: Some(Pages { tokens: 2, count: 40 }), prefixes: true };
    let run = |nth: usize| {
        let mut inspector = Refusing { refusal: Refusal::Once(nth), asked: 0, refused: 0, left: None };
        let requests = tasks(&plans, |_| None).into_iter().map(|task| task.request);
        let tasks = Task::alike(requests, &plan, judge(Rule::SampledMatch).unwrap(), &spectrain_verify::Fixed);
        let mut proposer = NgramProposer::new(Ngrams(Lookup { min_match: 1, max_match: 3 }));
        (ran(&target, room, tasks, &mut proposer, &mut inspector), inspector)
    };
    let (whole, all) = run(0);
    let (mut refused, mut found_again) = (0, 0);
    for nth in 1..=all.asked {
        let (found, seen) = run(nth);
        assert_same(&found, &whole, &format!("asking {nth} is refused"));
        assert_eq!(seen.left, Some(0), "pages that somebody but the index holds");
        refused += seen.refused;
        found_again += usize::from(found.result.unwrap().reused > 0);
    }
    assert!(refused > 20 && found_again > 10, "{refused} refusals, {found_again} texts found again");
}

/// Looks, where a pass asks for pages, at what a slot holds whose request has just given way.
struct Emptied<'a> {
    slot: usize,
    /// The asking that is looked at, from 1.
    at: usize,
    /// Whether the one before is refused.
    refused: bool,
    asked: usize,
    held: &'a Mutex<Vec<usize>>,
}

impl Inspector for Emptied<'_> {
    fn asked(&mut self, cache: &mut KvCache) {
        self.asked += 1;
        if self.refused && self.asked + 1 == self.at {
            cache.withhold(cache.pages().count);
        }
        if self.asked == self.at {
            let held = self.held.lock().unwrap();
            assert_eq!((cache.len(self.slot), held[self.slot]), (0, 0), "freed at once");
            assert!((0..3).filter(|&slot| slot != self.slot).all(|slot| cache.len(slot) > 0 && held[slot] > 0));
        }
    }

    fn answered(&mut self, cache: &mut KvCache, _: bool) {
        cache.withhold(0);
    }
}

/// Makes a request give way behind its drafts, from the so many-th round on.
struct Behind(Mutex<usize>);

impl Departing for Behind {
    fn departs(&self, point: Point) -> Option<Departure> {
        let mut rounds = self.0.lock().unwrap();
        *rounds -= usize::from(point == Point::Drafted && *rounds > 0);
        (point == Point::Drafted && *rounds == 0).then_some(Departure::GiveWay)
    }
}

/// Who was told to, and the youngest if pages are refused.
#[test]
fn who_gives_way_frees_pages_and_the_drafters_rows_at_once() {
    let (target, plans) = (target(), plans());
    let room = Room { pages: Some(Pages { tokens: 2, count: 3 * 28 }), prefixes: false };
    for (slot, refused) in [(0, false), (1, false), (2, false), (2, true)] {
        let (held, behind) = (Mutex::default(), Behind(Mutex::new(3)));
        let mut drafter = eagle(&target);
        let mut proposer = Recorded { inner: &mut drafter, drafts: Drafts::new(), held: &held };
        let mut emptied = Emptied { slot, at: 3 + usize::from(refused), refused, asked: 0, held: &held };
        let decoder = SpeculativeDecoder { target: &target, stop: &[], batch: 3 };
        let tasks = tasks(&plans, |id| (id == slot as u64 && !refused).then_some(&behind as &dyn Departing));
        let committed = |_: spectrain_verify::Committed| ControlFlow::Continue(());
        decoder.run_inspected(room, tasks, &mut proposer, committed, drop, &mut emptied).unwrap();
        assert!(emptied.asked > 4);
    }
}
