//! What a request's state has to be, from the committed text alone: whole passes, a drafter that hears of the text for
//! the first time, a follower from the start. What differs is named by its member.

use super::{Bench, Case, END, Log, Seen, VOCABULARY, entries, fill};
use crate::support::{BOUND, values};
use spectrain_core::rules::Verdict;
use spectrain_core::tree::Tree;
use spectrain_draft::Eagle3Proposer;
use spectrain_draft::proposer::{Draft, Observed, Proposer, Wanted};
use spectrain_model::{Finish, Prefix, Request};
use spectrain_verify::judge::{Round, judge};
use std::collections::BTreeSet;

/// What differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Member {
    /// The target's committed keys and values.
    TargetCache,
    /// The target's logits behind the root and every drafted node.
    Logits,
    /// The drafter's next draft, with its logits where it tells them and the distributions that it was drawn from.
    Draft,
    /// The committed token ids.
    Ids,
    /// The root's position.
    Position,
    /// What follows from equal rows by other draws.
    Draws,
    /// The distributions under penalties and constraint.
    Distributions,
    /// The tokens that are streamed, each once, and how many of them were drafted.
    Streamed,
    /// Where and why the answer ends.
    Finish,
}

/// Largest difference of keys and values, in parts of the largest (design, decision 13).
const CACHE_BOUND: f32 = 1e-5;
/// Largest difference of probabilities: of logits that are [`BOUND`] of their range off.
const MASS_BOUND: f64 = 1e-4;

/// Whether there are as many values and none is more than `bound` off.
fn close(found: &[f32], expected: &[f32], bound: f32) -> bool {
    let off = found.iter().zip(expected).fold(0.0_f32, |top, (f, e)| top.max((f - e).abs()));
    found.len() == expected.len() && off <= bound
}

fn range(row: &[f32]) -> f32 {
    let (low, high) = row.iter().fold((f32::MAX, f32::MIN), |(low, high), &v| (low.min(v), high.max(v)));
    high - low
}

/// Whether the rows agree as [`crate::support::assert_close`] has it.
fn close_rows(found: &[f32], expected: &[f32]) -> bool {
    expected.chunks(VOCABULARY).zip(found.chunks(VOCABULARY)).all(|(e, f)| close(f, e, BOUND as f32 * range(e)))
        && found.len() == expected.len()
}

/// Whether two drafts were drawn from distributions that are equal but for rounding, a tree in the same order.
pub fn same_law(found: &Draft, expected: &Draft) -> bool {
    let law = |draft: &Draft| {
        let drawn = draft.drawn.iter().flat_map(|tree| (0..tree.tree().len()).filter_map(|node| tree.drawn(node)));
        let (q, order): (Vec<Vec<f64>>, Vec<Vec<usize>>) = drawn.map(|(q, order)| (q.to_vec(), order.to_vec())).unzip();
        ([draft.q.concat(), q.concat()].concat(), order)
    };
    let ((found, found_order), (expected, order)) = (law(found), law(expected));
    let off = found.iter().zip(&expected).fold(0.0_f64, |top, (f, e)| top.max((f - e).abs()));
    found_order == order && found.len() == expected.len() && off <= MASS_BOUND
}

/// The members in which `logs` differ from fresh runs.
pub fn differences(bench: &Bench, case: &Case, logs: &[Log]) -> BTreeSet<Member> {
    let mut drafter = bench.eagle();
    drafter.open(1, 200);
    let mut differ = BTreeSet::new();
    for (request, log) in bench.requests.iter().zip(logs) {
        Fresh { bench, case, request, drafter: &mut drafter, differ: &mut differ }.compare(log);
    }
    differ
}

struct Fresh<'a> {
    bench: &'a Bench,
    case: &'a Case,
    request: &'a Request,
    drafter: &'a mut Eagle3Proposer,
    differ: &'a mut BTreeSet<Member>,
}

impl Fresh<'_> {
    fn expect(&mut self, member: Member, equal: bool) {
        if !equal {
            self.differ.insert(member);
        }
    }

    fn compare(&mut self, log: &Log) {
        let told: Vec<&[u32]> = log.told.iter().map(|(tokens, _)| tokens.as_slice()).collect();
        let mut finish = None;
        let chosen = self.first();
        self.expect(Member::Streamed, told.first() == Some(&[chosen].as_slice()));
        self.expect(Member::Streamed, told.len() == log.seen.len() + 1);
        for (i, seen) in log.seen.iter().enumerate() {
            let Some(behind) = told.get(i + 1) else { break };
            let answer = told[..=i].concat();
            finish = self.round(log, (seen, &log.entries[i]), &answer, (behind, log.told[i + 1].1));
        }
        let Some(transcript) = &log.transcript else {
            self.expect(Member::Finish, false);
            return;
        };
        self.expect(Member::Finish, finish == Some(transcript.finish));
        let arrivals = transcript.timeline.arrivals.iter().map(|a| a.tokens);
        self.expect(Member::Streamed, transcript.ids == told.concat() && arrivals.eq(told.iter().map(|t| t.len())));
        let committed = transcript.rounds().map(|round| (round.committed, round.accepted));
        self.expect(Member::Streamed, committed.eq(log.told.iter().skip(1).map(|(t, accepted)| (t.len(), *accepted))));
    }

    /// The token behind the prompt.
    fn first(&self) -> u32 {
        let (request, prompt) = (self.request, self.request.prompt.as_slice());
        let follower = request.follow(&[END]);
        let prefix = Prefix { request, answer: &[], end_tokens: &[END], state: follower.state(), script: None };
        let hidden = self.bench.target.forward_full(&[prompt], &[]).hidden.narrow(0, prompt.len() - 1, 1);
        prefix.choose(&values(self.bench.target.logits(hidden))).unwrap().unwrap()
    }

    /// One round behind `answer`: the state before it, and what was `streamed`. Returns how the answer has to end there.
    fn round(
        &mut self,
        log: &Log,
        (seen, (length, rows)): (&Seen, &(usize, Vec<Vec<f32>>)),
        answer: &[u32],
        (streamed, accepted): (&[u32], usize),
    ) -> Option<Finish> {
        let text = [self.request.prompt.as_slice(), answer].concat();
        let (&root, settled) = text.split_last().unwrap();
        self.expect(Member::Ids, seen.answer == answer && seen.tree.tokens()[0] == root);
        self.expect(Member::Position, seen.tree.positions()[0] == settled.len());
        let cached = *length == settled.len() && self.cached(settled, rows);
        self.expect(Member::TargetCache, cached);
        let tree = seen.draft.tree(root, settled.len()).unwrap();
        let logits = self.logits(&text, &tree);
        self.expect(Member::Logits, close_rows(&seen.logits, &logits));
        let mut follower = self.request.follow(&[END]);
        follower.commit(answer);
        let (request, state) = (self.request, follower.state());
        let prefix = Prefix { request, answer, end_tokens: &[END], state, script: None };
        let drafted = log.drafts.get(&answer.len()).is_some_and(|found| self.drafts(&text, prefix, found));
        self.expect(Member::Draft, drafted);
        let d2t: Vec<u32> = (0..VOCABULARY as u32).collect();
        let round =
            Round { tree: &tree, draft: &seen.draft, d2t: &d2t, logits: &logits, vocabulary: VOCABULARY, prefix };
        let p = round.target().unwrap().concat();
        let off = seen.p.concat().iter().zip(&p).fold(0.0_f64, |top, (f, e)| top.max((f - e).abs()));
        self.expect(Member::Distributions, off <= MASS_BOUND);
        let verdict = judge(self.case.rule).unwrap()(&round).unwrap();
        self.expect(Member::Draws, verdict == seen.verdict);
        let Verdict { tokens, next, .. } = verdict;
        let emitted: Vec<u32> = tokens.iter().copied().chain(next).collect();
        let outcome = follower.commit(&emitted);
        let kept = &emitted[..outcome.kept];
        self.expect(Member::Streamed, (streamed, accepted) == (kept, tokens.len().min(kept.len())));
        outcome.finish.or(next.is_none().then_some(Finish::Masked))
    }

    /// Whether `rows` are the keys and values of `text` run as one chain.
    fn cached(&self, text: &[u32], rows: &[Vec<f32>]) -> bool {
        let mut cache = self.bench.target.cache(1, text.len());
        fill(&self.bench.target, &mut cache, 0, text);
        let largest = |row: &[f32]| row.iter().fold(0.0_f32, |top, v| top.max(v.abs()));
        let expected = entries(&self.bench.target, &cache, 0);
        expected.iter().zip(rows).all(|(e, f)| close(f, e, CACHE_BOUND * largest(e)))
    }

    /// The target's logits behind every node, each from a pass over the text and a whole path.
    fn logits(&self, text: &[u32], tree: &Tree) -> Vec<f32> {
        let paths = tree.paths();
        let whole = |path: &Vec<usize>| [text, &tree.path_tokens(path[path.len() - 1])].concat();
        let sequences: Vec<Vec<u32>> = paths.iter().map(whole).collect();
        let sequences: Vec<&[u32]> = sequences.iter().map(Vec::as_slice).collect();
        let target = &self.bench.target;
        let rows = values(target.logits(target.forward_full(&sequences, &[]).hidden));
        let mut logits = vec![0.0; tree.len() * VOCABULARY];
        let mut rest = rows.as_slice();
        for (path, sequence) in paths.iter().zip(sequences) {
            let (own, others) = rest.split_at(sequence.len() * VOCABULARY);
            rest = others;
            for (&node, row) in path.iter().zip(own.chunks(VOCABULARY).skip(text.len() - 1)) {
                logits[node * VOCABULARY..][..VOCABULARY].copy_from_slice(row);
            }
        }
        logits
    }

    /// Whether a drafter that is told of the whole `text` at once drafts what was `found`.
    fn drafts(&mut self, text: &[u32], prefix: Prefix, found: &Draft) -> bool {
        let taps = self.bench.target.forward_full(&[&text[..text.len() - 1]], self.drafter.taps()).taps;
        self.drafter.start(0, &self.request.prompt);
        self.drafter.observe(&[Observed { slot: 0, next: text[1..].to_vec() }], taps);
        let fresh = self.drafter.draft(&[Wanted::whole(0, &self.case.plan, prefix)]).unwrap().remove(0);
        let logits = [&found.logits, &fresh.logits].map(|rows| rows.concat());
        (&fresh.tokens, &fresh.parents) == (&found.tokens, &found.parents)
            && close_rows(&logits[0], &logits[1])
            && same_law(found, &fresh)
    }
}
