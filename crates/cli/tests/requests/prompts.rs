//! `train.prompts`: what `capture` stores of prompts is enough to learn from, and stores that lack it are refused.

use crate::place::Place;
use spectrain_data::store::{StoreReader, StoreWriter};
use std::fs;

/// Supervised tokens that a run with these further arguments reported.
fn supervised(place: &Place, more: &[&str]) -> usize {
    let output = place.run(&[&["fit", "recipe.toml"], more].concat());
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{told}");
    let line = told.lines().find(|line| line.contains(" supervised tokens")).unwrap();
    line.split_whitespace().find_map(|word| word.parse().ok()).unwrap()
}

#[test]
fn prompts_are_learned_behind_what_they_all_begin_with() {
    let place = Place::new();
    // All begin with one word; three words and the end of the turn follow.
    let prompt = |id: usize| format!("{{\"prompt\": \"w3 w{} w{} w{}\"}}\n", id + 4, id + 20, id + 40);
    fs::write(place.path("prompts.jsonl"), (0..8).map(prompt).collect::<String>()).unwrap();
    let answers = supervised(&place, &["--set", "train.validation_share=0"]);
    let learned = ["--set", "train.prompts=true", "--set", "train.validation_share=0"];
    let all = supervised(&place, &learned);
    let store = StoreReader::open(&place.path("runs/small/store")).unwrap();
    let rows = store.read_all().unwrap();
    assert_eq!(all - answers, 4 * rows.len());
    // A token is predicted one row before: the first row of a prompt is the first with a normaliser.
    assert!(rows.iter().all(|row| row.logsumexp[..row.ids.len() - 1].iter().all(|l| l.is_finite())));

    let mut writer = StoreWriter::create(&place.path("answers-only"), store.meta().clone()).unwrap();
    for mut row in rows {
        row.logsumexp[0] = f32::NAN;
        writer.push(row).unwrap();
    }
    writer.finish().unwrap();
    let old = ["fit", "recipe.toml", "--set", "store.dir=\"answers-only\""];
    place.refused(
        &[old.as_slice(), &learned].concat(),
        &["train.prompts", "answers-only", "remove it to capture again"],
    );
}
