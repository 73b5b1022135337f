//! A feature store: what its manifest says, and that every shard has its size.

use super::facts::spread;
use super::origin::Origin;
use super::row::Row;
use crate::exit::{Blame, Failure};
use serde_json::{Value, json};
use spectrain_data::store::StoreReader;
use std::path::Path;

/// Facts about the store in `dir`.
pub fn facts(dir: &Path) -> Result<Value, Failure> {
    let store = StoreReader::open(dir).request()?;
    let (manifest, meta) = (store.manifest(), store.meta());
    let bytes: u64 = manifest.shards.iter().map(|shard| shard.bytes).sum();
    Ok(json!({
        "kind": "feature store",
        "path": dir,
        "bytes": bytes,
        "shards": manifest.shards.len(),
        "rows": manifest.rows,
        "tokens": manifest.tokens,
        "bytes_per_token": bytes as f64 / manifest.tokens.max(1) as f64,
        "row_tokens": spread(store.lens().iter().copied()),
        "taps": meta.taps,
        "hidden": meta.hidden,
        "target_vocab": meta.target_vocab,
        "dtypes": manifest.dtypes,
        "target_hash": meta.target_hash,
        "answers_hash": meta.answers_hash,
        "format": manifest.format,
        "spectrain_version": meta.spectrain_version,
    }))
}

/// Row `n` of the store in `dir`, with the loss mask that training reads.
pub fn row(dir: &Path, n: usize) -> Result<Row, Failure> {
    let store = StoreReader::open(dir).request()?;
    let row = store.read(n).request()?;
    // The store knows its target, not the tokenizer; the run that captured it knows both.
    let origin = Origin::of(dir).filter(|o| o.provenance("target_hash") == Some(&store.meta().target_hash));
    Ok(Row {
        facts: json!({
            "kind": "feature row",
            "row": n,
            "request": row.request,
            "temperature": row.temperature,
            "off_policy": row.off_policy,
        }),
        ids: row.ids,
        loss_mask: row.loss_mask,
        tokenizer: origin.and_then(|o| o.tokenizer(o.provenance("tokenizer_hash")?)),
    })
}
