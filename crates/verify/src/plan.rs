//! From the kind of tree that was asked for to what is drafted.

use crate::evaluate::EvaluateError;
use crate::judge::pick;
use spectrain_core::rules::{Proposals, Rule};
use spectrain_core::stats::length::CostTable;
use spectrain_core::tree::{Budget, Replacement, SequoiaTable, Shape, TreeKind};
use spectrain_draft::Plan;

/// Children of a node of a dynamic tree, and nodes that are expanded a depth (EAGLE-2's own value).
const WIDTH: usize = 10;

/// Siblings whose acceptance is measured for a Sequoia shape.
pub const RANKS: usize = 16;

/// What is drafted a round of `tree` trees under `rule`. `length` is the longest path of trees whose shape does not say
/// it. `ranks` is the measured acceptance by sibling rank, read for [`TreeKind::Sequoia`] alone.
///
/// # Errors
/// [`EvaluateError::Tree`] if the rule is not exact on such trees, [`EvaluateError::Shape`] if there is no Sequoia shape,
/// [`EvaluateError::Size`] if its size is not chosen yet.
pub fn plan(tree: &TreeKind, rule: Rule, length: usize, ranks: &[f64]) -> Result<Plan, EvaluateError> {
    tree.check(rule)?;
    let filled = |shape: Shape| match tree.drawn(rule) {
        false => Plan::Ranked(shape),
        true => Plan::Sampled { shape, replacement: replacement(rule) },
    };
    Ok(match tree {
        TreeKind::Chain => Plan::chain(length, pick(rule)),
        TreeKind::Static(widths) | TreeKind::Sampled(widths) => filled(Shape::levels(widths)),
        TreeKind::Dynamic(nodes) => Plan::Dynamic { nodes: *nodes, depth: length, width: WIDTH },
        TreeKind::Sequoia(nodes) => {
            let nodes = nodes.ok_or(EvaluateError::Size)?;
            let shape = SequoiaTable::new(ranks, nodes, length).shape(nodes, length);
            filled(shape.ok_or(EvaluateError::Shape { nodes, depth: length, ranks: ranks.len() })?)
        }
    })
}

/// The Sequoia tree with least time per token, and its depth, `length` at most: expected tokens follow from `ranks`, times
/// from `costs` of chains of as many nodes, a level for every token of theirs. It drafts one token at least.
///
/// # Errors
/// [`EvaluateError::Size`] if the costs tell of no round with a draft.
pub fn fastest(ranks: &[f64], costs: &CostTable, length: usize) -> Result<(TreeKind, usize), EvaluateError> {
    let longest = costs.draft.len().min(costs.verify.len()).saturating_sub(1);
    let budget = Budget {
        draft_level: costs.draft.get(longest).map_or(0.0, |draft| draft / longest.max(1) as f64),
        fixed: costs.state,
        verify: (1..=longest).map(|drafted| (drafted + 1, costs.verify[drafted])).collect(),
    };
    let table = SequoiaTable::new(ranks, longest + 1, length);
    let best = budget.choose(length, |nodes, depth| table.expected(nodes, depth));
    best.map(|best| (TreeKind::Sequoia(Some(best.nodes)), best.depth)).ok_or(EvaluateError::Size)
}

/// What acceptance by rank is measured with: the root's children alone, chosen as the trees' own will be.
pub(crate) fn one_level(tree: &TreeKind, rule: Rule) -> Plan {
    let shape = Shape::levels(&[RANKS]);
    match tree.drawn(rule) {
        false => Plan::Ranked(shape),
        true => Plan::Sampled { shape, replacement: replacement(rule) },
    }
}

/// How siblings are drawn for `rule`; rules that do not read `q` have no use for repeats.
fn replacement(rule: Rule) -> Replacement {
    match rule.proposals() {
        Proposals::WithReplacement => Replacement::With,
        _ => Replacement::Without,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A table of seven drafts: a level costs `level`, a node `node` beside a pass of 10.
    fn costs(level: f64, node: f64) -> CostTable {
        let times = |each: f64, first: f64| (0..8).map(|k| first + each * f64::from(k)).collect();
        CostTable { draft: times(level, 0.0), verify: times(node, 10.0), state: 0.1 }
    }

    fn chosen(ranks: &[f64], costs: &CostTable, length: usize) -> (usize, usize) {
        let (tree, depth) = fastest(ranks, costs, length).unwrap();
        (tree.nodes().unwrap(), depth)
    }

    #[test]
    fn the_fastest_tree_follows_acceptance_and_costs() {
        let (sure, unsure) = ([0.9, 0.05], [0.4, 0.3, 0.2]);
        assert_eq!(chosen(&sure, &costs(0.1, 0.0), 7), (8, 7), "nodes are free, the first rank is sure: a chain");
        assert_eq!(chosen(&unsure, &costs(0.01, 0.0), 7), (8, 2), "nodes and levels are free, no rank is sure: wide");
        assert_eq!(chosen(&unsure, &costs(20.0, 0.0), 7), (4, 1), "levels are dear: one, with every rank");
        assert_eq!(chosen(&unsure, &costs(0.1, 30.0), 7), (2, 1), "nodes are dear");
        assert!(chosen(&sure, &costs(0.1, 0.0), 3).1 <= 3, "the depth is limited");
        let mut stairs = costs(0.1, 0.0);
        stairs.verify[4..].fill(40.0);
        assert_eq!(chosen(&sure, &stairs, 7), (4, 3), "three drafts make the last pass before the stair");
        let dear = costs(0.1, 3.0);
        let (few, _) = chosen(&sure, &dear, 7);
        let (many, _) = chosen(&sure, &CostTable { state: 1e3, ..dear }, 7);
        assert!(few < many && many == 8, "a round's fixed time speaks for long rounds: {few} and {many}");
        let none = CostTable { draft: vec![0.0], verify: vec![10.0], state: 0.1 };
        assert!(matches!(fastest(&sure, &none, 7), Err(EvaluateError::Size)));
    }
}
