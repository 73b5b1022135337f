//! Measurements made by hand.

use spectrain_core::evaluation::{Counted, Estimate, Evaluation, Memory, Plain, Seconds};
use spectrain_core::rules::Rule;
use spectrain_core::stats::{Acceptance, Arrival, Call, Definitions, Interval, Latency, Round, Timeline};
use spectrain_core::tree::TreeKind;
use std::collections::BTreeMap;

/// `hist[j]` rounds that accepted `j` of `hist.len() - 1` drafted tokens.
pub fn counted(questions: usize, hist: &[usize], half: f64) -> Counted {
    let length = hist.len() - 1;
    let round = |accepted| Round { drafted: length, accepted, committed: accepted + 1 };
    let rounds: Vec<Round> = hist.iter().enumerate().flat_map(|(j, &n)| std::iter::repeat_n(round(j), n)).collect();
    let acceptance = Acceptance::of(&rounds, length).unwrap();
    let estimate = acceptance.tokens_per_target_call;
    Counted {
        questions,
        interval: Interval { estimate, low: estimate - half, high: estimate + half },
        acceptance,
        definitions: Definitions::default(),
        output_tokens: None,
        latency: None,
        goodput: None,
    }
}

/// A measured whole: one answer of three calls a question, half a second each.
fn served(counted: Counted) -> Counted {
    let arrivals = (0..3).map(|i| Arrival { at: 0.5 * f64::from(i + 1), tokens: 1 }).collect();
    let timelines = vec![Timeline { admitted: 0.0, arrivals }; counted.questions];
    let call = Call { accepted: 2, stop: None, end: None, kept: Round { drafted: 2, accepted: 1, committed: 2 } };
    Counted {
        definitions: Definitions::of(&[call], 1),
        output_tokens: Some(3 * counted.questions),
        latency: Some(Latency::of(&timelines)),
        goodput: Some(12.5),
        ..counted
    }
}

/// Rounds of drafts cut to `length` tokens.
fn cut(hist: &[usize], length: usize) -> Vec<usize> {
    let mut kept = hist[..length].to_vec();
    kept.push(hist[length..].iter().sum());
    kept
}

/// Chains over two tasks whose rounds are `chat` and `code`.
pub fn evaluation(rule: Rule, temperature: f64, chat: &[usize], code: &[usize]) -> Evaluation {
    let both: Vec<usize> = chat.iter().zip(code).map(|(a, b)| a + b).collect();
    let tasks = [("chat", counted(3, chat, 0.1)), ("code", counted(2, code, 0.2))];
    Evaluation {
        guarantee: rule.guarantee().name().to_string(),
        rule,
        temperature,
        processors: Default::default(),
        length: chat.len() - 1,
        tree: TreeKind::Chain,
        nodes: Some(chat.len()),
        chain: None,
        batch: 4,
        max_new_tokens: 128,
        seed: 7,
        dtype: "f32".to_string(),
        overall: served(counted(5, &both, 0.0625)),
        tasks: BTreeMap::from(tasks.map(|(name, counted)| (name.to_string(), counted))),
        seconds: Seconds { t_draft: 1.0, t_verify: 8.0, t_sample: 0.5, t_state: 0.25, speculative: 10.0, plain: 8.0 },
        tokens_per_second: 100.0,
        plain_tokens_per_second: 80.0,
        speedup: 1.25,
        speedup_interval: Some(Interval { estimate: 1.25, low: 1.125, high: 1.5 }),
        same_text: (temperature == 0.0).then_some(5),
        residual_fallbacks: 0,
        memory: Some(Memory {
            target_weights: 4 << 20,
            drafter_weights: 1 << 20,
            target_cache: 3 << 19,
            drafter_cache: 1 << 19,
            provisional: 1 << 18,
        }),
        plain: Some(Plain {
            overall: served(counted(5, &[8], 0.0)),
            tasks: BTreeMap::new(),
            memory: Memory { target_weights: 4 << 20, target_cache: 1 << 20, ..Memory::default() },
            stints: Some([72.0, 88.0]),
        }),
        estimates: (1..chat.len() - 1)
            .map(|length| Estimate { length, overall: counted(5, &cut(&both, length), 0.125), tasks: BTreeMap::new() })
            .collect(),
    }
}

/// One greedy and one sampled measurement at `K = 2`.
pub fn two() -> Vec<Evaluation> {
    vec![evaluation(Rule::Greedy, 0.0, &[2, 4, 2], &[2, 0, 6]), evaluation(Rule::Token, 1.0, &[4, 3, 1], &[4, 0, 4])]
}

/// A measurement without any round, as no evaluator makes it.
pub fn nothing() -> Evaluation {
    let mut e = evaluation(Rule::Token, 1.0, &[1, 0], &[0, 1]);
    let nan = f64::NAN;
    e.overall.questions = 0;
    e.overall.interval = Interval { estimate: nan, low: nan, high: nan };
    e.overall.acceptance = Acceptance {
        target_calls: 0,
        committed_tokens: 0,
        tokens_per_target_call: nan,
        accepted_per_target_call: nan,
        target_calls_per_output_token: f64::INFINITY,
        accept_rate_draft: nan,
        accept_prefix: vec![],
        accept_cond: vec![],
        accept_len_hist: vec![],
    };
    e.overall.latency = Some(Latency::of(&[]));
    (e.plain, e.memory) = (None, None);
    e.tasks.clear();
    e.seconds = Seconds { t_draft: 0.0, t_verify: 0.0, t_sample: 0.0, t_state: 0.0, speculative: 0.0, plain: 0.0 };
    (e.tokens_per_second, e.plain_tokens_per_second, e.speedup) = (nan, nan, nan);
    e
}
