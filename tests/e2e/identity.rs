//! Speculative text is the plain path's text, on the reference target and real prompts.
//!
//! The drafts come from a proposer that knows the plain text and errs on purpose, so that every acceptance length
//! occurs; the trained drafter's own text is compared by every evaluation.

use crate::support::smollm2;
use burn::tensor::{Device, Tensor};
use spectrain_core::chat::ChatTemplate;
use spectrain_core::constraint::mask_after;
use spectrain_core::form::Form;
use spectrain_core::process::{Context, Processors, RowError};
use spectrain_core::rng::{Key, Purpose};
use spectrain_core::rules::Rule;
use spectrain_core::tokenizer::Tokenizer;
use spectrain_data::prompts::read_prompts;
use spectrain_draft::proposer::{Draft, DrafterMemory, Observed, Pick, Plan, Proposer, Wanted};
use spectrain_model::{Completion, Decoder, Llama, Request, host_rows};
use spectrain_verify::judge::judge;
use spectrain_verify::{Fixed, LengthPolicy, SpeculativeDecoder, Task, Transcript};
use std::collections::BTreeMap;
use std::path::Path;

const PROMPTS: usize = 40;
const TOKENS: usize = 96;
const LENGTH: usize = 5;
/// Design, decision 13: divergences from rounding, of [`PROMPTS`].
const DIVERGENCES: usize = 2;
const MARGIN: f64 = 1e-3;

/// Proposes the known continuation, with a wrong token at about one place in four.
struct Knowing {
    /// Prompt and plain answer of every request.
    texts: Vec<Vec<u32>>,
    /// Committed tokens of every slot.
    slots: Vec<Vec<u32>>,
    d2t: Vec<u32>,
}

impl Knowing {
    fn next(&self, slot: usize, step: usize) -> u32 {
        let known = &self.slots[slot];
        let text = self.texts.iter().find(|t| t.starts_with(&known[..known.len() - 1]));
        let at = known.len() + step;
        let truth = text.and_then(|t| t.get(at)).copied().unwrap_or(0);
        let wrong = Key::new(3, at as u64, u64::from(truth), Purpose::Noise).uniform() < 0.25;
        if wrong { (truth + 1) % self.d2t.len() as u32 } else { truth }
    }
}

impl Proposer for Knowing {
    fn taps(&self) -> &[usize] {
        &[0]
    }

    fn draft_to_target(&self) -> &[u32] {
        &self.d2t
    }

    fn open(&mut self, slots: usize, _: usize) {
        self.slots = vec![Vec::new(); slots];
    }

    fn clear(&mut self, slot: usize) {
        self.slots[slot].clear();
    }

    fn observe(&mut self, observed: &[Observed], features: Vec<Tensor<2>>) {
        assert_eq!(features[0].dims()[0], observed.iter().map(|o| o.next.len()).sum::<usize>());
        for o in observed {
            let known = &mut self.slots[o.slot];
            if known.is_empty() {
                // Row 0 pairs token 0 with token 1: the first token of the text is not told.
                let first = self.texts.iter().find(|t| t[1..].starts_with(&o.next)).map_or(0, |t| t[0]);
                known.push(first);
            }
            known.extend_from_slice(&o.next);
        }
    }

    fn draft(&mut self, wanted: &[Wanted]) -> Result<Vec<Draft>, RowError> {
        let chain = |w: &Wanted| (0..w.length).map(|step| self.next(w.slot, step)).collect();
        Ok(wanted.iter().map(|w| Draft { tokens: chain(w), ..Draft::default() }).collect())
    }

    fn memory(&self, _: &Plan) -> DrafterMemory {
        DrafterMemory::default()
    }

    fn committed(&self, slot: usize) -> usize {
        self.slots[slot].len().saturating_sub(1)
    }
}

/// A target and the prompts that it answers.
pub struct Setup {
    pub target: Llama,
    pub stop: Vec<u32>,
    pub prompts: Vec<Vec<u32>>,
    /// Longest answer.
    pub tokens: usize,
    /// What the answers must be like, in turn.
    pub forms: Vec<Form>,
}

impl Setup {
    /// What answer `id` must be like.
    pub fn form(&self, id: usize) -> &Form {
        &self.forms[id % self.forms.len()]
    }
}

pub fn setup(dir: &Path) -> Setup {
    let tokenizer = Tokenizer::load(dir).unwrap();
    let template = ChatTemplate::load(dir, &tokenizer).unwrap();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../eval/heldout.jsonl");
    let prompts = read_prompts(&file).unwrap().into_iter().take(PROMPTS);
    let prompts = prompts.map(|p| template.encode_prompt(&p.messages, &tokenizer).unwrap()).collect();
    Setup {
        target: Llama::load(dir, &Device::flex()).unwrap(),
        stop: template.stop_ids(),
        prompts,
        tokens: TOKENS,
        forms: vec![Form::default()],
    }
}

/// A proposer that knows `texts` and errs, over the whole vocabulary.
pub fn knowing(s: &Setup, texts: Vec<Vec<u32>>) -> Box<dyn Proposer> {
    let d2t = (0..s.target.config().vocab_size as u32).collect();
    Box::new(Knowing { texts, slots: Vec::new(), d2t })
}

/// Both texts of every prompt. `proposer` is made from prompts and plain answers.
pub fn both(
    s: &Setup,
    (rule, sampling): (Rule, &Processors),
    (plan, lengths): (Plan, &dyn LengthPolicy),
    proposer: impl FnOnce(Vec<Vec<u32>>) -> Box<dyn Proposer>,
) -> Vec<(Completion, Transcript)> {
    let requests: Vec<Request> = s
        .prompts
        .iter()
        .enumerate()
        .map(|(id, prompt)| Request {
            id: id as u64,
            prompt: prompt.clone(),
            max_new_tokens: s.tokens,
            sampling: sampling.clone(),
            seed: 7,
            form: s.form(id).clone(),
        })
        .collect();
    let capacity = requests.iter().map(|r| r.prompt.len() + s.tokens).max().unwrap();
    let mut plain = BTreeMap::new();
    let decoder = Decoder { target: &s.target, stop: &s.stop, batch: 8 };
    decoder.run(requests.clone(), capacity, |c| drop(plain.insert(c.id, c)), |_| ()).unwrap();
    let texts = plain.iter().map(|(&id, c)| [s.prompts[id as usize].as_slice(), &c.ids].concat()).collect();
    let mut proposer = proposer(texts);
    let judge = judge(rule).unwrap();
    let decoder = SpeculativeDecoder { target: &s.target, stop: &s.stop, batch: 8 };
    let tasks = Task::alike(requests, &plan, judge, lengths);
    let mut speculative = BTreeMap::new();
    decoder.run(tasks, proposer.as_mut(), |t| drop(speculative.insert(t.id, t))).unwrap();
    plain.into_values().zip(speculative.into_values()).collect()
}

/// How narrowly the plain path chose `a` over `b` after `text`: difference of the logits, perturbed by the race's own
/// noise when sampled.
fn margin(s: &Setup, text: &[u32], (a, b): (u32, u32), sampling: &Processors, id: u64) -> f64 {
    let hidden = s.target.forward_full(&[text], &[]).hidden;
    let n = text.len();
    let logits = host_rows(s.target.logits(hidden.narrow(0, n - 1, 1)));
    let (prompt, answer) = text.split_at(s.prompts[id as usize].len());
    let start = s.form(id as usize).constraint.as_ref().map(|constraint| constraint.start());
    let mask = start.map(|state| mask_after(state.as_ref(), answer).unwrap());
    let context = Context { prompt, answer, end_tokens: &s.stop, mask: mask.as_deref(), ..Context::default() };
    let mut p: Vec<f64> = logits.iter().map(|&l| f64::from(l)).collect();
    if sampling.temperature == 0.0 {
        sampling.rank(&mut p, &context).unwrap();
        return (p[a as usize] - p[b as usize]).abs();
    }
    sampling.apply(&mut p, &context).unwrap();
    let key = Key::new(7, id, n as u64, Purpose::Target);
    let arrival = |token: u32| key.arrival(0, token as usize, p[token as usize]);
    (arrival(a) / arrival(b)).ln().abs()
}

fn check(rule: Rule, temperature: f64) {
    let Some(dir) = smollm2() else { return };
    let s = setup(&dir);
    let plan = Plan::chain(LENGTH, Pick::Argmax);
    let histogram = accepted_of_equal_texts(&s, (rule, temperature), plan, |texts| knowing(&s, texts));
    assert!(histogram.iter().all(|&n| n > 0), "not every acceptance length occurred: {histogram:?}");
}

/// Asserts that speculative and plain texts are equal, up to rounding, and counts the accepted lengths.
pub fn accepted_of_equal_texts(
    s: &Setup,
    (rule, temperature): (Rule, f64),
    plan: Plan,
    proposer: impl FnOnce(Vec<Vec<u32>>) -> Box<dyn Proposer>,
) -> Vec<usize> {
    accepted_under(s, (rule, temperature), (plan, &Fixed), proposer)
}

/// As [`accepted_of_equal_texts`], with drafts as long as `lengths` says.
pub fn accepted_under(
    s: &Setup,
    (rule, temperature): (Rule, f64),
    drafts: (Plan, &dyn LengthPolicy),
    proposer: impl FnOnce(Vec<Vec<u32>>) -> Box<dyn Proposer>,
) -> Vec<usize> {
    accepted_after(s, (rule, &Processors::at(temperature)), drafts, proposer)
}

/// As [`accepted_under`], after `sampling`.
pub fn accepted_after(
    s: &Setup,
    (rule, sampling): (Rule, &Processors),
    (plan, lengths): (Plan, &dyn LengthPolicy),
    proposer: impl FnOnce(Vec<Vec<u32>>) -> Box<dyn Proposer>,
) -> Vec<usize> {
    let depth = plan.depth();
    accepted_where_equal(s, sampling, depth, &both(s, (rule, sampling), (plan, lengths), proposer))
}

/// As [`accepted_after`], of texts that are there, with drafts of at most `depth` tokens.
pub fn accepted_where_equal(
    s: &Setup,
    sampling: &Processors,
    depth: usize,
    texts: &[(Completion, Transcript)],
) -> Vec<usize> {
    assert_eq!(s.prompts.len(), PROMPTS);
    let mut divergences = 0;
    let mut histogram = vec![0; depth + 1];
    for (plain, speculative) in texts {
        speculative.rounds().for_each(|r| histogram[r.accepted] += 1);
        let Some(at) =
            (0..plain.ids.len().max(speculative.ids.len())).find(|&i| plain.ids.get(i) != speculative.ids.get(i))
        else {
            assert_eq!(plain.finish, speculative.finish);
            continue;
        };
        let text = [s.prompts[plain.id as usize].as_slice(), &plain.ids[..at]].concat();
        let pair = (plain.ids[at], speculative.ids[at]);
        let margin = margin(s, &text, pair, sampling, plain.id);
        eprintln!("prompt {} diverges at token {at}, margin {margin:.1e}", plain.id);
        assert!(margin < MARGIN, "prompt {}: the texts differ at token {at} by a margin of {margin}", plain.id);
        divergences += 1;
    }
    eprintln!("accepted lengths: {histogram:?}");
    assert!(divergences <= DIVERGENCES, "{divergences} of {PROMPTS} texts differ");
    histogram
}

#[test]
fn greedy_text_is_the_plain_text() {
    check(Rule::Greedy, 0.0);
}

#[test]
fn sampled_match_text_is_the_plain_text() {
    check(Rule::SampledMatch, 1.0);
}

#[test]
fn cached_passes_equal_the_full_pass() {
    let Some(dir) = smollm2() else { return };
    let s = setup(&dir);
    let text: Vec<u32> = s.prompts.iter().flatten().copied().take(200).collect();
    let full = s.target.logits(s.target.forward_full(&[&text], &[]).hidden);
    let mut cache = s.target.cache(2, 256);
    let mut rows = Vec::new();
    let mut start = 0;
    for width in [1, 50, 6, 1, 1, 90, 51] {
        let plan = cache.plan(&[spectrain_model::SlotRows::chain(1, width)]);
        rows.push(s.target.forward(&text[start..start + width], &plan, &mut cache, &[]).hidden);
        cache.commit(1, width);
        start += width;
    }
    let cached = s.target.logits(Tensor::cat(rows, 0));
    crate::support::assert_close("logits", &host_rows(cached), &host_rows(full), crate::support::BOUND);
}
