//! When speculation does not pay, or goes wrong: each usual case judged by a number that was measured.
//!
//! The rules are pure functions of evaluations and, where there is one, of a cost table. Limits that divide "low" from
//! "enough" are conventions and stand here as constants; limits that follow from the costs are computed from them.

use crate::costs::{BatchCost, CostProfile};
use crate::evaluation::Evaluation;
use crate::rules::Guarantee;
use crate::stats::length::conditional;

/// First drafts that must be accepted for a drafter to count as one that follows its target.
const FIRST_ACCEPTED: f64 = 0.5;
/// Part of the drafts whose acceptance counts as high.
const HIGH_ACCEPTANCE: f64 = 0.5;
/// Spread of the tasks' tokens per call, in parts of the whole, that counts as volatile.
const TASK_SPREAD: f64 = 0.3;
/// Part of the accepted drafts that must be left at a temperature above 0.
const CLIFF: f64 = 0.7;
/// Answers below this many tokens are short: the prompt's pass is then a large part of the work.
const SHORT_ANSWER: f64 = 16.0;
/// Part of the texts that rounding may make differ where equal text is promised.
const DIFFERENT_TEXTS: f64 = 0.05;
/// Part of the speed-up of one request that must be left in a full batch.
const SATURATION: f64 = 0.8;

/// A case, and whether it holds.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    /// Name of the case.
    pub case: &'static str,
    /// Whether it holds.
    pub holds: bool,
    /// The number that decided, with what it was compared with, and what to do where it holds.
    pub reason: String,
}

/// Cases that neither evaluations nor a cost table can tell, with where to look.
pub const NOT_JUDGED: [(&str, &str); 4] = [
    ("latency of the slowest requests", "compare p99 of both decoders under your own load"),
    ("memory over plan", "the drafter's weights and both caches must fit beside the target"),
    ("grammars and bad words", "the evaluation samples without them"),
    ("another tokenizer or an upgraded target", "such a drafter is refused when it is loaded"),
];

/// Judges every case that `evaluations` of one checkpoint tell, with `costs` those that depend on the batch. Of each
/// temperature the draft length with most tokens per second is judged: what one would serve.
pub fn advise(evaluations: &[Evaluation], costs: Option<&CostProfile>) -> Vec<Finding> {
    let mut found = Vec::new();
    let served = quickest(evaluations);
    for &e in &served {
        found.extend([slower(e), idle_acceptance(e), low_acceptance(e), volatile(e), late_drafts(e), short_answers(e)]);
        found.extend(other_text(e));
        found.push(approximate(e));
        if let Some(cost) = costs.and_then(|c| c.at(e.temperature, e.batch)) {
            found.extend(wrong_length(e, cost));
        }
        found.extend(costs.and_then(|c| saturated(e, c)));
    }
    found.extend(cliffs(&served, evaluations));
    found
}

/// The quickest evaluation of each temperature; those of one temperature lie side by side.
fn quickest(evaluations: &[Evaluation]) -> Vec<&Evaluation> {
    let curves = evaluations.chunk_by(|a, b| a.temperature == b.temperature);
    curves.filter_map(|c| c.iter().max_by(|a, b| a.tokens_per_second.total_cmp(&b.tokens_per_second))).collect()
}

/// `T=1 K=4`.
fn at(e: &Evaluation) -> String {
    format!("T={} K={}", e.temperature, e.length)
}

fn tokens(e: &Evaluation) -> f64 {
    e.overall.acceptance.tokens_per_target_call
}

/// Plain steps that a round took in the evaluation itself.
fn round_cost(e: &Evaluation) -> f64 {
    tokens(e) / e.speedup
}

fn slower(e: &Evaluation) -> Finding {
    let reason = format!(
        "{}: speed-up {:.2}; a round costs {:.2} plain steps and commits {:.2} tokens",
        at(e),
        e.speedup,
        round_cost(e),
        tokens(e)
    );
    Finding { case: "slower than plain decoding", holds: e.speedup < 1.0, reason }
}

fn idle_acceptance(e: &Evaluation) -> Finding {
    let s = &e.seconds;
    let rate = e.overall.acceptance.accept_rate_draft;
    let parts = [
        ("drafting", s.t_draft),
        ("the target call", s.t_verify),
        ("sampling", s.t_sample),
        ("bookkeeping", s.t_state),
    ];
    let (part, time) = parts.into_iter().fold(("", 0.0), |most, p| if p.1 > most.1 { p } else { most });
    let share = 100.0 * time / s.speculative;
    let reason = format!(
        "{}: {:.0} % of the drafts are accepted at a speed-up of {:.2}; {part} takes {share:.0} % of the time",
        at(e),
        100.0 * rate,
        e.speedup
    );
    Finding { case: "high acceptance without speed-up", holds: rate >= HIGH_ACCEPTANCE && e.speedup < 1.0, reason }
}

fn low_acceptance(e: &Evaluation) -> Finding {
    let first = e.overall.acceptance.accept_prefix.first().copied().unwrap_or(0.0);
    let reason = format!("{}: the first draft is accepted in {:.0} % of the rounds", at(e), 100.0 * first);
    Finding { case: "low acceptance", holds: first < FIRST_ACCEPTED, reason }
}

fn volatile(e: &Evaluation) -> Finding {
    let by_task = e.tasks.iter().map(|(name, c)| (name.as_str(), c.acceptance.tokens_per_target_call));
    let least = by_task.clone().min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or(("all", tokens(e)));
    let most = by_task.max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or(("all", tokens(e)));
    let spread = (most.1 - least.1) / tokens(e);
    let reason = format!("{}: from {:.2} tokens per call ({}) to {:.2} ({})", at(e), least.1, least.0, most.1, most.0);
    Finding { case: "volatile acceptance", holds: spread > TASK_SPREAD, reason }
}

fn late_drafts(e: &Evaluation) -> Finding {
    let survival = &e.overall.acceptance.accept_prefix;
    let last = survival.last().copied().unwrap_or(0.0);
    // A draft that is never reached for is paid all the same: less than the mean part of a plain step it costs.
    let drafted = (round_cost(e) - 1.0).max(0.0) / e.length as f64;
    let kept = conditional(survival).len();
    let reason = format!(
        "{}: draft {} is accepted in {:.1} % of the rounds and costs {:.0} % of a plain step; {kept} positions are reached",
        at(e),
        e.length,
        100.0 * last,
        100.0 * drafted
    );
    Finding { case: "draft too long", holds: last < drafted, reason }
}

fn short_answers(e: &Evaluation) -> Finding {
    let questions = e.overall.questions as f64;
    let mean = e.overall.acceptance.committed_tokens as f64 / questions + 1.0;
    let reason = format!("{}: answers have {mean:.1} tokens on average, {SHORT_ANSWER} and more are long", at(e));
    Finding { case: "short outputs", holds: mean < SHORT_ANSWER, reason }
}

fn other_text(e: &Evaluation) -> Option<Finding> {
    let same = e.same_text?;
    let questions = e.overall.questions;
    let different = questions.saturating_sub(same);
    let reason = format!("{}: {different} of {questions} texts differ from the plain path's", at(e));
    let holds = different as f64 > DIFFERENT_TEXTS * questions as f64;
    Some(Finding { case: "text not replayable", holds, reason })
}

fn approximate(e: &Evaluation) -> Finding {
    let reason = format!("{}: rule {} promises {}", at(e), e.rule, e.guarantee);
    Finding { case: "output not the target's law", holds: e.guarantee == Guarantee::Approximate.name(), reason }
}

fn wrong_length(e: &Evaluation, cost: &BatchCost) -> Option<Finding> {
    let survival = &e.overall.acceptance.accept_prefix;
    let table = cost.table();
    let (rates, best) = (table.rates(survival), table.best_length(survival));
    let gain = rates.get(best)? / rates.get(e.length)? - 1.0;
    let reason = format!(
        "{}: by the cost table K={best} is best for batch {} and {:.0} % faster than K={}",
        at(e),
        e.batch,
        100.0 * gain,
        e.length
    );
    Some(Finding { case: "another length is faster", holds: best != e.length, reason })
}

fn saturated(e: &Evaluation, costs: &CostProfile) -> Option<Finding> {
    let batches: Vec<&BatchCost> = costs.batches.iter().filter(|b| b.temperature == e.temperature).collect();
    let (least, most) = (batches.iter().min_by_key(|b| b.batch)?, batches.iter().max_by_key(|b| b.batch)?);
    let (alone, full) = (least.speedup(e.length, tokens(e))?, most.speedup(e.length, tokens(e))?);
    let reason = format!(
        "{}: the predicted speed-up is {alone:.2} at batch {} and {full:.2} at batch {}",
        at(e),
        least.batch,
        most.batch
    );
    Some(Finding { case: "batch saturated", holds: least.batch < most.batch && full < SATURATION * alone, reason })
}

/// Drafts that sampling loses: each temperature above 0 against greedy at the same length.
fn cliffs(served: &[&Evaluation], evaluations: &[Evaluation]) -> Vec<Finding> {
    let accepted = |e: &Evaluation| e.overall.acceptance.accepted_per_target_call;
    let mut found = Vec::new();
    for &warm in served.iter().filter(|e| e.temperature > 0.0) {
        let cold = evaluations.iter().find(|e| e.temperature == 0.0 && e.length == warm.length);
        found.extend(cold.map(|cold| {
            let reason = format!(
                "{}: {:.2} accepted drafts per call against {:.2} at T=0",
                at(warm),
                accepted(warm),
                accepted(cold)
            );
            Finding { case: "temperature cliff", holds: accepted(warm) < CLIFF * accepted(cold), reason }
        }));
    }
    found
}
