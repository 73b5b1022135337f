//! After every round a request's state is that of a fresh run on the committed text alone, wherever the first rejection
//! falls; and the comparison sees each member of the state that somebody forgets to roll back.

mod fresh;
mod steered;

pub use fresh::same_law;

use crate::forms::{BYTES, Shared, Turns, constrained, stop};
use crate::support::{random_drafter, random_target, values};
use burn::tensor::Device;
use fresh::{Member, differences};
use spectrain_core::form::Form;
use spectrain_core::process::Processors;
use spectrain_core::rules::{Rule, RuleError, Verdict};
use spectrain_core::tree::{Replacement, Shape, Tree};
use spectrain_draft::Eagle3Proposer;
use spectrain_draft::proposer::{Draft, Pick, Plan};
use spectrain_model::{Decoder, Finish, Llama, Request, SlotRows};
use spectrain_verify::judge::{Round, judge};
use spectrain_verify::{
    Committed, Departing, Departure, Fixed, Inspector, Kept, Point, Room, SpeculativeDecoder, Task, Transcript,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use steered::Steered;

const VOCABULARY: usize = 40;
/// Drafted tokens of a path.
const DEPTH: usize = 3;
const REQUESTS: u64 = 6;
const TOKENS: usize = 30;
const END: u32 = 39;

/// What is not rolled back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Nothing,
    /// (a) The target's cache keeps the first rejected row in place of its newest one.
    TargetRow,
    /// (a) The drafter keeps what it had instead of the true features of accepted tokens.
    DrafterFeatures,
    /// (a, b) The drafter's cache keeps rejected rows, and its positions count them.
    DrafterRows,
    /// (b) The answer keeps a rejected token, and the root's position counts it.
    Ids,
    /// (c) Draws are counted on by rejected tokens.
    Draws,
    /// (d) Penalties count rejected tokens.
    History,
    /// (e) The constraint was advanced by rejected tokens.
    Grammar,
    /// (f) Rejected text was read for stop strings.
    StopBuffer,
    /// (g) Accepted rows are those of the same tokens behind a wrong parent.
    Parent,
    /// (h) The last accepted token is streamed again.
    Twice,
    /// (h) The end that a rejected token makes is kept, and ends the answer.
    Finish,
}

/// A rule with what it judges.
#[derive(Debug)]
struct Case {
    rule: Rule,
    plan: Plan,
    /// Whether drafts are made to be rejected at every position in turn.
    steered: bool,
}

impl Case {
    fn chain(rule: Rule) -> Self {
        Self { rule, plan: Plan::chain(DEPTH, Pick::Argmax), steered: true }
    }

    fn tree(rule: Rule) -> Self {
        Self { rule, plan: Plan::Dynamic { nodes: 1 + 3 * DEPTH, depth: DEPTH, width: 3 }, steered: true }
    }

    fn drawn(rule: Rule) -> Self {
        Self { rule, plan: Plan::chain(DEPTH, Pick::Sample), steered: false }
    }

    fn drawn_tree(rule: Rule, replacement: Replacement) -> Self {
        Self { rule, plan: Plan::Sampled { shape: Shape::levels(&[3, 2, 1]), replacement }, steered: false }
    }

    /// All rules, on chains and on trees.
    fn all() -> [Self; 9] {
        [
            Self::chain(Rule::SampledMatch),
            Self::tree(Rule::SampledMatch),
            Self::chain(Rule::Greedy),
            Self::tree(Rule::Greedy),
            Self::drawn(Rule::Token),
            Self::drawn(Rule::Block),
            Self::drawn_tree(Rule::SpecInfer, Replacement::With),
            Self::drawn_tree(Rule::Sequoia, Replacement::Without),
            Self::drawn_tree(Rule::Traversal, Replacement::Without),
        ]
    }

    /// Whether there is anything that `fault` could leave: greedy rounds draw nothing, and chains have one parent a row.
    fn has(&self, fault: Fault) -> bool {
        match fault {
            Fault::Draws => self.rule != Rule::Greedy,
            Fault::Parent => !matches!(self.plan, Plan::Chain { .. }),
            _ => true,
        }
    }
}

/// Target, requests, and the texts that the plain path writes.
struct Bench {
    target: Llama,
    requests: Vec<Request>,
    plain: BTreeMap<u64, Vec<u32>>,
    _dir: tempfile::TempDir,
}

impl Bench {
    /// One for greedy decoding, and one for all rules that draw.
    fn both() -> [Self; 2] {
        [0.0, 1.0].map(Self::new)
    }

    fn new(temperature: f64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let target = random_target(dir.path(), VOCABULARY, 8);
        // Penalties that do not read the prompt, which some faults change.
        let penalised = Processors { frequency_penalty: 0.4, presence_penalty: 0.2, ..Processors::at(temperature) };
        let request = |id: u64| Request {
            id,
            prompt: (0..6 + id as u32).map(|i| (7 * i + 3 * id as u32) % VOCABULARY as u32).collect(),
            max_new_tokens: TOKENS,
            sampling: Processors { min_length: 20, ..penalised.clone() },
            seed: 4,
            form: Form::default(),
        };
        let mut requests: Vec<Request> = (0..REQUESTS).map(request).collect();
        let free = plain(&target, &requests);
        for request in &mut requests {
            request.form = match request.id % 3 {
                0 => Form::default(),
                1 => constrained(Arc::new(Turns { vocabulary: VOCABULARY as u32, step: 0 })),
                _ => {
                    // Far from the cap: only the string ends it.
                    request.max_new_tokens = 4 * TOKENS;
                    Form { stop: stop(&[&pair(&free[&request.id][22..])]), ..Form::default() }
                }
            };
        }
        Self { plain: plain(&target, &requests), target, requests, _dir: dir }
    }

    fn eagle(&self) -> Eagle3Proposer {
        let (drafter, weights) = random_drafter(&self.target, VOCABULARY, 2, &Device::flex());
        Eagle3Proposer::new(drafter, &weights)
    }
}

/// The text of the first two tokens of `ids` that have one.
fn pair(ids: &[u32]) -> String {
    let whole = |pair: &&[u32]| pair.iter().all(|&id| !BYTES.text(id).is_empty());
    let pair = ids.windows(2).find(whole).unwrap();
    pair.iter().map(|&id| String::from_utf8_lossy(BYTES.text(id)).into_owned()).collect()
}

fn plain(target: &Llama, requests: &[Request]) -> BTreeMap<u64, Vec<u32>> {
    let mut texts = BTreeMap::new();
    let decoder = Decoder { target, stop: &[END], batch: 3 };
    decoder.run(requests.to_vec(), 5 * TOKENS, |c| drop(texts.insert(c.id, c.ids)), |_| ()).unwrap();
    texts
}

/// What a judge was given, and what came of it.
struct Seen {
    answer: Vec<u32>,
    tree: Tree,
    draft: Draft,
    logits: Vec<f32>,
    p: Vec<Vec<f64>>,
    verdict: Verdict,
}

/// Everything that a run shows of one request.
#[derive(Default)]
struct Log {
    /// Streamed tokens by target call, and how many of them were said to be drafted.
    told: Vec<(Vec<u32>, usize)>,
    seen: Vec<Seen>,
    /// The drafter's own drafts, by committed tokens of the answer.
    drafts: BTreeMap<usize, Draft>,
    /// Keys and values of all layers after each call, and how many tokens they belong to.
    entries: Vec<(usize, Vec<Vec<f32>>)>,
    /// Rejected tokens by round.
    rejected: Vec<Vec<u32>>,
    transcript: Option<Transcript>,
}

impl Log {
    fn newly_rejected(&self) -> Vec<u32> {
        self.rejected.last().cloned().unwrap_or_default()
    }
}

/// A run's logs by request.
type Logs = Mutex<Vec<Log>>;

fn log<T>(logs: &Logs, id: u64, act: impl FnOnce(&mut Log) -> T) -> T {
    act(&mut logs.lock().unwrap()[id as usize])
}

/// The committed rows of `slot`, keys and values of all layers.
fn entries(target: &Llama, cache: &spectrain_model::KvCache, slot: usize) -> Vec<Vec<f32>> {
    let layer = |layer| <[_; 2]>::from(cache.entries(layer, slot)).map(values);
    (0..target.config().layers).flat_map(layer).collect()
}

/// Fills `slot` with the rows of `text` alone.
fn fill(target: &Llama, cache: &mut spectrain_model::KvCache, slot: usize, text: &[u32]) {
    cache.clear(slot);
    let plan = cache.plan(&[SlotRows::chain(slot, text.len())]);
    target.forward(text, &plan, cache, &[]);
    cache.commit(slot, text.len());
}

/// Ends an answer by a rejected token that ends answers. Few drafts hold one, so that some others are taken for such.
struct Suffix<'a>(&'a Logs, u64);

impl Departing for Suffix<'_> {
    fn departs(&self, point: Point) -> Option<Departure> {
        let rejected = log(self.0, self.1, |log| log.newly_rejected());
        (point == Point::Start && rejected.iter().any(|&token| token > END - 4)).then_some(Departure::End(Finish::Stop))
    }
}

/// Judges by `rule` what `fault` makes of a round, and writes it down.
fn judged(round: &Round, rule: Rule, fault: Fault, logs: &Logs) -> Result<Verdict, RuleError> {
    let id = round.prefix.request.id;
    let (request, answer);
    let mut prefix = round.prefix;
    match fault {
        Fault::Draws => {
            // The address of a draw is its position, which a longer prompt of the same tokens moves.
            let count = log(logs, id, |log| log.rejected.concat().len());
            let more = vec![prefix.request.prompt[0]; count];
            request = Request { prompt: [more, prefix.request.prompt.clone()].concat(), ..prefix.request.clone() };
            prefix.request = &request;
        }
        Fault::History => {
            // As many tokens of the prompt give way, so that no position moves.
            let rejected = log(logs, id, |log| log.newly_rejected());
            let rejected = &rejected[..rejected.len().min(DEPTH)];
            let prompt = prefix.request.prompt[rejected.len()..].to_vec();
            request = Request { prompt, ..prefix.request.clone() };
            answer = [rejected, prefix.answer].concat();
            (prefix.request, prefix.answer) = (&request, &answer);
        }
        _ => {}
    }
    let round = Round { prefix, ..*round };
    let mut verdict = judge(rule).unwrap()(&round)?;
    let (tree, p) = (round.tree, round.target()?);
    let rejected = (1..tree.len()).filter(|node| !verdict.path.contains(node)).map(|node| tree.tokens()[node]);
    let (rejected, told) = (rejected.collect(), verdict.clone());
    if fault == Fault::Parent {
        verdict.path = misled(tree, &verdict.path);
    }
    let (draft, logits) = (round.draft.clone(), round.logits.to_vec());
    let seen = Seen { answer: prefix.answer.to_vec(), tree: tree.clone(), draft, logits, p, verdict: told };
    log(logs, id, |log| (log.seen.push(seen), log.rejected.push(rejected)));
    Ok(verdict)
}

/// `path` through nodes of the same tokens behind other parents, where there are any.
fn misled(tree: &Tree, path: &[usize]) -> Vec<usize> {
    let twin = |&node: &usize| {
        let same = |m: &usize| tree.tokens()[*m] == tree.tokens()[node] && tree.depth(*m) == tree.depth(node);
        (1..tree.len()).filter(same).find(|&m| tree.parent(m) != tree.parent(node)).unwrap_or(node)
    };
    path.iter().map(twin).collect()
}

/// Plants what is planted between rounds, then writes the state down.
fn kept(bench: &Bench, fault: Fault, logs: &Logs, state: Kept) {
    let (id, slot) = (state.id, state.slot);
    let rejected = log(logs, id, |log| log.newly_rejected());
    match (fault, rejected.first()) {
        (Fault::TargetRow, Some(&first)) => {
            let mut text = [bench.requests[id as usize].prompt.as_slice(), state.answer].concat();
            text.pop();
            *text.last_mut().unwrap() = first;
            fill(&bench.target, state.cache, slot, &text);
        }
        // In the first rounds, so that the text stays within the slot.
        (Fault::Ids, Some(&first)) if log(logs, id, |log| log.rejected.len() < 3) => {
            state.answer.insert(state.answer.len() - 1, first);
            let mut text = [bench.requests[id as usize].prompt.as_slice(), state.answer].concat();
            text.pop();
            fill(&bench.target, state.cache, slot, &text);
        }
        // An end token among them would end the answer for another reason.
        (Fault::StopBuffer, Some(_)) if id % 3 == 2 => {
            let text: Vec<u32> = rejected.into_iter().filter(|&token| token != END).collect();
            state.follower.commit(&text);
        }
        _ => {}
    }
    let found = (state.cache.len(slot), entries(&bench.target, state.cache, slot));
    log(logs, id, |log| log.entries.push(found));
}

/// Who plants and writes down what is kept.
struct Planting<'a> {
    bench: &'a Bench,
    fault: Fault,
    logs: &'a Logs,
}

impl Inspector for Planting<'_> {
    fn kept(&mut self, state: Kept) {
        kept(self.bench, self.fault, self.logs, state);
    }
}

/// Writes down what is streamed; breaks where an answer does not grow any more.
fn told(fault: Fault, logs: &Logs, committed: Committed) -> ControlFlow<()> {
    let mut tokens = committed.tokens.to_vec();
    if let (Fault::Twice, Some(last)) = (fault, committed.accepted.checked_sub(1)) {
        tokens.insert(last, tokens[last]);
    }
    let grows = !tokens.is_empty();
    log(logs, committed.id, |log| log.told.push((tokens, committed.accepted)));
    if grows { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
}

/// Runs all requests, three at a time, with `fault`.
fn run(bench: &Bench, case: &Case, fault: Fault) -> Vec<Log> {
    let logs: Logs = Mutex::new((0..REQUESTS).map(|_| Log::default()).collect());
    let endings: Vec<Suffix> = (0..REQUESTS).map(|id| Suffix(&logs, id)).collect();
    let wrong = |round: &Round| judged(round, case.rule, fault, &logs);
    let task = |request: &Request| {
        let mut request = request.clone();
        if let (Fault::Grammar, Some(right)) = (fault, request.form.constraint.clone()) {
            request.form = constrained(Arc::new(Shared(right)));
        }
        let ending = (fault == Fault::Finish).then_some(&endings[request.id as usize] as &dyn Departing);
        Task { departing: ending, ..Task::of(request, &case.plan, &wrong, &Fixed) }
    };
    let tasks = bench.requests.iter().map(task).collect();
    let mut proposer = Steered::new(bench, case, fault, &logs);
    let decoder = SpeculativeDecoder { target: &bench.target, stop: &[END], batch: 3 };
    let done = |t: Transcript| log(&logs, t.id, |log| log.transcript = Some(t));
    let result = decoder.run_inspected(
        Room::default(),
        tasks,
        &mut proposer,
        |committed| told(fault, &logs, committed),
        done,
        &mut Planting { bench, fault, logs: &logs },
    );
    result.unwrap();
    drop((proposer, endings));
    logs.into_inner().unwrap()
}

#[test]
fn after_every_round_the_state_is_that_of_a_fresh_run() {
    let benches = Bench::both();
    for case in Case::all() {
        let bench = &benches[usize::from(case.rule != Rule::Greedy)];
        let logs = run(bench, &case, Fault::Nothing);
        assert_eq!(differences(bench, &case, &logs), BTreeSet::new(), "{case:?}");
        let mut accepted = [0; DEPTH + 1];
        logs.iter().flat_map(|log| &log.seen).for_each(|seen| accepted[seen.verdict.accepted()] += 1);
        let finishes: Vec<Finish> = logs.iter().map(|log| log.transcript.as_ref().unwrap().finish).collect();
        eprintln!("{} {:?}: accepted {accepted:?}, {finishes:?}", case.rule, case.plan);
        let least = if case.steered { 8 } else { 1 };
        assert!(accepted.iter().all(|&n| n >= least), "{case:?}: {accepted:?}");
        assert!(finishes.contains(&Finish::Stop) && finishes.contains(&Finish::Length), "{case:?}: {finishes:?}");
    }
}

#[test]
fn what_is_not_rolled_back_is_seen() {
    let benches = Bench::both();
    let mut missed = Vec::new();
    for (fault, members) in [
        (Fault::TargetRow, vec![Member::TargetCache, Member::Logits]),
        (Fault::DrafterFeatures, vec![Member::Draft]),
        (Fault::DrafterRows, vec![Member::Draft]),
        (Fault::Ids, vec![Member::Ids, Member::Position]),
        (Fault::Draws, vec![Member::Draws]),
        (Fault::History, vec![Member::Distributions]),
        (Fault::Grammar, vec![Member::Distributions]),
        (Fault::StopBuffer, vec![Member::Finish]),
        (Fault::Parent, vec![Member::TargetCache, Member::Logits, Member::Draft]),
        (Fault::Twice, vec![Member::Streamed]),
        (Fault::Finish, vec![Member::Finish]),
    ] {
        for case in Case::all().into_iter().filter(|case| case.has(fault)) {
            let bench = &benches[usize::from(case.rule != Rule::Greedy)];
            let seen = differences(bench, &case, &run(bench, &case, fault));
            let line = format!("{fault:?} under {} {:?}: {seen:?}", case.rule, case.plan);
            eprintln!("{line}");
            if !members.iter().all(|member| seen.contains(member)) {
                missed.push(line);
            }
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}
