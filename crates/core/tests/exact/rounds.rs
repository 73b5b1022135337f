//! Rounds as a runtime would play them, drafting included.

use crate::enumerate::Walk;
use crate::model::Model;
use spectrain_core::rng::Purpose;
use spectrain_core::rules::{
    Ask, Chance, Proposal, RuleError, Verdict, ZeroResidual, block, sampled_match, sequoia, specinfer, token, traversal,
};
use spectrain_core::tree::{Eagle2, Replacement, SampledTree, SequoiaTable, Shape, Tree};

pub const ROOT: u32 = 0;

/// How chain tokens are chosen.
#[derive(Clone, Copy, Debug)]
pub enum Chain {
    Sampled,
    Argmax,
    /// Sampled and argmax by turns.
    Mixed,
}

type ChainRule = fn(&[u32], &[Proposal<'_>], &[&[f64]], ZeroResidual, &mut Walk) -> Result<Verdict, RuleError>;
type SampledRule = fn(&SampledTree, &[&[f64]], ZeroResidual, &mut Walk) -> Result<Verdict, RuleError>;

pub const CHAIN_RULES: [(&str, ChainRule); 2] = [
    ("token", |tokens, q, p, mode, walk| token::verify(tokens, q, p, mode, walk)),
    ("block", |tokens, q, p, mode, walk| block::verify(tokens, q, p, mode, walk)),
];
pub const SAMPLED_RULES: [(&str, Replacement, SampledRule); 3] = [
    ("specinfer", Replacement::With, |tree, p, mode, walk| specinfer::verify(tree, p, mode, walk)),
    ("sequoia", Replacement::Without, |tree, p, mode, walk| sequoia::verify(tree, p, mode, walk)),
    ("traversal", Replacement::Without, |tree, p, mode, walk| traversal::verify(tree, p, mode, walk)),
];

pub fn emitted(verdict: Verdict) -> Vec<u32> {
    verdict.emitted().collect()
}

/// Draws one chain token.
pub fn draft(q: &[f64], depth: usize, walk: &mut Walk) -> u32 {
    walk.draw(Ask { depth, purpose: Purpose::Draft, index: 0 }, q) as u32
}

/// Drafts a chain whose length may depend on what has been drafted, then judges it.
pub fn chain_round(
    model: &Model,
    kind: Chain,
    rule: ChainRule,
    stop: impl Fn(&[u32]) -> bool,
    walk: &mut Walk,
) -> Verdict {
    let mut tokens = Vec::new();
    let mut proposals = Vec::new();
    while tokens.len() < model.depth && !stop(&tokens) {
        let depth = tokens.len();
        let q = model.q(&tokens);
        let sampled = match kind {
            Chain::Sampled => true,
            Chain::Argmax => false,
            Chain::Mixed => depth % 2 == 1,
        };
        proposals.push(if sampled { Proposal::Sampled(q) } else { Proposal::Point });
        let token = if sampled { draft(q, depth, walk) } else { model.ranked(&tokens)[0] };
        tokens.push(token);
    }
    let target: Vec<&[f64]> = (0..=tokens.len()).map(|depth| model.p(&tokens[..depth])).collect();
    let verdict = rule(&tokens, &proposals, &target, ZeroResidual::FallBack, walk);
    walk.judged(verdict)
}

/// Grows a sampled tree; `branching(path)` says how many children follow a drafted path.
pub fn grow(
    model: &Model,
    replacement: Replacement,
    branching: impl Fn(&[u32]) -> usize,
    walk: &mut Walk,
) -> SampledTree {
    let mut sampled = SampledTree::root(ROOT, 0, replacement);
    let mut node = 0;
    while node < sampled.tree().len() {
        let path = sampled.tree().path_tokens(node);
        let count = if path.len() < model.depth { branching(&path) } else { 0 };
        if count > 0 {
            sampled.extend(node, model.q(&path).to_vec(), count, walk).unwrap();
        }
        node += 1;
    }
    sampled
}

/// Grows a tree and judges it.
pub fn sampled_round(
    model: &Model,
    (replacement, rule): (Replacement, SampledRule),
    branching: impl Fn(&[u32]) -> usize,
    walk: &mut Walk,
) -> Verdict {
    let sampled = grow(model, replacement, branching, walk);
    let verdict = rule(&sampled, &model.target_rows(sampled.tree()), ZeroResidual::FallBack, walk);
    walk.judged(verdict)
}

pub fn match_round(model: &Model, tree: &Tree, walk: &mut Walk) -> Verdict {
    let verdict = sampled_match::verify(tree, &model.target_rows(tree), walk);
    walk.judged(verdict)
}

/// EAGLE-2's tree for a model.
pub fn eagle2(model: &Model, top_k: usize, nodes: usize) -> Tree {
    let mut eagle = Eagle2::new(ROOT, 0, top_k);
    for _ in 0..model.depth {
        let rows: Vec<Vec<f64>> = eagle
            .frontier()
            .iter()
            .map(|&candidate| model.q(&candidate_path(&eagle, candidate)).iter().map(|q| q.ln()).collect())
            .collect();
        eagle.expand(&rows).unwrap();
    }
    eagle.rerank(nodes).unwrap()
}

/// Drafted tokens on the way to a candidate.
pub fn candidate_path(eagle: &Eagle2, mut candidate: usize) -> Vec<u32> {
    let mut path = Vec::new();
    while candidate != 0 {
        path.push(eagle.token(candidate));
        candidate = eagle.parent(candidate);
    }
    path.reverse();
    path
}

/// Every kind of tree that is built without chance, with a name.
pub fn fixed_trees(model: &Model) -> Vec<(&'static str, Tree)> {
    let (depth, wide) = (model.depth, model.vocabulary);
    let table = SequoiaTable::new(&[0.5, 0.2, 0.1, 0.05][..wide], 7, depth);
    let sequoia = table.shape(7.min(1 + wide), depth).unwrap();
    let ranks: Vec<Vec<usize>> = [vec![0], vec![1], vec![0, 0], vec![0, 1], vec![0, 0, 0]]
        .into_iter()
        .filter(|path| path.len() <= depth)
        .collect();
    let fill = |shape: Shape| shape.fill(ROOT, 0, |path| model.ranked(path)).unwrap();
    vec![
        ("root alone", Tree::root(ROOT, 0)),
        ("chain", fill(Shape::chain(depth))),
        ("static levels", fill(Shape::levels(&vec![2; depth]))),
        ("static ranks", fill(Shape::from_ranks(&ranks).unwrap())),
        ("k chains", fill(Shape::chains(2, depth))),
        ("sequoia shape", fill(sequoia)),
        ("whole vocabulary", fill(Shape::levels(&vec![wide; depth]))),
        ("eagle-2", eagle2(model, 2, 2 * depth + 1)),
    ]
}
