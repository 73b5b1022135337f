//! Random numbers without a state: every draw is a pure function of what it is for.
//!
//! A verification round may be cut short, batched with others, rolled back or repeated, and the text must not change.
//! So no generator is advanced: a draw is addressed by (seed, request, absolute position, purpose, index), and the
//! address is hashed by Philox4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011). For one
//! seed the hash is a bijection on the 256-bit counter, so two different addresses never share a block.

/// What a draw is used for. The numbers are part of the stream's definition and never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u64)]
pub enum Purpose {
    /// A token drawn from the target's processed distribution.
    Target = 0,
    /// A token drawn from the drafter's processed distribution.
    Draft = 1,
    /// The coin of an acceptance test.
    Accept = 2,
    /// A token drawn from the residual after a rejection.
    Residual = 3,
    /// The extra token after every draft was accepted.
    Bonus = 4,
    /// Choice and order of training data.
    Data = 5,
    /// Initial values of parameters.
    Init = 6,
    /// Noise added in training (features, masks, anchors).
    Noise = 7,
    /// Resampling of questions for an interval.
    Bootstrap = 8,
    /// The processors that a conversation is trained under.
    Policy = 9,
}

/// The address of a draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// Seed of the run.
    pub seed: u64,
    /// Request, or question, or training row.
    pub request: u64,
    /// Absolute token position in the request.
    pub position: u64,
    /// What the draw is used for.
    pub purpose: Purpose,
}

impl Key {
    /// The key of one position of one request.
    pub const fn new(seed: u64, request: u64, position: u64, purpose: Purpose) -> Self {
        Self { seed, request, position, purpose }
    }

    /// The `index`-th 64 uniform bits under this key.
    pub fn bits_at(&self, index: u64) -> u64 {
        let counter = [self.request, self.position, self.purpose as u64, index / LANES];
        philox4x64(counter, [self.seed, 0])[(index % LANES) as usize]
    }

    /// The first uniform number under this key, in `[0, 1)` with 53 random bits.
    pub fn uniform(&self) -> f64 {
        self.uniform_at(0)
    }

    /// The `index`-th uniform number under this key, in `[0, 1)` with 53 random bits.
    pub fn uniform_at(&self, index: u64) -> f64 {
        (self.bits_at(index) >> 11) as f64 * TWO_POW_MINUS_53
    }

    /// The `index`-th integer under this key, in `0..bound`; its bias is below `bound / 2^64`.
    ///
    /// # Panics
    /// If `bound` is zero.
    pub fn below_at(&self, index: u64, bound: usize) -> usize {
        assert!(bound > 0, "an empty range has no integer");
        ((u128::from(self.bits_at(index)) * bound as u128) >> 64) as usize
    }
}

impl Key {
    /// The index drawn from `weights` (they need not be normalised) under this key's `index`-th stream: every entry
    /// arrives after an exponential time of rate its weight, and the first arrival wins, so that entry `i` wins with
    /// probability `weights[i] / sum`.
    ///
    /// Where [`sample_index`] changes its answer whenever rounding moves any border past the uniform number, which the
    /// crowded borders of a large vocabulary's tail make frequent, the race changes only when its two first arrivals
    /// nearly tie. Two passes that compute the same logits up to rounding therefore draw the same text.
    ///
    /// # Panics
    /// If no weight is positive: callers check a distribution before they draw from it.
    pub fn race(&self, index: u64, weights: &[f64]) -> usize {
        let stream = self.bits_at(index);
        let (mut first, mut winner) = (f64::INFINITY, None);
        for (i, &weight) in weights.iter().enumerate() {
            let u = stream_uniform(stream, i);
            // -ln(1 - u) is at least u: most entries are out without a logarithm.
            if weight > 0.0 && u < first * weight {
                let arrival = -(-u).ln_1p() / weight;
                if arrival < first {
                    (first, winner) = (arrival, Some(i));
                }
            }
        }
        winner.expect("a distribution has positive mass")
    }

    /// Arrival time of entry `i` of `weight` in the race of stream `index`: the smaller it is, the earlier.
    pub fn arrival(&self, index: u64, i: usize, weight: f64) -> f64 {
        -(-stream_uniform(self.bits_at(index), i)).ln_1p() / weight
    }
}

/// Uniform number of entry `i` in a stream: SplitMix64 (Steele, Lea and Flood, 2014) started at `stream`.
fn stream_uniform(stream: u64, i: usize) -> f64 {
    let mut z = stream.wrapping_add((i as u64 + 1).wrapping_mul(WEYL[0]));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    ((z ^ (z >> 31)) >> 11) as f64 * TWO_POW_MINUS_53
}

/// The index drawn from `probabilities` by inverting the cumulative sum at `uniform` in `[0, 1)`.
///
/// An entry without mass is never returned: where rounding leaves the sum short of `uniform`, the last positive entry
/// is. The order of entries is the order of summation, so equal inputs give equal draws on every machine.
///
/// # Panics
/// If no entry is positive: callers check a distribution before they draw from it.
pub fn sample_index(probabilities: &[f64], uniform: f64) -> usize {
    let mut cumulative = 0.0;
    let mut last = None;
    for (index, &mass) in probabilities.iter().enumerate() {
        if mass > 0.0 {
            cumulative += mass;
            last = Some(index);
            if uniform < cumulative {
                break;
            }
        }
    }
    last.expect("a distribution has positive mass")
}

const TWO_POW_MINUS_53: f64 = 1.0 / (1u64 << 53) as f64;
const LANES: u64 = 4;
const ROUNDS: usize = 10;
const MULTIPLIERS: [u64; 2] = [0xD2E7_470E_E14C_6C93, 0xCA5A_8263_9512_1157];
const WEYL: [u64; 2] = [0x9E37_79B9_7F4A_7C15, 0xBB67_AE85_84CA_A73B];

/// One block of Philox4x64-10: 256 bits of counter to 256 bits of output under a 128-bit key.
pub fn philox4x64(counter: [u64; 4], key: [u64; 2]) -> [u64; 4] {
    let mut c = counter;
    let mut k = key;
    for _ in 0..ROUNDS {
        let (high0, low0) = wide_product(MULTIPLIERS[0], c[0]);
        let (high1, low1) = wide_product(MULTIPLIERS[1], c[2]);
        c = [high1 ^ c[1] ^ k[0], low1, high0 ^ c[3] ^ k[1], low0];
        k = [k[0].wrapping_add(WEYL[0]), k[1].wrapping_add(WEYL[1])];
    }
    c
}

/// High and low halves of a 128-bit product.
fn wide_product(a: u64, b: u64) -> (u64, u64) {
    let product = u128::from(a) * u128::from(b);
    ((product >> 64) as u64, product as u64)
}
