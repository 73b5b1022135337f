//! What the decoder reports round by round is what the transcripts say at the end.

use crate::support::{random_drafter, random_target};
use burn::tensor::Device;
use spectrain_core::form::Form;
use spectrain_core::process::Processors;
use spectrain_core::rules::Rule;
use spectrain_draft::{Eagle3Proposer, Plan};
use spectrain_model::{Finish, Llama, Request};
use spectrain_verify::judge::{judge, pick};
use spectrain_verify::{Committed, Fixed, SpeculativeDecoder, Task, Transcript};
use std::collections::BTreeMap;
use std::ops::ControlFlow;

const VOCABULARY: usize = 12;
const STOP: [u32; 1] = [5];

/// One report: the tokens and how many of them were drafted.
type Report = (Vec<u32>, usize);

/// Seven requests of different length through three slots.
fn requests(temperature: f64) -> Vec<Request> {
    let prompt = |id: u64| (0..3 + id as u32 % 4).map(|i| (i * 5 + id as u32) % VOCABULARY as u32).collect();
    let request = |id: u64| Request {
        id,
        prompt: prompt(id),
        max_new_tokens: 1 + 6 * id as usize,
        sampling: Processors::at(temperature),
        seed: 4,
        form: Form::default(),
    };
    (0..7).map(request).collect()
}

fn run(
    target: &Llama,
    rule: Rule,
    temperature: f64,
    mut committed: impl FnMut(Committed) -> ControlFlow<()>,
) -> BTreeMap<u64, Transcript> {
    let (drafter, weights) = random_drafter(target, 10, 5, &Device::flex());
    let mut proposer = Eagle3Proposer::new(drafter, &weights);
    let (judge, plan) = (judge(rule).unwrap(), Plan::chain(4, pick(rule)));
    let decoder = SpeculativeDecoder { target, stop: &STOP, batch: 3 };
    let tasks = Task::alike(requests(temperature), &plan, judge, &Fixed);
    let mut transcripts = BTreeMap::new();
    let done = |t: Transcript| drop(transcripts.insert(t.id, t));
    decoder.run_watched(tasks, &mut proposer, &mut committed, done).unwrap();
    transcripts
}

#[test]
fn reports_add_up_to_the_transcript() {
    let dir = tempfile::tempdir().unwrap();
    let target = random_target(dir.path(), VOCABULARY, 3);
    for (rule, temperature) in [(Rule::Greedy, 0.0), (Rule::Token, 1.0), (Rule::SampledMatch, 0.7)] {
        let mut reports: BTreeMap<u64, Vec<Report>> = BTreeMap::new();
        let transcripts = run(&target, rule, temperature, |c| {
            reports.entry(c.id).or_default().push((c.tokens.to_vec(), c.accepted));
            ControlFlow::Continue(())
        });
        assert_eq!(transcripts.len(), 7);
        let mut accepted = 0;
        for (id, transcript) in &transcripts {
            let (prompt, rounds) = reports[id].split_first().unwrap();
            assert_eq!((prompt.0.len(), prompt.1), (1, 0), "{rule}, request {id}: the prompt's own token");
            let tokens: Vec<u32> = reports[id].iter().flat_map(|(tokens, _)| tokens.clone()).collect();
            assert_eq!(tokens, transcript.ids, "{rule}, request {id}");
            let counted: Vec<(usize, usize)> = transcript.rounds().map(|r| (r.committed, r.accepted)).collect();
            let told: Vec<(usize, usize)> = rounds.iter().map(|(tokens, a)| (tokens.len(), *a)).collect();
            assert_eq!(told, counted, "{rule}, request {id}");
            accepted += told.iter().map(|(_, a)| a).sum::<usize>();
        }
        assert!(accepted > 0, "{rule}: no draft was accepted, so the test would see nothing");
    }
}

/// As many as are wanted of the reports of `victim`, behind which it is taken back.
fn break_at(target: &Llama, rule: (Rule, f64), victim: u64, reports: usize) -> (BTreeMap<u64, Transcript>, usize) {
    let mut told = 0;
    let transcripts = run(target, rule.0, rule.1, |c| {
        told += usize::from(c.id == victim);
        if c.id == victim && told == reports { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    (transcripts, told)
}

#[test]
fn a_break_takes_back_one_request() {
    let dir = tempfile::tempdir().unwrap();
    let target = random_target(dir.path(), VOCABULARY, 3);
    for rule in [(Rule::Greedy, 0.0), (Rule::Token, 1.0), (Rule::SampledMatch, 0.7)] {
        let whole = run(&target, rule.0, rule.1, |_| ControlFlow::Continue(()));
        let mut cut = 0;
        for (victim, full) in &whole {
            let last = full.timeline.arrivals.len();
            for reports in [1, 2, 4, last].into_iter().filter(|&reports| reports <= last) {
                let (found, told) = break_at(&target, rule, *victim, reports);
                assert_eq!((found.len(), told), (whole.len(), reports), "request {victim} goes on");
                for (id, answer) in found.iter().filter(|(id, _)| *id != victim) {
                    assert_eq!((&answer.ids, answer.finish), (&whole[id].ids, whole[id].finish), "request {id}");
                    assert_eq!(answer.calls, whole[id].calls, "request {id}");
                }
                // What the call added counts, also where the text ends with it.
                let answer = &found[victim];
                assert_eq!(answer.calls, full.calls[..reports - 1], "request {victim} after {reports} reports");
                let tokens = |t: &Transcript| t.timeline.arrivals.iter().map(|a| a.tokens).collect::<Vec<_>>();
                assert_eq!(tokens(answer), tokens(full)[..reports]);
                assert_eq!(answer.ids, full.ids[..tokens(answer).iter().sum()]);
                assert_eq!(answer.finish, if reports == last { full.finish } else { Finish::Cancelled });
                cut += usize::from(reports < last);
            }
        }
        assert!(cut > 10, "hardly anything was taken back: {cut}");
    }
}
