//! The drafter against its target in the exact verifier.

use super::Costs;
use super::offline::{Candidate, score, written};
use super::setup::Setup;
use super::transcript::transcript;
use crate::exit::{Blame, Failure};
use crate::progress::Progress;
use anyhow::anyhow;
use spectrain_core::costs::{BatchCost, CostProfile};
use spectrain_core::evaluation::{Estimate, Evaluation};
use spectrain_core::process::Processors;
use spectrain_core::reconciliation::Figure;
use spectrain_core::rules::Rule;
use spectrain_core::stats::Slo;
use spectrain_core::tree::TreeKind;
use spectrain_data::answers::Answer;
use spectrain_data::prompts::Prompt;
use spectrain_draft::{Checkpoint, Proposer};
use spectrain_model::Completion;
use spectrain_report::Transcript;
use spectrain_verify::evaluate::{Question, Settings};
use spectrain_verify::offline::{Chains, Scored};
use spectrain_verify::plan::{fastest, plan as draft_plan};
use spectrain_verify::reconcile::{Point, figure};
use spectrain_verify::{Bench, Comparison, Measurement, PlainRun, PolicyKind, acceptance_by_rank};

/// Longest answer of the pass that warms up.
const WARM_UP: usize = 8;

/// What is measured.
pub struct EvalPlan {
    /// Rule at temperatures above zero.
    pub rule: Rule,
    /// One curve each.
    pub temperatures: Vec<f64>,
    /// Processors besides the temperature.
    pub sampling: Processors,
    /// Most drafted tokens a round, one measurement each.
    pub lengths: Vec<usize>,
    /// How much of it each request drafts in a round.
    pub policy: PolicyKind,
    /// What rounds cost here, for policies that weigh it.
    pub costs: Option<CostProfile>,
    /// Requests at once.
    pub batch: usize,
    /// Longest answer.
    pub max_new_tokens: usize,
    /// Seed of the draws.
    pub seed: u64,
    /// Objective that the goodput is counted for.
    pub slo: Option<Slo>,
    /// Tokens of a target pass when offline's figures are held against the measured ones; none to leave that out.
    pub reconcile: Option<usize>,
}

/// What was measured.
#[derive(Default)]
pub struct Curves {
    /// By temperature and then by length, both rising.
    pub evaluations: Vec<Evaluation>,
    /// Trees that were measured beside a curve of chains.
    pub trees: Vec<Evaluation>,
    /// One answer a temperature, to look at.
    pub transcripts: Vec<Transcript>,
    /// Offline's figures beside the measured ones, where rule and number of prompts allow it.
    pub figures: Vec<Figure>,
}

impl EvalPlan {
    pub(super) fn settings(&self, temperature: f64, length: usize) -> Settings {
        Settings {
            rule: self.rule.at(temperature),
            policy: self.policy,
            costs: self.costs.as_ref().and_then(|costs| costs.at(temperature, self.batch)).map(BatchCost::table),
            sampling: Processors { temperature, ..self.sampling.clone() },
            length,
            tree: TreeKind::Chain,
            ranks: Vec::new(),
            batch: self.batch,
            max_new_tokens: self.max_new_tokens,
            seed: self.seed,
            slo: self.slo,
        }
    }

    /// Most nodes of a tree; of one whose size is still to be chosen, those whose costs are known.
    pub fn nodes(&self, tree: &TreeKind) -> usize {
        let known = || self.temperatures.iter().filter_map(|&t| self.settings(t, 1).costs).map(|c| c.draft.len()).max();
        match tree {
            TreeKind::Sequoia(None) => known().unwrap_or(0),
            _ => tree.nodes().unwrap_or(0),
        }
    }

    /// Temperatures and lengths, rising and each once.
    pub(super) fn axes(&self) -> (Vec<f64>, Vec<usize>) {
        let (mut temperatures, mut lengths) = (self.temperatures.clone(), self.lengths.clone());
        temperatures.sort_by(f64::total_cmp);
        lengths.sort_unstable();
        temperatures.dedup();
        lengths.dedup();
        (temperatures, lengths)
    }
}

/// Measures chains of `checkpoint` on `prompts`: the plain path once per temperature, then every length.
pub fn evaluate(
    setup: &Setup,
    checkpoint: &Checkpoint,
    prompts: &[Prompt],
    plan: &EvalPlan,
) -> Result<Curves, Failure> {
    evaluate_trees(setup, checkpoint, prompts, plan, &TreeKind::Chain, None)
}

/// As [`evaluate`], for trees: each is measured beside a chain of as many nodes. Of trees whose shape is given, the
/// lengths of `plan` are not read. `costs` are measured by turns with the rest.
pub fn evaluate_trees(
    setup: &Setup,
    checkpoint: &Checkpoint,
    prompts: &[Prompt],
    plan: &EvalPlan,
    tree: &TreeKind,
    costs: Option<&mut Costs>,
) -> Result<Curves, Failure> {
    let proposer = checkpoint.proposer(&setup.target).request()?;
    let candidate = Candidate::load(setup, String::new(), checkpoint)?;
    Evaluator::new(setup, proposer, Some(candidate), prompts, plan.policy)?.curves(plan, tree, costs)
}

/// As [`evaluate`], with a proposer that was not trained: nothing of offline's stands beside it.
pub fn evaluate_untrained(
    setup: &Setup,
    proposer: Box<dyn Proposer>,
    prompts: &[Prompt],
    plan: &EvalPlan,
) -> Result<Curves, Failure> {
    Evaluator::new(setup, proposer, None, prompts, plan.policy)?.curves(plan, &TreeKind::Chain, None)
}

/// The rule that judges chains as `rule` judges trees.
fn chain_rule(rule: Rule) -> Rule {
    match rule {
        Rule::SpecInfer | Rule::Sequoia => Rule::Token,
        Rule::Traversal => Rule::Block,
        other => other,
    }
}

/// The chains of as many nodes as the trees of `settings`, each once; none beside chains.
fn chains_beside(settings: &[Settings]) -> Result<Vec<Settings>, Failure> {
    let mut chains: Vec<Settings> = Vec::new();
    for s in settings.iter().filter(|s| s.tree != TreeKind::Chain) {
        let length = draft_plan(&s.tree, s.rule, s.length, &s.ranks).work()?.drafted();
        if chains.iter().all(|chain| chain.length != length) {
            chains.push(Settings { length, tree: TreeKind::Chain, rule: chain_rule(s.rule), ..s.clone() });
        }
    }
    Ok(chains)
}

/// The tree with a size, and its depths: one that is to be the fastest by the costs of `chain` gets both here.
fn sized(
    tree: &TreeKind,
    ranks: &[f64],
    chain: &Settings,
    lengths: &[usize],
) -> Result<(TreeKind, Vec<usize>), Failure> {
    let (TreeKind::Sequoia(None), Some(costs)) = (tree, &chain.costs) else {
        return Ok((tree.clone(), lengths.to_vec()));
    };
    let (tree, depth) = fastest(ranks, costs, chain.length).work()?;
    Ok((tree, vec![depth]))
}

/// The figures alone, without the plain path's, which the tree beside has.
fn alone(measurement: Measurement) -> Evaluation {
    Evaluation { plain: None, ..measurement.evaluation }
}

/// What every measurement is made with.
struct Evaluator<'a> {
    setup: &'a Setup,
    proposer: Box<dyn Proposer>,
    /// The same drafter for offline's figures; none for what was not trained.
    candidate: Option<Candidate>,
    policy: PolicyKind,
    stop: Vec<u32>,
    questions: Vec<Question>,
}

impl<'a> Evaluator<'a> {
    fn new(
        setup: &'a Setup,
        proposer: Box<dyn Proposer>,
        candidate: Option<Candidate>,
        prompts: &[Prompt],
        policy: PolicyKind,
    ) -> Result<Self, Failure> {
        let question = |p: &Prompt| Ok(Question { task: p.task.clone(), prompt: setup.encode(p)? });
        let questions: Vec<Question> = prompts.iter().map(question).collect::<Result<_, Failure>>()?;
        Ok(Self { setup, proposer, candidate, policy, stop: setup.template.stop_ids(), questions })
    }

    /// Measures every temperature and length, all lengths of a temperature and plain decoding by turns.
    fn curves(&mut self, plan: &EvalPlan, tree: &TreeKind, mut costs: Option<&mut Costs>) -> Result<Curves, Failure> {
        let (temperatures, lengths) = plan.axes();
        let asked = tree.depth().map_or(lengths, |depth| vec![depth]);
        let longest = asked.last().copied().unwrap_or(1);
        self.warm_up(&plan.settings(temperatures.first().copied().unwrap_or(0.0), longest));
        if let Some(costs) = &mut costs {
            costs.measure(&mut self.bench())?;
        }
        let mut curves = Curves::default();
        for &temperature in &temperatures {
            let chain = plan.settings(temperature, longest);
            let ranks = self.ranks(&Settings { tree: tree.clone(), ..chain.clone() })?;
            let (tree, lengths) = sized(tree, &ranks, &chain, &asked)?;
            let drafting = |&length| Settings { length, tree: tree.clone(), ranks: ranks.clone(), ..chain.clone() };
            let mut settings: Vec<Settings> = lengths.iter().map(drafting).collect();
            settings.extend(chains_beside(&settings)?);
            let Comparison { plain, mut measurements } = self.compare(&settings, costs.as_deref_mut())?;
            let beside: Vec<Evaluation> = measurements.split_off(lengths.len()).into_iter().map(alone).collect();
            let scored = self.followed(plan, &chain, &plain, &tree)?;
            for mut measured in measurements {
                let Evaluation { length, nodes, .. } = measured.evaluation;
                if let Some(scored) = &scored {
                    let comparisons = temperatures.len() * lengths.len();
                    let point = Point { temperature, length, comparisons, seed: plan.seed };
                    curves.figures.extend(figure(scored, &measured.transcripts, point).work()?);
                }
                measured.evaluation.chain = beside.iter().find(|chain| chain.nodes == nodes).cloned().map(Box::new);
                if lengths.last() == Some(&length) {
                    measured.evaluation.estimates = self.estimates(&measured, &lengths)?;
                    curves.transcripts.extend(transcript(self.setup, &self.questions, &measured)?);
                }
                curves.evaluations.push(measured.evaluation);
            }
        }
        Ok(curves)
    }

    /// Runs both paths once for a few tokens, so that the first measurement pays for no first use of memory or caches.
    fn warm_up(&mut self, settings: &Settings) {
        let settings = Settings { max_new_tokens: WARM_UP.min(settings.max_new_tokens), ..settings.clone() };
        let questions = &self.questions[..self.questions.len().min(settings.batch)];
        let (target, proposer) = (&self.setup.target, self.proposer.as_mut());
        let mut bench = Bench { target, proposer, stop: &self.stop };
        // What cannot be measured is told by the measurement itself.
        drop(spectrain_verify::compare(&mut bench, questions, &[settings], &mut |_| Ok(()), |_| ()));
    }

    fn bench(&mut self) -> Bench<'_> {
        Bench { target: &self.setup.target, proposer: self.proposer.as_mut(), stop: &self.stop }
    }

    fn compare(&mut self, settings: &[Settings], mut costs: Option<&mut Costs>) -> Result<Comparison, Failure> {
        let names = settings.iter().map(|s| format!("{} of {}", s.tree, s.length)).collect::<Vec<_>>().join(", ");
        let [first, ..] = settings else { return Err(anyhow!("no draft length is named")).request() };
        let label = format!("eval T={}: plain, {names}, {}", first.sampling.temperature, first.rule);
        let most = self.questions.len() * (settings.len() + 1) * first.max_new_tokens;
        let progress = Progress::up_to(&label, most as u64, "tokens");
        let (target, proposer) = (&self.setup.target, self.proposer.as_mut());
        let mut bench = Bench { target, proposer, stop: &self.stop };
        let (temperature, batch) = (first.sampling.temperature, first.batch);
        let mut between = |bench: &mut Bench| match &mut costs {
            Some(costs) => costs.sweep(bench, temperature, batch),
            None => Ok(()),
        };
        let count = |tokens| progress.inc(tokens as u64);
        let run = spectrain_verify::compare(&mut bench, &self.questions, settings, &mut between, count);
        progress.finish();
        run.work()
    }

    /// What offline says along the plain answers where it can follow what is measured: chains of one length.
    fn followed(
        &self,
        plan: &EvalPlan,
        chain: &Settings,
        plain: &PlainRun,
        tree: &TreeKind,
    ) -> Result<Option<Vec<Scored>>, Failure> {
        let follows = *tree == TreeKind::Chain && plan.policy == PolicyKind::Fixed;
        match plan.reconcile.filter(|_| follows) {
            Some(tokens) => self.offline(chain, plain, tokens),
            None => Ok(None),
        }
    }

    /// What offline says along the plain answers; none where the rule's rounds do not follow from a text.
    fn offline(
        &self,
        settings: &Settings,
        plain: &PlainRun,
        batch_tokens: usize,
    ) -> Result<Option<Vec<Scored>>, Failure> {
        // Offline's walks know a temperature only.
        let temperature = settings.sampling.temperature;
        if !settings.sampling.temperature_only() {
            return Ok(None);
        }
        let (Ok(chains), Some(candidate)) = (Chains::of(settings.rule, temperature), &self.candidate) else {
            return Ok(None);
        };
        let answer = |(question, c): (&Question, &Completion)| written(&question.prompt, c, temperature, settings.seed);
        let answers: Vec<Answer> = self.questions.iter().zip(plain.answers.values()).map(answer).collect();
        let candidate = std::slice::from_ref(candidate);
        let longest = (chains, settings.length);
        let mut found = score(self.setup, candidate, &answers, batch_tokens, temperature, longest)?;
        Ok(found.pop())
    }

    /// The acceptance by sibling rank that a Sequoia shape is made of; empty for other trees.
    fn ranks(&mut self, settings: &Settings) -> Result<Vec<f64>, Failure> {
        if !matches!(settings.tree, TreeKind::Sequoia(_)) {
            return Ok(Vec::new());
        }
        let (target, proposer) = (&self.setup.target, self.proposer.as_mut());
        acceptance_by_rank(target, proposer, &self.stop, &self.questions, settings).work()
    }

    /// The lengths below the measured one that are not among `lengths`.
    fn estimates(&self, measured: &Measurement, lengths: &[usize]) -> Result<Vec<Estimate>, Failure> {
        // What a policy would have drafted in shorter rounds does not follow from longer ones.
        if self.policy != PolicyKind::Fixed {
            return Ok(Vec::new());
        }
        let missing = (1..measured.evaluation.length).filter(|length| !lengths.contains(length));
        let estimates = missing.filter_map(|length| measured.estimate(&self.questions, length).transpose());
        estimates.collect::<Result<_, _>>().work()
    }
}
