//! Measured costs, and what they predict, for the terminal.

use crate::number::{fixed, times};
use crate::table::aligned;
use spectrain_core::advice::{Finding, NOT_JUDGED};
use spectrain_core::costs::CostProfile;
use spectrain_core::evaluation::Evaluation;

fn header<const N: usize>(names: [&str; N]) -> Vec<Vec<String>> {
    vec![names.map(str::to_owned).to_vec()]
}

/// `profile` as aligned plain text, times in milliseconds.
pub fn cost_table(profile: &CostProfile) -> String {
    let mut rows =
        header(["T", "batch", "plain", "K", "nodes", "draft", "verify", "sample", "state", "round", "break-even"]);
    let ms = |seconds: f64| fixed(1e3 * seconds, 2);
    for b in &profile.batches {
        rows.extend(b.lengths.iter().map(|l| {
            vec![
                b.temperature.to_string(),
                b.batch.to_string(),
                ms(b.plain),
                l.length.to_string(),
                l.nodes.to_string(),
                ms(l.draft),
                ms(l.verify),
                ms(l.sample),
                ms(l.state),
                ms(l.total()),
                fixed(b.break_even(l.length).unwrap_or(f64::NAN), 2),
            ]
        }));
    }
    let about = format!(
        "{}, {}: milliseconds, means of {} rounds or more at {} tokens of context; break-even is in tokens per target call\n",
        profile.device,
        profile.dtype,
        profile.rounds,
        fixed(profile.context, 0)
    );
    about + &aligned(&rows, &[])
}

/// Speed-ups predicted from `profile` and the measured tokens per call, beside the measured ones.
pub fn predictions(profile: &CostProfile, evaluations: &[Evaluation]) -> String {
    let mut rows = header(["T", "batch", "K", "tokens/call", "predicted", "with prompts", "measured", "off by"]);
    for e in evaluations {
        let Some(cost) = profile.at(e.temperature, e.batch) else { continue };
        let a = &e.overall.acceptance;
        let tokens = a.tokens_per_target_call;
        let answer = a.committed_tokens as f64 / e.overall.questions as f64 + 1.0;
        let rounds = cost.speedup(e.length, tokens).unwrap_or(f64::NAN);
        let whole = cost.request_speedup(e.length, tokens, answer).unwrap_or(f64::NAN);
        rows.push(vec![
            e.temperature.to_string(),
            e.batch.to_string(),
            e.length.to_string(),
            fixed(tokens, 3),
            times(rounds),
            times(whole),
            times(e.speedup),
            format!("{} %", fixed(100.0 * (whole / e.speedup - 1.0), 1)),
        ]);
    }
    aligned(&rows, &[])
}

/// The cases that hold, each with its number; how many do not; and those that nothing here can judge.
pub fn advice(findings: &[Finding]) -> String {
    let (hold, not): (Vec<&Finding>, Vec<&Finding>) = findings.iter().partition(|f| f.holds);
    let mut text = String::new();
    if hold.is_empty() {
        text += "advice: none of the usual reasons against speculation holds\n";
    }
    for f in hold {
        text += &format!("advice: {}: {}\n", f.case, f.reason);
    }
    for f in not {
        text += &format!("does not hold: {}: {}\n", f.case, f.reason);
    }
    for (case, look) in NOT_JUDGED {
        text += &format!("not judged: {case}: {look}\n");
    }
    text
}
