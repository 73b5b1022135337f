//! `spectrain capture`: the feature store only.

use super::run::Run;
use crate::args::RecipeArgs;
use crate::exit::{Blame, Failure};
use crate::stage;
use anyhow::anyhow;

/// Runs the command.
pub fn run(args: RecipeArgs) -> Result<(), Failure> {
    let run = Run::prepare(args, true)?;
    let answers = stage::answers(&run.recipe, &run.dir);
    if !answers.is_file() {
        return Err(anyhow!("{} is not there: run `spectrain generate` first", answers.display())).request();
    }
    stage::capture(&run.setup, &run.recipe, &answers, &run.dir)?;
    println!("{}", stage::store_dir(&run.recipe, &run.dir).display());
    Ok(())
}
