//! Kinds of trees by name, as recipes and the command line choose them, and which rules are exact on each.

use super::Shape;
use crate::rules::{Guarantee, Proposals, Rule};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// How a round's proposal is built. Sizes in nodes count the root, as rows of the target pass do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum TreeKind {
    /// `chain`: one token after the other.
    #[default]
    Chain,
    /// `static:2,2,1`: every node at depth d has the so many most likely tokens as children.
    Static(Vec<usize>),
    /// `dynamic:32`: EAGLE-2's tree of the paths that the drafter holds most likely.
    Dynamic(usize),
    /// `sampled:2,2,1`: as static, the children drawn from the drafter's distribution instead.
    Sampled(Vec<usize>),
    /// `sequoia:32`: the shape that measured acceptance by sibling rank makes best; its children are drawn where the
    /// rule divides by `q`, else the most likely tokens. Without a number, `sequoia:best`, its size and depth are those
    /// that measured costs make fastest.
    Sequoia(Option<usize>),
}

/// Why a kind of tree cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TreeKindError {
    /// No kind has this name.
    #[error(
        "unknown tree `{0}`; trees are chain, static:2,2,1, dynamic:32, sampled:2,2,1, sequoia:32 and sequoia:best"
    )]
    Unknown(String),
    /// A size out of range.
    #[error("tree `{found}`: {needed}")]
    Size {
        /// The kind asked for.
        found: String,
        /// What its sizes must be.
        needed: &'static str,
    },
    /// The rule is not exact on such trees.
    #[error("rule {rule} on {tree} trees is not exact: {why}")]
    Rule {
        /// The rule.
        rule: Rule,
        /// The kind.
        tree: TreeKind,
        /// Why, and what to take.
        why: &'static str,
    },
}

/// Name of the Sequoia tree whose size is chosen.
const BEST: &str = "sequoia:best";
/// Most nodes of a tree.
const MOST: usize = 1024;

impl TreeKind {
    /// Refuses a rule that would not keep its promise on such trees.
    ///
    /// # Errors
    /// [`TreeKindError::Rule`], with what to take instead.
    pub fn check(&self, rule: Rule) -> Result<(), TreeKindError> {
        let why = match (self, rule.proposals()) {
            _ if rule.guarantee() == Guarantee::Approximate => {
                "it changes the target's law; take token, sampled-match or another exact one"
            }
            (_, Proposals::AnyTree) | (Self::Chain, Proposals::Chain) => return Ok(()),
            (Self::Sampled(_) | Self::Sequoia(_), Proposals::WithReplacement | Proposals::WithoutReplacement) => {
                return Ok(());
            }
            (Self::Chain, _) => "it judges siblings that were drawn; take sampled:2,2,1 or sequoia:32 trees",
            (_, Proposals::Chain) => "it judges chains; take sampled-match, or sequoia or traversal on sampled trees",
            (Self::Static(_), _) => {
                "the most likely tokens are no draws from the distribution that it divides by; take sampled trees, or \
                 sampled-match"
            }
            (Self::Dynamic(_), _) => {
                "which nodes stay depends on what was drafted there, which a rule that divides by the drafter's \
                 distribution does not survive; take sampled-match"
            }
        };
        Err(TreeKindError::Rule { rule, tree: self.clone(), why })
    }

    /// Whether `rule` reads the distributions that children are drawn from, so that such trees must be drawn for it.
    pub fn drawn(&self, rule: Rule) -> bool {
        let divides = !matches!(rule.proposals(), Proposals::AnyTree);
        divides || (matches!(self, Self::Sampled(_)) && rule != Rule::Greedy)
    }

    /// Most nodes, the root counted, of a kind that says it: all but chains.
    pub fn nodes(&self) -> Option<usize> {
        match self {
            Self::Chain => None,
            Self::Static(widths) | Self::Sampled(widths) => Some(Shape::levels(widths).len()),
            Self::Dynamic(nodes) => Some(*nodes),
            Self::Sequoia(nodes) => *nodes,
        }
    }

    /// The longest path of a kind whose shape is given; the others are as deep as is asked for.
    pub fn depth(&self) -> Option<usize> {
        match self {
            Self::Static(widths) | Self::Sampled(widths) => Some(widths.len()),
            _ => None,
        }
    }
}

impl fmt::Display for TreeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |widths: &[usize]| widths.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        match self {
            Self::Chain => f.pad("chain"),
            Self::Static(widths) => f.pad(&format!("static:{}", list(widths))),
            Self::Dynamic(nodes) => f.pad(&format!("dynamic:{nodes}")),
            Self::Sampled(widths) => f.pad(&format!("sampled:{}", list(widths))),
            Self::Sequoia(Some(nodes)) => f.pad(&format!("sequoia:{nodes}")),
            Self::Sequoia(None) => f.pad(BEST),
        }
    }
}

impl FromStr for TreeKind {
    type Err = TreeKindError;

    fn from_str(text: &str) -> Result<Self, TreeKindError> {
        let unknown = || TreeKindError::Unknown(text.to_owned());
        match text {
            "chain" => return Ok(Self::Chain),
            BEST => return Ok(Self::Sequoia(None)),
            _ => {}
        }
        let (name, sizes) = text.split_once(':').ok_or_else(unknown)?;
        let sizes: Vec<usize> =
            sizes.split(',').map(|n| n.trim().parse()).collect::<Result<_, _>>().map_err(|_| unknown())?;
        let wrong = |needed| TreeKindError::Size { found: text.to_owned(), needed };
        let widths = || {
            // Checked before it is built, so that no list makes a huge shape.
            let (_, all) = sizes.iter().fold((1, 1), |(level, all): (usize, usize), &width| {
                let next = level.saturating_mul(width);
                (next, all.saturating_add(next))
            });
            match sizes.iter().all(|&width| width >= 1) && all <= MOST {
                true => Ok(sizes.clone()),
                false => Err(wrong("one width of 1 or more a depth, of 1024 nodes at most")),
            }
        };
        let nodes = || match sizes[..] {
            [nodes @ 2..=MOST] => Ok(nodes),
            _ => Err(wrong("one number of nodes from 2 to 1024, the root counted")),
        };
        match name {
            "static" => Ok(Self::Static(widths()?)),
            "sampled" => Ok(Self::Sampled(widths()?)),
            "dynamic" => Ok(Self::Dynamic(nodes()?)),
            "sequoia" => Ok(Self::Sequoia(Some(nodes()?))),
            _ => Err(unknown()),
        }
    }
}

impl TryFrom<String> for TreeKind {
    type Error = TreeKindError;

    fn try_from(text: String) -> Result<Self, TreeKindError> {
        text.parse()
    }
}

impl From<TreeKind> for String {
    fn from(kind: TreeKind) -> Self {
        kind.to_string()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::rules::RULES;

    const KINDS: [&str; 6] = ["chain", "static:2,2,1", "dynamic:32", "sampled:3,1", "sequoia:16", "sequoia:best"];

    #[test]
    fn names_read_back_and_wrong_ones_are_refused() {
        for kind in KINDS {
            assert_eq!(kind.parse::<TreeKind>().unwrap().to_string(), kind);
        }
        for wrong in ["tree", "static", "static:", "static:2,x", "dynamic:32,4", "chain:3", "eagle:5", "dynamic:best"] {
            assert!(wrong.parse::<TreeKind>().is_err(), "{wrong}");
        }
        for (wrong, needed) in [("static:2,0", "1 or more"), ("dynamic:1", "from 2"), ("sampled:99,99", "1024 nodes")] {
            assert!(wrong.parse::<TreeKind>().unwrap_err().to_string().contains(needed), "{wrong}");
        }
    }

    #[test]
    fn exactly_the_exact_pairs_are_allowed() {
        let allowed = |rule: Rule| KINDS.map(|kind| kind.parse::<TreeKind>().unwrap().check(rule).is_ok());
        for entry in RULES {
            let expected = match entry.rule {
                Rule::Token | Rule::Block => [true, false, false, false, false, false],
                Rule::Greedy | Rule::SampledMatch => [true; 6],
                Rule::SpecInfer | Rule::Sequoia | Rule::Traversal => [false, false, false, true, true, true],
                Rule::Typical | Rule::Threshold => [false; 6],
            };
            assert_eq!(allowed(entry.rule), expected, "{}", entry.name);
        }
    }
}
