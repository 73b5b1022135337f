//! Traces tell what the verifier did, both sides of the expected length agree on them unless the drafter is conditioned
//! otherwise than in training, and learning from them helps on prompts of their kind.

use crate::offline::{Asked, Silent, short_trained, trained_tiny};
use crate::support::train_config;
use burn::module::Module;
use half::bf16;
use spectrain_core::chat::ChatTemplate;
use spectrain_core::process::Processors;
use spectrain_core::rules::Rule;
use spectrain_core::stats::bootstrap::ratio_of_sums;
use spectrain_core::stats::{Interval, Resampling};
use spectrain_core::tokenizer::Tokenizer;
use spectrain_core::tree::TreeKind;
use spectrain_data::prompts::read_prompts;
use spectrain_data::store::FeatureRow;
use spectrain_data::traces::{FORMAT, Trace, TracesMeta, read_traces, write_traces};
use spectrain_draft::checkpoint::Provenance;
use spectrain_draft::{Checkpoint, Eagle3, Eagle3Drafter, Eagle3Proposer, Objective};
use spectrain_kernels::draft_loss::DraftLoss;
use spectrain_train::{Start, TrainConfig, Trainer};
use spectrain_verify::evaluate::{EvaluateError, Question};
use spectrain_verify::offline::{Chains, Drafts, Offline, Questions, Sides};
use spectrain_verify::traces::{Traced, trace};
use spectrain_verify::{Bench, PolicyKind, Settings, compare};
use std::path::Path;
use std::sync::Arc;

const LENGTH: usize = 4;
const TOKENS: usize = 48;
const TAPS: [usize; 3] = [1, 2, 4];

fn settings(temperature: f64) -> Settings {
    Settings {
        rule: Rule::Token.at(temperature),
        policy: PolicyKind::Fixed,
        costs: None,
        sampling: Processors::at(temperature),
        length: LENGTH,
        tree: TreeKind::Chain,
        ranks: Vec::new(),
        batch: 16,
        max_new_tokens: TOKENS,
        seed: 31,
        slo: None,
    }
}

fn questions(prompts: &[Vec<u32>]) -> Vec<Question> {
    prompts.iter().map(|prompt| Question { task: "any".into(), prompt: prompt.clone() }).collect()
}

fn meta(asked: &Asked, requests: usize) -> TracesMeta {
    TracesMeta {
        traces_format: FORMAT,
        target_hash: String::new(),
        tokenizer_hash: String::new(),
        template_hash: String::new(),
        drafter_hash: String::new(),
        vocabulary: asked.target.config().vocab_size,
        rule: Rule::Token,
        seed: 31,
        top: 16,
        length: LENGTH,
        max_new_tokens: TOKENS,
        stop: asked.stop.clone(),
        requests,
        spectrain_version: String::new(),
    }
}

/// The run at `temperature`, and its traces as a file would bring them.
fn traced(asked: &Asked, drafter: &Eagle3Drafter, weights: &Eagle3, temperature: f64) -> (Vec<Traced>, Vec<Trace>) {
    let mut proposer = Eagle3Proposer::new(drafter.clone(), weights);
    let mut bench = Bench { target: &asked.target, proposer: &mut proposer, stop: &asked.stop };
    let found = trace(&mut bench, &questions(&asked.prompts), &settings(temperature), 16).unwrap();
    let of = |(prompt, t): (&Vec<u32>, &Traced)| Trace {
        prompt_id: String::new(),
        task: String::new(),
        prompt: prompt.clone(),
        answer: t.transcript.ids.clone(),
        temperature,
        finish: t.transcript.finish.into(),
        rounds: t.rounds.clone(),
    };
    let traces: Vec<Trace> = asked.prompts.iter().zip(&found).map(of).collect();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("traces.jsonl");
    write_traces(&path, &meta(asked, traces.len()), &traces).unwrap();
    assert_eq!(read_traces(&path).unwrap().1, traces, "a file brings back what was written");
    (found, traces)
}

fn captured(asked: &Asked, traces: &[Trace]) -> Vec<FeatureRow> {
    let row = |(i, t): (usize, &Trace)| FeatureRow {
        request: i as u64,
        ..asked.captured(&t.prompt, &t.answer, &TAPS, t.temperature)
    };
    traces.iter().enumerate().map(row).collect()
}

/// Tokens by which features come late: so many that the sample tells it from noise by far.
const LATE: usize = 8;

/// Every token's features in the place of a later one's.
fn late(row: &FeatureRow) -> FeatureRow {
    let width = row.taps.len() / row.ids.len();
    let taps: Vec<bf16> = [&row.taps[..width].repeat(LATE), &row.taps[..row.taps.len() - LATE * width]].concat();
    FeatureRow { taps, ..row.clone() }
}

/// Standard errors that the near end of the difference's 95 % interval lies beyond what is put down to rounding.
fn margin(sides: &Sides) -> f64 {
    let Interval { low, high, .. } = sides.difference;
    (-0.005 - high) / ((high - low) / (2.0 * 1.96))
}

#[test]
fn traces_tell_the_run_and_both_sides_agree_on_it() {
    let (asked, drafter, weights) = trained_tiny(100);
    for temperature in [0.0, 1.0] {
        let (found, traces) = traced(&asked, &drafter, &weights, temperature);
        let mut proposer = Eagle3Proposer::new(drafter.clone(), &weights);
        let mut bench = Bench { target: &asked.target, proposer: &mut proposer, stop: &asked.stop };
        let plain = compare(&mut bench, &questions(&asked.prompts), &[settings(temperature)], &mut |_| Ok(()), |_| ());
        for (traced, untraced) in found.iter().zip(&plain.unwrap().measurements[0].transcripts) {
            assert_eq!(traced.transcript.ids, untraced.ids);
            let counts: Vec<_> = traced.rounds.iter().map(|r| (r.drafted.len(), r.accepted)).collect();
            let expected: Vec<_> = untraced.calls.iter().map(|c| (c.kept.drafted, c.accepted)).collect();
            assert_eq!(counts, expected);
        }
        let rows = captured(&asked, &traces);
        let all: Vec<&Trace> = traces.iter().collect();
        let chains = Chains::of(Rule::Token, temperature).unwrap();
        let offline = Offline { target: &asked.target, drafter: &drafter, weights: &weights, chains, longest: LENGTH };
        let sides = |rows: &[FeatureRow], drafts| {
            let found = offline.sides(rows, &all, &meta(&asked, 0), drafts, &Resampling::default()).unwrap();
            found.inspect(|sides| eprintln!("T={temperature} {drafts:?}: {sides:?}"))
        };
        let served = sides(&rows, Drafts::Served).unwrap();
        assert!(!served.disagree() && served.draft.low <= served.draft.high, "{served:?}");
        let broken: Vec<FeatureRow> = rows.iter().map(late).collect();
        let late = sides(&broken, Drafts::Served).unwrap();
        let margin = margin(&late);
        eprintln!("T={temperature}: features that come late are seen with {margin:.1} standard errors to spare");
        assert!(late.disagree() && margin >= 3.0, "features that come late must be seen, by far: {late:?}");
        match sides(&rows, Drafts::Now) {
            None => assert_eq!(temperature, 0.0),
            // The same drafter, led along its own drafts by the training's unroll.
            Some(now) => {
                let values = |s: &Sides| [s.draft.by_token, s.draft.low, s.draft.high];
                let pairs = values(&now).into_iter().zip(values(&served));
                let off = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                assert!(off < 0.02 && !now.disagree(), "{now:?} against {served:?}");
            }
        }
    }
}

#[test]
fn traces_of_trees_are_refused() {
    let (asked, drafter, weights) = trained_tiny(1);
    let mut proposer = Eagle3Proposer::new(drafter, &weights);
    let mut bench = Bench { target: &asked.target, proposer: &mut proposer, stop: &asked.stop };
    let tree = Settings { tree: TreeKind::Dynamic(8), ..settings(0.0) };
    let refused = trace(&mut bench, &questions(&asked.prompts), &tree, 16).err().unwrap();
    assert!(matches!(refused, EvaluateError::Chain(_)) && refused.to_string().contains("dynamic:8"), "{refused}");
}

/// Prompts of one task.
fn of_task(dir: &Path, task: &str) -> Vec<Vec<u32>> {
    let tokenizer = Tokenizer::load(dir).unwrap();
    let template = ChatTemplate::load(dir, &tokenizer).unwrap();
    let prompts = read_prompts(&dir.join("../../data/prompts.jsonl")).unwrap();
    let of = prompts.iter().filter(|p| p.task == task);
    of.map(|p| template.encode_prompt(&p.messages, &tokenizer).unwrap()).filter(|p| p.len() < 200).collect()
}

#[test]
fn replay_helps_on_prompts_of_the_traced_kind() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../checkpoints/tiny");
    let mut asked = Asked::load(&dir, 1, TOKENS);
    asked.prompts = of_task(&dir, "chat")[..40].to_vec();
    let elsewhere = asked.rows(&TAPS, 1.0, 7);
    let (drafter, weights) = short_trained(&asked.target, &elsewhere);
    let prompts = of_task(&dir, "math");
    let (seen, unseen) = prompts.split_at(prompts.len() * 3 / 4);
    asked.prompts = seen.to_vec();
    let (_, traces) = traced(&asked, &drafter, &weights, 1.0);
    let rows = captured(&asked, &traces);
    let roots = |(i, t): (usize, &Trace)| t.rounds.iter().map(move |r| (i as u64, r.root)).collect::<Vec<_>>();
    let started = Arc::new(traces.iter().enumerate().flat_map(roots).collect());
    let objective = Objective { started: Some(started), ..Objective::new(DraftLoss::Lk, vec![1.0, 0.8, 0.64, 0.5]) };
    let config = TrainConfig { epochs: 4, batch_tokens: 1024, learning_rate: 1e-3, log_every: 100, ..train_config() };
    let trainer = Trainer {
        drafter: &drafter,
        objective: &objective,
        config: &config,
        rows: &rows,
        stop: &|| false,
        measure: None,
    };
    // As `fit` goes on from a checkpoint.
    let kept = tempfile::tempdir().unwrap();
    Checkpoint::save(kept.path(), &weights, &drafter, &Provenance::default()).unwrap();
    let device = asked.target.device().clone().autodiff();
    let start = Checkpoint::open(kept.path()).unwrap().eagle3(&asked.target, &device).unwrap().1;
    let start = start.unfolded(&drafter.scale);
    let learned = trainer.run(Start::Fresh(Box::new(start)), &mut Silent, &mut |_| Ok(())).unwrap();
    let learned = learned.valid().fork(asked.target.device());
    asked.prompts = unseen.to_vec();
    let fresh = asked.rows(&TAPS, 1.0, 77);
    let rounds = |weights: &Eagle3| {
        let chains = Chains::Sampled(1.0);
        let offline = Offline { target: &asked.target, drafter: &drafter, weights, chains, longest: LENGTH };
        Questions::of(&offline.score(&fresh).unwrap(), LENGTH).unwrap().all_rounds
    };
    let (before, after) = (rounds(&weights), rounds(&learned));
    let difference = Resampling::default().paired_difference(&after, &before).unwrap();
    eprintln!("{:.4} before, {:.4} after: {difference:?}", ratio_of_sums(&before), ratio_of_sums(&after));
    assert!(difference.low > 0.0, "{difference:?}");
}
