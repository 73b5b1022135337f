//! Rounds in a cache that is too small for all requests, or shared between prompts: the text is the plain text.

use crate::forms::{Turns, constrained};
use crate::support::{random_drafter, random_target};
use crate::tree_rows::{Dice, VOCABULARY};
use burn::tensor::Device;
use spectrain_core::form::Form;
use spectrain_core::process::Processors;
use spectrain_core::rules::Rule;
use spectrain_core::stats::lookup::Lookup;
use spectrain_core::tree::Shape;
use spectrain_draft::Eagle3Proposer;
use spectrain_draft::proposer::{Pick, Plan, Proposer};
use spectrain_draft::untrained::NgramProposer;
use spectrain_draft::untrained::model::DraftModelProposer;
use spectrain_draft::untrained::ngram::Ngrams;
use spectrain_model::{Decoder, Llama, Pages, Request};
use spectrain_verify::judge::judge;
use spectrain_verify::{Cost, Fixed, Room, RunError, SpeculativeDecoder, Task, Transcript};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Eight requests of different lengths whose prompts begin alike.
fn requests(temperature: f64) -> Vec<Request> {
    let common = Dice::new(50).tokens(21);
    let request = |id: u64| Request {
        id,
        prompt: [common.as_slice(), &Dice::new(90 + id).tokens(2 + id as usize)].concat(),
        max_new_tokens: 30 + 5 * id as usize,
        sampling: Processors::at(temperature),
        seed: 6,
        form: Form::default(),
    };
    (0..8).map(request).collect()
}

fn plain(target: &Llama, temperature: f64) -> BTreeMap<u64, Vec<u32>> {
    plain_of(target, requests(temperature))
}

fn plain_of(target: &Llama, requests: Vec<Request>) -> BTreeMap<u64, Vec<u32>> {
    let mut texts = BTreeMap::new();
    let decoder = Decoder { target, stop: &[], batch: 4 };
    decoder.run(requests, 200, |c| drop(texts.insert(c.id, c.ids)), |_| ()).unwrap();
    texts
}

fn run(
    target: &Llama,
    (rule, temperature): (Rule, f64),
    plan: Plan,
    room: Room,
    proposer: &mut dyn Proposer,
) -> Result<(BTreeMap<u64, Transcript>, Cost), RunError> {
    run_of(target, (rule, requests(temperature)), plan, room, proposer)
}

fn run_of(
    target: &Llama,
    (rule, requests): (Rule, Vec<Request>),
    plan: Plan,
    room: Room,
    proposer: &mut dyn Proposer,
) -> Result<(BTreeMap<u64, Transcript>, Cost), RunError> {
    let judge = judge(rule).unwrap();
    let tasks = Task::alike(requests, &plan, judge, &Fixed);
    let decoder = SpeculativeDecoder { target, stop: &[], batch: 4 };
    let mut done = BTreeMap::new();
    let cost = decoder.run_within(room, tasks, proposer, |t| drop(done.insert(t.id, t)))?;
    Ok((done, cost))
}

fn texts(transcripts: &BTreeMap<u64, Transcript>) -> BTreeMap<u64, Vec<u32>> {
    transcripts.iter().map(|(&id, t)| (id, t.ids.clone())).collect()
}

fn eagle(target: &Llama) -> Eagle3Proposer {
    let (drafter, weights) = random_drafter(target, VOCABULARY as usize, 2, &Device::flex());
    Eagle3Proposer::new(drafter, &weights)
}

/// Longest text of [`requests`] with drafts of 5 behind it: 21 + 9 + 65 - 1 + 5.
const LONGEST: usize = 99;

/// Pages of `tokens` tokens that hold the longest request and hardly anything beside it.
fn tight(tokens: usize) -> Room {
    Room { pages: Some(Pages { tokens, count: LONGEST.div_ceil(tokens) }), prefixes: false }
}

#[test]
fn with_hardly_any_room_the_text_is_the_plain_text() {
    let dir = tempfile::tempdir().unwrap();
    let target = random_target(dir.path(), VOCABULARY as usize, 8);
    let trees = Plan::Ranked(Shape::levels(&[2, 1]));
    assert!(trees.drafted() <= 5);
    for (rule, temperature) in [(Rule::Greedy, 0.0), (Rule::SampledMatch, 1.0)] {
        let expected = plain(&target, temperature);
        for plan in [Plan::chain(5, Pick::Argmax), trees.clone()] {
            let (roomy, cost) =
                run(&target, (rule, temperature), plan.clone(), Room::default(), &mut eagle(&target)).unwrap();
            assert_eq!((texts(&roomy), cost.preempted), (expected.clone(), 0));
            for tokens in [1, 3, 16, 64] {
                let room = tight(tokens);
                let (found, cost) = run(&target, (rule, temperature), plan.clone(), room, &mut eagle(&target)).unwrap();
                assert_eq!(texts(&found), expected, "{rule}, {plan:?}, pages of {tokens}");
                assert!(cost.preempted > 3, "{rule}, {plan:?}, pages of {tokens}: {}", cost.preempted);
                // The drafter knows what it knew: no round was lost or repeated, and each drafted the same.
                let calls = |t: &Transcript| t.calls.iter().map(|c| (c.kept, c.accepted)).collect::<Vec<_>>();
                found.iter().for_each(|(id, t)| assert_eq!(calls(t), calls(&roomy[id]), "request {id}"));
                let told: usize = found.values().flat_map(|t| &t.timeline.arrivals).map(|a| a.tokens).sum();
                assert_eq!(told, expected.values().map(Vec::len).sum::<usize>(), "every token is told once");
            }
        }
    }
}

#[test]
fn a_request_that_gave_way_goes_on_within_its_form() {
    let dir = tempfile::tempdir().unwrap();
    let target = random_target(dir.path(), VOCABULARY as usize, 8);
    let turns = Arc::new(Turns { vocabulary: VOCABULARY, step: 0 });
    for (rule, temperature) in [(Rule::Greedy, 0.0), (Rule::SampledMatch, 1.0)] {
        let formed = |request| Request { form: constrained(turns.clone()), ..request };
        let requests: Vec<Request> = requests(temperature).into_iter().map(formed).collect();
        let expected = plain_of(&target, requests.clone());
        let in_turn = |ids: &Vec<u32>| ids.iter().zip(0..).all(|(id, step)| id % 3 == step % 3);
        assert!(expected.values().all(|ids| ids.len() >= 30 && in_turn(ids)), "{expected:?}");
        for plan in [Plan::chain(5, Pick::Argmax), Plan::Ranked(Shape::levels(&[2, 1]))] {
            let found = run_of(&target, (rule, requests.clone()), plan, tight(3), &mut eagle(&target));
            let (found, cost) = found.unwrap();
            assert_eq!(texts(&found), expected, "{rule}");
            assert!(cost.preempted > 3, "{}", cost.preempted);
        }
    }
}

#[test]
fn drawn_drafts_go_on_as_if_nothing_had_given_way() {
    let dir = tempfile::tempdir().unwrap();
    let target = random_target(dir.path(), VOCABULARY as usize, 8);
    for rule in [Rule::Token, Rule::Block] {
        let plan = Plan::chain(5, Pick::Sample);
        let (roomy, _) = run(&target, (rule, 1.0), plan.clone(), Room::default(), &mut eagle(&target)).unwrap();
        let (found, cost) = run(&target, (rule, 1.0), plan, tight(3), &mut eagle(&target)).unwrap();
        assert!(cost.preempted > 3, "{}", cost.preempted);
        assert_eq!(texts(&found), texts(&roomy), "{rule}");
    }
}

#[test]
fn prompts_start_behind_a_known_beginning_and_the_text_is_the_plain_text() {
    let dir = tempfile::tempdir().unwrap();
    let target = random_target(dir.path(), VOCABULARY as usize, 8);
    let ngrams = || NgramProposer::new(Ngrams(Lookup { min_match: 1, max_match: 3 }));
    let drafts = || DraftModelProposer::new(random_target(dir.path(), VOCABULARY as usize, 8));
    for (rule, temperature) in [(Rule::Greedy, 0.0), (Rule::SampledMatch, 1.0)] {
        let expected = plain(&target, temperature);
        for (count, tight) in [(400, false), (LONGEST.div_ceil(4), true)] {
            let room = Room { pages: Some(Pages { tokens: 4, count }), prefixes: true };
            let plan = || Plan::chain(5, Pick::Argmax);
            // The draft model is the target itself: it is right only if it is told the prompt's tokens that did not run.
            let share = if rule == Rule::Greedy { 0.3 } else { 0.8 };
            let proposers: [(&mut dyn Proposer, f64); 2] = [(&mut ngrams(), 1.0), (&mut drafts(), share)];
            for (proposer, share) in proposers {
                let (found, cost) = run(&target, (rule, temperature), plan(), room, proposer).unwrap();
                assert_eq!(texts(&found), expected, "{rule}, {count} pages");
                // The first four prompts are read together; the others find five pages at least.
                assert!(cost.reused >= 4 * 20, "{}", cost.reused);
                assert_eq!(cost.preempted > 0, tight, "{}", cost.preempted);
                let calls: usize = found.values().map(|t| t.calls.len()).sum();
                let tokens: usize = expected.values().map(Vec::len).sum();
                assert!((calls as f64) < share * tokens as f64, "{calls} calls for {tokens} tokens");
            }
        }
        // A drafter that reads features is given those of every prompt row.
        let room = Room { prefixes: true, ..Room::default() };
        let (found, cost) =
            run(&target, (rule, temperature), Plan::chain(5, Pick::Argmax), room, &mut eagle(&target)).unwrap();
        assert_eq!((texts(&found), cost.reused), (expected, 0));
    }
}

#[test]
fn a_request_that_never_fits_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let target = random_target(dir.path(), VOCABULARY as usize, 8);
    let plan = || Plan::chain(5, Pick::Argmax);
    let room = |count| Room { pages: Some(Pages { tokens: 3, count }), prefixes: false };
    let refused = run(&target, (Rule::Greedy, 0.0), plan(), room(32), &mut eagle(&target)).err().unwrap();
    assert_eq!(refused.to_string(), "request 7 needs 99 tokens of cache, drafts included; 96 are available");
    assert!(run(&target, (Rule::Greedy, 0.0), plan(), room(33), &mut eagle(&target)).is_ok());
}
