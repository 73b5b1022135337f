//! The terminal's table.

use crate::sample::{nothing, two};
use spectrain_core::rules::Rule;
use spectrain_report::table;

#[test]
fn tasks_follow_their_evaluation_in_aligned_columns() {
    let expected = "\
T  rule        K    tokens/call [95 %]  survival at 1, 2, …  accepted  tok/s  plain  speedup  draft/verify/sample/state %
0  greedy      2  2.250 [2.188, 2.312]  0.75 0.50               1.250  100.0   80.0    1.25×                    10/80/5/2
     chat (3)     2.000 [1.900, 2.100]  0.75 0.25               1.000
     code (2)     2.500 [2.300, 2.700]  0.75 0.75               1.500
1  token       2  1.812 [1.750, 1.875]  0.50 0.31               0.812  100.0   80.0    1.25×                    10/80/5/2
     chat (3)     1.625 [1.525, 1.725]  0.50 0.12               0.625
     code (2)     2.000 [1.800, 2.200]  0.50 0.50               1.000
";
    assert_eq!(table(&two()), expected);
}

#[test]
fn one_task_is_not_said_twice() {
    let mut one = two();
    one.truncate(1);
    one[0].tasks.remove("code");
    assert_eq!(table(&one).lines().count(), 2);
}

#[test]
fn an_approximate_rule_is_never_shown_as_lossless() {
    let mut results = two();
    assert!(!table(&results).contains("approximate"));
    results[1].rule = Rule::Typical;
    results[1].guarantee = "approximate".to_string();
    assert!(table(&results).ends_with("`approximate` change the target's law: their figures are not lossless\n"));
}

#[test]
fn what_was_not_measured_is_a_dash() {
    let text = table(&[nothing()]);
    assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
    assert!(text.contains("– [–, –]") && text.contains("–/–/–/–"), "{text}");
    assert_eq!(table(&[]).lines().count(), 1);
}
