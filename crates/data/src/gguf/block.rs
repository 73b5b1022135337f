//! How ggml stores tensor elements: plain floats, or blocks of 32 elements that share a scale. Formulas as in ggml's
//! `ggml-quants.c`; arithmetic in f32, so that values equal the reference's bit for bit.

use half::f16;

/// Elements of one quantised block.
const BLOCK: usize = 32;

/// Element type of a tensor, by its ggml number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockType {
    /// 0: IEEE single.
    F32,
    /// 1: IEEE half.
    F16,
    /// 3: scale d and minimum m (both half), 32 unsigned 4-bit q; x = q·d + m.
    Q4_1,
    /// 8: scale d (half), 32 signed bytes q; x = q·d.
    Q8_0,
    /// Any other number.
    Unsupported(u32),
}

impl BlockType {
    /// The type with this ggml number.
    pub fn from_number(number: u32) -> Self {
        match number {
            0 => Self::F32,
            1 => Self::F16,
            3 => Self::Q4_1,
            8 => Self::Q8_0,
            other => Self::Unsupported(other),
        }
    }

    /// Elements and bytes of one block; `None` for an unsupported type.
    pub fn block(self) -> Option<(usize, usize)> {
        match self {
            Self::F32 => Some((1, 4)),
            Self::F16 => Some((1, 2)),
            Self::Q4_1 => Some((BLOCK, 2 + 2 + BLOCK / 2)),
            Self::Q8_0 => Some((BLOCK, 2 + BLOCK)),
            Self::Unsupported(_) => None,
        }
    }

    /// The elements as f32. `bytes` is a whole number of blocks; an unsupported type has none and gives nothing.
    pub(super) fn dequantize(self, bytes: &[u8]) -> Vec<f32> {
        match self {
            Self::F32 => bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
            Self::F16 => bytes.as_chunks::<2>().0.iter().map(|b| half(b[0], b[1])).collect(),
            Self::Q4_1 => bytes.as_chunks::<20>().0.iter().flat_map(q4_1).collect(),
            Self::Q8_0 => bytes.as_chunks::<34>().0.iter().flat_map(q8_0).collect(),
            Self::Unsupported(_) => Vec::new(),
        }
    }
}

fn half(low: u8, high: u8) -> f32 {
    f16::from_le_bytes([low, high]).to_f32()
}

/// The low nibbles are elements 0 to 15, the high nibbles 16 to 31.
fn q4_1(block: &[u8; 20]) -> [f32; BLOCK] {
    let (d, m) = (half(block[0], block[1]), half(block[2], block[3]));
    let mut out = [0.0; BLOCK];
    for (j, q) in block[4..].iter().enumerate() {
        out[j] = f32::from(q & 0x0f) * d + m;
        out[j + BLOCK / 2] = f32::from(q >> 4) * d + m;
    }
    out
}

fn q8_0(block: &[u8; 34]) -> [f32; BLOCK] {
    let d = half(block[0], block[1]);
    std::array::from_fn(|j| f32::from(block[2 + j] as i8) * d)
}

/// Name of a ggml type that is not supported, for the error message.
pub(super) fn type_name(number: u32) -> String {
    let name = match number {
        2 => "Q4_0",
        6 => "Q5_0",
        7 => "Q5_1",
        9 => "Q8_1",
        10 => "Q2_K",
        11 => "Q3_K",
        12 => "Q4_K",
        13 => "Q5_K",
        14 => "Q6_K",
        15 => "Q8_K",
        30 => "BF16",
        other => return format!("number {other}"),
    };
    name.to_owned()
}
