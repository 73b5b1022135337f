//! `spectrain generate`: the target's answers only.

use super::run::Run;
use crate::args::RecipeArgs;
use crate::exit::Failure;
use crate::stage;

/// Runs the command.
pub fn run(args: RecipeArgs) -> Result<(), Failure> {
    let run = Run::prepare(args, true)?;
    stage::generate(&run.setup, &run.recipe, &run.prompts, &run.dir)?;
    println!("{}", run.dir.join("answers.parquet").display());
    Ok(())
}
