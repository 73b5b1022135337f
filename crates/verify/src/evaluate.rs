//! Measuring a drafter: the same requests as the plain path's by speculation, and what the rounds say.

use crate::count::{Answer, Counting, by_task, estimated, measured};
use crate::engine::{Cost, SpeculativeDecoder, Transcript};
use crate::judge::judge;
use crate::length::{Fixed, LengthPolicy, PolicyKind};
use crate::plain::PlainRun;
use crate::plan::{RANKS, one_level};
use crate::task::Task;
use spectrain_core::evaluation::{Estimate, Evaluation, Seconds};
use spectrain_core::form::Form;
use spectrain_core::process::{ProcessError, Processors, RowError};
use spectrain_core::rules::{Rule, RuleError};
use spectrain_core::stats::length::CostTable;
use spectrain_core::stats::{Ratio, Resampling, Slo, StatsError};
use spectrain_core::tree::{TreeKind, TreeKindError};
use spectrain_draft::proposer::Proposer;
use spectrain_model::{Llama, Request};

/// How to measure.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Acceptance rule.
    pub rule: Rule,
    /// How much of `length` each request drafts in a round.
    pub policy: PolicyKind,
    /// Measured times of rounds by length, for policies that weigh them.
    pub costs: Option<CostTable>,
    /// Processors of the target's logits, and of the drafter's where the rule reads its distribution.
    pub sampling: Processors,
    /// Drafted tokens of a round's longest path.
    pub length: usize,
    /// What a round drafts.
    pub tree: TreeKind,
    /// Measured acceptance by sibling rank, of which a Sequoia shape is made; empty for other trees.
    pub ranks: Vec<f64>,
    /// Requests at a time.
    pub batch: usize,
    /// Longest answer in tokens.
    pub max_new_tokens: usize,
    /// Seed of all draws.
    pub seed: u64,
    /// Objective that the goodput is counted for.
    pub slo: Option<Slo>,
}

impl Settings {
    /// The length policy.
    ///
    /// # Errors
    /// [`EvaluateError::Costs`].
    pub(crate) fn lengths(&self) -> Result<Box<dyn LengthPolicy>, EvaluateError> {
        self.policy.policy(self.costs.as_ref()).ok_or(EvaluateError::Costs(self.policy))
    }
}

/// A question with its task's name.
#[derive(Debug, Clone)]
pub struct Question {
    /// Task.
    pub task: String,
    /// Prompt token ids.
    pub prompt: Vec<u32>,
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum EvaluateError {
    /// The rule is approximate.
    #[error("rule {0} changes the target's law; use token, block, sampled-match or greedy, or a rule for drawn trees")]
    Rule(Rule),
    /// The rule is not exact on such trees.
    #[error(transparent)]
    Tree(#[from] TreeKindError),
    /// No Sequoia shape is so large and so low.
    #[error(
        "{ranks} siblings and a depth of {depth} do not make a tree of {nodes} nodes: ask for fewer, or for more depth"
    )]
    Shape {
        /// Nodes asked for.
        nodes: usize,
        /// Longest path.
        depth: usize,
        /// Siblings that were measured.
        ranks: usize,
    },
    /// The size of a Sequoia tree is to be chosen by costs, and there are none.
    #[error("the size of the fastest Sequoia tree needs measured costs of rounds")]
    Size,
    /// Rounds are traced of chains only.
    #[error("traces are of chains: {0} trees have several drafted tokens at a position, which a trace does not tell")]
    Chain(TreeKind),
    /// A prompt is too long for the target.
    #[error(
        "prompt {index} has {tokens} tokens; with {room} tokens of answer and draft it passes the target's {limit}"
    )]
    TooLong {
        /// Number of the prompt.
        index: usize,
        /// Its tokens.
        tokens: usize,
        /// Tokens wanted behind it.
        room: usize,
        /// Longest sequence.
        limit: usize,
    },
    /// A processor is set outside its range.
    #[error(transparent)]
    Sampling(#[from] ProcessError),
    /// A distribution was none.
    #[error(transparent)]
    Verify(#[from] RuleError),
    /// There is no way to draft to be measured.
    #[error("nothing to measure: name a length at least")]
    Nothing,
    /// A policy weighs costs, and there are none.
    #[error("the length policy {0} needs measured costs of rounds")]
    Costs(PolicyKind),
    /// Logits make no distribution.
    #[error(transparent)]
    Row(#[from] RowError),
    /// Nothing was counted.
    #[error("no verify call was made: {0}")]
    Stats(#[from] StatsError),
}

/// A measurement and the answers it is made of.
pub struct Measurement {
    /// The figures.
    pub evaluation: Evaluation,
    /// The answers, in the order of the questions.
    pub transcripts: Vec<Transcript>,
}

/// The probability that a node's accepted child is its sibling of each rank, measured at depth 1 on `questions`: what a
/// Sequoia shape is made of (spec of [`spectrain_core::tree::SequoiaTable`]).
///
/// # Errors
/// As [`evaluate`].
pub fn acceptance_by_rank(
    target: &Llama,
    proposer: &mut dyn Proposer,
    stop: &[u32],
    questions: &[Question],
    settings: &Settings,
) -> Result<Vec<f64>, EvaluateError> {
    let Settings { rule, batch, .. } = *settings;
    settings.tree.check(rule)?;
    let judge = judge(rule).ok_or(EvaluateError::Rule(rule))?;
    let plan = one_level(&settings.tree, rule);
    let tasks = Task::alike(requests(target, questions, settings, RANKS)?, &plan, judge, &Fixed);
    let decoder = SpeculativeDecoder { target, stop, batch };
    let mut counts = vec![0; RANKS];
    let mut calls = 0;
    decoder.run(tasks, proposer, |t| {
        calls += t.calls.len();
        counts.iter_mut().zip(t.ranks).for_each(|(count, found)| *count += found);
    })?;
    Ok(counts.into_iter().map(|count| count as f64 / calls.max(1) as f64).collect())
}

impl Measurement {
    /// What drafts of `length` tokens, shorter than those measured, would have committed. None where that does not
    /// follow from the rounds: the block rule judges a token in the light of later ones, and of a tree there is no shorter
    /// one.
    ///
    /// # Errors
    /// If no verify call was made.
    pub fn estimate(&self, questions: &[Question], length: usize) -> Result<Option<Estimate>, StatsError> {
        let Evaluation { rule, seed, .. } = self.evaluation;
        if rule == Rule::Block || self.evaluation.tree != TreeKind::Chain {
            return Ok(None);
        }
        let count = |answers: &[&Answer]| estimated(answers, length, seed);
        let (overall, tasks) = by_task(questions, &answers(&self.transcripts), count)?;
        Ok(Some(Estimate { length, overall, tasks }))
    }
}

fn answers(transcripts: &[Transcript]) -> Vec<Answer> {
    transcripts.iter().map(|t| Answer { calls: t.calls.clone(), timeline: t.timeline.clone() }).collect()
}

/// The questions as requests, each with room for its answer and `drafted` tokens behind it.
pub(crate) fn requests(
    target: &Llama,
    questions: &[Question],
    settings: &Settings,
    drafted: usize,
) -> Result<Vec<Request>, EvaluateError> {
    settings.sampling.validate()?;
    let limit = target.config().max_positions;
    let room = settings.max_new_tokens + drafted + 1;
    let request = |(index, q): (usize, &Question)| {
        if q.prompt.len() + room > limit {
            return Err(EvaluateError::TooLong { index, tokens: q.prompt.len(), room, limit });
        }
        Ok(Request {
            id: index as u64,
            prompt: q.prompt.clone(),
            max_new_tokens: settings.max_new_tokens,
            sampling: settings.sampling.clone(),
            seed: settings.seed,
            form: Form::default(),
        })
    };
    questions.iter().enumerate().map(request).collect()
}

/// The figures of `transcripts` beside those of `plain`; `rates` are the tokens and seconds of the same stints.
pub(crate) fn summarise(
    questions: &[Question],
    (settings, nodes): (&Settings, usize),
    plain: &PlainRun,
    transcripts: &[Transcript],
    (Cost { times, memory, .. }, rates): (Cost, &[Ratio]),
) -> Result<Evaluation, EvaluateError> {
    let seconds = times.total.as_secs_f64();
    let counting = Counting { length: settings.length, seed: settings.seed, slo: settings.slo.as_ref(), seconds };
    let (overall, tasks) = by_task(questions, &answers(transcripts), |answers| measured(answers, &counting))?;
    let tokens_per_second = transcripts.iter().map(|t| t.ids.len()).sum::<usize>() as f64 / seconds;
    let plain_tokens_per_second = plain.tokens_per_second();
    let promised = matches!(settings.rule, Rule::Greedy | Rule::SampledMatch);
    let same = || transcripts.iter().filter(|t| plain.answers.get(&t.id).is_some_and(|c| c.ids == t.ids)).count();
    Ok(Evaluation {
        guarantee: settings.rule.guarantee().name().to_string(),
        rule: settings.rule,
        temperature: settings.sampling.temperature,
        processors: settings.sampling.named(),
        length: settings.length,
        tree: settings.tree.clone(),
        nodes: Some(nodes),
        chain: None,
        batch: settings.batch,
        max_new_tokens: settings.max_new_tokens,
        seed: settings.seed,
        dtype: "f32".to_string(),
        overall,
        tasks,
        seconds: Seconds {
            t_draft: times.draft.as_secs_f64(),
            t_verify: times.verify.as_secs_f64(),
            t_sample: times.sample.as_secs_f64(),
            t_state: times.state.as_secs_f64(),
            speculative: seconds,
            plain: plain.seconds,
        },
        tokens_per_second,
        plain_tokens_per_second,
        speedup: tokens_per_second / plain_tokens_per_second,
        speedup_interval: Some(
            Resampling { seed: settings.seed, ..Resampling::default() }.quotient(rates, &plain.rates)?,
        ),
        same_text: promised.then(same),
        residual_fallbacks: transcripts.iter().map(|t| t.fallbacks).sum(),
        memory: Some(memory),
        plain: Some(plain.figures.clone()),
        estimates: Vec::new(),
    })
}
