//! A measurement against what the decoder reported call by call, and estimates against shorter drafts.

use crate::support::{random_drafter, random_target};
use burn::tensor::{Device, Tensor};
use spectrain_core::process::Processors;
use spectrain_core::rules::Rule;
use spectrain_core::stats::Finish;
use spectrain_core::tree::TreeKind;
use spectrain_draft::Eagle3Proposer;
use spectrain_model::{Head, Llama};
use spectrain_verify::evaluate::{Question, Settings};
use spectrain_verify::{Bench, Measurement, PlainRun, compare};

const VOCABULARY: usize = 12;
const STOP: [u32; 1] = [5];
const BATCH: usize = 3;

fn questions() -> Vec<Question> {
    let prompt = |id: u32| (0..3 + id % 4).map(|i| (i * 5 + id) % VOCABULARY as u32).collect();
    (0..24).map(|id| Question { task: ["even", "odd"][id as usize % 2].into(), prompt: prompt(id) }).collect()
}

fn settings(rule: Rule, temperature: f64, length: usize) -> Settings {
    Settings {
        rule,
        policy: spectrain_verify::PolicyKind::Fixed,
        costs: None,
        sampling: Processors::at(temperature),
        length,
        tree: TreeKind::Chain,
        ranks: Vec::new(),
        batch: BATCH,
        max_new_tokens: 20,
        seed: 4,
        slo: None,
    }
}

fn measure(target: &Llama, settings: &Settings) -> (PlainRun, Measurement) {
    let (drafter, weights) = random_drafter(target, 10, 5, &Device::flex());
    let mut proposer = Eagle3Proposer::new(drafter, &weights);
    let mut bench = Bench { target, proposer: &mut proposer, stop: &STOP };
    let mut found = compare(&mut bench, &questions(), std::slice::from_ref(settings), &mut |_| Ok(()), |_| ()).unwrap();
    (found.plain, found.measurements.remove(0))
}

#[test]
fn calls_and_arrivals_add_up_to_the_answers() {
    let dir = tempfile::tempdir().unwrap();
    let target = random_target(dir.path(), VOCABULARY, 3);
    for (rule, temperature) in [(Rule::Greedy, 0.0), (Rule::Token, 1.0), (Rule::SampledMatch, 0.7)] {
        let (_, measured) = measure(&target, &settings(rule, temperature, 4));
        let mut ends = [0, 0];
        let (mut overshot, mut calls, mut tokens) = (0, 0, 0);
        for t in &measured.transcripts {
            let committed: usize = t.rounds().map(|r| r.committed).sum();
            assert_eq!((1 + committed, t.timeline.tokens()), (t.ids.len(), t.ids.len()));
            assert_eq!(t.timeline.arrivals.len(), 1 + t.calls.len());
            assert!(t.timeline.arrivals.windows(2).all(|w| w[0].at <= w[1].at));
            assert!(t.timeline.ttft().unwrap() > 0.0);
            for (i, call) in t.calls.iter().enumerate() {
                assert_eq!(call.end.is_some(), i + 1 == t.calls.len(), "{rule}: only the last call ends the text");
                assert!(call.accepted >= call.kept.accepted && call.accepted <= 4);
                let whole = call.kept.committed == call.accepted + 1;
                assert!(whole || call.end.is_some(), "{rule}: only an end trims");
                match call.end {
                    Some(Finish::Stop) => assert_eq!(call.stop, Some(call.kept.committed)),
                    Some(Finish::Length) => assert!(call.stop.is_none_or(|s| s > call.kept.committed)),
                    Some(other) => panic!("nothing is barred or taken back: {other:?}"),
                    None => assert_eq!(call.stop, None),
                }
                overshot += usize::from(!whole);
            }
            if let Some(end) = t.calls.last().and_then(|call| call.end) {
                assert_eq!(end, t.finish);
                ends[usize::from(end == Finish::Length)] += 1;
            }
            calls += t.calls.len();
            tokens += t.ids.len();
        }
        assert!(ends.iter().all(|&n| n > 0) && overshot > 0, "{rule}: {ends:?}, {overshot}: the test would see little");
        let overall = &measured.evaluation.overall;
        assert_eq!((overall.output_tokens, overall.acceptance.target_calls), (Some(tokens), calls));
        let d = overall.definitions;
        assert_eq!(d.as_sglang, Some(tokens as f64 / calls as f64));
        assert!(d.as_eagle > Some(overall.acceptance.tokens_per_target_call), "{rule}: overshoot is in");
        assert_eq!(overall.latency.unwrap().itl.unwrap().count, tokens - questions().len());
    }
}

/// A higher cap moves the end of a text and nothing before it, so there the call that the cap cut is seen whole.
#[test]
fn what_the_cap_cut_off_is_what_a_higher_cap_shows() {
    let dir = tempfile::tempdir().unwrap();
    let target = random_target(dir.path(), VOCABULARY, 3);
    for (rule, temperature) in [(Rule::Greedy, 0.0), (Rule::Token, 1.0)] {
        let capped = |max_new_tokens| Settings { max_new_tokens, ..settings(rule, temperature, 4) };
        let high = measure(&target, &capped(40)).1;
        let mut cut = 0;
        for cap in 8..14 {
            let low = measure(&target, &capped(cap)).1;
            for (low, high) in low.transcripts.iter().zip(&high.transcripts) {
                let Some(last) = low.calls.last().filter(|call| call.end == Some(Finish::Length)) else { continue };
                let whole = &high.calls[low.calls.len() - 1];
                assert_eq!((last.accepted, last.stop), (whole.accepted, whole.stop), "{rule}, cap {cap}");
                cut += usize::from(last.accepted > last.kept.accepted);
            }
        }
        assert!(cut > 0, "{rule}: no cap cut off an accepted draft, so the test would see nothing");
    }
}

#[test]
fn plain_decoding_scores_one_and_is_shared() {
    let dir = tempfile::tempdir().unwrap();
    let target = random_target(dir.path(), VOCABULARY, 3);
    let (plain, measured) = measure(&target, &settings(Rule::SampledMatch, 0.7, 2));
    let counted = &plain.figures.overall;
    let tokens: usize = plain.answers.values().map(|c| c.ids.len()).sum();
    assert_eq!(
        (counted.interval.low, counted.acceptance.tokens_per_target_call, counted.interval.high),
        (1.0, 1.0, 1.0)
    );
    assert_eq!((counted.output_tokens, counted.acceptance.target_calls), (Some(tokens), tokens - questions().len()));
    assert_eq!(counted.latency.unwrap().ttft.unwrap().count, questions().len());
    assert_eq!(measured.evaluation.same_text, Some(questions().len()));
    assert_eq!(measured.evaluation.plain.as_ref(), Some(&plain.figures));
}

/// Who else is measured, and in what order, changes nothing but the times.
#[test]
fn by_turns_everyone_answers_as_alone() {
    let dir = tempfile::tempdir().unwrap();
    let target = random_target(dir.path(), VOCABULARY, 3);
    let all: Vec<Settings> = [1, 4, 2].map(|length| settings(Rule::Token, 1.0, length)).to_vec();
    let (drafter, weights) = random_drafter(&target, 10, 5, &Device::flex());
    let mut proposer = Eagle3Proposer::new(drafter, &weights);
    let mut bench = Bench { target: &target, proposer: &mut proposer, stop: &STOP };
    let found = compare(&mut bench, &questions(), &all, &mut |_| Ok(()), |_| ()).unwrap();
    assert!(found.plain.rates.len() > 2, "with one stint the test would see nothing");
    for (settings, together) in all.iter().zip(&found.measurements) {
        let (plain, alone) = measure(&target, settings);
        let texts = |m: &Measurement| m.transcripts.iter().map(|t| (t.id, t.ids.clone())).collect::<Vec<_>>();
        assert_eq!(texts(together), texts(&alone), "length {}", settings.length);
        assert_eq!(together.transcripts.len(), questions().len());
        assert_eq!(together.evaluation.overall.acceptance, alone.evaluation.overall.acceptance);
        let written = |run: &PlainRun| run.answers.values().map(|c| c.ids.clone()).collect::<Vec<_>>();
        assert_eq!(written(&found.plain), written(&plain));
        let interval = together.evaluation.speedup_interval.unwrap();
        assert!((interval.estimate / together.evaluation.speedup - 1.0).abs() < 1e-9);
    }
}

#[test]
fn memory_is_what_the_shapes_say() {
    let dir = tempfile::tempdir().unwrap();
    let target = random_target(dir.path(), VOCABULARY, 3);
    let (plain, measured) = measure(&target, &settings(Rule::Greedy, 0.0, 4));
    let memory = measured.evaluation.memory.unwrap();
    // support.rs: hidden 32, 3 layers, 4 and 2 heads of 8, feed-forward 48, an untied head.
    let layer = 2 * 32 + 2 * 32 * 32 + 2 * 16 * 32 + 3 * 48 * 32;
    // Beside their rows, heads hold the copy that products read.
    let copy = |tokens: usize| Head::new(Tensor::zeros([tokens, 32], target.device())).copies();
    assert_eq!(memory.target_weights, 4 * (2 * VOCABULARY * 32 + 32 + 3 * layer) + copy(VOCABULARY));
    assert_eq!(plain.figures.memory.target_weights, memory.target_weights);
    // The drafter: fusion of 3 taps, attention over 2 · 32, feed-forward, 4 norms, a head over 10 tokens.
    let drafter = 3 * 32 * 32 + 64 * (32 + 2 * 16) + 32 * 32 + 3 * 48 * 32 + 4 * 32 + 10 * 32;
    assert_eq!(memory.drafter_weights, 4 * drafter + copy(10));
    // Keys and values of 16 numbers a token and layer; a slot holds 6 prompt and 20 answer tokens and a round's 5.
    let slots = BATCH * (6 + 20 + 5);
    assert_eq!(memory.target_cache, slots * 3 * 2 * 16 * 4);
    assert_eq!(memory.drafter_cache, slots * 2 * 16 * 4);
    assert_eq!(memory.provisional, BATCH * (5 * 3 + 3) * 2 * 16 * 4);
    assert_eq!(plain.figures.memory.target_cache, BATCH * (6 + 20) * 3 * 2 * 16 * 4);
}

/// The first round of an answer starts at the same place at every length, so there the truncated round is the truth.
#[test]
fn first_rounds_cut_short_are_the_rounds_of_shorter_drafts() {
    let dir = tempfile::tempdir().unwrap();
    let target = random_target(dir.path(), VOCABULARY, 3);
    for (rule, temperature) in [(Rule::Greedy, 0.0), (Rule::Token, 1.0), (Rule::SampledMatch, 0.7)] {
        let (_, longest) = measure(&target, &settings(rule, temperature, 4));
        let mut cut = 0;
        for length in 1..4 {
            let (_, shorter) = measure(&target, &settings(rule, temperature, length));
            for (long, short) in longest.transcripts.iter().zip(&shorter.transcripts) {
                let (Some(long), Some(short)) = (long.calls.first(), short.calls.first()) else { continue };
                assert_eq!(long.truncated(length), short.kept, "{rule}, length {length}");
                cut += usize::from(long.kept.accepted > length);
            }
            let estimate = longest.estimate(&questions(), length).unwrap().unwrap();
            let (a, l) = (&estimate.overall.acceptance, &longest.evaluation.overall.acceptance);
            assert_eq!(a.accept_prefix, l.accept_prefix[..length], "survival does not change by cutting");
            assert_eq!(estimate.tasks.len(), 2);
        }
        assert!(cut > 0, "{rule}: nothing was cut, so the test would see nothing");
    }
    let (_, block) = measure(&target, &settings(Rule::Block, 1.0, 4));
    assert_eq!(block.estimate(&questions(), 2).unwrap(), None);
}
