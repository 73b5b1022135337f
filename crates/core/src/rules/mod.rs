//! Acceptance rules: which drafted tokens are committed, and which token follows them.
//!
//! `p` is the target's distribution after every processor, `q` the distribution the drafted token was *really* drawn
//! from. One rule is one file and one line of [`RULES`]. Every rule is a pure function of the rows it is given and of
//! the events decided by a [`Chance`].
//!
//! | rule | proposals | output law |
//! |---|---|---|
//! | [`token`] | chain | target |
//! | [`block`] | chain | target |
//! | [`greedy`] | any tree | greedy decoding |
//! | [`sampled_match`] | any tree | target |
//! | [`specinfer`] | tree sampled with replacement | target |
//! | [`sequoia`] | tree sampled without replacement | target |
//! | [`traversal`] | tree sampled without replacement | target |
//! | [`typical`], [`threshold`] | any tree | approximate |
//!
//! A target row of zeros is an *all-masked* state: nothing can follow there, and a round that ends at it has no extra
//! token ([`Verdict::next`] is `None`), which is how a finish is told.

pub mod block;
pub mod candidate;
mod chance;
pub mod greedy;
mod recursive;
mod registry;
mod residual;
pub mod sampled_match;
mod script;
pub mod sequoia;
pub mod specinfer;
pub mod threshold;
pub mod token;
pub mod traversal;
pub mod typical;

use crate::process::RowError;
use crate::tree::TreeError;

pub use chance::{Ask, Chance, Keyed, keyed};
pub use registry::{Entry, Guarantee, Proposals, RULES, Rule, UnknownRule};
pub use residual::ZeroResidual;
pub use script::{Draws, Script};

/// How a drafted chain token was chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Proposal<'a> {
    /// Drawn from this distribution (length = vocabulary).
    Sampled(&'a [f64]),
    /// Chosen without chance (argmax, n-gram): `q` is one at the token.
    Point,
}

/// The outcome of one round: a path from the root and exactly one extra target token.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Verdict {
    /// Accepted nodes in order, the root left out. On a chain, node `i + 1` is drafted token `i`.
    pub path: Vec<usize>,
    /// Tokens of the accepted nodes.
    pub tokens: Vec<u32>,
    /// The token after the path, drawn from the residual or from the target; `None` if the target is all-masked there.
    pub next: Option<u32>,
    /// How often a rejection without residual mass fell back to the target (see [`ZeroResidual`]).
    pub fallbacks: usize,
}

impl Verdict {
    /// Accepted draft tokens.
    pub fn accepted(&self) -> usize {
        self.path.len()
    }

    /// The tokens to commit in order: the accepted ones, then the extra one.
    pub fn emitted(&self) -> impl Iterator<Item = u32> + '_ {
        self.tokens.iter().copied().chain(self.next)
    }

    /// Appends an accepted node.
    fn push(&mut self, node: usize, token: u32) {
        self.path.push(node);
        self.tokens.push(token);
    }

    /// Sets the extra token as drawn by [`residual::draw_residual`].
    fn finish(mut self, (next, fell_back): (Option<u32>, bool)) -> Self {
        self.next = next;
        self.fallbacks += usize::from(fell_back);
        self
    }
}

/// Why a round cannot be judged. `node` counts rows: 0 is the root, `i + 1` the drafted chain token `i`.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RuleError {
    /// The number of rows does not fit the drafted tokens.
    #[error("{what}: {found} rows for {expected} nodes")]
    Rows {
        /// Which rows.
        what: &'static str,
        /// Rows needed.
        expected: usize,
        /// Rows given.
        found: usize,
    },
    /// A row has another vocabulary than the root's target row.
    #[error("{what} row of node {node} has {found} entries, the vocabulary has {expected}")]
    Width {
        /// Which rows.
        what: &'static str,
        /// Row.
        node: usize,
        /// Vocabulary size.
        expected: usize,
        /// Entries given.
        found: usize,
    },
    /// A drafted token lies outside the vocabulary.
    #[error("token {token} of node {node} is outside the vocabulary of {vocabulary}")]
    Token {
        /// Node of the token.
        node: usize,
        /// The token.
        token: u32,
        /// Vocabulary size.
        vocabulary: usize,
    },
    /// A row holds a negative or non-finite entry.
    #[error("the row of node {node} is no distribution: an entry is negative or not finite")]
    NotProbabilities {
        /// Row.
        node: usize,
    },
    /// The draft distribution gives the drafted token no mass, so it was not drawn from it.
    #[error("the draft distribution cannot have produced token {token} of node {node}")]
    ImpossibleDraft {
        /// Node of the token.
        node: usize,
        /// The token.
        token: u32,
    },
    /// A rejection left no residual mass, in strict mode.
    #[error("the rejection at node {node} has no residual mass")]
    NoResidual {
        /// Node whose children were rejected.
        node: usize,
    },
    /// What was drafted is no tree.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// Logits make no distribution.
    #[error(transparent)]
    Row(#[from] RowError),
    /// A tree was drafted for a rule that judges chains.
    #[error("the {rule} rule judges chains, and a tree was drafted")]
    Chain {
        /// The rule.
        rule: Rule,
    },
    /// The tree was sampled in another way than the rule needs.
    #[error("the {rule} rule needs a tree sampled {needed} replacement")]
    Sampling {
        /// The rule.
        rule: Rule,
        /// `with` or `without`.
        needed: &'static str,
    },
}

/// Checks that there is one target row per node, all of one width, with every token inside; returns the width.
fn check_rows<R: AsRef<[f64]>>(target: &[R], tokens: impl ExactSizeIterator<Item = u32>) -> Result<usize, RuleError> {
    let expected = tokens.len() + 1;
    if target.len() != expected {
        return Err(RuleError::Rows { what: "target", expected, found: target.len() });
    }
    let vocabulary = target[0].as_ref().len();
    for (node, row) in target.iter().enumerate() {
        check_width("target", node, row.as_ref(), vocabulary)?;
    }
    for (i, token) in tokens.enumerate() {
        if token as usize >= vocabulary {
            return Err(RuleError::Token { node: i + 1, token, vocabulary });
        }
    }
    Ok(vocabulary)
}

/// Checks the width of one row.
fn check_width(what: &'static str, node: usize, row: &[f64], expected: usize) -> Result<(), RuleError> {
    let found = row.len();
    if found == expected { Ok(()) } else { Err(RuleError::Width { what, node, expected, found }) }
}
