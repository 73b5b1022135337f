//! With trees, too, speculative text is the plain path's text.

use crate::identity::{accepted_of_equal_texts, setup};
use crate::offline::{Asked, short_trained};
use spectrain_core::rules::Rule;
use spectrain_core::tree::Shape;
use spectrain_draft::{Eagle3Proposer, Plan, Proposer};
use std::path::Path;

#[test]
fn text_of_trees_is_the_plain_text() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../checkpoints/tiny");
    let asked = Asked::load(&dir, 150, 48);
    let (drafter, weights) = short_trained(&asked.target, &asked.rows(&[1, 2, 4], 1.0, 7));
    let s = setup(&dir);
    let dynamic = Plan::Dynamic { nodes: 32, depth: 5, width: 10 };
    for (rule, temperature, plan) in [
        (Rule::Greedy, 0.0, dynamic.clone()),
        (Rule::SampledMatch, 1.0, dynamic),
        (Rule::Greedy, 0.0, Plan::Ranked(Shape::levels(&[3, 2, 1]))),
    ] {
        let proposer = |_| -> Box<dyn Proposer> { Box::new(Eagle3Proposer::new(drafter.clone(), &weights)) };
        let histogram = accepted_of_equal_texts(&s, (rule, temperature), plan, proposer);
        assert!(
            histogram[..3].iter().all(|&n| n > 100) && histogram[3] > 10,
            "hardly anything was accepted: {histogram:?}"
        );
    }
}
