//! The terminal's table.

use crate::sample::{nothing, two};
use spectrain_core::rules::Rule;
use spectrain_report::table;

#[test]
fn a_curve_starts_at_plain_decoding_and_names_its_fastest_length() {
    let mut results = two();
    results[1].tokens_per_second = 60.0;
    results[1].speedup = 0.75;
    results[1].speedup_interval = None;
    let expected = "\
T  rule    K    tokens/call [95 %]  accepted  tokens/s      speedup [95 %]
0  plain   0  1.000 [1.000, 1.000]     0.000      80.0               1.00×
0  greedy  1  1.750 [1.625, 1.875]     0.750         –                   –  estimated
0  greedy  2  2.250 [2.188, 2.312]     1.250     100.0  1.25× [1.12, 1.50]  fastest
1  plain   0  1.000 [1.000, 1.000]     0.000      80.0               1.00×  fastest
1  token   1  1.500 [1.375, 1.625]     0.500         –                   –  estimated
1  token   2  1.812 [1.750, 1.875]     0.812      60.0               0.75×
T = 0: plain decoding ran at 72.0 to 88.0 tokens/s from stint to stint
T = 1: plain decoding ran at 72.0 to 88.0 tokens/s from stint to stint
";
    assert_eq!(table(&results, false), expected);
}

#[test]
fn tasks_follow_their_line_if_asked_for() {
    let text = table(&two()[..1], true);
    let lines: Vec<&str> = text.lines().skip(3).collect();
    assert_eq!(lines[1].split_whitespace().collect::<Vec<_>>().join(" "), "chat (3) 2.000 [1.900, 2.100] 1.000");
    assert_eq!(lines[2].split_whitespace().collect::<Vec<_>>().join(" "), "code (2) 2.500 [2.300, 2.700] 1.500");
}

#[test]
fn one_task_is_not_said_twice() {
    let mut one = two();
    one.truncate(1);
    one[0].tasks.remove("code");
    assert_eq!(table(&one, true), table(&one, false));
}

#[test]
fn an_approximate_rule_is_never_shown_as_lossless() {
    let mut results = two();
    assert!(!table(&results, false).contains("approximate"));
    results[1].rule = Rule::Typical;
    results[1].guarantee = "approximate".to_string();
    assert!(
        table(&results, false).ends_with("`approximate` change the target's law: their figures are not lossless\n")
    );
}

#[test]
fn what_was_not_measured_is_a_dash() {
    let text = table(&[nothing()], true);
    assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
    assert!(text.contains("– [–, –]") && text.lines().last().unwrap().ends_with('–'), "{text}");
    assert_eq!(table(&[], false).lines().count(), 1);
}
