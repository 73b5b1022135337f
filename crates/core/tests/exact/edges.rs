//! Edge cases: malformed input, zero residual mass, all-masked rows, uniforms at both ends.

use spectrain_core::rng::Purpose;
use spectrain_core::rules::candidate::{CandidateError, Decision, acceptance_probability, verify_candidate};
use spectrain_core::rules::greedy::{self, argmax};
use spectrain_core::rules::typical::{Extra, Typical};
use spectrain_core::rules::{
    Ask, Proposal, Rule, RuleError, Verdict, ZeroResidual, block, sampled_match, sequoia, specinfer, token, traversal,
};
use spectrain_core::tree::{Replacement, SampledTree, Tree, TreeError};

const STRICT: ZeroResidual = ZeroResidual::Strict;

fn judge(p: &[&[f64]], q: &[Proposal<'_>], tokens: &[u32], uniform: f64) -> Result<Verdict, RuleError> {
    token::verify(tokens, q, p, STRICT, &mut |_: Ask| uniform)
}

#[test]
fn a_reject_may_come_first_in_the_middle_or_never() {
    let (p, q): ([f64; 2], [f64; 2]) = ([0.8, 0.2], [0.2, 0.8]);
    let proposals = [Proposal::Sampled(&q); 3];
    for (fails, accepted) in [(0, 0), (1, 1), (2, 2), (3, 3)] {
        let mut coins = |ask: Ask| if ask.purpose == Purpose::Accept && ask.depth == fails { 0.9 } else { 0.1 };
        let verdict = token::verify(&[1, 1, 1], &proposals, &[&p; 4], STRICT, &mut coins).unwrap();
        assert_eq!(verdict.accepted(), accepted);
        assert_eq!(verdict.path, (1..=accepted).collect::<Vec<_>>());
        assert_eq!(verdict.next, Some(0));
        assert_eq!(verdict.emitted().count(), accepted + 1);
    }
}

#[test]
fn an_empty_draft_emits_one_target_token() {
    let p: [f64; 3] = [0.0, 1.0, 0.0];
    for verdict in [
        judge(&[&p], &[], &[], 0.5).unwrap(),
        block::verify(&[], &[], &[p], STRICT, &mut |_: Ask| 0.5).unwrap(),
        sampled_match::verify(&Tree::root(9, 4), &[p], &mut |_: Ask| 0.5).unwrap(),
    ] {
        assert_eq!(verdict, Verdict { next: Some(1), ..Verdict::default() });
    }
}

#[test]
fn zero_target_mass_is_never_accepted_and_full_mass_always() {
    let (p, q): ([f64; 2], [f64; 2]) = ([0.0, 1.0], [1.0, 0.0]);
    let rejected = judge(&[&p, &p], &[Proposal::Sampled(&q)], &[0], 0.0).unwrap();
    assert_eq!((rejected.accepted(), rejected.next), (0, Some(1)));
    let largest = 1.0 - f64::EPSILON / 2.0;
    let accepted = judge(&[&p, &p], &[Proposal::Sampled(&p)], &[1], largest).unwrap();
    assert_eq!(accepted.accepted(), 1);
    assert_eq!(acceptance_probability(1.0, 1e-308), 1.0);
}

/// Rounding can make p a little smaller than q everywhere: a rejection then leaves nothing.
#[test]
fn zero_residual_mass_is_an_error_or_a_counted_fallback() {
    let p: [f64; 2] = [0.5 - 1e-9, 0.5 - 1e-9];
    let q: [f64; 2] = [0.5, 0.5];
    let nearly_one = |_: Ask| 1.0 - 1e-12;
    let run = |mode| token::verify(&[1], &[Proposal::Sampled(&q)], &[p, p], mode, &mut { nearly_one });
    assert_eq!(run(STRICT), Err(RuleError::NoResidual { node: 0 }));
    let verdict = run(ZeroResidual::FallBack).unwrap();
    assert_eq!((verdict.accepted(), verdict.next, verdict.fallbacks), (0, Some(1), 1));
    assert_eq!(verify_candidate(&p, &q, 1, 1.0 - 1e-12, STRICT), Err(CandidateError::NoResidual));
    let fallback = Decision::Rejected { residual: p.to_vec(), fallback: true };
    assert_eq!(verify_candidate(&p, &q, 1, 1.0 - 1e-12, ZeroResidual::FallBack), Ok(fallback));
    for rule in [sequoia::verify, traversal::verify] {
        let mut tree = SampledTree::root(0, 0, Replacement::Without);
        tree.extend(0, q.to_vec(), 1, &mut |_: Ask| 0.9).unwrap();
        assert_eq!(rule(&tree, &[p, p], STRICT, &mut { nearly_one }), Err(RuleError::NoResidual { node: 0 }));
        assert_eq!(rule(&tree, &[p, p], ZeroResidual::FallBack, &mut { nearly_one }).unwrap().fallbacks, 1);
    }
}

#[test]
fn an_all_masked_row_ends_the_round_without_an_extra_token() {
    let (open, masked): ([f64; 2], [f64; 2]) = ([0.0, 1.0], [0.0, 0.0]);
    let tree = Tree::chain(0, 0, &[1, 1]);
    let rows = [open, masked, open];
    let proposals = [Proposal::Sampled(&open), Proposal::Point];
    let expected = Verdict { path: vec![1], tokens: vec![1], next: None, fallbacks: 0 };
    let coin = |_: Ask| 0.3;
    assert_eq!(token::verify(&[1, 1], &proposals, &rows, STRICT, &mut { coin }).unwrap(), expected);
    assert_eq!(sampled_match::verify(&tree, &rows, &mut { coin }).unwrap(), expected);
    let logits = [open, [f64::NEG_INFINITY; 2], open];
    assert_eq!(greedy::verify(&tree, |node| argmax(&logits[node])), expected);
    assert_eq!(Typical::default().verify(&tree, &rows, &mut { coin }).unwrap(), expected);
}

#[test]
fn malformed_rows_are_typed_errors() {
    let (p, q): ([f64; 2], [f64; 2]) = ([0.5, 0.5], [0.5, 0.5]);
    let sampled = [Proposal::Sampled(&q)];
    assert_eq!(judge(&[&p], &sampled, &[0], 0.0), Err(RuleError::Rows { what: "target", expected: 2, found: 1 }));
    assert_eq!(judge(&[&p, &p], &[], &[0], 0.0), Err(RuleError::Rows { what: "draft", expected: 1, found: 0 }));
    assert_eq!(
        judge(&[&p, &p[..1]], &sampled, &[0], 0.0),
        Err(RuleError::Width { what: "target", node: 1, expected: 2, found: 1 })
    );
    assert_eq!(
        judge(&[&p, &p], &[Proposal::Sampled(&q[..1])], &[0], 0.0),
        Err(RuleError::Width { what: "draft", node: 0, expected: 2, found: 1 })
    );
    assert_eq!(judge(&[&p, &p], &sampled, &[2], 0.0), Err(RuleError::Token { node: 1, token: 2, vocabulary: 2 }));
    assert_eq!(
        judge(&[&p, &p], &[Proposal::Sampled(&[1.0, 0.0])], &[1], 0.0),
        Err(RuleError::ImpossibleDraft { node: 1, token: 1 })
    );
    for bad in [f64::NAN, f64::INFINITY, -0.1] {
        let row = [bad, 0.5];
        assert_eq!(judge(&[&row, &p], &sampled, &[0], 0.0), Err(RuleError::NotProbabilities { node: 1 }));
        assert_eq!(judge(&[&p, &row], &sampled, &[0], 0.0), Err(RuleError::NotProbabilities { node: 1 }));
        assert_eq!(
            judge(&[&p, &p], &[Proposal::Sampled(&row)], &[0], 0.0),
            Err(RuleError::NotProbabilities { node: 1 })
        );
        let tree = Tree::chain(0, 0, &[0]);
        let result = sampled_match::verify(&tree, &[row, p], &mut |_: Ask| 0.0);
        assert_eq!(result, Err(RuleError::NotProbabilities { node: 0 }));
    }
}

#[test]
fn a_rule_refuses_a_tree_sampled_in_the_other_way() {
    let with = SampledTree::root(0, 0, Replacement::With);
    let without = SampledTree::root(0, 0, Replacement::Without);
    let (p, mut coin) = ([[1.0]], |_: Ask| 0.0);
    let needs = |rule, needed| Err(RuleError::Sampling { rule, needed });
    assert_eq!(specinfer::verify(&without, &p, STRICT, &mut coin), needs(Rule::SpecInfer, "with"));
    assert_eq!(sequoia::verify(&with, &p, STRICT, &mut coin), needs(Rule::Sequoia, "without"));
    assert_eq!(traversal::verify(&with, &p, STRICT, &mut coin), needs(Rule::Traversal, "without"));
}

#[test]
fn sampled_trees_grow_in_node_order_and_stop_at_the_support() {
    let coin = |_: Ask| 0.0;
    let mut tree = SampledTree::root(0, 5, Replacement::Without);
    assert_eq!(tree.extend(0, vec![0.0, 0.5, 0.5, 0.0], 3, &mut { coin }), Ok(1..3), "two tokens have mass");
    assert_eq!(tree.tree().tokens(), [0, 1, 2]);
    assert_eq!(tree.extend(2, vec![1.0, 0.0, 0.0, 0.0], 1, &mut { coin }), Ok(3..4));
    assert_eq!(tree.extend(1, vec![1.0, 0.0, 0.0, 0.0], 1, &mut { coin }), Err(TreeError::Growth(1)));
    assert_eq!(tree.extend(2, vec![1.0, 0.0, 0.0, 0.0], 1, &mut { coin }), Err(TreeError::Growth(2)));
    for bad in [vec![0.0; 4], vec![f64::NAN; 4], vec![1.5, -0.5, 0.0, 0.0]] {
        assert_eq!(tree.extend(3, bad, 1, &mut { coin }), Err(TreeError::DraftRow(3)));
    }
    let mut tree = SampledTree::root(0, 0, Replacement::With);
    assert_eq!(tree.extend(0, vec![0.5, 0.5], 3, &mut { coin }), Ok(1..2), "repeats share a node");
    assert_eq!(tree.drawn(0).unwrap().1, [1, 1, 1]);
}

#[test]
fn argmax_ties_go_to_the_lowest_id() {
    assert_eq!(argmax(&[0.1, 0.4, 0.4]), Some(1));
    assert_eq!(argmax(&[-0.0, 0.0]), Some(0));
    assert_eq!(argmax(&[f64::NEG_INFINITY, -5.0]), Some(1));
    assert_eq!(argmax(&[f64::NEG_INFINITY; 3]), None);
    assert_eq!(argmax(&[1.0, f64::NAN]), None);
    assert_eq!(argmax(&[]), None);
}

#[test]
fn typical_acceptance_follows_its_bound() {
    let sharp: [f64; 3] = [0.9, 0.06, 0.04];
    let flat: [f64; 3] = [1.0 / 3.0; 3];
    let rule = Typical::default();
    let entropy: f64 = sharp.iter().map(|p| -p * (p + 1e-5_f64).ln()).sum();
    assert!((Typical { epsilon: 1.0, ..rule }.bound(&sharp) - 0.3 * (-entropy).exp()).abs() < 1e-15);
    assert_eq!(rule.bound(&sharp), 0.09);
    assert!((Typical { epsilon: 1.0, ..rule }.bound(&flat) - 0.1).abs() < 1e-4);
    // Root children 0 (p = .9) and 1 (p = .06, below the bound); 0 has children 1 and 2, both typical under `flat`.
    let tree = Tree::new(0, 0, &[(0, 1), (0, 0), (2, 1), (2, 2)]).unwrap();
    let verdict = rule.verify(&tree, &[sharp, flat, flat, sharp, sharp], &mut |_: Ask| 0.0).unwrap();
    assert_eq!((verdict.path.as_slice(), verdict.next), (&[2, 3][..], Some(0)), "ties by likelihood, then order");
    let refused = rule.verify(&Tree::chain(0, 0, &[1, 0]), &[sharp; 3], &mut |_: Ask| 0.0).unwrap();
    assert_eq!((refused.accepted(), refused.next), (0, Some(0)), "below the bound nothing goes on");
    let drawn = Typical { extra: Extra::Typical, ..rule };
    let last = drawn.verify(&tree, &[sharp; 5], &mut |_: Ask| 0.999).unwrap();
    assert_eq!(last.next, Some(0), "only typical tokens are drawn");
}
