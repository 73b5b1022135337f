//! A request with what is drafted for it and how it is judged: what a batch is made of.

use crate::departure::Departing;
use crate::judge::{JudgeOf, judge};
use crate::length::{Fixed, LengthPolicy, Seen};
use spectrain_core::rules::{Rule, Script};
use spectrain_draft::proposer::{Pick, Plan, Wanted};
use spectrain_model::{Prefix, Request};

/// A request and how it is answered. Those of one batch may differ in everything.
#[derive(Clone)]
pub struct Task<'a> {
    /// The request.
    pub request: Request,
    /// What is drafted a round; the chain of no tokens for plain decoding.
    pub plan: &'a Plan,
    /// The acceptance rule.
    pub judge: &'a JudgeOf<'a>,
    /// How much of the plan's chain is drafted in a round.
    pub lengths: &'a dyn LengthPolicy,
    /// What makes the request leave before its text ends.
    pub departing: Option<&'a dyn Departing>,
    /// Decides its random events in place of the keyed numbers.
    pub script: Option<&'a dyn Script>,
}

/// No draft.
static NOTHING: Plan = Plan::Chain { length: 0, pick: Pick::Argmax };

impl<'a> Task<'a> {
    /// `request` with keyed draws and nothing that makes it leave before its text ends.
    pub fn of(request: Request, plan: &'a Plan, judge: &'a JudgeOf<'a>, lengths: &'a dyn LengthPolicy) -> Self {
        Self { request, plan, judge, lengths, departing: None, script: None }
    }

    /// `request` without drafts: it writes what the plain path writes.
    pub fn plain(request: Request) -> Self {
        let rule = Rule::SampledMatch.at(request.sampling.temperature);
        let judge = judge(rule).expect("exact rules have judges");
        Self::of(request, &NOTHING, judge, &Fixed)
    }

    /// All `requests` with one plan, rule and policy.
    pub fn alike(
        requests: impl IntoIterator<Item = Request>,
        plan: &'a Plan,
        judge: &'a JudgeOf<'a>,
        lengths: &'a dyn LengthPolicy,
    ) -> Vec<Self> {
        requests.into_iter().map(|request| Self::of(request, plan, judge, lengths)).collect()
    }

    /// Whether the drafter has to follow the text.
    pub(crate) fn drafts(&self) -> bool {
        self.plan.drafted() > 0
    }

    /// Tokens of prompt and longest answer.
    pub(crate) fn longest(&self) -> usize {
        self.request.prompt.len() + self.request.max_new_tokens
    }

    /// What `slot` drafts behind `prefix` as `seen` decides: nothing, or all of a tree, or a part of a chain.
    pub(crate) fn wanted<'b>(&'b self, slot: usize, prefix: Prefix<'b>, seen: Seen) -> Option<Wanted<'b>> {
        let whole = Wanted::whole(slot, self.plan, prefix);
        match self.plan {
            Plan::Chain { length: 0, .. } => None,
            Plan::Chain { length, .. } => {
                let length = self.lengths.length(seen, *length).min(*length);
                let confidence = self.lengths.confidence();
                (length > 0).then_some(Wanted { length, confidence, ..whole })
            }
            _ => Some(whole),
        }
    }
}
