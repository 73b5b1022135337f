//! Reading `metrics.jsonl` back.

use spectrain_report::{Report, TrainingPoint, read_training};

const STEP: &str = r#"{"event":"step","step":1,"epoch":0.1,"loss":3.5,"alpha_step":[0.5,0.25],"learning_rate":0.001}"#;
const VALIDATION: &str = r#"{"event":"validation","step":1,"loss":3.0,"loss_step":[3.0],"alpha_step":[0.75,null]}"#;

fn point(step: usize, held_out: bool, loss: f64, alpha_step: &[f64]) -> TrainingPoint {
    TrainingPoint { step, held_out, loss, alpha_step: alpha_step.to_vec() }
}

#[test]
fn both_kinds_of_record_are_read_and_other_events_passed_over() {
    let text = format!("{STEP}\n\n{{\"event\":\"note\",\"text\":\"x\"}}\n{VALIDATION}\n");
    let points = read_training(&text).unwrap();
    assert_eq!(points[0], point(1, false, 3.5, &[0.5, 0.25]));
    assert_eq!((points[1].held_out, points[1].alpha_step[0]), (true, 0.75));
    assert!(points[1].alpha_step[1].is_nan());
    assert_eq!(points.len(), 2);
}

#[test]
fn a_resumed_run_repeats_steps_and_the_later_record_counts() {
    let line = |step, loss| format!("{{\"event\":\"step\",\"step\":{step},\"loss\":{loss},\"alpha_step\":[]}}\n");
    let points = read_training(&[line(1, 4), line(2, 3), line(3, 9), line(2, 2), line(3, 1)].concat()).unwrap();
    assert_eq!(points, [point(1, false, 4.0, &[]), point(2, false, 2.0, &[]), point(3, false, 1.0, &[])]);
}

#[test]
fn a_line_that_was_cut_short_is_left_out_only_at_the_end() {
    assert_eq!(read_training(&format!("{STEP}\n{{\"event\":\"st")).unwrap().len(), 1);
    let error = read_training(&format!("{STEP}\n{{\"event\":\"st\n{STEP}\n")).unwrap_err();
    assert_eq!(error.line, 2);
    assert!(error.to_string().starts_with("line 2 is no training record: "), "{error}");
}

#[test]
fn long_training_is_drawn_through_means_and_says_so() {
    let mut training: Vec<TrainingPoint> = (1..=1000).map(|step| point(step, false, step as f64, &[])).collect();
    // One loss that was no number takes only itself away.
    training[500].loss = f64::NAN;
    let html = Report { training, ..Report::default() }.html();
    assert!(html.contains("means of 5 records"));
    let start = html.find("class=\"line thin c0\" points=\"").unwrap();
    let points = html[start..].split('"').nth(3).unwrap();
    assert_eq!(points.split(' ').count(), 200);
}
