//! What the commands that follow a recipe share: the recipe, checked against everything, and its run directory.

use crate::args::RecipeArgs;
use crate::device;
use crate::exit::{Blame, Failure};
use crate::stage::{self, RunDir, Setup};
use anyhow::anyhow;
use spectrain_core::recipe::{Recipe, TargetFacts};
use spectrain_data::prompts::Prompt;
use std::path::{Path, PathBuf};

/// A recipe that was checked against its target and its files.
pub struct Checked {
    /// The resolved recipe.
    pub recipe: Recipe,
    /// The frozen target.
    pub setup: Setup,
    /// Prompts that the target answers.
    pub prompts: Vec<Prompt>,
    /// Held-out prompts.
    pub questions: Vec<Prompt>,
    out: Option<PathBuf>,
    device: String,
}

/// A run that may start.
pub struct Run {
    /// The resolved recipe.
    pub recipe: Recipe,
    /// The frozen target.
    pub setup: Setup,
    /// Prompts that the target answers.
    pub prompts: Vec<Prompt>,
    /// Held-out prompts.
    pub questions: Vec<Prompt>,
    /// Where files go.
    pub dir: RunDir,
}

impl Checked {
    /// Refuses what can be refused, and writes nothing but a target that is fetched; `may_fetch` allows that, and with
    /// `replayed` the weights start from an earlier run.
    pub fn new(args: RecipeArgs, may_fetch: bool, replayed: bool) -> Result<Self, Failure> {
        let device = device::parse(&args.device)?;
        let recipe = Recipe::load(&args.recipe, &args.sets).request()?;
        stage::check_training(&recipe, replayed)?;
        let prompts = stage::read_questions("data.prompts", &recipe.data.prompts)?;
        let questions = stage::read_questions("eval.prompts", &recipe.eval.prompts)?;
        if let Some(answers) = recipe.data.answers.as_ref().filter(|a| !a.is_file()) {
            return Err(anyhow!("data.answers: {} is not there", answers.display())).request();
        }
        let target = stage::locate_target(&recipe.target.path, may_fetch)?;
        let mut resolved = recipe.clone();
        let setup = Setup::load(target, &device, |facts: &TargetFacts| {
            recipe.check(facts)?;
            resolved = recipe.resolved(facts);
            Ok(())
        })?;
        Ok(Self { recipe: resolved, setup, prompts, questions, out: args.out, device: args.device })
    }
}

impl Run {
    /// A recipe whose run is there already, or is to hold one that starts from `train.start`: nothing in it is changed.
    pub fn earlier(args: RecipeArgs) -> Result<(Recipe, Setup, RunDir), Failure> {
        let Checked { recipe, setup, out, .. } = Checked::new(args, true, true)?;
        let best = out.clone().unwrap_or_else(|| Path::new("runs").join(&recipe.name)).join("best");
        if recipe.train.start.is_none() && !best.exists() {
            let cure = "run `spectrain fit` on the recipe first, or set train.start";
            let text = format!("--replay trains a drafter further, and there is none at {}: {cure}", best.display());
            return Err(anyhow!(text)).request();
        }
        let dir = RunDir::create(out, &recipe.name)?;
        Ok((recipe, setup, dir))
    }

    /// As [`Checked::new`], then makes the run directory.
    pub fn prepare(args: RecipeArgs, may_fetch: bool) -> Result<Self, Failure> {
        let Checked { recipe, setup, prompts, questions, out, device } = Checked::new(args, may_fetch, false)?;
        let dir = RunDir::create(out, &recipe.name)?;
        dir.write("recipe.toml", &recipe.to_toml())?;
        dir.write_json("provenance.json", &setup.provenance(&recipe, &device)?)?;
        Ok(Self { recipe, setup, prompts, questions, dir })
    }
}
