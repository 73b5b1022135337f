//! The loss over a whole vocabulary needs no table of all logits. A binary of its own: the peak is the process's.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use burn::tensor::{Device, Distribution, Tensor};
use spectrain_kernels::draft_loss::{DraftLoss, Problem, draft_loss};
use spectrain_kernels::product::Head;

/// Bytes of a line of the process's status.
fn status(key: &str) -> usize {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|l| l.starts_with(key)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

#[test]
fn two_thousand_rows_of_a_large_vocabulary_stay_under_300_megabytes() {
    const ROWS: usize = 2048;
    const WORDS: usize = 131_072;
    const WIDTH: usize = 64;
    let device = Device::flex();
    let random = |rows: usize| Tensor::<2>::random([rows, WIDTH], Distribution::Normal(0.0, 0.2), &device);
    let head = Head::new(random(WORDS));
    let (student, teacher) = (random(ROWS), random(ROWS));
    let problem = |rows: usize| {
        let pairs = vec![(0..rows).map(|i| (i, i)).collect()];
        Problem::new(head.clone(), pairs, vec![None; ROWS], DraftLoss::Kl)
    };
    let run =
        |rows| draft_loss(vec![student.clone()], teacher.clone(), Tensor::full([ROWS], 12.0, &device), problem(rows));
    // The way back lays out the head when it is first taken: weights, not work.
    drop(run(1));
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = status("VmRSS");
    let steps = run(ROWS).steps;
    let above = status("VmHWM") - before;
    assert!(steps[0].loss().is_finite() && steps[0].loss() > 0.0);
    println!("{} MB above the weights", above / 1_000_000);
    assert!(above < 300_000_000, "{} MB above the weights", above / 1_000_000);
    // The table that is not there.
    assert!(above < ROWS * WORDS * size_of::<f32>() / 3);
}
