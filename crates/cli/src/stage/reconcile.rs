//! The reconciliation gate: what training and offline say of a drafter against what the verifier does with it.

use super::generate::answers;
use super::setup::{RunDir, Setup};
use crate::exit::{Blame, Failure};
use anyhow::anyhow;
use spectrain_core::recipe::Recipe;
use spectrain_core::reconciliation::{Figure, Reconciliation};
use spectrain_data::answers::read_answers;
use spectrain_data::prompts::{Prompt, read_prompts};
use spectrain_data::store::sha256_file;
use spectrain_draft::Checkpoint;
use spectrain_verify::reconcile::{
    self, Mismatch, ReconcileError, Rendering, Trained, reconcile_figures, reconcile_prompts,
};
use std::collections::{HashMap, HashSet};
use std::time::Instant;

/// Prompts that are drafted behind.
const PROMPTS: usize = 4;
/// Prompts of the training that are rendered again.
const RENDERINGS: usize = 64;

/// Renders prompts that the answers of `run` were written to, as run time does. None where the answers or their prompts
/// are gone or others by now.
pub fn renderings(setup: &Setup, recipe: &Recipe, run: &RunDir) -> Result<Vec<Rendering>, Failure> {
    let Ok((meta, answers)) = read_answers(&answers(recipe, run)) else { return Ok(Vec::new()) };
    let same_prompts = sha256_file(&recipe.data.prompts).is_ok_and(|hash| meta.processors["prompts_hash"] == hash);
    if !same_prompts || meta.tokenizer_hash != setup.tokenizer.content_hash() {
        return Ok(Vec::new());
    }
    let prompts = read_prompts(&recipe.data.prompts).request()?;
    let by_id: HashMap<&str, &Prompt> = prompts.iter().map(|p| (p.id.as_str(), p)).collect();
    let mut seen = HashSet::new();
    let first = answers.iter().filter(|a| seen.insert(a.prompt_id.as_str()));
    let known = first.filter_map(|a| Some((a, *by_id.get(a.prompt_id.as_str())?)));
    let rendering = |(answer, prompt): (&spectrain_data::answers::Answer, &Prompt)| {
        let (id, stored) = (answer.prompt_id.clone(), answer.prompt_ids.clone());
        Ok(Rendering { id, stored, rendered: setup.encode(prompt)? })
    };
    known.take(RENDERINGS).map(rendering).collect()
}

/// Holds the drafter of `checkpoint` at run time against training, behind the shortest of `prompts` and with drafts of
/// `length` tokens. What differs is the outcome's fault.
pub fn reconcile(
    setup: &Setup,
    checkpoint: &Checkpoint,
    prompts: &[Prompt],
    renderings: &[Rendering],
    length: usize,
) -> Result<Reconciliation, Failure> {
    let start = Instant::now();
    let found = match reconcile_prompts(renderings) {
        Err(mismatch) => faulty(&mismatch),
        Ok(()) => drafts(setup, checkpoint, prompts, length)?,
    };
    let found = Reconciliation { renderings: renderings.len(), ..found };
    eprintln!("reconcile: {} prompts in {:.1} s", found.prompts, start.elapsed().as_secs_f64());
    Ok(found)
}

fn drafts(
    setup: &Setup,
    checkpoint: &Checkpoint,
    prompts: &[Prompt],
    length: usize,
) -> Result<Reconciliation, Failure> {
    let encode = |p: &Prompt| Ok(reconcile::Prompt { id: p.id.clone(), ids: setup.encode(p)? });
    let mut encoded: Vec<reconcile::Prompt> = prompts.iter().map(encode).collect::<Result<_, Failure>>()?;
    encoded.sort_by_key(|p| p.ids.len());
    encoded.truncate(PROMPTS);
    let (drafter, weights) = checkpoint.eagle3(&setup.target, setup.target.device()).request()?;
    let mut proposer = checkpoint.proposer(&setup.target).request()?;
    let trained = Trained { target: &setup.target, drafter: &drafter, weights: &weights };
    match reconcile::reconcile(&trained, proposer.as_mut(), &encoded, length) {
        Ok(found) => Ok(found),
        Err(ReconcileError::Mismatch(mismatch)) => Ok(faulty(&mismatch)),
        Err(room @ ReconcileError::Room { .. }) => {
            eprintln!("reconcile: {room}");
            Ok(Reconciliation::default())
        }
        Err(other) => Err(other).work(),
    }
}

/// Adds the figures, and what they say where the logits agree.
pub fn with_figures(found: Reconciliation, figures: Vec<Figure>) -> Reconciliation {
    let apart = reconcile_figures(&figures).err().map(|mismatch| mismatch.to_string());
    Reconciliation { figures, fault: found.fault.clone().or(apart), ..found }
}

/// Says what was found; a fault fails the command.
pub fn conclude(found: &Reconciliation) -> Result<(), Failure> {
    match &found.fault {
        Some(fault) => Err(anyhow!("{fault}")).work(),
        None => {
            eprintln!("reconcile: {found}");
            Ok(())
        }
    }
}

fn faulty(mismatch: &Mismatch) -> Reconciliation {
    Reconciliation { fault: Some(mismatch.to_string()), ..Reconciliation::default() }
}
