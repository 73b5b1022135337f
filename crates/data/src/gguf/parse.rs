//! The bytes before the tensor data: header, metadata, tensor descriptions.

use std::collections::BTreeMap;
use std::path::Path;

use super::block::BlockType;
use super::{GgufError, GgufValue, TensorPlace};

/// Data alignment where the file names none.
const DEFAULT_ALIGNMENT: u64 = 32;
/// Arrays of arrays deeper than this are taken for damage.
const MAX_DEPTH: usize = 4;
/// ggml tensors have at most four dimensions.
const MAX_DIMENSIONS: u32 = 4;

type Parsed = (BTreeMap<String, GgufValue>, BTreeMap<String, TensorPlace>);

/// A tensor as described: name, shape (outermost first), type, offset from the start of the data.
type Described = (String, Vec<usize>, BlockType, u64);

/// Reads everything up to the tensor data and checks that the data is there.
pub(super) fn parse(path: &Path, bytes: &[u8]) -> Result<Parsed, GgufError> {
    let mut at = Cursor { path, bytes, pos: 0 };
    if bytes.get(..4) != Some(b"GGUF") {
        return Err(GgufError::Magic { path: path.to_owned() });
    }
    at.pos = 4;
    let version = at.u32("header")?;
    if !(2..=3).contains(&version) {
        return Err(GgufError::Version { path: path.to_owned(), version });
    }
    let tensor_count = at.u64("header")?;
    let value_count = at.u64("header")?;
    let mut values = BTreeMap::new();
    for n in 0..value_count {
        let what = format!("metadata entry {n} of {value_count}");
        let key = at.text(&what)?;
        let kind = at.u32(&key)?;
        let value = at.value(kind, &key, 0)?;
        if values.insert(key.clone(), value).is_some() {
            return Err(at.malformed(format!("metadata key `{key}` appears twice")));
        }
    }
    let mut described = Vec::new();
    for n in 0..tensor_count {
        described.push(at.description(&format!("tensor description {n} of {tensor_count}"))?);
    }
    let alignment = match values.get("general.alignment") {
        Some(value) => value.as_u64().filter(|a| a.is_power_of_two()),
        None => Some(DEFAULT_ALIGNMENT),
    };
    let alignment = alignment.ok_or_else(|| at.malformed("general.alignment is no power of two".into()))?;
    let data = (at.pos as u64).next_multiple_of(alignment);
    let mut tensors = BTreeMap::new();
    for (name, shape, kind, offset) in described {
        let place = at.place(&name, shape, kind, data.saturating_add(offset))?;
        if tensors.insert(name.clone(), place).is_some() {
            return Err(at.malformed(format!("tensor `{name}` appears twice")));
        }
    }
    Ok((values, tensors))
}

struct Cursor<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    pos: usize,
}

impl<'a> Cursor<'a> {
    fn malformed(&self, what: String) -> GgufError {
        GgufError::Malformed { path: self.path.to_owned(), what }
    }

    fn truncated(&self, what: &str, end: u64) -> GgufError {
        let found = self.bytes.len() as u64;
        GgufError::Truncated { path: self.path.to_owned(), what: what.to_owned(), end, found }
    }

    fn take(&mut self, len: u64, what: &str) -> Result<&'a [u8], GgufError> {
        let end = (self.pos as u64).saturating_add(len);
        if end > self.bytes.len() as u64 {
            return Err(self.truncated(what, end));
        }
        let taken = &self.bytes[self.pos..end as usize];
        self.pos = end as usize;
        Ok(taken)
    }

    fn fixed<const N: usize>(&mut self, what: &str) -> Result<[u8; N], GgufError> {
        let taken = self.take(N as u64, what)?;
        Ok(taken.try_into().expect("take gives as many bytes as asked"))
    }

    fn u32(&mut self, what: &str) -> Result<u32, GgufError> {
        self.fixed(what).map(u32::from_le_bytes)
    }

    fn u64(&mut self, what: &str) -> Result<u64, GgufError> {
        self.fixed(what).map(u64::from_le_bytes)
    }

    fn text(&mut self, what: &str) -> Result<String, GgufError> {
        let len = self.u64(what)?;
        let bytes = self.take(len, what)?;
        let text = std::str::from_utf8(bytes).map_err(|_| self.malformed(format!("{what}: text is not UTF-8")))?;
        Ok(text.to_owned())
    }

    /// A value of the kind with this number, under `key`.
    fn value(&mut self, kind: u32, key: &str, depth: usize) -> Result<GgufValue, GgufError> {
        Ok(match kind {
            0 => GgufValue::Uint(u8::from_le_bytes(self.fixed(key)?).into()),
            1 => GgufValue::Int(i8::from_le_bytes(self.fixed(key)?).into()),
            2 => GgufValue::Uint(u16::from_le_bytes(self.fixed(key)?).into()),
            3 => GgufValue::Int(i16::from_le_bytes(self.fixed(key)?).into()),
            4 => GgufValue::Uint(self.u32(key)?.into()),
            5 => GgufValue::Int(i32::from_le_bytes(self.fixed(key)?).into()),
            6 => GgufValue::F32(f32::from_le_bytes(self.fixed(key)?)),
            7 => match self.fixed::<1>(key)? {
                [0] => GgufValue::Bool(false),
                [1] => GgufValue::Bool(true),
                [other] => return Err(self.malformed(format!("`{key}`: truth value {other}"))),
            },
            8 => GgufValue::Text(self.text(key)?),
            9 if depth < MAX_DEPTH => self.array(key, depth)?,
            10 => GgufValue::Uint(self.u64(key)?),
            11 => GgufValue::Int(i64::from_le_bytes(self.fixed(key)?)),
            12 => GgufValue::F64(f64::from_le_bytes(self.fixed(key)?)),
            other => return Err(self.malformed(format!("`{key}`: value kind {other}"))),
        })
    }

    fn array(&mut self, key: &str, depth: usize) -> Result<GgufValue, GgufError> {
        let kind = self.u32(key)?;
        let len = self.u64(key)?;
        // Every element takes at least a byte, so a longer array is cut off; the check also bounds the memory.
        if len > (self.bytes.len() - self.pos) as u64 {
            return Err(self.truncated(key, (self.pos as u64).saturating_add(len)));
        }
        (0..len).map(|_| self.value(kind, key, depth + 1)).collect::<Result<_, _>>().map(GgufValue::Array)
    }

    fn description(&mut self, what: &str) -> Result<Described, GgufError> {
        let name = self.text(what)?;
        let dimensions = self.u32(&name)?;
        if dimensions > MAX_DIMENSIONS {
            return Err(self.malformed(format!("tensor `{name}` has {dimensions} dimensions")));
        }
        let mut shape = Vec::new();
        for _ in 0..dimensions {
            let size = self.u64(&name)?;
            let size = size.try_into().map_err(|_| self.malformed(format!("tensor `{name}`: size {size}")))?;
            shape.push(size);
        }
        shape.reverse();
        let kind = BlockType::from_number(self.u32(&name)?);
        let offset = self.u64(&name)?;
        Ok((name, shape, kind, offset))
    }

    /// Where the data of a tensor lies; `start` is its first byte in the file.
    fn place(&self, name: &str, shape: Vec<usize>, kind: BlockType, start: u64) -> Result<TensorPlace, GgufError> {
        let Some((block, block_bytes)) = kind.block() else {
            return Ok(TensorPlace { shape, kind, bytes: 0..0 });
        };
        let row = shape.last().copied().unwrap_or(1);
        if row % block != 0 {
            return Err(self.malformed(format!("tensor `{name}`: rows of {row} elements are no whole {kind:?} blocks")));
        }
        let elements = shape.iter().try_fold(1u64, |n, &size| n.checked_mul(size as u64));
        let end = elements.and_then(|n| (n / block as u64).checked_mul(block_bytes as u64));
        let end = end.and_then(|len| start.checked_add(len));
        let end = end.ok_or_else(|| self.malformed(format!("tensor `{name}`: shape {shape:?} overflows")))?;
        if end > self.bytes.len() as u64 {
            return Err(self.truncated(&format!("tensor `{name}`"), end));
        }
        Ok(TensorPlace { shape, kind, bytes: start as usize..end as usize })
    }
}
