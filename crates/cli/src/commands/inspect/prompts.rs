//! A prompt file: how many, of which tasks, how long.

use super::facts::{lines, spread};
use crate::exit::{Blame, Failure};
use anyhow::anyhow;
use serde_json::{Value, json};
use spectrain_data::prompts::{Prompt, read_prompts};
use spectrain_data::store::sha256_file;
use std::collections::BTreeMap;
use std::path::Path;

/// Facts about the prompts in the file `path`.
pub fn facts(path: &Path) -> Result<Value, Failure> {
    let prompts = read_prompts(path).request()?;
    let mut tasks: BTreeMap<&str, usize> = BTreeMap::new();
    prompts.iter().for_each(|p| *tasks.entry(&p.task).or_default() += 1);
    let characters = |p: &Prompt| p.messages.iter().map(|m| m.content.chars().count()).sum();
    Ok(json!({
        "kind": "prompts",
        "path": path,
        "hash": sha256_file(path).request()?,
        "rows": prompts.len(),
        "tasks": tasks,
        "several_turns": prompts.iter().filter(|p| p.messages.iter().filter(|m| m.role == "user").count() > 1).count(),
        "system_prompts": prompts.iter().filter(|p| p.messages[0].role == "system").count(),
        "characters": spread(prompts.iter().map(characters)),
    }))
}

/// Prompt `n` of the file `path`, as JSON and as text. Its tokens depend on a target's template, so there are none.
pub fn row(path: &Path, n: usize) -> Result<(Value, String), Failure> {
    let prompts = read_prompts(path).request()?;
    let missing = || anyhow!("--row {n}: {} has {} rows, counted from 0", path.display(), prompts.len());
    let prompt = prompts.get(n).ok_or_else(missing).request()?;
    let mut facts = json!({ "kind": "prompt", "row": n, "id": prompt.id, "task": prompt.task });
    let turns = prompt.messages.iter().map(|m| format!("\n{}:\n{}\n", m.role, m.content));
    let text = lines(&facts) + &turns.collect::<String>();
    facts["messages"] = json!(prompt.messages);
    Ok((facts, text))
}
