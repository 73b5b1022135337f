//! How many tokens a request drafts in its next round.
//!
//! A rule that divides by the drafter's distribution is exact only if whether a token is drafted does not depend on that
//! token or a later one. A policy sees the request's finished rounds and how many requests there are, nothing else, so
//! none can break this: the other requests' draws have keys of their own. What it may ask of the drafter's confidence is
//! asked before a token is drawn, by the drafter.

use spectrain_core::stats::Call;
use spectrain_core::stats::acceptance::shrunk;
use spectrain_core::stats::length::{CostTable, survival};
use std::fmt;
use std::str::FromStr;

/// What a policy decides from.
#[derive(Debug, Clone, Copy)]
pub struct Seen<'a> {
    /// The request's finished rounds, the oldest first.
    pub past: &'a [Call],
    /// Requests that are being answered or wait for a place, this one counted.
    pub busy: usize,
}

/// Decides, before anything is drafted, how long a request's next chain may be.
pub trait LengthPolicy: Sync {
    /// Drafted tokens of the next round, from 0 (a plain step) to `longest`.
    fn length(&self, seen: Seen, longest: usize) -> usize;

    /// The mass that the drafter must give its likeliest token for a chain to go on, from 0 (it always does) to 1. Drafters
    /// that copy from texts have none to give, and go on.
    fn confidence(&self) -> f64 {
        0.0
    }
}

/// Always the longest.
#[derive(Debug, Clone, Copy)]
pub struct Fixed;

/// One token more than the last round accepted: a long draft follows a good one, a short one a bad one.
#[derive(Debug, Clone, Copy)]
pub struct Shrinking;

/// Plain steps for a while where too few drafted tokens are accepted.
///
/// The last [`Floor::WINDOW`] rounds that drafted, since the last pause, are judged together; below the floor,
/// [`Floor::PAUSE`] rounds go without a draft, and the request is judged afresh.
#[derive(Debug, Clone, Copy)]
pub struct Floor {
    /// Least share of the drafted tokens that must be accepted.
    pub share: f64,
}

/// Plain steps while many requests are busy: a full batch uses the device well without drafts, and their rows cost time.
///
/// Under the rules that draw, texts then depend on the other requests; their law does not.
#[derive(Debug, Clone, Copy)]
pub struct Queue {
    /// Most busy requests beside which drafts are made.
    pub most: usize,
}

/// Drafts end where the drafter is less sure of its likeliest token.
///
/// The mass is that of the distribution it draws from, or, where it takes the likeliest, of its softmax at temperature 1.
#[derive(Debug, Clone, Copy)]
pub struct Confidence {
    /// Least mass of the likeliest token.
    pub least: f64,
}

/// The length that commits most tokens per second by what this request's last rounds accepted and what rounds cost.
///
/// Where that is a plain step, every [`Marginal::PROBE`]-th round drafts all the same, to see whether it still holds.
#[derive(Debug, Clone)]
pub struct Marginal {
    /// Measured times by length.
    pub costs: CostTable,
}

impl Marginal {
    /// Rounds that count.
    pub const WINDOW: usize = 32;
    /// Plain steps up to the next try.
    pub const PROBE: usize = 16;
    /// Drafted tokens that a depth's own acceptance is set against: half of them for the request, the request's rate for
    /// the depth.
    const PRIOR: f64 = 2.0;
}

impl LengthPolicy for Marginal {
    fn length(&self, seen: Seen, longest: usize) -> usize {
        let recent = &seen.past[seen.past.len().saturating_sub(Self::WINDOW)..];
        let rounds = recent.iter().map(|call| (call.kept.drafted, call.accepted));
        let best = self.costs.best_length(&survival(&shrunk(rounds, longest, Self::PRIOR)));
        let plain = recent.iter().rev().take_while(|call| call.kept.drafted == 0).count();
        if best == 0 && plain >= Self::PROBE { longest } else { best }
    }
}

impl LengthPolicy for Confidence {
    fn length(&self, _: Seen, longest: usize) -> usize {
        longest
    }

    fn confidence(&self) -> f64 {
        self.least
    }
}

impl LengthPolicy for Fixed {
    fn length(&self, _: Seen, longest: usize) -> usize {
        longest
    }
}

impl LengthPolicy for Shrinking {
    fn length(&self, seen: Seen, longest: usize) -> usize {
        seen.past.last().map_or(longest, |call| (call.accepted + 1).min(longest))
    }
}

impl Floor {
    /// Rounds that are judged together.
    pub const WINDOW: usize = 8;
    /// Rounds of a pause.
    pub const PAUSE: usize = 16;
}

impl LengthPolicy for Floor {
    fn length(&self, seen: Seen, longest: usize) -> usize {
        let (mut rounds, mut drafted, mut accepted, mut plain) = (0, 0, 0, 0);
        for call in seen.past.iter().rev() {
            if call.kept.drafted == 0 {
                plain += 1;
                if plain == Self::PAUSE {
                    break;
                }
                continue;
            }
            plain = 0;
            rounds += 1;
            drafted += call.kept.drafted;
            accepted += call.accepted;
            if rounds == Self::WINDOW {
                let poor = (accepted as f64) < self.share * drafted as f64;
                return if poor { 0 } else { longest };
            }
        }
        longest
    }
}

impl LengthPolicy for Queue {
    fn length(&self, seen: Seen, longest: usize) -> usize {
        if seen.busy > self.most { 0 } else { longest }
    }
}

/// A policy by name, as the command line chooses it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub enum PolicyKind {
    /// `fixed`: [`Fixed`].
    #[default]
    Fixed,
    /// `shrinking`: [`Shrinking`].
    Shrinking,
    /// `floor:SHARE`: [`Floor`].
    Floor(f64),
    /// `queue:N`: [`Queue`].
    Queue(usize),
    /// `confidence:SHARE`: [`Confidence`].
    Confidence(f64),
    /// `marginal`: [`Marginal`].
    Marginal,
}

impl PolicyKind {
    /// The policy; none where it needs `costs` that are not known.
    pub fn policy(self, costs: Option<&CostTable>) -> Option<Box<dyn LengthPolicy>> {
        Some(match self {
            Self::Fixed => Box::new(Fixed),
            Self::Shrinking => Box::new(Shrinking),
            Self::Floor(share) => Box::new(Floor { share }),
            Self::Queue(most) => Box::new(Queue { most }),
            Self::Confidence(least) => Box::new(Confidence { least }),
            Self::Marginal => Box::new(Marginal { costs: costs?.clone() }),
        })
    }
}

/// A share from 0 to 1 behind a policy's name.
fn share(text: &str, share: &str, what: &str) -> Result<f64, String> {
    let found = share.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    found.ok_or_else(|| format!("`{text}`: {what} must be a share from 0 to 1"))
}

impl FromStr for PolicyKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "fixed" => Ok(Self::Fixed),
            None if text == "shrinking" => Ok(Self::Shrinking),
            None if text == "marginal" => Ok(Self::Marginal),
            Some(("floor", least)) => share(text, least, "the floor").map(Self::Floor),
            Some(("confidence", least)) => share(text, least, "the confidence").map(Self::Confidence),
            Some(("queue", most)) => {
                let most = most.parse().ok().filter(|&most| most > 0);
                most.map(Self::Queue).ok_or_else(|| format!("`{text}`: the queue must be a whole number, 1 or more"))
            }
            _ => {
                let known = "policies are fixed, shrinking, floor:SHARE, queue:N, confidence:SHARE and marginal";
                Err(format!("unknown length policy `{text}`; {known}"))
            }
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed => f.write_str("fixed"),
            Self::Shrinking => f.write_str("shrinking"),
            Self::Floor(share) => write!(f, "floor:{share}"),
            Self::Queue(most) => write!(f, "queue:{most}"),
            Self::Confidence(least) => write!(f, "confidence:{least}"),
            Self::Marginal => f.write_str("marginal"),
        }
    }
}
