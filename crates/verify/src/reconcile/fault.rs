//! What can differ between training and run time, and how a user is told.
//!
//! A fault is a hypothesis as well: [`super::suspect`] drafts as a run time with this fault would, and the one that
//! gives the logits that were seen is the diagnosis.

use std::fmt;

/// What run time does otherwise than training.
#[derive(Debug, Clone, PartialEq)]
pub enum Fault {
    /// The prompts that the drafter learned from were rendered otherwise than those it is served.
    Template {
        /// The prompt.
        prompt: String,
        /// First token that differs.
        position: usize,
        /// The stored token there; none behind the end.
        stored: Option<u32>,
        /// The token of a fresh rendering there; none behind the end.
        rendered: Option<u32>,
    },
    /// A draft vocabulary entry stands for another token.
    Vocabulary {
        /// Number of the entry; none where the tables differ in length.
        entry: usize,
        /// Its token in training; none behind the end.
        trained: Option<u32>,
        /// Its token at run time; none behind the end.
        served: Option<u32>,
    },
    /// The fusion reads other hidden states of the target.
    Taps {
        /// Layers in training.
        trained: Vec<usize>,
        /// Layers at run time.
        served: Vec<usize>,
    },
    /// Features, tokens and proposals do not belong to the same positions.
    LabelShift(Shift),
    /// A norm that is applied in training is not at run time, or the reverse.
    Norm(Norm),
    /// The rotary frequencies have another base.
    Theta {
        /// Base in training.
        trained: f64,
        /// Base at run time.
        served: f64,
    },
    /// Rows of the second and later draft steps stand at other positions.
    Position(Position),
    /// The drafter's cache holds rows that were never made of the target's features.
    StaleCache(Stale),
    /// Run time does what the layer is, and training's unroll does not.
    Unroll,
    /// The logits agree, and the figures do not.
    Figure {
        /// Sampling temperature.
        temperature: f64,
        /// Drafted tokens a round.
        length: usize,
        /// Tokens per target call that offline predicts.
        offline: f64,
        /// Tokens per target call that the verifier measured.
        verifier: f64,
    },
    /// None of the known faults gives what was seen.
    Unexplained,
}

/// Which rows run time joins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shift {
    /// Features at `t` with the token at `t`.
    OwnToken,
    /// Features at `t - 1` with the token at `t + 1`.
    EarlierFeature,
    /// The proposal for a position is what the drafter says of the position behind it.
    Ahead,
    /// The newest row is missing: the proposal for a position is what the drafter says of the position before it.
    Behind,
    /// The decoder hands over another token than the one behind the features, by so many positions.
    Handed(isize),
}

/// Which norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Norm {
    /// The fused features enter the layer un-normed.
    Feature,
    /// Hidden states enter the layer un-normed at every step.
    Hidden,
    /// Hidden states enter the layer and its residual un-normed at every step.
    Stream,
    /// Embeddings enter the layer un-normed.
    Embedding,
    /// The residual is taken on the other side of the hidden norm.
    Residual,
    /// The drafter's own hidden states are passed on through the final norm.
    PassedOn,
    /// The head reads un-normed hidden states.
    Head,
}

/// Where step `k >= 1` behind row `t` stands, in place of `t + k`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Position {
    /// At `t`: the position does not advance.
    Frozen,
    /// At `k`: the position starts over.
    Restarted,
    /// At `t + k` and so many further.
    Offset(isize),
}

/// Which rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stale {
    /// Accepted rows keep the drafter's own hidden states.
    Accepted,
    /// Rejected rows stay visible.
    Rejected,
}

impl Fault {
    /// Short name for tables and scripts.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Template { .. } => "template",
            Self::Vocabulary { .. } => "vocabulary-map",
            Self::Taps { .. } => "tap",
            Self::LabelShift(_) => "label-shift",
            Self::Norm(Norm::Feature | Norm::Hidden | Norm::Stream) => "unnormed-feature",
            Self::Norm(_) => "norm",
            Self::Theta { .. } => "rope-theta",
            Self::Position(_) => "rope-position",
            Self::StaleCache(_) => "stale-drafter-kv",
            Self::Unroll => "training-unroll",
            Self::Figure { .. } => "figure",
            Self::Unexplained => "unexplained",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let token = |t: &Option<u32>| t.map_or("no token".to_owned(), |t| format!("token {t}"));
        write!(f, "{}: ", self.name())?;
        match self {
            Self::Template { prompt, position, stored, rendered } => write!(
                f,
                "prompt {prompt} has {} at position {position} where the drafter learned, and {} as the target's \
                 chat template renders it now",
                token(stored),
                token(rendered)
            ),
            Self::Vocabulary { entry, trained, served } => write!(
                f,
                "draft vocabulary entry {entry} is {} in training and {} at run time",
                token(trained),
                token(served)
            ),
            Self::Taps { trained, served } => {
                write!(
                    f,
                    "training fuses the hidden states that enter layers {trained:?}, run time those of {served:?}"
                )
            }
            Self::LabelShift(shift) => shift.fmt(f),
            Self::Norm(norm) => norm.fmt(f),
            Self::Theta { trained, served } => {
                write!(f, "the rotary base is {trained} in training and {} at run time", rounded(*served))
            }
            Self::Position(position) => {
                let at = match position {
                    Position::Frozen => "t".to_owned(),
                    Position::Restarted => "k".to_owned(),
                    Position::Offset(by) => format!("t + k {} {}", sign(*by), by.abs()),
                };
                write!(f, "draft step k >= 1 behind row t stands at position t + k in training, at {at} at run time")
            }
            Self::StaleCache(Stale::Accepted) => f.write_str(
                "accepted rows keep the keys of the drafter's own hidden states; they must be written again from the \
                 target's features",
            ),
            Self::StaleCache(Stale::Rejected) => {
                f.write_str("rows of rejected drafts stay in the drafter's cache behind the committed ones")
            }
            Self::Unroll => {
                f.write_str("run time follows the layer's weights and positions; training's unroll does not")
            }
            Self::Figure { temperature, length, offline, verifier } => write!(
                f,
                "at temperature {temperature} and {length} drafts offline predicts {offline:.4} tokens per target \
                 call and the verifier measures {verifier:.4}, though the drafter's logits are the same: look at how \
                 tokens are picked and judged"
            ),
            Self::Unexplained => f.write_str("none of the known faults gives these logits"),
        }
    }
}

impl fmt::Display for Shift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const TRAINED: &str = "training joins the features at t with the token at t + 1, run time";
        match self {
            Self::OwnToken => write!(f, "{TRAINED} with the token at t"),
            Self::EarlierFeature => write!(f, "{TRAINED} those at t - 1"),
            Self::Ahead => f.write_str("run time proposes for a position what training predicts for the one behind it"),
            Self::Behind => {
                f.write_str("run time proposes for a position what training predicts for the one before it")
            }
            Self::Handed(by) => {
                write!(f, "{TRAINED}'s decoder hands over the token at t + 1 {} {}", sign(*by), by.abs())
            }
        }
    }
}

impl fmt::Display for Norm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Feature => "at step 0 the fused features enter the layer un-normed (hidden_norm)",
            Self::Hidden => "hidden states enter the layer un-normed at every step (hidden_norm)",
            Self::Stream => "hidden states enter the layer and its residual un-normed at every step (hidden_norm)",
            Self::Embedding => "embeddings enter the layer un-normed (input_layernorm)",
            Self::Residual => "the residual is taken on the other side of the hidden norm (norm_before_residual)",
            Self::PassedOn => "the drafter's own hidden states are passed on through the final norm",
            Self::Head => "the head reads hidden states that did not pass the final norm",
        })
    }
}

fn sign(by: isize) -> char {
    if by < 0 { '-' } else { '+' }
}

/// Three figures: an estimated base is known no better.
fn rounded(value: f64) -> f64 {
    let unit = 10_f64.powi(value.abs().log10().floor() as i32 - 2);
    (value / unit).round() * unit
}

/// Where training and run time first differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The prompt.
    pub prompt: String,
    /// Its round, from 0.
    pub round: usize,
    /// The draft step, from 0.
    pub step: usize,
    /// Position of the token that is drafted there.
    pub position: usize,
}

/// The gate's refusal.
#[derive(Debug, Clone, PartialEq)]
pub struct Mismatch {
    /// What differs.
    pub fault: Fault,
    /// Where it shows first, and by how much of the logits' range; none for faults that are seen without drafting.
    pub first: Option<(Place, f64)>,
}

impl std::error::Error for Mismatch {}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "training and run time differ: {}", self.fault)?;
        let Some((place, off)) = &self.first else { return Ok(()) };
        let Place { prompt, round, step, position } = place;
        write!(
            f,
            "; first seen at prompt {prompt}, round {round}, draft step {step}, position {position}, by {off:.1e} of \
             the logits' range"
        )
    }
}
