//! With draws keyed by position, sampled-match writes the plain path's text token for token, whatever was drafted.

use crate::model::{KINDS, Kind, Model};
use crate::rounds::fixed_trees;
use spectrain_core::rng::{Key, Purpose};
use spectrain_core::rules::{keyed, sampled_match};
use spectrain_core::tree::Tree;

const LENGTH: usize = 40;

/// The rows depend on the last token only, so that a short model serves a long text.
fn row(model: &Model, last: u32) -> &[f64] {
    model.p(&[last])
}

fn plain(model: &Model, seed: u64, request: u64) -> Vec<u32> {
    let mut text = vec![0];
    while text.len() <= LENGTH {
        let key = Key::new(seed, request, text.len() as u64, Purpose::Target);
        text.push(key.race(0, row(model, text[text.len() - 1])) as u32);
    }
    text
}

#[test]
fn sampled_match_repeats_the_plain_text() {
    let mut rounds = 0;
    for (kind, seed) in KINDS.into_iter().flat_map(|kind| (0..8).map(move |seed| (kind, seed))) {
        let model = Model::random(4, 2, kind, seed);
        let expected = plain(&model, seed, 7);
        for (name, tree) in fixed_trees(&model) {
            let mut text = vec![0];
            while text.len() <= LENGTH {
                let root = text[text.len() - 1];
                let nodes: Vec<(usize, u32)> =
                    (1..tree.len()).map(|node| (tree.parent(node).unwrap(), tree.token(node))).collect();
                let moved = Tree::new(root, text.len() - 1, &nodes).unwrap();
                let rows: Vec<&[f64]> = moved.tokens().iter().map(|&token| row(&model, token)).collect();
                let mut chance = keyed(seed, 7, text.len() - 1);
                text.extend(sampled_match::verify(&moved, &rows, &mut chance).unwrap().emitted());
                rounds += 1;
            }
            assert_eq!(text[..=LENGTH], expected, "{name}, seed {seed}");
        }
        if kind == Kind::Dense {
            assert_ne!(expected, plain(&model, seed + 1, 7), "another seed writes another text");
        }
    }
    assert!(rounds < 32 * 8 * LENGTH * 9 / 10, "some drafts are accepted");
}
