//! Processors: order, history, finish; and the rules on processed rows.

use crate::enumerate::{assert_close, first_token, law};
use crate::model::{Model, Source, unit};
use crate::rounds::{CHAIN_RULES, Chain, chain_round, emitted};
use spectrain_core::process::{Context, ProcessError, Processed, Processors};

fn logs(row: &[f64]) -> Vec<f64> {
    row.iter().map(|entry| entry.ln()).collect()
}

fn applied(settings: &Processors, logits: &[f64], context: &Context<'_>) -> Vec<f64> {
    let mut row = logits.to_vec();
    settings.apply(&mut row, context).unwrap();
    row
}

fn processed(settings: &Processors, row: &[f64]) -> Vec<f64> {
    applied(settings, &logs(row), &Context::default())
}

const P: [f64; 4] = [0.5, 0.3, 0.15, 0.05];

#[test]
fn the_default_is_the_raw_distribution() {
    assert_close(&processed(&Processors::default(), &P), &P, "default");
    let text = serde_json::to_string(&Processors::default()).unwrap();
    assert_eq!(serde_json::from_str::<Processors>(&text).unwrap(), Processors::default());
    assert_eq!(serde_json::from_str::<Processors>("{}").unwrap(), Processors::default());
    assert!(serde_json::from_str::<Processors>(r#"{"temprature": 1.0}"#).is_err());
}

#[test]
fn truncations_keep_what_they_say() {
    let base = Processors::default();
    let top_k = Processors { top_k: 2, ..base.clone() };
    assert_close(&processed(&top_k, &P), &[0.625, 0.375, 0.0, 0.0], "top-k");
    assert_close(&processed(&top_k, &[0.25; 4]), &[0.5, 0.5, 0.0, 0.0], "ties go to the lower id");
    for (top_p, kept) in [(0.4, 1), (0.5, 1), (0.51, 2), (0.79, 2), (0.81, 3), (0.96, 4), (1.0, 4)] {
        let row = processed(&Processors { top_p, ..base.clone() }, &P);
        assert_eq!(row.iter().filter(|&&mass| mass > 0.0).count(), kept, "top-p {top_p}");
    }
    for (min_p, kept) in [(0.0, 4), (0.09, 4), (0.11, 3), (0.59, 2), (0.61, 1), (1.0, 1)] {
        let row = processed(&Processors { min_p, ..base.clone() }, &P);
        assert_eq!(row.iter().filter(|&&mass| mass > 0.0).count(), kept, "min-p {min_p}");
    }
}

/// Long rows are sorted piece by piece; the kept set is the one a full sort gives.
#[test]
fn top_p_on_a_long_row_keeps_what_a_full_sort_keeps() {
    let mut source = Source(11);
    let row = unit(&(0..3000).map(|_| (1 + source.below(400)) as f64).collect::<Vec<_>>());
    let mut order: Vec<usize> = (0..row.len()).collect();
    order.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
    for top_p in [0.001, 0.02, 0.3, 0.7, 0.95, 0.9999] {
        let mut mass = 0.0;
        let mut expected = vec![0.0; row.len()];
        for &token in &order {
            if mass < top_p {
                expected[token] = row[token];
            }
            mass += row[token];
        }
        assert_close(&processed(&Processors { top_p, ..Processors::default() }, &row), &unit(&expected), "long row");
    }
}

#[test]
fn the_order_is_penalties_masks_temperature_top_k_top_p_min_p() {
    let base = Processors::default();
    let squares = [0.25, 0.09, 0.0225, 0.0025].map(|square: f64| square / 0.365);
    assert_close(&processed(&Processors { temperature: 0.5, ..base.clone() }, &P), &squares, "temperature");
    // At T = .5 the best token holds .685: top-p .68 keeps it alone, while at T = 1 it would keep two.
    let cooled = processed(&Processors { temperature: 0.5, top_p: 0.68, ..base.clone() }, &P);
    assert_close(&cooled, &[1.0, 0.0, 0.0, 0.0], "temperature before top-p");
    // After top-k 2 the masses are .625 and .375: top-p .6 keeps one, while on the raw row it keeps two.
    let cut = processed(&Processors { top_k: 2, top_p: 0.6, ..base.clone() }, &P);
    assert_close(&cut, &[1.0, 0.0, 0.0, 0.0], "top-k before top-p");
    // The presence penalty moves token 0 behind token 1 before top-k looks.
    let penalised = Processors { presence_penalty: 5.0, top_k: 1, ..base.clone() };
    let row = applied(&penalised, &logs(&P), &Context { answer: &[0], ..Context::default() });
    assert_close(&row, &[0.0, 1.0, 0.0, 0.0], "penalty before top-k");
    // Masks come before truncations: of the three allowed, top-k 2 keeps 1 and 2.
    let mask = [false, true, true, true];
    let context = Context { mask: Some(&mask), ..Context::default() };
    let row = applied(&Processors { top_k: 2, ..base }, &logs(&P), &context);
    assert_close(&row, &[0.0, 2.0 / 3.0, 1.0 / 3.0, 0.0], "mask before top-k");
}

#[test]
fn temperature_zero_is_the_best_allowed_token() {
    let greedy = Processors::greedy();
    assert_close(&processed(&greedy, &[0.1, 0.4, 0.4, 0.1]), &[0.0, 1.0, 0.0, 0.0], "ties to the lowest id");
    let mask = [false, false, true, true];
    let context = Context { mask: Some(&mask), ..Context::default() };
    let all = Processors { top_k: 1, top_p: 0.1, min_p: 0.9, ..greedy.clone() };
    assert_close(&applied(&all, &logs(&P), &context), &[0.0, 0.0, 1.0, 0.0], "best of the allowed");
    let cold = Processors { temperature: 1e-300, ..greedy };
    assert_close(&processed(&cold, &P), &[1.0, 0.0, 0.0, 0.0], "a tiny temperature does not overflow");
}

#[test]
fn penalties_see_the_path_of_their_own_branch() {
    let base = Processors::default();
    let logits = [1.0, -1.0, 0.5, 0.0];
    let context = Context { prompt: &[3], answer: &[0, 0], path: &[1], ..Context::default() };
    let exp_unit = |logits: [f64; 4]| {
        let sum: f64 = logits.iter().map(|logit| logit.exp()).sum();
        logits.map(|logit| logit.exp() / sum)
    };
    let repetition = Processors { repetition_penalty: 2.0, ..base.clone() };
    assert_close(&applied(&repetition, &logits, &context), &exp_unit([0.5, -2.0, 0.5, 0.0]), "prompt, answer, path");
    let frequency = Processors { frequency_penalty: 0.5, ..base.clone() };
    assert_close(
        &applied(&frequency, &logits, &context),
        &exp_unit([0.0, -1.5, 0.5, 0.0]),
        "counts without the prompt",
    );
    let presence = Processors { presence_penalty: 0.5, ..base };
    assert_close(&applied(&presence, &logits, &context), &exp_unit([0.5, -1.5, 0.5, 0.0]), "once per token");
    let committed_only = applied(&presence, &logits, &Context { path: &[], ..context });
    assert!((committed_only[1] - applied(&presence, &logits, &context)[1]).abs() > 0.01);
}

#[test]
fn minimum_length_and_bad_words_bar_tokens() {
    let settings = Processors { min_length: 3, bad_words: vec![vec![1], vec![0, 2, 3]], ..Processors::default() };
    let bar = |prompt: &[u32], answer: &[u32], path: &[u32]| {
        let context = Context { prompt, answer, path, end_tokens: &[0], mask: None };
        applied(&settings, &logs(&P), &context).iter().map(|&mass| mass > 0.0).collect::<Vec<_>>()
    };
    assert_eq!(bar(&[], &[], &[]), [false, false, true, true]);
    assert_eq!(bar(&[], &[2], &[2]), [false, false, true, true], "path tokens count");
    assert_eq!(bar(&[], &[2, 2], &[2]), [true, false, true, true]);
    assert_eq!(bar(&[], &[3, 0], &[2]), [true, false, true, false], "a bad word across answer and path");
    assert_eq!(bar(&[0], &[2], &[]), [false, false, true, false], "a bad word across prompt and answer");
}

#[test]
fn an_all_masked_position_is_finished_and_never_nan() {
    let nothing = [false; 4];
    let masked = Context { mask: Some(&nothing), ..Context::default() };
    let mut bans = Processors { bad_words: (0..4).map(|token| vec![token]).collect(), ..Processors::default() };
    for temperature in [0.0, 1.0] {
        bans.temperature = temperature;
        let plain = Processors { temperature, ..Processors::default() };
        let minus = [f64::NEG_INFINITY; 4];
        for (settings, logits, context) in [
            (&plain, logs(&P), &masked),
            (&bans, logs(&P), &Context::default()),
            (&plain, minus.to_vec(), &Context::default()),
        ] {
            let mut row = logits;
            assert_eq!(settings.apply(&mut row, context), Ok(Processed::Finished));
            assert_eq!(row, [0.0; 4]);
        }
    }
    let only_last = [false, false, false, true];
    let mut row = logs(&P);
    let context = Context { mask: Some(&only_last), ..Context::default() };
    let cut = Processors { top_k: 1, ..Processors::default() };
    assert_eq!(cut.apply(&mut row, &context), Ok(Processed::Distribution));
    assert_eq!(row, [0.0, 0.0, 0.0, 1.0], "a truncation never finishes what a mask allows");
}

#[test]
fn malformed_input_is_a_typed_error() {
    let base = Processors::default();
    let mut row = [0.0, f64::NAN];
    assert!(matches!(base.apply(&mut row, &Context::default()), Err(ProcessError::Logit { token: 1, .. })));
    let mut row = [f64::INFINITY, 0.0];
    assert!(matches!(base.apply(&mut row, &Context::default()), Err(ProcessError::Logit { token: 0, .. })));
    let short = Context { mask: Some(&[true]), ..Context::default() };
    assert!(matches!(base.apply(&mut [0.0; 2], &short), Err(ProcessError::Vocabulary { .. })));
    let history = Context { answer: &[2], ..Context::default() };
    let penalty = Processors { presence_penalty: 1.0, ..base.clone() };
    assert!(matches!(penalty.apply(&mut [0.0; 2], &history), Err(ProcessError::Vocabulary { value: 2, .. })));
    for bad in [
        Processors { temperature: -1.0, ..base.clone() },
        Processors { temperature: f64::NAN, ..base.clone() },
        Processors { top_p: 0.0, ..base.clone() },
        Processors { min_p: 1.1, ..base.clone() },
        Processors { repetition_penalty: 0.0, ..base.clone() },
        Processors { presence_penalty: f64::INFINITY, ..base.clone() },
    ] {
        assert!(matches!(bad.validate(), Err(ProcessError::Setting { .. })), "{bad:?}");
    }
    assert_eq!(Processors { bad_words: vec![vec![]], ..base }.validate(), Err(ProcessError::EmptyBadWord));
}

/// Target and drafter may use different samplers; what matters is that both rows are the ones really used.
#[test]
fn rules_on_processed_rows_emit_the_processed_target() {
    let settings = [
        Processors { temperature: 0.5, ..Processors::default() },
        Processors { top_k: 2, ..Processors::default() },
        Processors { top_p: 0.7, presence_penalty: 0.8, ..Processors::default() },
        Processors { min_p: 0.4, repetition_penalty: 1.5, ..Processors::default() },
        Processors::greedy(),
    ];
    let raw = Model::random(4, 2, crate::model::Kind::Dense, 5);
    for target in &settings {
        for drafter in &settings {
            let model = Model::from_fn(4, 2, |path| {
                let row = |settings: &Processors, row: &[f64]| {
                    applied(settings, &logs(row), &Context { prompt: &[1], path, ..Context::default() })
                };
                (row(target, raw.p(path)), row(drafter, raw.q(path)))
            });
            for (name, rule) in CHAIN_RULES {
                let law = law(|walk| emitted(chain_round(&model, Chain::Sampled, rule, |_| false, walk)));
                law.assert_exact(&model, name);
                assert_close(&first_token(&law, 4), model.p(&[]), "first token");
            }
        }
    }
}
