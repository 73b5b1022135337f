//! `spectrain inspect`: facts about a recipe, answers, prompts, a feature store, a checkpoint, a model or a run. One file
//! a kind; each returns its facts as JSON, which [`facts::lines`] shows to a person.

mod answers;
mod checkpoint;
mod facts;
mod model;
mod origin;
mod prompts;
mod recipe;
mod row;
mod run;
mod store;
mod tensors;

use super::eval::write_json;
use crate::args::InspectArgs;
use crate::exit::{Blame, Failure};
use crate::style::Style;
use anyhow::anyhow;
use serde_json::Value;
use spectrain_data::store::MANIFEST;
use spectrain_data::weights::CONFIG;
use spectrain_draft::checkpoint::FILE as DRAFTER;
use std::io::{ErrorKind, Write};
use std::path::Path;

/// What is found at a path, and of which a row may be shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Recipe,
    Answers,
    Prompts,
    Store,
    Checkpoint,
    Model,
    Run,
}

/// What the command understands, for a message.
const UNDERSTOOD: &str = "a recipe (.toml), answers (.parquet), prompts (.jsonl), a feature store, a checkpoint (its \
    directory or drafter.safetensors), a model directory or a run directory";

impl Kind {
    /// A directory is what the file in it says; a file is what its ending says.
    fn of(path: &Path) -> Option<Self> {
        let marks =
            [(MANIFEST, Self::Store), (DRAFTER, Self::Checkpoint), (CONFIG, Self::Model), ("recipe.toml", Self::Run)];
        if path.is_dir() {
            return marks.into_iter().find(|(file, _)| path.join(file).is_file()).map(|(_, kind)| kind);
        }
        match path.extension()?.to_str()? {
            "toml" => Some(Self::Recipe),
            "parquet" => Some(Self::Answers),
            "jsonl" => Some(Self::Prompts),
            "safetensors" => Some(Self::Checkpoint),
            _ => None,
        }
    }
}

/// Runs the command.
pub fn run(args: InspectArgs) -> Result<(), Failure> {
    let path = args.path.as_path();
    let shown = path.display();
    if !path.exists() {
        return Err(anyhow!("{shown}: no such file or directory; inspect understands {UNDERSTOOD}")).request();
    }
    let kind = Kind::of(path).ok_or_else(|| anyhow!("{shown} is none of what inspect understands: {UNDERSTOOD}"));
    let (facts, text) = match (kind.request()?, args.row) {
        (Kind::Answers, Some(n)) => answers::row(path, n)?.told(Style::of(&std::io::stdout())).request()?,
        (Kind::Store, Some(n)) => store::row(path, n)?.told(Style::of(&std::io::stdout())).request()?,
        (Kind::Prompts, Some(n)) => prompts::row(path, n)?,
        (_, Some(_)) => {
            return Err(anyhow!("--row: {shown} has no rows; answers, prompts and feature stores do")).request();
        }
        (Kind::Recipe, None) => plain(recipe::facts(path)?),
        (Kind::Answers, None) => plain(answers::facts(path)?),
        (Kind::Prompts, None) => plain(prompts::facts(path)?),
        (Kind::Store, None) => plain(store::facts(path)?),
        (Kind::Checkpoint, None) => plain(checkpoint::facts(path)?),
        (Kind::Model, None) => plain(model::facts(path)?),
        (Kind::Run, None) => plain(run::facts(path)?),
    };
    if args.json.as_deref() != Some(Path::new("-")) {
        print(&text)?;
    }
    args.json.as_deref().map_or(Ok(()), |path| write_json(path, &facts))
}

/// Facts that are shown line by line.
fn plain(facts: Value) -> (Value, String) {
    let text = facts::lines(&facts);
    (facts, text)
}

/// Writes to standard output; a reader that has seen enough (`| head`) is no failure.
fn print(text: &str) -> Result<(), Failure> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.work(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::fs;

    #[test]
    fn a_path_is_what_it_holds() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Kind::of(dir.path()), None);
        for (file, kind) in [
            ("recipe.toml", Kind::Run),
            ("config.json", Kind::Model),
            ("drafter.safetensors", Kind::Checkpoint),
            ("manifest.json", Kind::Store),
        ] {
            fs::write(dir.path().join(file), b"").unwrap();
            assert_eq!(Kind::of(dir.path()), Some(kind));
        }
        let kinds = ["a.toml", "a.parquet", "a.jsonl", "a.safetensors", "a.txt", "a"].map(|f| Kind::of(Path::new(f)));
        let right = [Some(Kind::Recipe), Some(Kind::Answers), Some(Kind::Prompts), Some(Kind::Checkpoint), None, None];
        assert_eq!(kinds, right);
    }
}
