//! What safetensors headers say of the tensors behind them, of any type. The files were checked when they were opened.

use crate::exit::{Blame, Failure};
use anyhow::Context;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Number of tensors, parameters and bytes in `files`, and the tensors of each type.
pub fn facts(files: &[PathBuf]) -> Result<Value, Failure> {
    let (mut parameters, mut bytes) = (0, 0);
    let mut dtypes: BTreeMap<String, u64> = BTreeMap::new();
    for file in files {
        let (header, size) = header(file).with_context(|| file.display().to_string()).request()?;
        bytes += size;
        let tensors = header.as_object().into_iter().flatten().filter(|(name, _)| *name != "__metadata__");
        for (_, tensor) in tensors {
            let shape = tensor["shape"].as_array().into_iter().flatten().filter_map(Value::as_u64);
            parameters += shape.product::<u64>();
            *dtypes.entry(tensor["dtype"].as_str().unwrap_or_default().to_owned()).or_default() += 1;
        }
    }
    Ok(json!({ "bytes": bytes, "parameters": parameters, "tensors_of_dtype": dtypes }))
}

/// The header of a file and the file's length: eight bytes of length, then JSON.
fn header(path: &Path) -> io::Result<(Value, u64)> {
    let mut file = File::open(path)?;
    let size = file.metadata()?.len();
    let mut length = [0; 8];
    file.read_exact(&mut length)?;
    let header = file.take(u64::from_le_bytes(length));
    Ok((serde_json::from_reader(io::BufReader::new(header))?, size))
}
