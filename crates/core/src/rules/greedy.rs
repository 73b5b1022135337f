//! Greedy rule for any tree: follow the target's argmax as long as it was drafted.
//!
//! The text equals plain greedy decoding, ties included, because both take [`argmax`].

use super::Verdict;
use crate::tree::Tree;
use std::convert::Infallible;

/// The most probable token; ties go to the lowest id. `None` if no entry is above negative infinity (all masked) or an
/// entry is not a number. Works for probabilities and for logits; a row of zeros has argmax 0, so mask logits with
/// negative infinity.
pub fn argmax(row: &[f64]) -> Option<u32> {
    let mut best: Option<usize> = None;
    for (token, &value) in row.iter().enumerate() {
        if value.is_nan() {
            return None;
        }
        if value > best.map_or(f64::NEG_INFINITY, |best| row[best]) {
            best = Some(token);
        }
    }
    best.map(|best| best as u32)
}

/// Walks from the root while the target's choice at a node is one of its children.
///
/// `choice(node)` is the target's argmax at a node, or `None` where every token is masked; it is asked only for nodes
/// on the path. The extra token is the first choice that was not drafted.
pub fn verify(tree: &Tree, mut choice: impl FnMut(usize) -> Option<u32>) -> Verdict {
    let Ok(verdict) = walk::<Infallible>(tree, |node| Ok(choice(node)));
    verdict
}

/// As [`verify`], for choices that can fail; sampled-match walks so, too.
///
/// # Errors
/// The first that `choice` returns.
pub fn walk<E>(tree: &Tree, mut choice: impl FnMut(usize) -> Result<Option<u32>, E>) -> Result<Verdict, E> {
    let mut verdict = Verdict::default();
    let mut node = 0;
    loop {
        verdict.next = choice(node)?;
        let child = verdict.next.and_then(|token| tree.child(node, token));
        let Some(child) = child else { return Ok(verdict) };
        verdict.push(child, tree.token(child));
        node = child;
    }
}
