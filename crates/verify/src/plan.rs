//! From the kind of tree that was asked for to what is drafted.

use crate::evaluate::EvaluateError;
use crate::judge::pick;
use spectrain_core::rules::{Proposals, Rule};
use spectrain_core::tree::{Replacement, SequoiaTable, Shape, TreeKind};
use spectrain_draft::Plan;

/// Children of a node of a dynamic tree, and nodes that are expanded a depth (EAGLE-2's own value).
const WIDTH: usize = 10;

/// Siblings whose acceptance is measured for a Sequoia shape.
pub const RANKS: usize = 16;

/// What is drafted a round of `tree` trees under `rule`. `length` is the longest path of trees whose shape does not say
/// it. `ranks` is the measured acceptance by sibling rank, read for [`TreeKind::Sequoia`] alone.
///
/// # Errors
/// [`EvaluateError::Tree`] if the rule is not exact on such trees, [`EvaluateError::Shape`] if there is no Sequoia shape.
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
            let shape = SequoiaTable::new(ranks, *nodes, length).shape(*nodes, length);
            filled(shape.ok_or(EvaluateError::Shape { nodes: *nodes, depth: length, ranks: ranks.len() })?)
        }
    })
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
