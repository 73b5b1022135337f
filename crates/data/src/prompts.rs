//! Prompt files: one JSON object a line, in the forms that public sets use.
//!
//! | field that carries the prompt | meaning |
//! |---|---|
//! | `messages` | a list of `{role, content}` that ends with the user's turn |
//! | `prompt`, `question` | the user's only turn |
//! | `turns` | Spec-Bench and MT-bench: the user's turns; the first is used, since later ones refer to an answer |
//! | `instruction`, `input` | one user turn, the input (if any) after a blank line |
//!
//! Exactly one of them must be there. `id` (or `question_id`, a string or a number) defaults to the file's stem and the
//! line number, `task` (or `category`) to the file's stem. Fields not named here are ignored; blank lines are skipped.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use spectrain_core::chat::Message;
use thiserror::Error;

/// A conversation that the target is to continue.
#[derive(Debug, Clone, PartialEq)]
pub struct Prompt {
    /// Unique within its file.
    pub id: String,
    /// Group that results are reported by.
    pub task: String,
    /// Not empty; the last one is the user's.
    pub messages: Vec<Message>,
}

/// Why a prompt file was refused.
#[derive(Debug, Error)]
pub enum PromptError {
    /// The file could not be read as UTF-8 text.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// There is no prompt in the file.
    #[error("{}: no prompts", path.display())]
    NoPrompts {
        /// The file.
        path: PathBuf,
    },
    /// A line is not a prompt.
    #[error("{}, line {line}: {what}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Line number from 1.
        line: usize,
        /// What is wrong with it.
        what: String,
    },
}

/// The accepted fields of a line.
#[derive(Deserialize)]
struct Row {
    #[serde(alias = "question_id")]
    id: Option<Id>,
    #[serde(alias = "category")]
    task: Option<String>,
    messages: Option<Vec<Turn>>,
    prompt: Option<String>,
    question: Option<String>,
    turns: Option<Vec<String>>,
    instruction: Option<String>,
    input: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Id {
    Text(String),
    Number(u64),
}

#[derive(Deserialize)]
struct Turn {
    role: String,
    content: String,
}

/// Reads a prompt file.
///
/// # Errors
/// [`PromptError`] names the file, and the line where one is at fault: no JSON, none or several of the prompt fields, an
/// empty prompt, an unknown role, a conversation that does not end with the user's turn, an id used twice.
pub fn read_prompts(path: &Path) -> Result<Vec<Prompt>, PromptError> {
    let text = fs::read_to_string(path).map_err(|source| PromptError::Io { path: path.to_path_buf(), source })?;
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let mut prompts = Vec::new();
    let mut lines_of_ids = HashMap::new();
    for (index, text) in text.lines().enumerate().filter(|(_, text)| !text.trim().is_empty()) {
        let line = index + 1;
        let at_line = |what| PromptError::Line { path: path.to_path_buf(), line, what };
        let prompt = parse_line(text, line, &stem).map_err(at_line)?;
        if let Some(first) = lines_of_ids.insert(prompt.id.clone(), line) {
            return Err(at_line(format!("id `{}` is already used in line {first}", prompt.id)));
        }
        prompts.push(prompt);
    }
    if prompts.is_empty() {
        return Err(PromptError::NoPrompts { path: path.to_path_buf() });
    }
    Ok(prompts)
}

fn parse_line(text: &str, line: usize, stem: &str) -> Result<Prompt, String> {
    let mut row: Row = serde_json::from_str(text).map_err(|e| e.to_string())?;
    let id = match row.id.take() {
        Some(Id::Text(id)) if id.is_empty() => return Err("empty id".into()),
        Some(Id::Text(id)) => id,
        Some(Id::Number(id)) => id.to_string(),
        None => format!("{stem}-{line}"),
    };
    let task = row.task.take().unwrap_or_else(|| stem.to_string());
    let messages = messages(row)?;
    Ok(Prompt { id, task, messages })
}

/// The conversation of a row, from whichever field carries it.
fn messages(row: Row) -> Result<Vec<Message>, String> {
    let instruction = row.instruction.map(|instruction| match row.input {
        Some(input) if !input.trim().is_empty() => format!("{instruction}\n\n{input}"),
        _ => instruction,
    });
    let single = |field, text: String| (field, vec![Message { role: "user".into(), content: text }]);
    let conversation = |turns: Vec<Turn>| {
        let message = |turn: Turn| Message { role: turn.role, content: turn.content };
        ("messages", turns.into_iter().map(message).collect())
    };
    let found: Vec<(&str, Vec<Message>)> = [
        row.messages.map(conversation),
        row.prompt.map(|text| single("prompt", text)),
        row.question.map(|text| single("question", text)),
        row.turns.map(|turns| single("turns", turns.into_iter().next().unwrap_or_default())),
        instruction.map(|text| single("instruction", text)),
    ]
    .into_iter()
    .flatten()
    .collect();
    let [(field, messages)] = <[_; 1]>::try_from(found).map_err(|found| {
        let names: Vec<&str> = found.iter().map(|(name, _)| *name).collect();
        match names.as_slice() {
            [] => "none of `messages`, `prompt`, `question`, `turns`, `instruction`".to_string(),
            _ => format!("more than one prompt: `{}`", names.join("`, `")),
        }
    })?;
    check(&messages).map_err(|what| format!("`{field}`: {what}"))?;
    Ok(messages)
}

fn check(messages: &[Message]) -> Result<(), String> {
    for message in messages {
        if !["system", "user", "assistant"].contains(&message.role.as_str()) {
            return Err(format!("role `{}` is none of system, user, assistant", message.role));
        }
        if message.content.trim().is_empty() {
            return Err("empty prompt".into());
        }
    }
    match messages.last() {
        None => Err("empty prompt".into()),
        Some(last) if last.role != "user" => Err(format!("the last turn is of `{}`, not of the user", last.role)),
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::{BTreeSet, HashSet};

    use super::*;

    fn read(text: &str) -> Result<Vec<Prompt>, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("set.jsonl");
        fs::write(&path, text).unwrap();
        read_prompts(&path).map_err(|e| e.to_string().replace(&format!("{}/", dir.path().display()), ""))
    }

    #[test]
    fn every_form_is_read() {
        let rows = read(
            r#"{"id": "a", "task": "chat", "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}, {"role": "user", "content": "Bye"}]}
{"prompt": "One"}

{"question_id": 81, "category": "writing", "turns": ["First", "Second"]}
{"id": "q", "question": "Why?"}
{"instruction": "Sort", "input": "3 1 2"}
{"instruction": "Sing", "input": ""}
"#,
        )
        .unwrap();
        let seen: Vec<(&str, &str, &str)> = rows
            .iter()
            .map(|p| (p.id.as_str(), p.task.as_str(), p.messages.last().unwrap().content.as_str()))
            .collect();
        let want = [
            ("a", "chat", "Bye"),
            ("set-2", "set", "One"),
            ("81", "writing", "First"),
            ("q", "set", "Why?"),
            ("set-6", "set", "Sort\n\n3 1 2"),
            ("set-7", "set", "Sing"),
        ];
        assert_eq!(seen, want);
        assert_eq!(rows[0].messages.len(), 3);
        assert_eq!(rows[0].messages[1].role, "assistant");
    }

    #[test]
    fn refusals_name_file_and_line() {
        let cases = [
            ("\n\n", "set.jsonl: no prompts"),
            ("{\"prompt\": \"a\"}\n{\"prompt\": \" \"}", "set.jsonl, line 2: `prompt`: empty prompt"),
            ("{\"turns\": []}", "set.jsonl, line 1: `turns`: empty prompt"),
            ("{\"messages\": []}", "set.jsonl, line 1: `messages`: empty prompt"),
            ("{\"id\": \"\", \"prompt\": \"a\"}", "set.jsonl, line 1: empty id"),
            (
                "{\"id\": \"x\", \"prompt\": \"a\"}\n\n{\"id\": \"x\", \"prompt\": \"b\"}",
                "set.jsonl, line 3: id `x` is already used in line 1",
            ),
            (
                "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}]}",
                "set.jsonl, line 1: `messages`: the last turn is of `assistant`, not of the user",
            ),
            (
                "{\"messages\": [{\"role\": \"usr\", \"content\": \"a\"}]}",
                "set.jsonl, line 1: `messages`: role `usr` is none of system, user, assistant",
            ),
            (
                "{\"prompt\": \"a\", \"question\": \"b\"}",
                "set.jsonl, line 1: more than one prompt: `prompt`, `question`",
            ),
            (
                "{\"text\": \"a\"}",
                "set.jsonl, line 1: none of `messages`, `prompt`, `question`, `turns`, `instruction`",
            ),
        ];
        for (text, want) in cases {
            assert_eq!(read(text).unwrap_err(), want);
        }
        assert!(read("{\"prompt\": \"a\"").unwrap_err().starts_with("set.jsonl, line 1: EOF"));
    }

    #[test]
    fn missing_file_is_named() {
        let error = read_prompts(Path::new("/nowhere/p.jsonl")).unwrap_err().to_string();
        assert!(error.starts_with("/nowhere/p.jsonl: "), "{error}");
    }

    /// The runs of `n` words in a prompt, without case and punctuation.
    fn runs(prompt: &Prompt, n: usize) -> HashSet<Vec<String>> {
        let text: Vec<&str> = prompt.messages.iter().map(|m| m.content.as_str()).collect();
        let text = text.join(" ").to_lowercase();
        let words: Vec<String> =
            text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).map(str::to_string).collect();
        words.windows(n).map(<[String]>::to_vec).collect()
    }

    /// The files that the project ships: every task early in each, no near duplicates, held-out text truly held out.
    #[test]
    fn shipped_prompts_are_varied_and_disjoint() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let prompts = read_prompts(&root.join("data/prompts.jsonl")).unwrap();
        let heldout = read_prompts(&root.join("eval/heldout.jsonl")).unwrap();
        assert!(prompts.len() >= 640 && heldout.len() >= 48);
        let tasks = |rows: &[Prompt]| rows.iter().map(|p| p.task.clone()).collect::<BTreeSet<_>>();
        assert_eq!(tasks(&prompts).len(), 8);
        assert_eq!(tasks(&prompts[..24]), tasks(&prompts));
        assert_eq!(tasks(&heldout[..24]), tasks(&prompts));

        let mut seen = HashSet::new();
        for prompt in &prompts {
            for run in runs(prompt, 12) {
                assert!(seen.insert(run.clone()), "{}: `{}` occurs twice", prompt.id, run.join(" "));
            }
        }
        let trained: HashSet<_> = prompts.iter().flat_map(|prompt| runs(prompt, 8)).collect();
        for prompt in &heldout {
            for run in runs(prompt, 8) {
                assert!(!trained.contains(&run), "{}: `{}` is in the training prompts", prompt.id, run.join(" "));
            }
        }
    }
}
