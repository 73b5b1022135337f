//! Trees beside chains of as many nodes, which cost the target as much: figures of the two never share a column.

use crate::number::{fixed, speedup};
use crate::table::aligned;
use spectrain_core::evaluation::Evaluation;
use spectrain_core::tree::TreeKind;

const HEADER: [&str; 12] = [
    "T",
    "tree",
    "nodes",
    "depth",
    "tree rule",
    "tree tokens/call",
    "tree tokens/s",
    "tree speedup",
    "chain rule",
    "chain tokens/call",
    "chain tokens/s",
    "chain speedup",
];

/// A line for every measured tree that a chain was measured beside; empty if there is none.
pub fn tree_table(evaluations: &[Evaluation]) -> String {
    let mut rows: Vec<Vec<String>> = vec![HEADER.map(str::to_string).to_vec()];
    for (tree, chain) in evaluations.iter().filter_map(|e| e.chain.as_deref().map(|chain| (e, chain))) {
        let [tree_figures, chain_figures] = [tree, chain].map(figures);
        let nodes = tree.nodes.map_or(String::new(), |nodes| nodes.to_string());
        let mut row = vec![tree.temperature.to_string(), tree.tree.to_string(), nodes, tree.length.to_string()];
        row.extend(tree_figures.into_iter().chain(chain_figures));
        rows.push(row);
    }
    if rows.len() == 1 {
        return String::new();
    }
    let fitted = evaluations.iter().any(|e| matches!(e.tree, TreeKind::Sequoia(_)));
    let note = if fitted { "the Sequoia shapes were fitted to the same prompts, at depth 1\n" } else { "" };
    format!("\ntrees beside chains of as many nodes\n{}{note}", aligned(&rows, &[1, 4, 8]))
}

fn figures(e: &Evaluation) -> [String; 4] {
    let tokens = fixed(e.overall.acceptance.tokens_per_target_call, 3);
    [e.rule.to_string(), tokens, fixed(e.tokens_per_second, 1), speedup(e)]
}
