//! `spectrain fit`: every stage from the target to an evaluated checkpoint.

use super::run::Run;
use crate::args::RecipeArgs;
use crate::exit::{Blame, Failure};
use crate::stage::{self, EvalPlan};
use spectrain_draft::Checkpoint;
use std::time::Instant;

/// Runs the command.
pub fn run(args: RecipeArgs) -> Result<(), Failure> {
    let run = Run::prepare(args, true)?;
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
        best = Some(stage::train(&run.setup, &run.recipe, &run.dir)?);
        Ok(())
    })?;
    let eval = &run.recipe.eval;
    let plan = EvalPlan {
        rule: run.recipe.verifier.rule,
        temperatures: eval.temperatures.clone(),
        length: eval.length,
        batch: eval.batch,
        max_new_tokens: eval.max_new_tokens,
        seed: run.recipe.seed,
    };
    let best = best.unwrap_or_default();
    let checkpoint = Checkpoint::open(&best).work()?;
    let questions = &run.questions[..run.questions.len().min(eval.limit)];
    timed("evaluate", &mut || {
        let results = stage::evaluate(&run.setup, &checkpoint, questions, &plan)?;
        print!("{}", stage::table(&results));
        for result in &results {
            run.dir.write_json(&format!("eval/T{}.json", result.temperature), result)?;
        }
        Ok(())
    })?;
    let total: f64 = seconds.iter().map(|(_, s)| s).sum();
    let parts: Vec<String> = seconds.iter().map(|(name, s)| format!("{name} {s:.0} s")).collect();
    eprintln!("fit: {}; {total:.0} s in all; the drafter is {}", parts.join(", "), best.display());
    run.dir.write_json("seconds.json", &seconds.into_iter().collect::<std::collections::BTreeMap<_, _>>())
}
