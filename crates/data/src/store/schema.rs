//! The shard's columns and the two conversions between rows and Arrow batches.

use std::path::Path;
use std::sync::Arc;

use arrow_array::builder::{BooleanBuilder, Float32Builder, LargeBinaryBuilder, ListBuilder, UInt32Builder};
use arrow_array::{
    Array, ArrayRef, BooleanArray, Float32Array, LargeBinaryArray, ListArray, RecordBatch, UInt32Array, UInt64Array,
};
use arrow_schema::{DataType, Field, Schema};
use half::bf16;
use half::slice::HalfFloatSliceExt;

use super::{FeatureRow, StoreError, StoreMeta};

const _: () = assert!(cfg!(target_endian = "little"), "the store's blobs are little-endian");

fn list_field(name: &str, item: DataType) -> Field {
    Field::new(name, DataType::List(Arc::new(Field::new_list_field(item, false))), false)
}

/// Columns of a shard, none of them nullable.
pub(super) fn feature_schema() -> Schema {
    Schema::new(vec![
        Field::new("request", DataType::UInt64, false),
        list_field("ids", DataType::UInt32),
        list_field("loss_mask", DataType::Boolean),
        Field::new("taps", DataType::LargeBinary, false),
        Field::new("last_hidden", DataType::LargeBinary, false),
        list_field("logsumexp", DataType::Float32),
        Field::new("temperature", DataType::Float32, false),
        Field::new("off_policy", DataType::Boolean, false),
    ])
}

/// A `List<UInt32>` column of `rows`.
pub(crate) fn u32_lists<'a>(rows: impl Iterator<Item = &'a [u32]>) -> ListArray {
    let mut builder = ListBuilder::new(UInt32Builder::new()).with_field(Field::new_list_field(DataType::UInt32, false));
    for row in rows {
        builder.values().append_slice(row);
        builder.append(true);
    }
    builder.finish()
}

fn bool_lists<'a>(rows: impl Iterator<Item = &'a [bool]>) -> ListArray {
    let mut builder =
        ListBuilder::new(BooleanBuilder::new()).with_field(Field::new_list_field(DataType::Boolean, false));
    for row in rows {
        builder.values().append_slice(row);
        builder.append(true);
    }
    builder.finish()
}

fn f32_lists<'a>(rows: impl Iterator<Item = &'a [f32]>) -> ListArray {
    let mut builder =
        ListBuilder::new(Float32Builder::new()).with_field(Field::new_list_field(DataType::Float32, false));
    for row in rows {
        builder.values().append_slice(row);
        builder.append(true);
    }
    builder.finish()
}

fn blobs<'a>(rows: &'a [FeatureRow], values: impl Fn(&'a FeatureRow) -> &'a [bf16]) -> LargeBinaryArray {
    let bytes = rows.iter().map(|row| 2 * values(row).len()).sum();
    let mut builder = LargeBinaryBuilder::with_capacity(rows.len(), bytes);
    for row in rows {
        let bits: &[u16] = values(row).reinterpret_cast();
        builder.append_value(bytemuck::cast_slice::<u16, u8>(bits));
    }
    builder.finish()
}

/// One batch of `rows`, in the columns of `schema` ([`feature_schema`]).
pub(super) fn to_batch(schema: &Arc<Schema>, rows: &[FeatureRow], path: &Path) -> Result<RecordBatch, StoreError> {
    let columns: Vec<ArrayRef> = vec![
        Arc::new(UInt64Array::from_iter_values(rows.iter().map(|r| r.request))),
        Arc::new(u32_lists(rows.iter().map(|r| r.ids.as_slice()))),
        Arc::new(bool_lists(rows.iter().map(|r| r.loss_mask.as_slice()))),
        Arc::new(blobs(rows, |r| &r.taps)),
        Arc::new(blobs(rows, |r| &r.last_hidden)),
        Arc::new(f32_lists(rows.iter().map(|r| r.logsumexp.as_slice()))),
        Arc::new(Float32Array::from_iter_values(rows.iter().map(|r| r.temperature))),
        Arc::new(BooleanArray::from_iter(rows.iter().map(|r| Some(r.off_policy)))),
    ];
    RecordBatch::try_new(schema.clone(), columns).map_err(StoreError::arrow(path))
}

/// The rows of a batch, checked against the store's widths.
pub(super) fn from_batch(batch: &RecordBatch, meta: &StoreMeta, path: &Path) -> Result<Vec<FeatureRow>, StoreError> {
    let request: &UInt64Array = column(batch, "request", path)?;
    let ids: &ListArray = column(batch, "ids", path)?;
    let loss_mask: &ListArray = column(batch, "loss_mask", path)?;
    let taps: &LargeBinaryArray = column(batch, "taps", path)?;
    let last_hidden: &LargeBinaryArray = column(batch, "last_hidden", path)?;
    let logsumexp: &ListArray = column(batch, "logsumexp", path)?;
    let temperature: &Float32Array = column(batch, "temperature", path)?;
    let off_policy: &BooleanArray = column(batch, "off_policy", path)?;
    (0..batch.num_rows())
        .map(|i| {
            let row = FeatureRow {
                request: request.value(i),
                ids: elements::<UInt32Array>(ids, i, "ids", path)?.values().to_vec(),
                loss_mask: elements::<BooleanArray>(loss_mask, i, "loss_mask", path)?.values().iter().collect(),
                taps: from_blob(taps.value(i), "taps", path)?,
                last_hidden: from_blob(last_hidden.value(i), "last_hidden", path)?,
                logsumexp: elements::<Float32Array>(logsumexp, i, "logsumexp", path)?.values().to_vec(),
                temperature: temperature.value(i),
                off_policy: off_policy.value(i),
            };
            check_row(&row, meta).map_err(|what| StoreError::corrupt(path, what))?;
            Ok(row)
        })
        .collect()
}

fn from_blob(bytes: &[u8], name: &str, path: &Path) -> Result<Vec<bf16>, StoreError> {
    if !bytes.len().is_multiple_of(2) {
        return Err(StoreError::corrupt(path, format!("column `{name}`: {} bytes are no bf16 values", bytes.len())));
    }
    // Copied as bytes, because a blob may start at an odd address.
    let mut values = vec![bf16::ZERO; bytes.len() / 2];
    bytemuck::cast_slice_mut::<u16, u8>(values.reinterpret_cast_mut()).copy_from_slice(bytes);
    Ok(values)
}

/// What is wrong with a row's sizes, if anything.
pub(super) fn check_row(row: &FeatureRow, meta: &StoreMeta) -> Result<(), String> {
    let n = row.ids.len();
    if n == 0 {
        return Err("no tokens".into());
    }
    let sizes = [
        ("loss_mask", row.loss_mask.len(), n),
        ("taps", row.taps.len(), n * meta.taps.len() * meta.hidden),
        ("last_hidden", row.last_hidden.len(), n * meta.hidden),
        ("logsumexp", row.logsumexp.len(), n),
    ];
    for (name, got, want) in sizes {
        if got != want {
            return Err(format!("`{name}` has {got} values, {n} tokens need {want}"));
        }
    }
    match row.ids.iter().find(|&&id| id as usize >= meta.target_vocab) {
        Some(id) => Err(format!("token {id} is outside the vocabulary of {}", meta.target_vocab)),
        None => Ok(()),
    }
}

/// Column `name` as type `A`.
pub(crate) fn column<'a, A: Array + 'static>(
    batch: &'a RecordBatch,
    name: &str,
    path: &Path,
) -> Result<&'a A, StoreError> {
    let array = batch.column_by_name(name).ok_or_else(|| StoreError::corrupt(path, format!("no column `{name}`")))?;
    let wrong = || StoreError::corrupt(path, format!("column `{name}` has type {}", array.data_type()));
    let array: &A = array.as_any().downcast_ref().ok_or_else(wrong)?;
    if array.null_count() > 0 {
        return Err(StoreError::corrupt(path, format!("column `{name}` has nulls")));
    }
    Ok(array)
}

/// The elements of list `i`, of type `A`; the result owns a view of them, not a copy.
pub(crate) fn elements<A: Array + Clone + 'static>(
    lists: &ListArray,
    i: usize,
    name: &str,
    path: &Path,
) -> Result<A, StoreError> {
    let values = lists.value(i);
    match values.as_any().downcast_ref::<A>() {
        Some(values) if values.null_count() == 0 => Ok(values.clone()),
        _ => Err(StoreError::corrupt(path, format!("column `{name}` has type {}", lists.data_type()))),
    }
}
