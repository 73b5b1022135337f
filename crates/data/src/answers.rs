//! The target's answers as `generate` stores them: token ids, never text.
//!
//! Training reads these ids verbatim. Encoding an answer's text again often gives other ids, and such rows are no sample
//! of the target's distribution. The whole file is one Parquet table whose schema metadata holds the provenance.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{
    ArrayRef, BooleanArray, Float32Array, ListArray, RecordBatch, StringArray, UInt32Array, UInt64Array,
};
use arrow_schema::{DataType, Field, Schema};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use serde::{Deserialize, Serialize};
use spectrain_core::stats;

use crate::store::{AtomicFile, StoreError, column, elements, u32_lists};

/// Key of the schema metadata that holds [`AnswersMeta`] as JSON.
const META_KEY: &str = "spectrain.answers";

/// Tokens that all `conversations` begin with: the template's words, and the first token at least, which nothing
/// predicts.
pub fn shared_beginning<'a>(conversations: impl IntoIterator<Item = &'a [u32]>) -> usize {
    let mut rest = conversations.into_iter();
    let Some(first) = rest.next() else { return 1 };
    let shared = |ids: &[u32]| ids.iter().zip(first).take_while(|(a, b)| a == b).count();
    rest.map(shared).min().unwrap_or(0).max(1)
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Finish {
    /// The target sampled an end-of-turn token, which is the answer's last id.
    Stop,
    /// The length cap was reached.
    Length,
    /// The processors left no token that could follow.
    Masked,
    /// The request was taken back.
    Cancelled,
    /// Its time was over.
    Deadline,
}

impl Finish {
    fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Masked => "masked",
            Self::Cancelled => "cancelled",
            Self::Deadline => "deadline",
        }
    }
}

impl From<stats::Finish> for Finish {
    fn from(finish: stats::Finish) -> Self {
        match finish {
            stats::Finish::Stop => Self::Stop,
            stats::Finish::Length => Self::Length,
            stats::Finish::Masked => Self::Masked,
            stats::Finish::Cancelled => Self::Cancelled,
            stats::Finish::Deadline => Self::Deadline,
        }
    }
}

/// One answer of the target.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// Id of the prompt that it answers.
    pub prompt_id: String,
    /// Task of that prompt.
    pub task: String,
    /// Request number; with `seed` and the position it keys every random draw.
    pub request: u64,
    /// The rendered prompt, up to and including the header of the answer's turn.
    pub prompt_ids: Vec<u32>,
    /// What the target sampled, an end-of-turn token included.
    pub answer_ids: Vec<u32>,
    /// Sampling temperature; 0 is greedy.
    pub temperature: f32,
    /// Seed of the draws.
    pub seed: u64,
    /// Why the answer ended.
    pub finish: Finish,
    /// The ids came from text, so they are no sample of the target.
    pub off_policy: bool,
}

/// What the answers were made with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AnswersMeta {
    /// Hash of the target's weights and configuration.
    pub target_hash: String,
    /// Hash of the tokenizer.
    pub tokenizer_hash: String,
    /// Hash of the chat template.
    pub template_hash: String,
    /// Seed of the whole run.
    pub seed: u64,
    /// The logit processors and their settings, as resolved from the recipe.
    pub processors: serde_json::Value,
    /// Version of spectrain that generated the answers.
    pub spectrain_version: String,
}

/// Writes all answers to `path`; the file appears whole or not at all.
///
/// # Errors
/// Errors of writing, with the path.
pub fn write_answers(path: &Path, meta: &AnswersMeta, rows: &[Answer]) -> Result<(), StoreError> {
    let json = serde_json::to_string(meta).map_err(StoreError::json(path))?;
    let schema = Arc::new(Schema::new_with_metadata(fields(), [(META_KEY.to_string(), json)]));
    let properties = WriterProperties::builder().set_compression(Compression::ZSTD(ZstdLevel::default())).build();
    let file = AtomicFile::create(path)?;
    let mut writer = ArrowWriter::try_new(file, schema.clone(), Some(properties)).map_err(StoreError::parquet(path))?;
    let batch = RecordBatch::try_new(schema, columns(rows)).map_err(StoreError::arrow(path))?;
    writer.write(&batch).map_err(StoreError::parquet(path))?;
    writer.into_inner().map_err(StoreError::parquet(path))?.commit()?;
    Ok(())
}

/// Reads a file that [`write_answers`] wrote.
///
/// # Errors
/// [`StoreError::Parquet`] for a truncated or foreign file, [`StoreError::Corrupt`] for one without our metadata or with
/// other columns.
pub fn read_answers(path: &Path) -> Result<(AnswersMeta, Vec<Answer>), StoreError> {
    let file = File::open(path).map_err(StoreError::io(path))?;
    let builder = ParquetRecordBatchReaderBuilder::try_new(file).map_err(StoreError::parquet(path))?;
    let json = builder.schema().metadata().get(META_KEY);
    let json =
        json.ok_or_else(|| StoreError::corrupt(path, format!("no `{META_KEY}` metadata: not an answers file")))?;
    let meta = serde_json::from_str(json).map_err(StoreError::json(path))?;
    let mut rows = Vec::new();
    for batch in builder.build().map_err(StoreError::parquet(path))? {
        read_batch(&batch.map_err(StoreError::arrow(path))?, path, &mut rows)?;
    }
    Ok((meta, rows))
}

fn fields() -> Vec<Field> {
    let ids = DataType::List(Arc::new(Field::new_list_field(DataType::UInt32, false)));
    vec![
        Field::new("prompt_id", DataType::Utf8, false),
        Field::new("task", DataType::Utf8, false),
        Field::new("request", DataType::UInt64, false),
        Field::new("prompt_ids", ids.clone(), false),
        Field::new("answer_ids", ids, false),
        Field::new("temperature", DataType::Float32, false),
        Field::new("seed", DataType::UInt64, false),
        Field::new("finish", DataType::Utf8, false),
        Field::new("off_policy", DataType::Boolean, false),
    ]
}

fn columns(rows: &[Answer]) -> Vec<ArrayRef> {
    vec![
        Arc::new(StringArray::from_iter_values(rows.iter().map(|r| &r.prompt_id))),
        Arc::new(StringArray::from_iter_values(rows.iter().map(|r| &r.task))),
        Arc::new(UInt64Array::from_iter_values(rows.iter().map(|r| r.request))),
        Arc::new(u32_lists(rows.iter().map(|r| r.prompt_ids.as_slice()))),
        Arc::new(u32_lists(rows.iter().map(|r| r.answer_ids.as_slice()))),
        Arc::new(Float32Array::from_iter_values(rows.iter().map(|r| r.temperature))),
        Arc::new(UInt64Array::from_iter_values(rows.iter().map(|r| r.seed))),
        Arc::new(StringArray::from_iter_values(rows.iter().map(|r| r.finish.name()))),
        Arc::new(BooleanArray::from_iter(rows.iter().map(|r| Some(r.off_policy)))),
    ]
}

fn read_batch(batch: &RecordBatch, path: &Path, rows: &mut Vec<Answer>) -> Result<(), StoreError> {
    let prompt_id: &StringArray = column(batch, "prompt_id", path)?;
    let task: &StringArray = column(batch, "task", path)?;
    let request: &UInt64Array = column(batch, "request", path)?;
    let prompt_ids: &ListArray = column(batch, "prompt_ids", path)?;
    let answer_ids: &ListArray = column(batch, "answer_ids", path)?;
    let temperature: &Float32Array = column(batch, "temperature", path)?;
    let seed: &UInt64Array = column(batch, "seed", path)?;
    let finish: &StringArray = column(batch, "finish", path)?;
    let off_policy: &BooleanArray = column(batch, "off_policy", path)?;
    for i in 0..batch.num_rows() {
        rows.push(Answer {
            prompt_id: prompt_id.value(i).to_string(),
            task: task.value(i).to_string(),
            request: request.value(i),
            prompt_ids: elements::<UInt32Array>(prompt_ids, i, "prompt_ids", path)?.values().to_vec(),
            answer_ids: elements::<UInt32Array>(answer_ids, i, "answer_ids", path)?.values().to_vec(),
            temperature: temperature.value(i),
            seed: seed.value(i),
            finish: match finish.value(i) {
                "stop" => Finish::Stop,
                "length" => Finish::Length,
                "masked" => Finish::Masked,
                "cancelled" => Finish::Cancelled,
                "deadline" => Finish::Deadline,
                other => return Err(StoreError::corrupt(path, format!("row {i}: finish `{other}`"))),
            },
            off_policy: off_policy.value(i),
        });
    }
    Ok(())
}
