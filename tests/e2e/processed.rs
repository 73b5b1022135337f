//! Processors at run time: texts and laws under penalties and truncations, through the batched code.

use crate::identity::{accepted_after, accepted_where_equal, both, setup};
use crate::law::{Meddled, VOCABULARY, drafter, p_value_under};
use crate::offline::trained_tiny;
use crate::support::{random_target, random_target_of};
use spectrain_core::process::{Processors, RowError};
use spectrain_core::rules::{Proposal, Rule, RuleError, Verdict, ZeroResidual, token};
use spectrain_core::stats::Finish;
use spectrain_core::tree::TreeKind;
use spectrain_draft::Eagle3Proposer;
use spectrain_draft::proposer::{Draft, Pick, Plan, Proposer, Wanted};
use spectrain_model::{Llama, Prefix, Request};
use spectrain_verify::Fixed;
use spectrain_verify::judge::{Judge, Round, judge};
use spectrain_verify::plan::plan;
use std::path::Path;

fn penalised(temperature: f64) -> Processors {
    Processors { top_p: 0.9, repetition_penalty: 1.1, ..Processors::at(temperature) }
}

/// The whole of speculation: a wrong path, history or order anywhere changes the text.
#[test]
fn text_under_processors_is_the_plain_text() {
    let dir = tempfile::tempdir().unwrap();
    let mut s = setup(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../checkpoints/tiny"));
    s.tokens = 128;
    let (_, trained, weights) = trained_tiny(1);
    let dynamic = Plan::Dynamic { nodes: 32, depth: 5, width: 10 };
    for (rule, temperature) in [(Rule::SampledMatch, 0.7), (Rule::Greedy, 0.0)] {
        let mut kinds = crate::untrained::kinds(&s.target, dir.path());
        kinds.push(("eagle3", Box::new(Eagle3Proposer::new(trained.clone(), &weights))));
        for (name, proposer) in kinds {
            let sampling = (rule, &penalised(temperature));
            let histogram = accepted_after(&s, sampling, (dynamic.clone(), &Fixed), |_| proposer);
            let accepted: usize = histogram[1..].iter().sum();
            let least = match name {
                "eagle3" => 500,
                "model" => 1,
                _ => 50,
            };
            assert!(accepted >= least, "{name}: {histogram:?}");
        }
    }
    // Masks come before truncations, which therefore never end an answer that the form lets go on.
    (s.tokens, s.forms) = (32, crate::forms::prose());
    let sampling = penalised(1.0);
    let proposer = |_| -> Box<dyn Proposer> { Box::new(Eagle3Proposer::new(trained, &weights)) };
    let texts = both(&s, (Rule::SampledMatch, &sampling), (dynamic, &Fixed), proposer);
    let histogram = accepted_where_equal(&s, &sampling, 5, &texts);
    let ends = |finish| texts.iter().filter(|(_, speculative)| speculative.finish == finish).count();
    let ends = [Finish::Stop, Finish::Masked, Finish::Length].map(ends);
    eprintln!("within a grammar: accepted {histogram:?}, stop, masked and length {ends:?}");
    assert!(histogram[1..].iter().sum::<usize>() > 100 && ends[0] > 0 && ends[2] > 0);
    assert_eq!(ends[1], 0);
}

/// Everything that moves mass, so that no part of the order is idle.
fn all() -> Processors {
    Processors {
        repetition_penalty: 1.3,
        frequency_penalty: 0.4,
        presence_penalty: -0.2,
        top_k: 3,
        top_p: 0.95,
        min_p: 0.02,
        ..Processors::at(0.8)
    }
}

const DRAWS: usize = 100_000;

fn p_under(target: &Llama, judge: &Judge, plan: &Plan, sampling: &Processors) -> f64 {
    p_value_under(target, (judge, plan), &mut drafter(target), (4, DRAWS), sampling)
}

#[test]
fn every_rule_keeps_the_processed_law() {
    let dir = tempfile::tempdir().unwrap();
    let target = random_target_of(dir.path(), VOCABULARY, 2, 3);
    let only =
        [all(), Processors { top_p: 0.8, ..Processors::at(1.0) }, Processors { top_k: 2, ..Processors::at(1.0) }];
    for (rule, tree) in [
        (Rule::Token, "chain"),
        (Rule::Block, "chain"),
        (Rule::SampledMatch, "dynamic:7"),
        (Rule::SpecInfer, "sampled:2,2"),
        (Rule::Sequoia, "sampled:2,2"),
        (Rule::Traversal, "sampled:2,2"),
    ] {
        let plan = plan(&tree.parse::<TreeKind>().unwrap(), rule, 3, &[]).unwrap();
        for sampling in &only {
            let p = p_under(&target, judge(rule).unwrap(), &plan, sampling);
            eprintln!("{rule} on {tree} under {:?}: p = {p:.3}", sampling.named());
            assert!(p > 1e-4, "{rule} on {tree} under {:?}: p = {p:e}", sampling.named());
        }
    }
}

/// The token rule on target rows of `p` and drafts of `q`, either of which may be a wrong one.
fn token_rule(
    round: &Round,
    p: impl Fn(usize) -> Result<Vec<f64>, RowError>,
    q: impl Fn(usize) -> Vec<f64>,
) -> Result<Verdict, RuleError> {
    let drafted = round.draft.tokens.len();
    let target = (0..=drafted).map(p).collect::<Result<Vec<_>, _>>()?;
    let rows: Vec<Vec<f64>> = (0..drafted).map(q).collect();
    let proposals: Vec<Proposal> = rows.iter().map(|q| Proposal::Sampled(q)).collect();
    token::verify(&round.draft.tokens, &proposals, &target, ZeroResidual::FallBack, &mut round.chance())
}

/// Penalties read the committed text alone.
fn committed_only(round: &Round) -> Result<Verdict, RuleError> {
    token_rule(round, |node| round.prefix.distribution(round.row(node), &[]), |i| round.q(i))
}

/// `q` is reported as it was before top-k.
fn before_top_k(round: &Round) -> Result<Verdict, RuleError> {
    let wide = Processors { top_k: 0, ..round.prefix.request.sampling.clone() };
    let request = Request { sampling: wide, ..round.prefix.request.clone() };
    let prefix = Prefix { request: &request, ..round.prefix };
    let q = |i: usize| prefix.distribution(&widened(&round.draft.logits[i]), &round.draft.tokens[..i]).unwrap();
    token_rule(round, |node| round.p(node), q)
}

/// Logits of the first tokens over the whole vocabulary.
fn widened(logits: &[f32]) -> Vec<f32> {
    let barred = std::iter::repeat_n(f32::NEG_INFINITY, VOCABULARY - logits.len());
    logits.iter().copied().chain(barred).collect()
}

/// Draws from unprocessed distributions and reports processed ones.
fn unprocessed(drafter: &mut Eagle3Proposer, wanted: &[Wanted]) -> Result<Vec<Draft>, RowError> {
    let raw = |w: &Wanted| Request { sampling: Processors::at(1.0), ..w.prefix.request.clone() };
    let requests: Vec<Request> = wanted.iter().map(raw).collect();
    let asked = wanted.iter().zip(&requests);
    let asked = asked.map(|(w, request)| Wanted { prefix: Prefix { request, ..w.prefix }, ..*w });
    let mut drafts = drafter.draft(&asked.collect::<Vec<_>>())?;
    for (draft, w) in drafts.iter_mut().zip(wanted) {
        for (i, q) in draft.q.iter_mut().enumerate() {
            *q = w.prefix.distribution(&widened(&draft.logits[i]), &draft.tokens[..i])?[..q.len()].to_vec();
        }
    }
    Ok(drafts)
}

#[test]
fn planted_faults_of_processing_are_seen() {
    let dir = tempfile::tempdir().unwrap();
    let target = random_target(dir.path(), VOCABULARY, 3);
    let chain = Plan::chain(3, Pick::Sample);
    let penalties = Processors { repetition_penalty: 1.3, frequency_penalty: 0.4, ..Processors::at(0.8) };
    let cut = Processors { top_k: 2, ..Processors::at(1.6) };
    let rule = judge(Rule::Token).unwrap();
    for sampling in [&penalties, &cut] {
        let p = p_under(&target, rule, &chain, sampling);
        assert!(p > 1e-4, "without a fault: p = {p:e}");
    }
    let mut unprocessed = Meddled(drafter(&target), unprocessed);
    for (name, p) in [
        ("the committed text only", p_under(&target, &committed_only, &chain, &penalties)),
        ("q before top-k", p_under(&target, &before_top_k, &chain, &cut)),
        ("q unprocessed", p_value_under(&target, (rule, &chain), &mut unprocessed, (4, DRAWS), &penalties)),
    ] {
        eprintln!("{name}: p = {p:e}");
        assert!(p < 1e-8, "{name}: p = {p:e}");
    }
}
