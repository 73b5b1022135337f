//! Costs, what they predict, and the cases that advice tells from them.

use crate::vectors::close;
use spectrain_core::advice::{Finding, advise};
use spectrain_core::costs::{BatchCost, CostProfile, LengthCost};
use spectrain_core::evaluation::{Counted, Evaluation, Seconds};
use spectrain_core::rules::Rule;
use spectrain_core::stats::{Acceptance, Definitions, Interval, Round};
use spectrain_core::tree::TreeKind;
use std::collections::BTreeMap;

/// The worked example of a state of 2 ms: T1 = 30, 3 ms a drafted token, a target call of 33.
fn batch(batch: usize, factor: f64) -> BatchCost {
    let length = |length: usize| LengthCost {
        length,
        nodes: batch * (length + 1),
        draft: 3e-3 * length as f64,
        verify: 31e-3 * factor,
        sample: 2e-3,
        state: 2e-3,
        prompt: 120e-3,
    };
    BatchCost { temperature: 1.0, batch, plain: 30e-3, plain_prompt: 60e-3, lengths: (1..=7).map(length).collect() }
}

fn profile(batches: Vec<BatchCost>) -> CostProfile {
    CostProfile { device: "flex".into(), dtype: "f32".into(), context: 50.0, prompt_tokens: 40.0, rounds: 18, batches }
}

/// Rounds that accept what `accepted` says, of chains of 5.
fn evaluation(temperature: f64, accepted: &[usize], speedup: f64) -> Evaluation {
    let rounds: Vec<Round> = accepted.iter().map(|&a| Round { drafted: 5, accepted: a, committed: a + 1 }).collect();
    let acceptance = Acceptance::of(&rounds, 5).unwrap();
    let estimate = acceptance.tokens_per_target_call;
    let counted = Counted {
        questions: 1,
        interval: Interval { estimate, low: estimate, high: estimate },
        acceptance,
        definitions: Definitions::default(),
        output_tokens: None,
        latency: None,
        goodput: None,
    };
    Evaluation {
        guarantee: "target-sampling".into(),
        rule: Rule::Token,
        temperature,
        processors: Default::default(),
        length: 5,
        tree: TreeKind::Chain,
        nodes: None,
        chain: None,
        batch: 1,
        max_new_tokens: 64,
        seed: 0,
        dtype: "f32".into(),
        overall: counted.clone(),
        tasks: BTreeMap::from([("chat".into(), counted)]),
        seconds: Seconds { t_draft: 3.0, t_verify: 5.0, t_sample: 1.0, t_state: 1.0, speculative: 10.0, plain: 12.0 },
        tokens_per_second: 10.0 * speedup,
        plain_tokens_per_second: 10.0,
        speedup,
        speedup_interval: None,
        same_text: None,
        residual_fallbacks: 0,
        memory: None,
        plain: None,
        estimates: Vec::new(),
    }
}

/// The finding of `case`; the first, where several evaluations were judged.
fn case<'a>(found: &'a [Finding], case: &str) -> &'a Finding {
    found.iter().find(|f| f.case == case).unwrap_or_else(|| panic!("no {case}"))
}

#[test]
fn the_prediction_is_the_worked_speedup() {
    let cost = batch(1, 1.0);
    let expected = (1.0 - 0.8_f64.powi(6)) / 0.2;
    close(cost.speedup(5, expected).unwrap(), 2.21357, 5e-6);
    close(cost.break_even(5).unwrap(), 50.0 / 30.0, 1e-12);
    // 10 tokens a round: 60 + 40 · 30 ms plainly, 120 + 4 · 50 ms in rounds.
    close(cost.request_speedup(5, 10.0, 41.0).unwrap(), 1260.0 / 320.0, 1e-12);
    assert_eq!(cost.speedup(8, expected), None, "a length that was not measured");
}

#[test]
fn the_table_holds_every_part_and_the_plain_step() {
    let cost =
        BatchCost { lengths: batch(1, 1.0).lengths.into_iter().filter(|l| l.length != 4).collect(), ..batch(1, 1.0) };
    let table = cost.table();
    assert_eq!(table.draft.len(), 4, "lengths 0 to 3: what follows a gap has no place");
    let rates = table.rates(&[1.0; 7]);
    close(1.0 / rates[0], 30e-3, 1e-12);
    (1..=3).for_each(|k| close((k + 1) as f64 / rates[k], cost.length(k).unwrap().total(), 1e-12));
}

#[test]
fn a_cost_table_reads_back() {
    let written = profile(vec![batch(1, 1.0), batch(8, 2.0)]);
    let text = serde_json::to_string(&written).unwrap();
    assert_eq!(serde_json::from_str::<CostProfile>(&text).unwrap(), written);
    assert_eq!(written.at(1.0, 8).unwrap().batch, 8);
    assert!(written.at(0.0, 8).is_none());
}

#[test]
fn a_good_drafter_gets_no_advice() {
    let accepted: Vec<usize> = (0..40).map(|i| [5, 5, 4, 5][i % 4]).collect();
    let found = advise(&[evaluation(1.0, &accepted, 3.0)], Some(&profile(vec![batch(1, 1.0), batch(8, 1.1)])));
    // By these costs 7 drafts would be no better than 5, which is what was measured up to.
    let holds: Vec<&Finding> = found.iter().filter(|f| f.holds).collect();
    assert!(holds.is_empty(), "{holds:?}");
}

#[test]
fn a_bad_drafter_is_told_so_with_its_numbers() {
    let accepted: Vec<usize> = (0..40).map(|i| [0, 1, 0, 0][i % 4]).collect();
    let found = advise(&[evaluation(1.0, &accepted, 0.75)], Some(&profile(vec![batch(1, 1.0), batch(8, 3.0)])));
    let slower = case(&found, "slower than plain decoding");
    assert!(slower.holds && slower.reason.contains("0.75") && slower.reason.contains("1.67 plain steps"), "{slower:?}");
    let low = case(&found, "low acceptance");
    assert!(low.holds && low.reason.contains("25 %"), "{low:?}");
    let long = case(&found, "draft too long");
    assert!(long.holds && long.reason.contains("draft 5 is accepted in 0.0 %"), "{long:?}");
    let length = case(&found, "another length is faster");
    assert!(length.holds && length.reason.contains("K=0 is best"), "{length:?}");
    let full = case(&found, "batch saturated");
    assert!(full.holds && full.reason.contains("at batch 8"), "{full:?}");
    assert!(!case(&found, "high acceptance without speed-up").holds);
}

#[test]
fn cases_need_their_own_trigger() {
    let short = evaluation(1.0, &[5, 5], 2.0);
    assert!(case(&advise(&[short], None), "short outputs").holds, "13 tokens");
    let idle = evaluation(1.0, &[4; 40], 0.9);
    let found = advise(std::slice::from_ref(&idle), None);
    let finding = case(&found, "high acceptance without speed-up");
    assert!(
        finding.holds && finding.reason.contains("80 %") && finding.reason.contains("the target call"),
        "{finding:?}"
    );
    let other = Evaluation { same_text: Some(0), ..idle.clone() };
    assert!(case(&advise(&[other], None), "text not replayable").holds);
    let loose = Evaluation { guarantee: "approximate".into(), rule: Rule::Typical, ..idle.clone() };
    assert!(case(&advise(&[loose], None), "output not the target's law").holds);
    let mut uneven = idle;
    uneven.tasks.insert("code".into(), evaluation(1.0, &[1; 40], 0.9).overall);
    let found = advise(&[uneven], None);
    let finding = case(&found, "volatile acceptance");
    assert!(finding.holds && finding.reason.contains("2.00") && finding.reason.contains("5.00 (chat)"), "{finding:?}");
}

#[test]
fn a_temperature_cliff_is_seen_between_evaluations_only() {
    let cold = evaluation(0.0, &[4; 40], 2.0);
    let warm = |accepted| evaluation(1.0, &[accepted; 40], 2.0);
    assert!(case(&advise(&[cold.clone(), warm(2)], None), "temperature cliff").holds);
    assert!(!case(&advise(&[cold, warm(3)], None), "temperature cliff").holds);
    assert!(advise(&[warm(1)], None).iter().all(|f| f.case != "temperature cliff"));
}
