//! A drafter: kind and sizes, draft vocabulary, guarantee, where it comes from, and whether training can go on from it.

use super::tensors;
use crate::exit::{Blame, Failure};
use serde_json::{Value, json};
use spectrain_draft::Checkpoint;
use spectrain_draft::checkpoint::FILE;
use spectrain_train::snapshot;
use std::path::Path;

/// Facts about the checkpoint at `path`, its directory or its file.
pub fn facts(path: &Path) -> Result<Value, Failure> {
    let checkpoint = Checkpoint::open(path).request()?;
    let file = if path.is_dir() { path.join(FILE) } else { path.to_path_buf() };
    let state = file.with_file_name(snapshot::DIR).is_dir();
    let vocab = &checkpoint.vocab;
    Ok(json!({
        "kind": "checkpoint",
        "path": path,
        "drafter": checkpoint.config,
        "weights": tensors::facts(std::slice::from_ref(&file))?,
        "draft_vocab": {
            "tokens": vocab.d2t.len(),
            "share_of_target": vocab.d2t.len() as f64 / vocab.target_vocab as f64,
            "highest_id": vocab.d2t.last(),
        },
        "guarantee": checkpoint.provenance.guarantee,
        "provenance": checkpoint.provenance,
        "state": if state { "present: fit --resume can go on from it" } else { "absent: for use, not for resuming" },
    }))
}
