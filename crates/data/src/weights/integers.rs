//! Tensors of whole numbers and of truth values, which drafters carry for their vocabulary.

use safetensors::Dtype;

use super::{WeightDir, WeightError, WeightFile};

impl WeightFile {
    /// A tensor of I64 or I32 in row-major order.
    ///
    /// # Errors
    /// As [`WeightFile::tensor_f32`].
    pub fn tensor_i64(&self, name: &str, expected: &[usize]) -> Result<Vec<i64>, WeightError> {
        self.tensor(name, expected, "I64 or I32", |bytes, dtype| match dtype {
            Dtype::I64 => Some(bytes.as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b)).collect()),
            Dtype::I32 => Some(bytes.as_chunks::<4>().0.iter().map(|b| i32::from_le_bytes(*b).into()).collect()),
            _ => None,
        })
    }

    /// A tensor of BOOL in row-major order.
    ///
    /// # Errors
    /// As [`WeightFile::tensor_f32`].
    pub fn tensor_bool(&self, name: &str, expected: &[usize]) -> Result<Vec<bool>, WeightError> {
        let read = |bytes: &[u8], dtype| (dtype == Dtype::BOOL).then(|| bytes.iter().map(|b| *b != 0).collect());
        self.tensor(name, expected, "BOOL", read)
    }
}

impl WeightDir {
    /// As [`WeightFile::tensor_i64`].
    ///
    /// # Errors
    /// As [`WeightDir::tensor_f32`].
    pub fn tensor_i64(&self, name: &str, expected: &[usize]) -> Result<Vec<i64>, WeightError> {
        self.file(name, expected)?.tensor_i64(name, expected)
    }

    /// As [`WeightFile::tensor_bool`].
    ///
    /// # Errors
    /// As [`WeightDir::tensor_f32`].
    pub fn tensor_bool(&self, name: &str, expected: &[usize]) -> Result<Vec<bool>, WeightError> {
        self.file(name, expected)?.tensor_bool(name, expected)
    }
}
