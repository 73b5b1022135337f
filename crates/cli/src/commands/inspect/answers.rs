//! The target's answers: how many, how long, how sampled, by which target.

use super::facts::spread;
use super::origin::Origin;
use super::row::Row;
use crate::exit::{Blame, Failure};
use anyhow::anyhow;
use serde_json::{Value, json};
use spectrain_data::answers::{Answer, Finish, read_answers};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Facts about the answers in the file `path`.
pub fn facts(path: &Path) -> Result<Value, Failure> {
    let (meta, rows) = read_answers(path).request()?;
    let count = |counted: &dyn Fn(&Answer) -> bool| rows.iter().filter(|a| counted(a)).count();
    let mut tasks: BTreeMap<&str, usize> = BTreeMap::new();
    rows.iter().for_each(|a| *tasks.entry(&a.task).or_default() += 1);
    let greedy = count(&|a| a.temperature == 0.0);
    Ok(json!({
        "kind": "answers",
        "path": path,
        "bytes": std::fs::metadata(path).request()?.len(),
        "rows": rows.len(),
        "prompts": rows.iter().map(|a| &a.prompt_id).collect::<BTreeSet<_>>().len(),
        "tasks": tasks,
        "prompt_tokens": spread(rows.iter().map(|a| a.prompt_ids.len())),
        "answer_tokens": spread(rows.iter().map(|a| a.answer_ids.len())),
        "greedy": greedy,
        "greedy_share": greedy as f64 / rows.len().max(1) as f64,
        "finish": {
            "stop": count(&|a| a.finish == Finish::Stop),
            "length": count(&|a| a.finish == Finish::Length),
            "masked": count(&|a| a.finish == Finish::Masked),
        },
        "off_policy": count(&|a| a.off_policy),
        "made_with": meta,
    }))
}

/// Answer `n` of the file `path`. What the target wrote is supervised.
pub fn row(path: &Path, n: usize) -> Result<Row, Failure> {
    let (meta, rows) = read_answers(path).request()?;
    let missing = || anyhow!("--row {n}: {} has {} rows, counted from 0", path.display(), rows.len());
    let answer = rows.get(n).ok_or_else(missing).request()?;
    let ids = [answer.prompt_ids.as_slice(), &answer.answer_ids].concat();
    Ok(Row {
        facts: json!({
            "kind": "answer",
            "row": n,
            "prompt": answer.prompt_id,
            "task": answer.task,
            "request": answer.request,
            "temperature": answer.temperature,
            "seed": answer.seed,
            "finish": answer.finish,
            "off_policy": answer.off_policy,
        }),
        loss_mask: (0..ids.len()).map(|i| i >= answer.prompt_ids.len()).collect(),
        ids,
        tokenizer: Origin::of(path).and_then(|origin| origin.tokenizer(&meta.tokenizer_hash)),
    })
}
