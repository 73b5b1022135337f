//! The reconciliation gate names what is wrong at run time, and lets pass what is right.

use crate::faulty::{FaultyProposer, Injected};
use crate::offline::{Asked, gate_figure, trained_tiny};
use crate::support::{random_target, smollm2};
use burn::tensor::Device;
use spectrain_core::chat::{ChatTemplate, Message};
use spectrain_core::rules::Rule;
use spectrain_core::tokenizer::Tokenizer;
use spectrain_data::draft_vocab::DraftVocab;
use spectrain_draft::{Eagle3, Eagle3Config, Eagle3Drafter, Eagle3Proposer, Proposer, TapScale};
use spectrain_model::Llama;
use spectrain_verify::judge::{Round, judge};
use spectrain_verify::reconcile::{
    BOUND, Fault, Mismatch, Norm, Position, Prompt, ReconcileError, Rendering, Shift, Stale, Trained, reconcile,
    reconcile_figures, reconcile_prompts,
};
use std::path::Path;

const LENGTH: usize = 4;
const FIRST: u32 = 7;

/// A target with an untrained drafter whose every part counts.
struct Pair {
    target: Llama,
    drafter: Eagle3Drafter,
    weights: Eagle3,
    prompts: Vec<Prompt>,
}

impl Pair {
    fn random(norm_before_residual: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let target = random_target(dir.path(), 40, 11);
        let config = Eagle3Config::for_target(&target, vec![0, 1, 2], 20, norm_before_residual);
        // Every other token: entry i is no token i.
        let vocab = DraftVocab::from_counts(&[0, 1].repeat(20), 20).unwrap();
        let scale = TapScale::new((0..3 * config.hidden_size).map(|i| [0.5, 2.0, 1.0][i % 3]).collect());
        let mut weights = Eagle3::init(&config, target.norm().clone(), &scale, 5, &Device::flex());
        // The layer starts small, and what its attention reads would hardly show.
        for matrix in [&mut weights.o, &mut weights.down] {
            *matrix = matrix.clone().map(|m| m * 10.0);
        }
        let drafter = Eagle3Drafter { scale, ..Eagle3Drafter::new(config, vocab, &target) };
        let ids = |n: u32| std::iter::once(FIRST).chain((1..n).map(|i| (i * i * 7 + i * 3 + n) % 40)).collect();
        let prompts = [9, 23, 4, 41, 12].map(|n| Prompt { id: format!("of {n}"), ids: ids(n) });
        Self { target, drafter, weights, prompts: prompts.to_vec() }
    }

    fn gate(&self, proposer: &mut dyn Proposer) -> Result<(), Mismatch> {
        let trained = Trained { target: &self.target, drafter: &self.drafter, weights: &self.weights };
        match reconcile(&trained, proposer, &self.prompts, LENGTH) {
            Ok(found) => {
                eprintln!("{found}");
                assert!(found.prompts == self.prompts.len() && found.rounds >= 3 * found.prompts, "{found:?}");
                assert_eq!(found.steps, LENGTH * found.rounds);
                assert!(found.largest < BOUND / 10.0, "rounding comes near the bound: {found:?}");
                Ok(())
            }
            Err(ReconcileError::Mismatch(mismatch)) => {
                eprintln!("{mismatch}");
                Err(*mismatch)
            }
            Err(other) => panic!("{other}"),
        }
    }

    fn with(&self, injected: Injected) -> Option<Mismatch> {
        self.gate(&mut FaultyProposer::new(&self.drafter, &self.weights, injected)).err()
    }

    /// The gate names this fault, first seen in this round and step if it is seen in the logits.
    fn names(&self, injected: Injected, fault: Fault, first: Option<(usize, usize)>) {
        let what = format!("{injected:?}");
        let found = self.with(injected).unwrap_or_else(|| panic!("{what} passes"));
        assert_eq!(found.fault, fault, "{what}");
        assert_eq!(found.first.map(|(place, _)| (place.round, place.step)), first, "{what}");
    }

    fn names_base(&self, theta: f64) {
        let found = self.with(Injected::Theta(theta)).unwrap();
        let Fault::Theta { trained, served } = found.fault else { panic!("{theta}: {found}") };
        assert_eq!(trained, self.drafter.config.rope_theta);
        assert!((served / theta - 1.0).abs() < 0.02, "{served} in place of {theta}");
    }
}

#[test]
fn a_clean_drafter_passes() {
    for norm_before_residual in [false, true] {
        let pair = Pair::random(norm_before_residual);
        pair.gate(&mut Eagle3Proposer::new(pair.drafter.clone(), &pair.weights)).unwrap();
        assert_eq!(pair.with(Injected::Nothing), None, "the tests' own run time is right");
    }
}

#[test]
fn every_fault_is_named() {
    for norm_before_residual in [false, true] {
        let pair = Pair::random(norm_before_residual);
        let at_once = Some((0, 0));
        for (injected, shift) in [
            (Injected::OwnToken(FIRST), Shift::OwnToken),
            (Injected::EarlierFeature, Shift::EarlierFeature),
            (Injected::Swallowed, Shift::Ahead),
            (Injected::LateRow, Shift::Behind),
        ] {
            pair.names(injected, Fault::LabelShift(shift), at_once);
        }
        for (injected, served) in [
            (Injected::AskedTaps(vec![0, 1, 3]), vec![0, 1, 3]),
            (Injected::AskedTaps(vec![1, 2, 3]), vec![1, 2, 3]),
            (Injected::SwappedTaps, vec![1, 0, 2]),
        ] {
            pair.names(injected, Fault::Taps { trained: vec![0, 1, 2], served }, at_once);
        }
        for (injected, position) in [
            (Injected::FrozenPosition, Position::Frozen),
            (Injected::FurtherPosition, Position::Offset(1)),
            (Injected::RestartedPosition, Position::Restarted),
        ] {
            pair.names(injected, Fault::Position(position), Some((0, 1)));
        }
        for theta in [500_000.0, 1000.0, 27_500.0] {
            pair.names_base(theta);
        }
        let map = Fault::Vocabulary { entry: 0, trained: Some(1), served: Some(0) };
        pair.names(Injected::ToldMap, map, None);
        let Some(found) = pair.with(Injected::SilentMap) else { panic!("a wrong map passes") };
        assert!(matches!(found.fault, Fault::Vocabulary { .. }), "{found}");
        for (injected, norm) in [(Injected::UnNormedFeature, Norm::Feature), (Injected::UnNormedHidden, Norm::Hidden)] {
            pair.names(injected, Fault::Norm(norm), at_once);
        }
        for (injected, stale) in [(Injected::KeptDrafts, Stale::Accepted), (Injected::KeptRejected, Stale::Rejected)] {
            pair.names(injected, Fault::StaleCache(stale), Some((1, 0)));
        }
    }
}

#[test]
fn a_real_model_stays_within_the_bound() {
    let Some(dir) = smollm2() else { return };
    let target = Llama::load(&dir, &Device::flex()).unwrap();
    let config = Eagle3Config::for_target(&target, vec![2, 15, 28], 8192, true);
    let vocab = DraftVocab::from_counts(&vec![1; target.config().vocab_size], 8192).unwrap();
    let sizes = TapScale::new(vec![1.0; 3 * config.hidden_size]);
    let weights = Eagle3::init(&config, target.norm().clone(), &sizes, 5, &Device::flex());
    let drafter = Eagle3Drafter::new(config, vocab, &target);
    let ids = |n: u32| (0..n).map(|i| (i * i * 7919 + n) % 40_000).collect();
    let prompts = [9, 60, 33].map(|n| Prompt { id: n.to_string(), ids: ids(n) }).to_vec();
    let pair = Pair { target, drafter, weights, prompts };
    let start = std::time::Instant::now();
    pair.gate(&mut Eagle3Proposer::new(pair.drafter.clone(), &pair.weights)).unwrap();
    eprintln!("gate: {:.1} s", start.elapsed().as_secs_f64());
    pair.names(Injected::KeptDrafts, Fault::StaleCache(Stale::Accepted), Some((1, 0)));
    pair.names_base(500_000.0);
    eprintln!("with diagnoses: {:.1} s", start.elapsed().as_secs_f64());
}

#[test]
fn another_template_is_named() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../checkpoints/tiny");
    let tokenizer = Tokenizer::load(&dir).unwrap();
    let other = tempfile::tempdir().unwrap();
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(dir.join(file), other.path().join(file)).unwrap();
    }
    let path = other.path().join("tokenizer_config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let template = config["chat_template"].as_str().unwrap();
    config["chat_template"] = format!("{{{{ 'Hello' }}}}{template}").into();
    std::fs::write(&path, config.to_string()).unwrap();
    let messages = vec![Message { role: "user".into(), content: "What is a verb?".into() }];
    let [stored, rendered] = [dir.as_path(), other.path()]
        .map(|dir| ChatTemplate::load(dir, &tokenizer).unwrap().encode_prompt(&messages, &tokenizer).unwrap());
    let rendering =
        |rendered: &Vec<u32>| Rendering { id: "verb".into(), stored: stored.clone(), rendered: rendered.clone() };
    reconcile_prompts(&[rendering(&stored)]).unwrap();
    let found = reconcile_prompts(&[rendering(&stored), rendering(&rendered)]).unwrap_err();
    let Fault::Template { prompt, position, stored: was, rendered: is } = &found.fault else { panic!("{found}") };
    assert_eq!((prompt.as_str(), *position, *was, *is), ("verb", 0, Some(stored[0]), Some(rendered[0])));
    assert!(found.to_string().contains("chat template"), "{found}");
}

#[test]
fn figures_agree_unless_the_verifier_judges_otherwise() {
    let right = judge(Rule::Greedy).unwrap();
    // The last accepted draft is refused.
    let stingy = |round: &Round| {
        let mut verdict = right(round)?;
        if let Some(token) = verdict.tokens.pop() {
            verdict.path.pop();
            verdict.next = Some(token);
        }
        Ok(verdict)
    };
    let tiny = trained_tiny(60);
    let figures = [gate_figure(&tiny, 0.0, right), gate_figure(&tiny, 1.0, judge(Rule::Token).unwrap())];
    assert!((figures[0].offline / figures[0].verifier - 1.0).abs() < 0.002, "{figures:?}");
    reconcile_figures(&figures).unwrap();
    let wrong = gate_figure(&tiny, 0.0, &stingy);
    let found = reconcile_figures(&[figures[0].clone(), wrong]).unwrap_err();
    assert!(matches!(found.fault, Fault::Figure { length: 4, .. }), "{found}");
}

#[test]
fn a_trained_drafter_passes_and_its_faults_are_named() {
    let (Asked { target, prompts, .. }, drafter, weights) = trained_tiny(6);
    let prompts = prompts.into_iter().enumerate().map(|(i, ids)| Prompt { id: i.to_string(), ids }).collect();
    let pair = Pair { target, drafter, weights, prompts };
    pair.gate(&mut Eagle3Proposer::new(pair.drafter.clone(), &pair.weights)).unwrap();
    pair.names(Injected::FrozenPosition, Fault::Position(Position::Frozen), Some((0, 1)));
    pair.names(Injected::KeptDrafts, Fault::StaleCache(Stale::Accepted), Some((1, 0)));
    pair.names(Injected::UnNormedFeature, Fault::Norm(Norm::Feature), Some((0, 0)));
    pair.names(Injected::OwnToken(pair.prompts[0].ids[0]), Fault::LabelShift(Shift::OwnToken), Some((0, 0)));
    let taps = Fault::Taps { trained: vec![1, 2, 4], served: vec![1, 2, 3] };
    pair.names(Injected::AskedTaps(vec![1, 2, 3]), taps, Some((0, 0)));
    pair.names_base(1_000_000.0);
}
