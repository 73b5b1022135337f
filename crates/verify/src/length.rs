//! How many tokens a request drafts in its next round.
//!
//! A rule that divides by the drafter's distribution is exact only if the length of a draft does not depend on the
//! tokens in it. A policy sees the request's finished rounds and how many requests there are, nothing else, so none can
//! break this: the other requests' draws have keys of their own.

use spectrain_core::stats::Call;
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
}

impl PolicyKind {
    /// The policy.
    pub fn policy(self) -> Box<dyn LengthPolicy> {
        match self {
            Self::Fixed => Box::new(Fixed),
            Self::Shrinking => Box::new(Shrinking),
            Self::Floor(share) => Box::new(Floor { share }),
            Self::Queue(most) => Box::new(Queue { most }),
        }
    }
}

impl FromStr for PolicyKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "fixed" => Ok(Self::Fixed),
            None if text == "shrinking" => Ok(Self::Shrinking),
            Some(("floor", share)) => {
                let share = share.parse().ok().filter(|share| (0.0..=1.0).contains(share));
                share.map(Self::Floor).ok_or_else(|| format!("`{text}`: the floor must be a share from 0 to 1"))
            }
            Some(("queue", most)) => {
                let most = most.parse().ok().filter(|&most| most > 0);
                most.map(Self::Queue).ok_or_else(|| format!("`{text}`: the queue must be a whole number, 1 or more"))
            }
            _ => {
                let known = "policies are fixed, shrinking, floor:SHARE and queue:N";
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
        }
    }
}
