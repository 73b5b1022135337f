//! `spectrain fit`: every stage from the target to an evaluated checkpoint.

use super::run::{Checked, Run};
use crate::args::FitArgs;
use crate::exit::{Blame, Failure};
use crate::interrupt;
use crate::stage::{self, Curves, EvalPlan};
use spectrain_core::evaluation::Evaluation;
use spectrain_core::reconciliation::{Figure, Reconciliation};
use spectrain_core::tree::TreeKind;
use spectrain_data::prompts::Prompt;
use spectrain_draft::Checkpoint;
use spectrain_report::{table, tree_table};
use std::time::Instant;

/// Runs the command.
pub fn run(args: FitArgs) -> Result<(), Failure> {
    interrupt::listen(resume_command(&args));
    if args.dry_run {
        let Checked { recipe, setup, prompts, questions, .. } = Checked::new(args.recipe, false, false)?;
        print!("{}", stage::estimate(&setup, &recipe, &prompts, questions.len())?);
        return Ok(());
    }
    if let Some(file) = &args.replay {
        let (recipe, setup, dir) = Run::earlier(args.recipe)?;
        return stage::replay(&setup, recipe, file, &dir, args.resume);
    }
    let run = Run::prepare(args.recipe, true)?;
    let mut seconds = Vec::new();
    let mut timed = |name: &'static str, work: &mut dyn FnMut() -> Result<(), Failure>| {
        let start = Instant::now();
        let done = work();
        seconds.push((name, start.elapsed().as_secs_f64()));
        done
    };
    if run.recipe.data.answers.is_none() {
        timed("generate", &mut || stage::generate(&run.setup, &run.recipe, &run.prompts, &run.dir))?;
    }
    let answers = stage::answers(&run.recipe, &run.dir);
    timed("capture", &mut || stage::capture(&run.setup, &run.recipe, &answers, &run.dir))?;
    let mut best = None;
    timed("train", &mut || {
        best = Some(stage::train(&run.setup, &run.recipe, &run.dir, args.resume)?);
        Ok(())
    })?;
    let best = best.unwrap_or_default();
    let checkpoint = Checkpoint::open(&best).work()?;
    let mut curves = None;
    timed("evaluate", &mut || {
        curves = Some(measure(&run, &checkpoint)?);
        Ok(())
    })?;
    let mut found = Reconciliation::default();
    timed("reconcile", &mut || {
        let mut curves = curves.take().unwrap_or_default();
        found = reconcile(&run, &checkpoint, std::mem::take(&mut curves.figures))?;
        stage::write_report(&run.setup, &run.recipe, &run.dir, curves, &found)
    })?;
    let total: f64 = seconds.iter().map(|(_, s)| s).sum();
    let parts: Vec<String> = seconds.iter().map(|(name, s)| format!("{name} {s:.0} s")).collect();
    eprintln!(
        "fit: {}; {total:.0} s in all; the drafter is {}, the report {}",
        parts.join(", "),
        best.display(),
        run.dir.join("report.html").display()
    );
    run.dir.write_json("seconds.json", &seconds.into_iter().collect::<std::collections::BTreeMap<_, _>>())?;
    stage::conclude(&found)
}

/// The held-out prompts that are measured.
fn questions(run: &Run) -> &[Prompt] {
    &run.questions[..run.questions.len().min(run.recipe.eval.limit)]
}

/// Measures the drafter, and writes down and prints what was found.
fn measure(run: &Run, checkpoint: &Checkpoint) -> Result<Curves, Failure> {
    let eval = &run.recipe.eval;
    let plan = EvalPlan {
        rule: run.recipe.verifier.rule,
        temperatures: eval.temperatures.clone(),
        sampling: eval.processors(),
        lengths: eval.curve.iter().copied().chain([eval.length]).collect(),
        policy: spectrain_verify::PolicyKind::Fixed,
        costs: None,
        batch: eval.batch,
        max_new_tokens: eval.max_new_tokens,
        seed: run.recipe.seed,
        slo: None,
        reconcile: Some(run.recipe.store.batch_tokens),
    };
    let mut curves = stage::evaluate(&run.setup, checkpoint, questions(run), &plan)?;
    print!("{}", table(&curves.evaluations, false));
    for e in &curves.evaluations {
        run.dir.write_json(&format!("eval/T{}-K{}.json", e.temperature, e.length), e)?;
    }
    stage::record_measurements(&run.dir, checkpoint.provenance.step, &curves.evaluations)?;
    curves.trees = measure_trees(run, checkpoint, plan)?;
    Ok(curves)
}

/// Measures the recipe's trees, if it has any, each beside a chain of as many nodes; writes down and prints what was found.
fn measure_trees(run: &Run, checkpoint: &Checkpoint, plan: EvalPlan) -> Result<Vec<Evaluation>, Failure> {
    let eval = &run.recipe.eval;
    if eval.tree == TreeKind::Chain {
        return Ok(Vec::new());
    }
    let plan = EvalPlan { lengths: vec![eval.length], reconcile: None, ..plan };
    let trees = stage::evaluate_trees(&run.setup, checkpoint, questions(run), &plan, &eval.tree, None)?.evaluations;
    print!("{}", tree_table(&trees));
    for e in &trees {
        let tree = e.tree.to_string().replace([':', ','], "-");
        run.dir.write_json(&format!("eval/T{}-{tree}.json", e.temperature), e)?;
    }
    Ok(trees)
}

/// Holds what training and offline say against run time, and writes down what was found.
fn reconcile(run: &Run, checkpoint: &Checkpoint, figures: Vec<Figure>) -> Result<Reconciliation, Failure> {
    let eval = &run.recipe.eval;
    let longest = eval.curve.iter().copied().fold(eval.length, usize::max);
    let renderings = stage::renderings(&run.setup, &run.recipe, &run.dir)?;
    let found = stage::reconcile(&run.setup, checkpoint, questions(run), &renderings, longest)?;
    let found = stage::with_figures(found, figures);
    run.dir.write_json("reconciliation.json", &found)?;
    Ok(found)
}

/// The command that goes on after a stop.
fn resume_command(args: &FitArgs) -> String {
    let mut words: Vec<String> = std::env::args().skip(1).map(quoted).collect();
    if !args.resume {
        words.push("--resume".to_owned());
    }
    format!("spectrain {}", words.join(" "))
}

/// A word as a shell takes it.
fn quoted(word: String) -> String {
    let plain = word.chars().all(|c| c.is_ascii_alphanumeric() || "-_./=,:@%+".contains(c));
    if plain { word } else { format!("'{}'", word.replace('\'', "'\\''")) }
}
