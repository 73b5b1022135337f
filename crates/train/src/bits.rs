//! A number stored as its bits: a decimal that is read back one unit off would show in a resumed run.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number whose stored form is its bits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Bits(pub f64);

impl Serialize for Bits {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.to_bits().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Bits {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(f64::from_bits(u64::deserialize(deserializer)?)))
    }
}
