//! Stop strings and grammars: speculative text is the plain text, and has the form that was asked for.

use crate::identity::{Setup, accepted_where_equal, both, knowing, setup};
use crate::law::{VOCABULARY, drafter, exact_where, observe};
use crate::support::random_target;
use burn::tensor::Tensor;
use regex::Regex;
use serde_json::{Value, json};
use spectrain_core::constraint::{Constraint, ConstraintError, ConstraintState};
use spectrain_core::form::Form;
use spectrain_core::process::{Processors, RowError};
use spectrain_core::rng::{Key, Purpose};
use spectrain_core::rules::{Rule, RuleError, Verdict};
use spectrain_core::stats::Finish;
use spectrain_core::stats::chi_square::goodness_of_fit;
use spectrain_core::stopping::StopStrings;
use spectrain_core::token_bytes::TokenBytes;
use spectrain_core::tokenizer::Tokenizer;
use spectrain_draft::proposer::{Draft, DrafterMemory, Observed, Pick, Plan, Proposer, Wanted};
use spectrain_grammar::{Grammar, Spec};
use spectrain_model::{Completion, Llama};
use spectrain_verify::judge::{Judge, Round, judge};
use spectrain_verify::{Fixed, Transcript};
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex};

const DATE: &str = "[12][0-9]{3}-[0-9]{2}-[0-9]{2}";
const WORDS: &str = "[A-Z][a-z]{1,9}( [a-z]{1,9}){0,6}[.!]";
/// Prose without some letters.
const PROSE: &str = "[^wWkK0-9]{1,400}";
const STRINGS: [&str; 3] = [" the", ". ", "n t"];
/// Tokens of an answer under [`Countdown`].
const COUNT: usize = 7;
/// End of text and end of turn of the tiny target.
const ENDS: [u32; 2] = [0, 2];

fn tiny() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../checkpoints/tiny")
}

static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| Tokenizer::load(&tiny()).unwrap());
pub static BYTES: LazyLock<Arc<TokenBytes>> = LazyLock::new(|| Arc::new(TOKENIZER.token_bytes().unwrap()));

fn grammar(spec: Spec) -> Arc<dyn Constraint> {
    Arc::new(Grammar::compile(spec, &BYTES, &ENDS, 2048).unwrap())
}

fn regex(pattern: &str) -> Arc<dyn Constraint> {
    grammar(Spec::Regex(pattern.into()))
}

fn schema() -> Spec {
    Spec::JsonSchema(json!({
        "type": "object", "additionalProperties": false, "required": ["city", "old"],
        "properties": { "city": { "type": "string", "maxLength": 9 }, "old": { "type": "boolean" } },
        "x-guidance": { "whitespace_flexible": false },
    }))
}

/// Anything for [`COUNT`] tokens, then nothing, not even an end.
#[derive(Debug, Clone)]
struct Countdown(usize);

impl Constraint for Countdown {
    fn start(&self) -> Box<dyn ConstraintState> {
        Box::new(self.clone())
    }
}

impl ConstraintState for Countdown {
    fn fork(&self) -> Box<dyn ConstraintState> {
        Box::new(self.clone())
    }

    fn advance(&mut self, token: u32) -> Result<(), ConstraintError> {
        self.0 = self.0.checked_sub(1).ok_or(ConstraintError::Refused(token))?;
        Ok(())
    }

    fn mask(&self) -> Result<Vec<bool>, ConstraintError> {
        Ok((0..2048).map(|token| self.0 > 0 && !ENDS.contains(&token)).collect())
    }
}

pub fn stop(strings: &[&str]) -> StopStrings {
    StopStrings::new(&strings.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>(), BYTES.clone()).unwrap()
}

pub fn constrained(constraint: Arc<dyn Constraint>) -> Form {
    Form { constraint: Some(constraint), ..Form::default() }
}

/// Requests of every form and none share the batches.
fn forms() -> Vec<Form> {
    vec![
        Form::default(),
        constrained(regex(DATE)),
        constrained(grammar(schema())),
        Form { stop: stop(&STRINGS), ..Form::default() },
        constrained(regex(WORDS)),
        Form { stop: stop(&["s "]), ..constrained(regex(WORDS)) },
        constrained(Arc::new(Countdown(COUNT))),
    ]
}

/// Knows the texts, errs, and drafts three nodes a depth: a wrong sibling, what it holds for true, and behind the
/// sibling what would follow the truth.
struct Branching {
    texts: Vec<Vec<u32>>,
    slots: Vec<Vec<u32>>,
}

impl Branching {
    fn truth(&self, slot: usize, step: usize) -> u32 {
        let known = &self.slots[slot];
        let text = self.texts.iter().find(|t| t.starts_with(known));
        let at = known.len() + step;
        let truth = text.and_then(|t| t.get(at)).copied().unwrap_or(5);
        let wrong = Key::new(8, at as u64, u64::from(truth), Purpose::Noise).uniform() < 0.2;
        if wrong { (truth + 1) % 2048 } else { truth }
    }

    fn tree(&self, slot: usize, depth: usize) -> Draft {
        let (mut tokens, mut parents, mut parent) = (Vec::new(), Vec::new(), None);
        for step in 0..depth {
            let truth = self.truth(slot, step);
            let sibling = tokens.len();
            tokens.extend([(truth + 7) % 2048, truth, self.truth(slot, step + 1)]);
            parents.extend([parent, parent, Some(sibling)]);
            parent = Some(sibling + 1);
        }
        Draft { tokens, parents: Some(parents), ..Draft::default() }
    }
}

impl Proposer for Branching {
    fn taps(&self) -> &[usize] {
        &[]
    }

    fn draft_to_target(&self) -> &[u32] {
        &[]
    }

    fn open(&mut self, slots: usize, _: usize) {
        self.slots = vec![Vec::new(); slots];
    }

    fn clear(&mut self, slot: usize) {
        self.slots[slot].clear();
    }

    fn start(&mut self, slot: usize, prompt: &[u32]) {
        self.slots[slot] = vec![prompt[0]];
    }

    fn observe(&mut self, observed: &[Observed], _: Vec<Tensor<2>>) {
        observed.iter().for_each(|o| self.slots[o.slot].extend_from_slice(&o.next));
    }

    fn draft(&mut self, wanted: &[Wanted]) -> Result<Vec<Draft>, RowError> {
        Ok(wanted.iter().map(|w| self.tree(w.slot, w.plan.depth())).collect())
    }

    fn memory(&self, _: &Plan) -> DrafterMemory {
        DrafterMemory::default()
    }

    fn committed(&self, slot: usize) -> usize {
        self.slots[slot].len().saturating_sub(1)
    }
}

const DEPTH: usize = 5;

fn texts(s: &Setup, rule: (Rule, &Processors), tree: bool) -> Vec<(Completion, Transcript)> {
    match tree {
        false => both(s, rule, (Plan::chain(DEPTH, Pick::Argmax), &Fixed), |texts| knowing(s, texts)),
        true => {
            let plan = Plan::Dynamic { nodes: 1 + 3 * DEPTH, depth: DEPTH, width: 3 };
            both(s, rule, (plan, &Fixed), |texts| Box::new(Branching { texts, slots: Vec::new() }))
        }
    }
}

/// Asserts that an answer has the form of its number, by matchers of their own. Returns whether it has ended by itself.
fn check_form(id: u64, ids: &[u32], finish: Finish) -> bool {
    let text = TOKENIZER.decode(ids, true).unwrap();
    let ended = finish != Finish::Length;
    let found = |strings: &[&str]| strings.iter().any(|s| text.contains(s));
    let whole = |pattern: &str| Regex::new(&format!("^(?:{pattern})$")).unwrap().is_match(&text);
    match id % 7 {
        1 => assert!(ended && whole(DATE), "{text:?}"),
        2 => {
            assert!(ended, "{text:?} is bounded");
            let document: Value = serde_json::from_str(&text).unwrap();
            let city = document["city"].as_str().unwrap();
            assert!(city.chars().count() <= 9 && document["old"].is_boolean(), "{text:?}");
            assert_eq!(document.as_object().unwrap().len(), 2, "{text:?}");
        }
        3 => {
            let before = TOKENIZER.decode(&ids[..ids.len() - 1], true).unwrap();
            assert!(STRINGS.iter().all(|s| !before.contains(s)), "{text:?} goes on behind its end");
            assert_eq!(ended, found(&STRINGS) || ENDS.contains(ids.last().unwrap()), "{text:?}");
        }
        4 => assert!(ended && whole(WORDS), "{text:?}"),
        5 => assert!(ended && (found(&["s "]) || whole(WORDS)), "{text:?}"),
        6 => assert_eq!((ids.len(), finish), (COUNT, Finish::Masked), "nothing may follow"),
        _ => {}
    }
    ended
}

#[test]
fn text_of_every_form_is_the_plain_text() {
    let mut s = setup(&tiny());
    s.forms = forms();
    for (rule, temperature) in [(Rule::Greedy, 0.0), (Rule::SampledMatch, 1.0)] {
        let sampling = Processors::at(temperature);
        for tree in [false, true] {
            let texts = texts(&s, (rule, &sampling), tree);
            let histogram = accepted_where_equal(&s, &sampling, DEPTH, &texts);
            assert!(histogram.iter().all(|&n| n > 3), "{rule}, tree {tree}: {histogram:?}");
            let mut ended = [0; 7];
            let mut inside = 0;
            for (plain, speculative) in &texts {
                assert_eq!((&plain.failure, &speculative.failure), (&None, &None));
                check_form(plain.id, &plain.ids, plain.finish);
                let by_itself = check_form(speculative.id, &speculative.ids, speculative.finish);
                ended[speculative.id as usize % 7] += usize::from(by_itself);
                let last = speculative.calls.last().map(|call| call.kept);
                let drafted_end = last.is_some_and(|kept| kept.accepted == kept.committed && kept.committed > 1);
                inside += usize::from(by_itself && drafted_end);
            }
            eprintln!("{rule}, tree {tree}: accepted {histogram:?}, ended {ended:?}, {inside} inside a block");
            assert!(ended[1..].iter().all(|&n| n > 0) && ended[3] > 2, "{ended:?}");
            assert!(inside > 5, "{inside} answers ended by an accepted draft");
        }
    }
}

/// One state for all forks: what was drafted stays, rejected or not.
#[derive(Debug, Clone)]
pub struct Shared(pub Arc<dyn Constraint>);

#[derive(Debug, Clone)]
struct SharedState(Arc<Mutex<Box<dyn ConstraintState>>>);

impl Constraint for Shared {
    fn start(&self) -> Box<dyn ConstraintState> {
        Box::new(SharedState(Arc::new(Mutex::new(self.0.start()))))
    }
}

impl ConstraintState for SharedState {
    fn fork(&self) -> Box<dyn ConstraintState> {
        Box::new(self.clone())
    }

    fn advance(&mut self, token: u32) -> Result<(), ConstraintError> {
        let mut state = self.0.lock().unwrap();
        let mut next = state.fork();
        next.advance(token)?;
        *state = next;
        Ok(())
    }

    fn mask(&self) -> Result<Vec<bool>, ConstraintError> {
        self.0.lock().unwrap().mask()
    }
}

#[test]
fn a_state_that_is_not_rolled_back_is_seen() {
    let mut s = setup(&tiny());
    s.forms = vec![constrained(regex(WORDS))];
    for tree in [false, true] {
        let differing = |s: &Setup| {
            let texts = texts(s, (Rule::SampledMatch, &Processors::at(1.0)), tree);
            texts.iter().filter(|(plain, speculative)| plain.ids != speculative.ids).count()
        };
        assert!(differing(&s) <= 2, "with forks the texts are equal");
        let right = std::mem::replace(&mut s.forms, vec![constrained(Arc::new(Shared(regex(WORDS))))]);
        let wrong = differing(&s);
        assert!(wrong > 20, "tree {tree}: only {wrong} texts show it");
        s.forms = right;
    }
}

/// Forms whose answers are text of some length.
pub fn prose() -> Vec<Form> {
    vec![constrained(regex(PROSE)), constrained(regex(WORDS)), constrained(regex(PROSE))]
}

/// No token twice in a row, over the small vocabulary of the laws.
#[derive(Debug, Clone)]
struct Changing(Option<u32>);

impl Constraint for Changing {
    fn start(&self) -> Box<dyn ConstraintState> {
        Box::new(self.clone())
    }
}

impl ConstraintState for Changing {
    fn fork(&self) -> Box<dyn ConstraintState> {
        Box::new(self.clone())
    }

    fn advance(&mut self, token: u32) -> Result<(), ConstraintError> {
        match self.0.replace(token) == Some(token) {
            true => Err(ConstraintError::Refused(token)),
            false => Ok(()),
        }
    }

    fn mask(&self) -> Result<Vec<bool>, ConstraintError> {
        Ok((0..VOCABULARY as u32).map(|token| self.0 != Some(token)).collect())
    }
}

/// Chi-square of the texts that the decoder wrote under `judge` with a random drafter, where nothing else may occur.
fn restricted_fit(target: &Llama, judge: &Judge, sampling: &Processors) -> f64 {
    const TOKENS: usize = 4;
    let changing = |answer: &[u32]| answer.windows(2).all(|pair| pair[0] != pair[1]);
    let exact = exact_where(target, TOKENS, sampling, changing);
    let form = constrained(Arc::new(Changing(None)));
    let plan = Plan::chain(3, Pick::Sample);
    let observed = observe(target, (judge, &plan), &mut drafter(target), (TOKENS, 40_000), (sampling, &form));
    let possible: Vec<(u64, f64)> = observed.iter().copied().zip(exact).filter(|(_, p)| *p > 0.0).collect();
    let barred = observed.iter().sum::<u64>() - possible.iter().map(|(n, _)| n).sum::<u64>();
    assert_eq!((possible.len(), barred), (4 * 3_usize.pow(3), 0), "barred texts were written");
    let (counts, p): (Vec<u64>, Vec<f64>) = possible.into_iter().unzip();
    goodness_of_fit(&counts, &p).unwrap().p_value
}

/// What is rejected is drawn anew from the target's distribution instead of the residual.
fn resampled(round: &Round) -> Result<Verdict, RuleError> {
    let verdict = judge(Rule::Token).unwrap()(round)?;
    let p = round.p(verdict.path.last().copied().unwrap_or(0))?;
    let key = Key::new(1, round.prefix.request.id, round.position() as u64, Purpose::Noise);
    Ok(Verdict { next: Some(key.race(0, &p) as u32), ..verdict })
}

#[test]
fn rules_that_read_q_write_the_restricted_law() {
    let dir = tempfile::tempdir().unwrap();
    let target = random_target(dir.path(), VOCABULARY, 3);
    let penalised = Processors { repetition_penalty: 1.3, frequency_penalty: 0.2, ..Processors::at(0.9) };
    for (rule, sampling) in [(Rule::Token, penalised), (Rule::Block, Processors::at(1.0))] {
        let fit = restricted_fit(&target, judge(rule).unwrap(), &sampling);
        eprintln!("{rule}: p = {fit:.3}");
        assert!(fit > 1e-4, "{rule}: p = {fit:e}");
    }
    let fit = restricted_fit(&target, &resampled, &Processors::at(1.0));
    assert!(fit < 1e-8, "a wrong draw after rejections is not seen: p = {fit:e}");
}

/// Where `free`, the text without any end, ends: by end tokens, by a stop string, by the cap. Counted from the start.
fn ends_of(free: &[u32], end_tokens: &[u32], string: &str, cap: usize) -> [Option<usize>; 3] {
    let bytes = |n: usize| free[..n].iter().flat_map(|&token| BYTES.text(token).to_vec()).collect::<Vec<u8>>();
    let holds = |n: &usize| bytes(*n).windows(string.len()).any(|window| window == string.as_bytes());
    let token = free.iter().position(|token| end_tokens.contains(token)).map(|i| i + 1);
    [token, (1..=free.len()).find(holds), Some(cap)]
}

#[test]
fn an_answer_ends_at_every_place_of_a_round() {
    const FREE: usize = 20;
    let mut s = setup(&tiny());
    (s.tokens, s.stop) = (FREE, Vec::new());
    let sampling = Processors::at(1.0);
    let rule = (Rule::SampledMatch, &sampling);
    let free: Vec<Vec<u32>> = texts(&s, rule, false).into_iter().map(|(plain, _)| plain.ids).collect();
    let knowing_all = |s: &Setup| free.iter().zip(&s.prompts).map(|(ids, p)| [p.as_slice(), ids].concat()).collect();
    // Answers that ended by each cause, alone or with the cap, by the tokens of their last round.
    let mut seen = [[0; DEPTH + 2]; 4];
    let mut differing = 0;
    for k in 1..=16 {
        let word = |ids: &Vec<u32>| String::from_utf8_lossy(BYTES.text(ids[(k * 5) % 13])).into_owned();
        let strings: Vec<String> = free.iter().map(|ids| word(ids) + " ").collect();
        s.forms = strings.iter().map(|string| Form { stop: stop(&[string]), ..Form::default() }).collect();
        s.tokens = k + k % 2;
        s.stop = free.iter().step_by(4).map(|ids| ids[k - 1]).collect();
        let plan = (Plan::chain(DEPTH, Pick::Argmax), &Fixed as &_);
        for (id, (plain, speculative)) in both(&s, rule, plan, |_| knowing(&s, knowing_all(&s))).iter().enumerate() {
            let ends = ends_of(&free[id], &s.stop, &strings[id], s.tokens);
            let first = ends.iter().flatten().min().copied().unwrap();
            let finish = if ends[0] == Some(first) || ends[1] == Some(first) { Finish::Stop } else { Finish::Length };
            assert_eq!((&plain.ids[..], plain.finish), (&free[id][..first], finish));
            differing += usize::from((&speculative.ids, speculative.finish) != (&plain.ids, plain.finish));
            let Some(last) = speculative.calls.last() else { continue };
            let cause = ends.iter().position(|end| *end == Some(first)).unwrap();
            let with_cap = finish == Finish::Stop && ends[2] == Some(first);
            seen[if with_cap { 3 } else { cause }][last.kept.committed] += 1;
        }
    }
    eprintln!("end token, string, cap, two at once: {seen:?}");
    assert!(differing <= 2, "{differing} texts differ");
    assert!(seen.iter().all(|places| places[1..].iter().all(|&n| n > 0)), "{seen:?}");
}

/// Tokens whose remainders by three go round; a state that has lost count is seen at the next token.
#[derive(Debug, Clone)]
pub struct Turns {
    pub vocabulary: u32,
    pub step: u32,
}

impl Constraint for Turns {
    fn start(&self) -> Box<dyn ConstraintState> {
        Box::new(self.clone())
    }
}

impl ConstraintState for Turns {
    fn fork(&self) -> Box<dyn ConstraintState> {
        Box::new(self.clone())
    }

    fn advance(&mut self, token: u32) -> Result<(), ConstraintError> {
        self.step += 1;
        if token % 3 == (self.step - 1) % 3 { Ok(()) } else { Err(ConstraintError::Refused(token)) }
    }

    fn mask(&self) -> Result<Vec<bool>, ConstraintError> {
        Ok((0..self.vocabulary).map(|token| token % 3 == self.step % 3).collect())
    }
}
