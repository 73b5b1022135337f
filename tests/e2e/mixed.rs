//! Batches whose requests differ in everything, and rows at the edges.

use crate::support::{noise, random_drafter, random_target};
use burn::tensor::Device;
use spectrain_core::form::Form;
use spectrain_core::process::{ProcessError, Processors, RowError};
use spectrain_core::rules::{Rule, RuleError, keyed};
use spectrain_core::tree::{Replacement, SampledTree, Tree, TreeKind};
use spectrain_draft::Eagle3Proposer;
use spectrain_draft::proposer::{Draft, Plan};
use spectrain_model::{Decoder, Finish, Llama, Prefix, Request};
use spectrain_verify::judge::{Round, judge};
use spectrain_verify::plan::plan;
use spectrain_verify::{Fixed, LengthPolicy, PolicyKind, SpeculativeDecoder, Task};
use std::collections::BTreeMap;

const VOCABULARY: usize = 12;
const STOP: [u32; 1] = [5];

/// What a request asks for; no tree for plain decoding.
type Asked = (Option<(&'static str, Rule)>, f64);

/// Each of its own rule, tree and temperature.
const ASKED: [Asked; 10] = [
    (None, 0.0),
    (None, 0.9),
    (Some(("chain", Rule::Token)), 1.0),
    (Some(("chain", Rule::Block)), 0.8),
    (Some(("dynamic:9", Rule::SampledMatch)), 0.7),
    (Some(("sampled:2,2", Rule::SpecInfer)), 1.1),
    (Some(("sampled:3,1", Rule::Sequoia)), 0.9),
    (Some(("sampled:2,2,1", Rule::Traversal)), 1.0),
    (Some(("static:3,2", Rule::Greedy)), 0.0),
    (Some(("chain", Rule::SampledMatch)), 1.3),
];

/// Processors that differ from request to request.
fn sampling(id: usize, temperature: f64) -> Processors {
    let base = Processors::at(temperature);
    match id % 3 {
        0 => Processors { repetition_penalty: 1.2, min_length: 6, ..base },
        1 => Processors { top_p: 0.9, top_k: 7, frequency_penalty: 0.3, ..base },
        _ => base,
    }
}

fn request(id: usize, temperature: f64) -> Request {
    Request {
        id: id as u64,
        prompt: (0..2 + id as u32 % 5).map(|i| (5 * i + id as u32) % VOCABULARY as u32).collect(),
        max_new_tokens: 8 + 5 * id,
        sampling: sampling(id, temperature),
        seed: 40 + id as u64 % 2,
        form: Form::default(),
    }
}

fn plans() -> Vec<Option<Plan>> {
    let planned = |(i, (tree, _)): (usize, &Asked)| {
        tree.map(|(tree, rule)| plan(&tree.parse::<TreeKind>().unwrap(), rule, 2 + i % 4, &[]).unwrap())
    };
    ASKED.iter().enumerate().map(planned).collect()
}

fn tasks<'a>(plans: &'a [Option<Plan>], shrinking: &'a dyn LengthPolicy) -> Vec<Task<'a>> {
    let task = |id: usize| {
        let (tree, temperature) = ASKED[id % ASKED.len()];
        let request = request(id, temperature);
        match (tree, &plans[id % ASKED.len()]) {
            (Some((_, rule)), Some(plan)) => {
                Task::of(request, plan, judge(rule).unwrap(), if id > 9 { shrinking } else { &Fixed })
            }
            _ => Task::plain(request),
        }
    };
    (0..2 * ASKED.len()).map(task).collect()
}

type Texts = BTreeMap<u64, (Vec<u32>, Finish)>;

fn run(target: &Llama, tasks: Vec<Task>, batch: usize) -> Texts {
    let (drafter, weights) = random_drafter(target, 9, 5, &Device::flex());
    let mut proposer = Eagle3Proposer::new(drafter, &weights);
    let mut texts = BTreeMap::new();
    let decoder = SpeculativeDecoder { target, stop: &STOP, batch };
    decoder.run(tasks, &mut proposer, |t| drop(texts.insert(t.id, (t.ids, t.finish)))).unwrap();
    texts
}

fn plain(target: &Llama, requests: Vec<Request>) -> Texts {
    let mut texts = BTreeMap::new();
    let decoder = Decoder { target, stop: &STOP, batch: 4 };
    decoder.run(requests, 200, |c| drop(texts.insert(c.id, (c.ids, c.finish))), |_| ()).unwrap();
    texts
}

#[test]
fn neighbours_do_not_change_a_text() {
    let dir = tempfile::tempdir().unwrap();
    let target = random_target(dir.path(), VOCABULARY, 3);
    let (plans, shrinking) = (plans(), PolicyKind::Shrinking.policy(None).unwrap());
    let all = || tasks(&plans, shrinking.as_ref());
    let together = run(&target, all(), 7);
    assert_eq!(together.len(), all().len());
    let backwards = run(&target, all().into_iter().rev().collect(), 3);
    assert_eq!(together, backwards);
    for task in all() {
        let id = task.request.id;
        assert_eq!(run(&target, vec![task], 1)[&id], together[&id], "request {id} alone");
    }
    let plain = plain(&target, all().into_iter().map(|task| task.request).collect());
    let mut ends = [0, 0];
    for (id, text) in &plain {
        ends[usize::from(text.1 == Finish::Stop)] += 1;
        let promised = ASKED[*id as usize % ASKED.len()].0.map_or(Rule::Greedy, |(_, rule)| rule);
        if matches!(promised, Rule::Greedy | Rule::SampledMatch) {
            assert_eq!(text, &together[id], "request {id}");
        }
    }
    assert!(ends.iter().all(|&n| n > 2), "texts end in both ways: {ends:?}");
}

/// Every token is barred from the start for one request, and behind token 3 for the others.
#[test]
fn a_text_ends_where_no_token_may_follow() {
    let dir = tempfile::tempdir().unwrap();
    let target = random_target(dir.path(), VOCABULARY, 3);
    let barred = |start: &[u32]| (0..VOCABULARY as u32).map(|token| [start, &[token]].concat()).collect();
    let (plans, shrinking) = (plans(), PolicyKind::Shrinking.policy(None).unwrap());
    let mut tasks = tasks(&plans, shrinking.as_ref());
    for (id, task) in tasks.iter_mut().enumerate() {
        task.request.max_new_tokens = 60;
        task.request.sampling.bad_words = barred(if id == 4 { &[] } else { &[3] });
    }
    let plain = plain(&target, tasks.iter().map(|task| task.request.clone()).collect());
    let texts = run(&target, tasks, 6);
    assert_eq!(texts[&4], (Vec::new(), Finish::Masked));
    assert_eq!(plain[&4], (Vec::new(), Finish::Masked));
    let masked = |texts: &Texts| texts.values().filter(|(_, finish)| *finish == Finish::Masked).count();
    assert!(masked(&texts) > 6 && masked(&plain) > 6, "{texts:?}");
    for (ids, finish) in texts.values().chain(plain.values()) {
        let at = ids.iter().position(|&token| token == 3);
        assert_eq!(*finish == Finish::Masked, ids.is_empty() || at.is_some(), "{ids:?} {finish:?}");
        assert!(at.is_none_or(|at| at + 1 == ids.len()), "{ids:?} goes on behind token 3");
    }
    for id in [0, 1, 8, 9, 10, 11, 18, 19] {
        assert_eq!(texts[&id], plain[&id], "request {id}");
    }
}

const RULES: [Rule; 7] =
    [Rule::Greedy, Rule::SampledMatch, Rule::Token, Rule::Block, Rule::SpecInfer, Rule::Sequoia, Rule::Traversal];

/// A draft of two levels under `rule`, all of it drawn from `q`.
fn drafted(rule: Rule, q: &[f64], request: &Request) -> Draft {
    let mut chance = keyed(request.seed, request.id, 1);
    let replacement = if rule == Rule::SpecInfer { Replacement::With } else { Replacement::Without };
    let mut tree = SampledTree::root(0, 1, replacement);
    let width = if matches!(rule, Rule::Token | Rule::Block) { 1 } else { 2 };
    let mut level = vec![0];
    for _ in 0..2 {
        level = level.into_iter().flat_map(|n| tree.extend(n, q.to_vec(), width, &mut chance).unwrap()).collect();
    }
    let d2t: Vec<u32> = (0..q.len() as u32).collect();
    let draft = Draft::chosen(tree.tree(), &d2t);
    match rule {
        Rule::Token | Rule::Block => Draft { parents: None, q: vec![q.to_vec(); draft.tokens.len()], ..draft },
        Rule::SpecInfer | Rule::Sequoia | Rule::Traversal => Draft { drawn: Some(tree), ..draft },
        _ => draft,
    }
}

/// Logits of `nodes` rows: some tokens barred, one token left, or nothing left below the root.
fn logits(kind: usize, vocabulary: usize, nodes: usize, seed: u64) -> Vec<f32> {
    let mut rows = noise(seed, kind as u64, vocabulary * nodes, 2.0);
    for (i, logit) in rows.iter_mut().enumerate() {
        let (node, token) = (i / vocabulary, i % vocabulary);
        let barred = match kind {
            0 => (token + node) % 2 == 1,
            1 => token != (seed as usize + node) % vocabulary,
            _ => node > 0,
        };
        if barred {
            *logit = f32::NEG_INFINITY;
        }
    }
    rows
}

/// Asks `check` about a round of every rule, at vocabularies off every tile.
fn rounds(check: impl Fn(Rule, &Round, &mut Vec<f32>, u64)) {
    for vocabulary in [1, 2, 7, 17, 33, 129, 1025] {
        let d2t: Vec<u32> = (0..vocabulary as u32).collect();
        let uniform = vec![1.0 / vocabulary as f64; vocabulary];
        let one_hot: Vec<f64> = (0..vocabulary).map(|token| f64::from(token + 1 == vocabulary)).collect();
        for (rule, seed) in RULES.into_iter().flat_map(|rule| (0..12).map(move |seed| (rule, seed))) {
            let temperature = if rule == Rule::Greedy { 0.0 } else { 0.9 };
            let penalty = if seed % 2 == 0 { 1.0 } else { 1.2 };
            let sampling = Processors { repetition_penalty: penalty, ..Processors::at(temperature) };
            let request =
                Request { id: seed, prompt: vec![0], max_new_tokens: 9, sampling, seed: 3, form: Form::default() };
            let draft = drafted(rule, if seed % 3 == 0 { &one_hot } else { &uniform }, &request);
            let tree: Tree = draft.tree(0, 1).unwrap();
            let mut rows = logits(seed as usize % 4, vocabulary, tree.len(), seed);
            let prefix = Prefix { request: &request, answer: &[0], end_tokens: &[], state: None, script: None };
            let own = rows.clone();
            let round = Round { tree: &tree, draft: &draft, d2t: &d2t, logits: &own, vocabulary, prefix };
            check(rule, &round, &mut rows, seed);
        }
    }
}

#[test]
fn no_rule_writes_a_barred_token() {
    rounds(|rule, round, _, seed| {
        let verdict = (judge(rule).unwrap())(round).unwrap();
        let mut node = 0;
        for (&child, token) in verdict.path.iter().zip(&verdict.tokens) {
            assert!(round.row(node)[*token as usize] > f32::NEG_INFINITY, "{rule}, seed {seed}");
            node = child;
        }
        let open = round.row(node).iter().any(|&logit| logit > f32::NEG_INFINITY);
        assert_eq!(verdict.next.is_some(), open, "{rule}, seed {seed}: {verdict:?}");
        assert!(verdict.next.is_none_or(|t| round.row(node)[t as usize] > f32::NEG_INFINITY), "{rule}, seed {seed}");
    });
}

#[test]
fn a_malformed_row_is_told_with_its_place() {
    rounds(|rule, round, rows, seed| {
        for value in [f32::NAN, f32::INFINITY] {
            let token = round.vocabulary - 1;
            rows[token] = value;
            let (judge, prefix) = (judge(rule).unwrap(), round.prefix);
            let broken = Round { logits: rows, tree: round.tree, draft: round.draft, d2t: round.d2t, ..*round };
            match judge(&broken) {
                Err(RuleError::Row(RowError { request, position, fault: ProcessError::Logit { token: at, .. } })) => {
                    assert_eq!((request, position, at), (seed, 2, token), "{rule}");
                }
                other => panic!("{rule}, seed {seed}: {other:?}"),
            }
            assert!(prefix.choose(&rows[..=token]).is_err());
        }
    });
}
