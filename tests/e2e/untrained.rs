//! Proposers without training: what they propose, and that the text stays the target's.

use crate::identity::{accepted_of_equal_texts, setup};
use crate::law::{VOCABULARY, p_value_with};
use crate::support::{random_target, random_target_of, request, wanted, write_tokenizer};
use burn::tensor::Device;
use spectrain_core::form::Form;
use spectrain_core::process::Processors;
use spectrain_core::rng::{Key, Purpose};
use spectrain_core::rules::{Rule, Verdict};
use spectrain_core::stats::lookup::Lookup;
use spectrain_draft::ProposerKind;
use spectrain_draft::proposer::{Observed, Pick, Plan, Proposer};
use spectrain_draft::untrained::automaton::Automaton;
use spectrain_draft::untrained::model::DraftModelProposer;
use spectrain_draft::untrained::ngram::Ngrams;
use spectrain_draft::untrained::suffix::Suffixes;
use spectrain_draft::untrained::text::TextProposer;
use spectrain_draft::untrained::{NgramProposer, ProposerError, SuffixProposer};
use spectrain_model::{Llama, Request};
use spectrain_verify::judge::{Round, judge};
use spectrain_verify::{Fixed, SpeculativeDecoder, Task};
use std::path::{Path, PathBuf};

const LENGTH: usize = 5;

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../checkpoints/tiny")
}

fn random_text(stream: u64, length: usize, vocabulary: usize) -> Vec<u32> {
    (0..length as u64).map(|i| Key::new(5, stream, i, Purpose::Noise).below_at(0, vocabulary) as u32).collect()
}

/// The whole text is searched, as the words say.
fn brute_force(text: &[u32], Lookup { min_match, max_match }: Lookup, length: usize) -> Vec<u32> {
    let n = text.len();
    for matched in (min_match..=max_match.min(n)).rev() {
        let suffix = &text[n - matched..];
        if let Some(start) = (matched..n).rev().find(|&end| &text[end - matched..end] == suffix) {
            let mut copied = text.to_vec();
            (0..length).for_each(|i| copied.push(copied[start + i]));
            return copied[n..].to_vec();
        }
    }
    Vec::new()
}

#[test]
fn ngram_proposals_are_those_of_a_search_through_the_text() {
    let mut found = [0, 0];
    for (stream, (vocabulary, bounds)) in
        [(2, (1, 3)), (3, (2, 4)), (6, (1, 1)), (6, (2, 5)), (40, (1, 4)), (40, (3, 64))].into_iter().enumerate()
    {
        let lookup = Lookup { min_match: bounds.0, max_match: bounds.1 };
        let mut proposer = NgramProposer::new(Ngrams(lookup));
        proposer.open(2, 0);
        let texts = [0, 1].map(|slot| random_text(10 * stream as u64 + slot, 160, vocabulary));
        // The slots take turns, and commit several tokens at a time.
        let mut known = [1, 1];
        (0..2).for_each(|slot| proposer.start(slot, &texts[slot][..3]));
        while known[0] < 150 {
            for slot in 0..2 {
                let next = texts[slot][known[slot]..known[slot] + 1 + known[slot] % 4].to_vec();
                known[slot] += next.len();
                proposer.observe(&[Observed { slot, next }], Vec::new());
                let text = &texts[slot][..known[slot]];
                assert_eq!(proposer.text(slot), text);
                let draft =
                    proposer.draft(&[wanted(slot, &Plan::chain(7, Pick::Argmax), &request(0, 0))]).unwrap().remove(0);
                assert_eq!(draft.tokens, brute_force(text, lookup, 7), "{lookup:?} {text:?}");
                assert_eq!(draft.tokens, lookup.propose(text, 7));
                found[usize::from(draft.tokens.is_empty())] += 1;
            }
        }
    }
    assert!(found.iter().all(|&n| n > 50), "both must occur: {found:?}");
}

#[test]
fn the_automaton_counts_every_substring() {
    for (stream, vocabulary) in [2, 3, 9].into_iter().enumerate() {
        let text = random_text(100 + stream as u64, 90, vocabulary);
        let mut automaton = Automaton::default();
        for n in 0..text.len() {
            automaton.push(text[n]);
            let known = &text[..=n];
            let occurs = |part: &[u32]| known.windows(part.len()).filter(|w| *w == part).count();
            let (_, matched) = automaton.earlier();
            let longest = (1..=n).rev().find(|&m| occurs(&known[known.len() - m..]) > 1).unwrap_or(0);
            assert_eq!(matched, longest, "{known:?}");
            if matched > 0 {
                let suffix = &known[known.len() - matched..];
                let (state, _) = automaton.earlier();
                let (token, _, share) = automaton.likeliest(state).unwrap();
                let after = |token: u32| occurs(&[suffix, &[token]].concat());
                let most = (0..vocabulary as u32).map(after).max().unwrap();
                let all: usize = (0..vocabulary as u32).map(after).sum();
                assert_eq!(after(token), most);
                assert!((share - most as f64 / all as f64).abs() < 1e-12);
            }
            let probe = random_text(200 + n as u64, 12, vocabulary);
            let (_, matched) = automaton.matching(&probe);
            let longest = (1..=probe.len().min(known.len())).rev().find(|&m| occurs(&probe[probe.len() - m..]) > 0);
            assert_eq!(matched, longest.unwrap_or(0));
        }
    }
}

#[test]
fn finished_answers_are_proposed_to_later_requests() {
    let answer = [7, 8, 9, 10, 11];
    let drafts = [false, true].map(|shared| {
        let mut proposer = SuffixProposer::new(Suffixes::new(shared));
        proposer.open(1, 0);
        proposer.start(0, &[1, 2]);
        proposer.observe(&[Observed { slot: 0, next: [&[2], answer.as_slice()].concat() }], Vec::new());
        proposer.start(0, &[3, 4, 7]);
        proposer.observe(&[Observed { slot: 0, next: vec![4, 7, 8] }], Vec::new());
        let draft =
            proposer.draft(&[wanted(0, &Plan::chain(9, Pick::Argmax), &request(0, 0))]).unwrap().remove(0).tokens;
        proposer.open(1, 0);
        proposer.start(0, &[3, 7]);
        proposer.observe(&[Observed { slot: 0, next: vec![7, 8] }], Vec::new());
        let fresh =
            proposer.draft(&[wanted(0, &Plan::chain(9, Pick::Argmax), &request(0, 0))]).unwrap().remove(0).tokens;
        assert!(fresh.is_empty(), "a run must not know the answers of the one before");
        draft
    });
    // The copy ends where the answer did.
    assert_eq!(drafts, [vec![], vec![9, 10, 11]]);
}

/// Every kind, the model a random one of the tiny target's vocabulary.
pub fn kinds(target: &Llama, dir: &Path) -> Vec<(&'static str, Box<dyn Proposer>)> {
    let model = random_target_of(dir, target.config().vocab_size, 1, 9);
    vec![
        ("ngram", Box::new(NgramProposer::new(Ngrams(Lookup { min_match: 1, max_match: 3 })))),
        ("suffix", Box::new(SuffixProposer::new(Suffixes::new(false)))),
        ("suffix:shared", Box::new(SuffixProposer::new(Suffixes::new(true)))),
        ("model", Box::new(DraftModelProposer::new(model))),
    ]
}

#[test]
fn text_of_untrained_proposers_is_the_plain_text() {
    let dir = tempfile::tempdir().unwrap();
    let s = setup(&tiny());
    for (rule, temperature) in [(Rule::Greedy, 0.0), (Rule::SampledMatch, 1.0)] {
        for (name, proposer) in kinds(&s.target, dir.path()) {
            let plan = Plan::chain(LENGTH, Pick::Argmax);
            let histogram = accepted_of_equal_texts(&s, (rule, temperature), plan, |_| proposer);
            let accepted: usize = histogram[1..].iter().sum();
            // A random model guesses one token in its vocabulary.
            assert!(accepted > if name == "model" { 0 } else { 50 }, "{name}: {histogram:?}");
        }
    }
}

/// The target as its own drafter is always right, if its cache follows every acceptance and rejection.
#[test]
fn a_draft_models_cache_follows_the_text() {
    let dir = tempfile::tempdir().unwrap();
    let target = random_target(dir.path(), 12, 3);
    let mut proposer = DraftModelProposer::new(Llama::load(dir.path(), &Device::flex()).unwrap());
    // Keeps less than the rule would, so that drafted rows are thrown away.
    let less = |round: &Round| {
        let mut verdict = (judge(Rule::Greedy).unwrap())(round)?;
        let accepted = verdict.path.len();
        assert_eq!(accepted, round.draft.tokens.len(), "a draft of the same model was rejected");
        let kept = round.position() % (accepted + 1);
        if kept < accepted {
            verdict = Verdict { next: Some(round.draft.tokens[kept]), ..verdict };
            verdict.path.truncate(kept);
            verdict.tokens.truncate(kept);
        }
        Ok(verdict)
    };
    let request = |id: u64| Request {
        id,
        prompt: random_text(300 + id, 2 + id as usize, 12),
        max_new_tokens: 20 + 5 * id as usize,
        sampling: Processors::at(0.0),
        seed: 1,
        form: Form::default(),
    };
    let plan = Plan::chain(4, Pick::Argmax);
    let decoder = SpeculativeDecoder { target: &target, stop: &[], batch: 3 };
    let tasks = Task::alike((0..7).map(request), &plan, &less, &Fixed);
    let mut rounds = 0;
    decoder.run(tasks, &mut proposer, |t| rounds += t.calls.len()).unwrap();
    assert!(rounds > 50);
}

#[test]
fn a_draft_model_of_other_tokens_is_refused() {
    let dirs = [(12, 12), (12, 13), (14, 12)].map(|(vocabulary, words)| {
        let dir = tempfile::tempdir().unwrap();
        let target = random_target(dir.path(), vocabulary, 3);
        write_tokenizer(dir.path(), words);
        (dir, target)
    });
    let hash = spectrain_core::tokenizer::Tokenizer::load(dirs[0].0.path()).unwrap().content_hash().to_owned();
    let asked = |i: usize| ProposerKind::Model(dirs[i].0.path().into()).proposer(&dirs[0].1, &hash);
    assert!(asked(0).is_ok());
    for (i, what) in [(1, "tokenizer"), (2, "vocabulary")] {
        match asked(i).err() {
            Some(ProposerError::OtherTokens { what: found, .. }) => assert_eq!(found, what),
            other => panic!("{other:?}"),
        }
    }
}

/// Proposes what followed the newest token before, however short the text: certain, and often wrong.
fn points() -> TextProposer<Ngrams> {
    NgramProposer::new(Ngrams(Lookup { min_match: 1, max_match: 2 }))
}

#[test]
fn point_proposals_keep_the_targets_law_under_the_token_rule() {
    let dir = tempfile::tempdir().unwrap();
    let target = random_target(dir.path(), VOCABULARY, 3);
    let plan = Plan::chain(3, Pick::Sample);
    for rule in [Rule::Token, Rule::Block] {
        let p = p_value_with(&target, judge(rule).unwrap(), plan.clone(), &mut points(), 6);
        assert!(p > 1e-4, "{rule}: p = {p:e}");
    }
    let model = Llama::load(dir.path(), &Device::flex()).unwrap();
    let other = tempfile::tempdir().unwrap();
    let mut models = [model, random_target(other.path(), VOCABULARY, 8)].map(DraftModelProposer::new);
    for proposer in &mut models {
        let p = p_value_with(&target, judge(Rule::Token).unwrap(), plan.clone(), proposer, 5);
        assert!(p > 1e-4, "p = {p:e}");
    }
}
