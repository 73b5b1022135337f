//! The prompts of a measurement: a share of each file, and of each file's tasks.

use crate::exit::{Blame, Failure};
use crate::stage::{self, Setup};
use anyhow::anyhow;
use serde::Serialize;
use spectrain_data::prompts::Prompt;
use spectrain_data::store::sha256_file;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// The prompts that are measured and the files that they come from.
pub struct Suite {
    /// The prompts.
    pub prompts: Vec<Prompt>,
    /// Their files.
    pub files: Vec<SuiteFile>,
}

/// What became of one file.
#[derive(Debug, Serialize)]
pub struct SuiteFile {
    path: PathBuf,
    sha256: String,
    /// Prompts in the file.
    prompts: usize,
    /// Prompts that are measured.
    taken: usize,
    /// Prompts that were to be taken and leave no room for an answer.
    too_long: usize,
}

impl std::fmt::Display for SuiteFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({} of {} prompts", self.path.display(), self.taken, self.prompts)?;
        match self.too_long {
            0 => write!(f, ")"),
            long => write!(f, ", {long} too long)"),
        }
    }
}

impl Suite {
    /// Up to `limit` prompts of each of `files`.
    pub fn read(files: &[PathBuf], limit: usize) -> Result<Self, Failure> {
        let mut suite = Self { prompts: Vec::new(), files: Vec::new() };
        for path in files {
            let all = stage::read_questions("--prompts", path)?;
            let prompts = all.len();
            let taken = in_turn(all, limit);
            let sha256 = sha256_file(path).request()?;
            suite.files.push(SuiteFile { path: path.clone(), sha256, prompts, taken: taken.len(), too_long: 0 });
            suite.prompts.extend(taken);
        }
        Ok(suite)
    }

    /// Leaves out prompts that have no `room` tokens behind them in the target, and says so.
    pub fn fitting(mut self, setup: &Setup, room: usize) -> Result<Self, Failure> {
        let limit = setup.target.config().max_positions;
        let mut prompts = std::mem::take(&mut self.prompts).into_iter();
        for file in &mut self.files {
            for prompt in prompts.by_ref().take(file.taken) {
                match setup.encode(&prompt)?.len() + room <= limit {
                    true => self.prompts.push(prompt),
                    false => file.too_long += 1,
                }
            }
            file.taken -= file.too_long;
            if file.too_long > 0 {
                let (path, long) = (file.path.display(), file.too_long);
                eprintln!("{path}: {long} prompts left out: with {room} tokens behind they pass the target's {limit}");
            }
        }
        match self.prompts.is_empty() {
            true => Err(anyhow!(
                "no prompt leaves room for {room} tokens of answer and draft in the target's {limit}; lower \
                 --max-new-tokens or give shorter prompts"
            ))
            .request(),
            false => Ok(self),
        }
    }
}

/// The first `limit` prompts when the tasks take turns, each in its own order: public suites list task after task.
fn in_turn(prompts: Vec<Prompt>, limit: usize) -> Vec<Prompt> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut turns: Vec<(usize, Prompt)> = prompts
        .into_iter()
        .map(|prompt| {
            let turn = seen.entry(prompt.task.clone()).or_default();
            *turn += 1;
            (*turn, prompt)
        })
        .collect();
    // The sort is stable: within a turn the tasks keep their order.
    turns.sort_by_key(|(turn, _)| *turn);
    turns.into_iter().take(limit).map(|(_, prompt)| prompt).collect()
}

/// Where prompts come from if the command does not say.
pub fn files(asked: &[PathBuf], default: &Path) -> Vec<PathBuf> {
    if asked.is_empty() { vec![default.to_path_buf()] } else { asked.to_vec() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_take_turns() {
        let prompt = |task: &str, id: usize| Prompt { id: id.to_string(), task: task.into(), messages: Vec::new() };
        let listed = ["a", "a", "a", "b", "c", "c"].iter().enumerate().map(|(i, task)| prompt(task, i)).collect();
        let ids: Vec<String> = in_turn(listed, 5).into_iter().map(|p| p.id).collect();
        assert_eq!(ids, ["0", "3", "4", "1", "5"]);
        let mixed: Vec<Prompt> = ["a", "b", "a", "b"].iter().enumerate().map(|(i, task)| prompt(task, i)).collect();
        assert_eq!(in_turn(mixed.clone(), 9), mixed);
    }
}
