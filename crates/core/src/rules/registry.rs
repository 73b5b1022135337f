//! Names of the rules and what each of them promises.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// What a rule promises about the text it commits. Every result file carries it; `approximate` is never lossless.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Guarantee {
    /// The text follows the target's own sampling law exactly.
    TargetSampling,
    /// The text is the target's greedy decoding, token for token.
    Greedy,
    /// Neither: the rule trades the law for length.
    Approximate,
}

impl Guarantee {
    /// The label written to files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::TargetSampling => "target-sampling",
            Self::Greedy => "greedy",
            Self::Approximate => "approximate",
        }
    }
}

impl fmt::Display for Guarantee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Which drafts a rule can judge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proposals {
    /// A chain, with the true `q` of every sampled token.
    Chain,
    /// Any tree, however built; `q` is not read.
    AnyTree,
    /// A tree whose siblings were drawn with replacement, with `q`.
    WithReplacement,
    /// A tree whose siblings were drawn without replacement, with `q`.
    WithoutReplacement,
}

/// An acceptance rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// [`super::token`]
    Token,
    /// [`super::block`]
    Block,
    /// [`super::greedy`]
    Greedy,
    /// [`super::sampled_match`]
    SampledMatch,
    /// [`super::specinfer`]
    #[serde(rename = "specinfer")]
    SpecInfer,
    /// [`super::sequoia`]
    Sequoia,
    /// [`super::traversal`]
    Traversal,
    /// [`super::typical`]
    Typical,
    /// [`super::threshold`]
    Threshold,
}

/// One line of the registry.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The rule.
    pub rule: Rule,
    /// Its name in recipes, on the command line and in result files.
    pub name: &'static str,
    /// What it promises.
    pub guarantee: Guarantee,
    /// What it can judge.
    pub proposals: Proposals,
}

/// Every rule, in the order of [`Rule`]'s variants.
#[rustfmt::skip]
pub const RULES: [Entry; 9] = [
    Entry { rule: Rule::Token,        name: "token",         guarantee: Guarantee::TargetSampling, proposals: Proposals::Chain },
    Entry { rule: Rule::Block,        name: "block",         guarantee: Guarantee::TargetSampling, proposals: Proposals::Chain },
    Entry { rule: Rule::Greedy,       name: "greedy",        guarantee: Guarantee::Greedy,         proposals: Proposals::AnyTree },
    Entry { rule: Rule::SampledMatch, name: "sampled-match", guarantee: Guarantee::TargetSampling, proposals: Proposals::AnyTree },
    Entry { rule: Rule::SpecInfer,    name: "specinfer",     guarantee: Guarantee::TargetSampling, proposals: Proposals::WithReplacement },
    Entry { rule: Rule::Sequoia,      name: "sequoia",       guarantee: Guarantee::TargetSampling, proposals: Proposals::WithoutReplacement },
    Entry { rule: Rule::Traversal,    name: "traversal",     guarantee: Guarantee::TargetSampling, proposals: Proposals::WithoutReplacement },
    Entry { rule: Rule::Typical,      name: "typical",       guarantee: Guarantee::Approximate,    proposals: Proposals::AnyTree },
    Entry { rule: Rule::Threshold,    name: "threshold",     guarantee: Guarantee::Approximate,    proposals: Proposals::AnyTree },
];

impl Rule {
    /// The registry line of this rule.
    pub const fn entry(self) -> &'static Entry {
        &RULES[self as usize]
    }

    /// The rule's name.
    pub const fn name(self) -> &'static str {
        self.entry().name
    }

    /// The rule at `temperature`: [`Rule::Greedy`] at 0, where every exact rule accepts the same, else this one.
    pub fn at(self, temperature: f64) -> Self {
        if temperature == 0.0 { Self::Greedy } else { self }
    }

    /// What the rule promises.
    pub const fn guarantee(self) -> Guarantee {
        self.entry().guarantee
    }

    /// What the rule can judge.
    pub const fn proposals(self) -> Proposals {
        self.entry().proposals
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// No rule has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown acceptance rule `{found}`; rules are {}", RULES.map(|entry| entry.name).join(", "))]
pub struct UnknownRule {
    /// The name asked for.
    pub found: String,
}

impl FromStr for Rule {
    type Err = UnknownRule;

    fn from_str(name: &str) -> Result<Self, UnknownRule> {
        let entry = RULES.iter().find(|entry| entry.name == name);
        entry.map(|entry| entry.rule).ok_or_else(|| UnknownRule { found: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn lines_stand_in_the_order_of_the_variants_and_names_read_back() {
        for (index, entry) in RULES.iter().enumerate() {
            assert_eq!(entry.rule as usize, index);
            assert_eq!(entry.name.parse::<Rule>().unwrap(), entry.rule);
            let text = serde_json::to_string(&entry.rule).unwrap();
            assert_eq!(text, format!("\"{}\"", entry.name));
            assert_eq!(serde_json::from_str::<Rule>(&text).unwrap(), entry.rule);
        }
        assert!("Token".parse::<Rule>().unwrap_err().to_string().contains("sampled-match"));
    }

    #[test]
    fn guarantees_are_written_as_they_are_shown() {
        for entry in RULES {
            let text = serde_json::to_string(&entry.guarantee).unwrap();
            assert_eq!(text, format!("\"{}\"", entry.guarantee));
        }
        assert_eq!(Rule::Typical.guarantee(), Guarantee::Approximate);
        assert_eq!(Rule::Threshold.guarantee(), Guarantee::Approximate);
        assert_eq!(Rule::Greedy.guarantee().to_string(), "greedy");
        assert_eq!(Rule::Token.guarantee().to_string(), "target-sampling");
    }
}
