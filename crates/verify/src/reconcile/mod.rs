//! The reconciliation gate: what training sees of a drafter must be what run time does with it.
//!
//! The real decoder drafts with the real drafter, behind prompts of the target's, and the logits of every draft step
//! are compared with those of training's unroll over the same text. Where they differ, hypotheses are tried until one
//! of them gives the logits that were seen; its name is the diagnosis. What the logits do not tell, how tokens are
//! picked and judged, shows in the figures ([`figure`]).

mod diagnose;
mod fault;
mod figure;
mod suspect;
mod trace;
mod training;

pub use fault::{Fault, Mismatch, Norm, Place, Position, Shift, Stale};
pub use figure::{Point, figure};

use spectrain_core::reconciliation::{Figure, Reconciliation};
use spectrain_core::rules::RuleError;
use spectrain_draft::proposer::Proposer;
use spectrain_draft::{Eagle3, Eagle3Drafter};
use spectrain_model::{Llama, sample::argmax};
use trace::Trace;
use training::Logits;

/// Largest difference of two logits that rounding explains, in parts of the range of their row. Passes of other widths
/// gave up to 2e-5.
pub const BOUND: f64 = 1e-4;

/// A drafter as training has it.
#[derive(Clone, Copy)]
pub struct Trained<'a> {
    /// Its target.
    pub target: &'a Llama,
    /// Its frozen side.
    pub drafter: &'a Eagle3Drafter,
    /// Its weights, on the target's device and without a tape.
    pub weights: &'a Eagle3,
}

/// A prompt that is drafted behind.
#[derive(Debug, Clone)]
pub struct Prompt {
    /// Its name.
    pub id: String,
    /// Its tokens.
    pub ids: Vec<u32>,
}

/// A prompt that the drafter learned from.
#[derive(Debug, Clone)]
pub struct Rendering {
    /// Its name.
    pub id: String,
    /// Its tokens as they were stored.
    pub stored: Vec<u32>,
    /// Its tokens as run time makes them.
    pub rendered: Vec<u32>,
}

/// Why nothing was reconciled.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    /// Training and run time differ.
    #[error(transparent)]
    Mismatch(Box<Mismatch>),
    /// The decoder failed.
    #[error(transparent)]
    Verify(#[from] RuleError),
    /// No prompt leaves room for a few rounds.
    #[error("no prompt leaves room for {room} tokens in the target's {limit}, so nothing can be reconciled")]
    Room {
        /// Tokens wanted.
        room: usize,
        /// Longest sequence.
        limit: usize,
    },
}

impl From<Mismatch> for ReconcileError {
    fn from(mismatch: Mismatch) -> Self {
        Self::Mismatch(Box::new(mismatch))
    }
}

/// Refuses figures that do not agree.
///
/// # Errors
/// [`Mismatch`] with the first of them.
pub fn reconcile_figures(figures: &[Figure]) -> Result<(), Mismatch> {
    figure::agree(figures)
}

/// Refuses prompts that run time renders otherwise than they were learned from.
///
/// # Errors
/// [`Mismatch`] at the first token that differs.
pub fn reconcile_prompts(renderings: &[Rendering]) -> Result<(), Mismatch> {
    let Some(Rendering { id, stored, rendered }) = renderings.iter().find(|r| r.stored != r.rendered) else {
        return Ok(());
    };
    let position = stored.iter().zip(rendered).take_while(|(a, b)| a == b).count();
    let token = |ids: &[u32]| ids.get(position).copied();
    let (stored, rendered) = (token(stored), token(rendered));
    Err(Mismatch { fault: Fault::Template { prompt: id.clone(), position, stored, rendered }, first: None })
}

/// Drafts chains of `length` behind `prompts` with `proposer` and holds them against training's unroll of `trained`.
/// Prompts that leave no room in the target are left out.
///
/// # Errors
/// [`ReconcileError::Mismatch`] names the fault.
pub fn reconcile(
    trained: &Trained,
    proposer: &mut dyn Proposer,
    prompts: &[Prompt],
    length: usize,
) -> Result<Reconciliation, ReconcileError> {
    let (room, limit) = (trace::room(length), trained.target.config().max_positions);
    let prompts: Vec<&Prompt> = prompts.iter().filter(|p| p.ids.len() + room <= limit).collect();
    if prompts.is_empty() {
        return Err(ReconcileError::Room { room, limit });
    }
    same_vocabulary(&trained.drafter.vocab.d2t, proposer.draft_to_target())?;
    let ids: Vec<&[u32]> = prompts.iter().map(|p| p.ids.as_slice()).collect();
    let traces = trace::trace(trained.target, proposer, &ids, length)?;
    let taps = &trained.drafter.config.taps;
    let unrolled = |trace| training::unrolled(trained, trace, &training::features(trained, &trace.text, taps));
    let expected: Vec<Logits> = traces.iter().map(unrolled).collect();
    let steps = compared(&traces, &expected);
    let named = |step: &Compared| Place {
        prompt: prompts[step.conversation].id.clone(),
        round: step.round,
        step: step.step,
        position: traces[step.conversation].rounds[step.round].known + step.step,
    };
    let differing = steps.iter().filter(|s| s.off.is_nan() || s.off > BOUND);
    if let Some(first) = differing.min_by_key(|s| (s.round, s.step)) {
        let fault = diagnose::diagnose(trained, &traces, (first.round, first.step) == (0, 0));
        return Err(Mismatch { fault, first: Some((named(first), first.off)) }.into());
    }
    same_tokens(&trained.drafter.vocab.d2t, &traces)?;
    Ok(Reconciliation {
        prompts: prompts.len(),
        rounds: traces.iter().map(|t| t.rounds.len()).sum(),
        steps: steps.len(),
        largest: steps.iter().map(|s| s.off).fold(0.0, f64::max),
        bound: BOUND,
        renderings: 0,
        figures: Vec::new(),
        fault: None,
    })
}

/// One draft step on both sides.
struct Compared {
    conversation: usize,
    round: usize,
    step: usize,
    off: f64,
}

fn compared(traces: &[Trace], expected: &[Logits]) -> Vec<Compared> {
    let mut steps = Vec::new();
    for (conversation, (trace, expected)) in traces.iter().zip(expected).enumerate() {
        for (round, (found, expected)) in trace.rounds.iter().zip(expected).enumerate() {
            for (step, (found, expected)) in found.draft.logits.iter().zip(expected).enumerate() {
                steps.push(Compared { conversation, round, step, off: off(found, expected) });
            }
        }
    }
    steps
}

/// Largest difference of two rows of logits in parts of the range of `expected`.
fn off(found: &[f32], expected: &[f32]) -> f64 {
    let low = expected.iter().copied().fold(f32::INFINITY, f32::min);
    let high = expected.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let apart = |(f, e): (&f32, &f32)| f64::from((f - e).abs());
    // A NaN must not be lost in a maximum.
    let largest = found.iter().zip(expected).map(apart).fold(0.0, |a: f64, b| if b > a || b.is_nan() { b } else { a });
    if found.len() == expected.len() { largest / f64::from(high - low) } else { f64::NAN }
}

/// Refuses another table of draft tokens.
fn same_vocabulary(trained: &[u32], served: &[u32]) -> Result<(), Mismatch> {
    if trained == served {
        return Ok(());
    }
    let entry = trained.iter().zip(served).take_while(|(a, b)| a == b).count();
    let (trained, served) = (trained.get(entry).copied(), served.get(entry).copied());
    Err(Mismatch { fault: Fault::Vocabulary { entry, trained, served }, first: None })
}

/// Refuses drafts whose tokens are not those of their largest logits.
fn same_tokens(d2t: &[u32], traces: &[Trace]) -> Result<(), Mismatch> {
    let drafts = traces.iter().flat_map(|t| &t.rounds).map(|r| &r.draft);
    for (logits, &token) in drafts.flat_map(|d| d.logits.iter().zip(&d.tokens)) {
        let entry = argmax(logits) as usize;
        if d2t[entry] != token {
            let (trained, served) = (Some(d2t[entry]), Some(token));
            return Err(Mismatch { fault: Fault::Vocabulary { entry, trained, served }, first: None });
        }
    }
    Ok(())
}
