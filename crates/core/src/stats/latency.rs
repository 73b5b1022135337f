//! How long a user waits: for an answer, for its first token, for each further token.
//!
//! | name | of | meaning |
//! |---|---|---|
//! | queue wait | a request | from the start of the run until it is given a slot |
//! | TTFT | a request | from then to its first token, the prompt's |
//! | TPOT | a request of two tokens or more | from its first to its last token, by each token after the first |
//! | ITL | a token after the first of its request | from the token before it to its own arrival |
//!
//! The tokens of one round arrive together: the first of them waits for the whole round, and those behind it for
//! nothing. So a round of three tokens enters ITL as the time since the round before, 0 and 0. Their mean is what plain
//! decoding's is, time by tokens; the percentiles show the bursts. A wait that other requests of the batch cause, such
//! as a prompt that is read in the same pass, is in.

use serde::{Deserialize, Serialize};

use super::bootstrap::quantile;

/// Tokens that came together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Arrival {
    /// Seconds from the start of the run.
    pub at: f64,
    /// How many came, those that were trimmed away not counted; at least 1.
    pub tokens: usize,
}

/// When one request's tokens came.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Timeline {
    /// When it was given a slot: seconds from the start of the run.
    pub admitted: f64,
    /// One entry a target call, the prompt's first.
    pub arrivals: Vec<Arrival>,
}

impl Timeline {
    /// The timeline of a request that is given a slot at `admitted`.
    pub fn starting(admitted: f64) -> Self {
        Self { admitted, arrivals: Vec::new() }
    }

    /// Tokens that came.
    pub fn tokens(&self) -> usize {
        self.arrivals.iter().map(|a| a.tokens).sum()
    }

    /// Seconds to the first token.
    pub fn ttft(&self) -> Option<f64> {
        self.arrivals.first().map(|first| first.at - self.admitted)
    }

    /// Seconds by token after the first.
    pub fn tpot(&self) -> Option<f64> {
        let (first, last) = (self.arrivals.first()?, self.arrivals.last()?);
        let further = self.tokens() - 1;
        (further > 0).then(|| (last.at - first.at) / further as f64)
    }

    /// Seconds before each token after the first.
    pub fn gaps(&self) -> Vec<f64> {
        let mut before = None;
        let mut gaps = Vec::new();
        for arrival in &self.arrivals {
            gaps.extend(before.map(|at| arrival.at - at));
            gaps.extend(std::iter::repeat_n(0.0, arrival.tokens - 1));
            before = Some(arrival.at);
        }
        gaps
    }

    /// Whether the request kept what `slo` promises. A request of one token has no time per further token to exceed.
    pub fn keeps(&self, slo: &Slo) -> bool {
        let within = |found: Option<f64>, limit: Option<f64>| match (found, limit) {
            (Some(found), Some(limit)) => found <= limit,
            _ => true,
        };
        within(self.ttft(), slo.ttft) && within(self.tpot(), slo.tpot)
    }
}

/// A service level objective: limits that each request has to keep, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Slo {
    /// Longest time to the first token.
    pub ttft: Option<f64>,
    /// Longest time by token after the first.
    pub tpot: Option<f64>,
}

/// A text that states no objective.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}; write limits as ttft=500ms,tpot=50ms, either of the two or both, in ms or s")]
pub struct SloError {
    what: String,
}

impl std::str::FromStr for Slo {
    type Err = SloError;

    fn from_str(text: &str) -> Result<Self, SloError> {
        let refuse = |what: String| Err(SloError { what });
        let mut slo = Self::default();
        for part in text.split(',') {
            let Some((name, limit)) = part.split_once('=') else {
                return refuse(format!("`{part}` sets no limit"));
            };
            let place = match name.trim() {
                "ttft" => &mut slo.ttft,
                "tpot" => &mut slo.tpot,
                other => return refuse(format!("`{other}` is no limit")),
            };
            let Some(limit) = seconds(limit.trim()) else {
                return refuse(format!("`{limit}` is no time"));
            };
            if place.replace(limit).is_some() {
                return refuse(format!("`{}` is set twice", name.trim()));
            }
        }
        Ok(slo)
    }
}

/// Seconds of a text such as `50ms` or `0.5s`.
fn seconds(text: &str) -> Option<f64> {
    let (number, unit) = match text.strip_suffix("ms") {
        Some(number) => (number, 1e-3),
        None => (text.strip_suffix('s')?, 1.0),
    };
    number.parse().ok().map(|n: f64| n * unit).filter(|s| s.is_finite() && *s > 0.0)
}

/// Output tokens of the requests that keep `slo`, by second of a run of `seconds`.
pub fn goodput<'a>(timelines: impl IntoIterator<Item = &'a Timeline>, slo: &Slo, seconds: f64) -> f64 {
    let kept = timelines.into_iter().filter(|t| t.keeps(slo));
    kept.map(Timeline::tokens).sum::<usize>() as f64 / seconds
}

/// Mean and percentiles of some times, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// How many there are.
    pub count: usize,
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// Nineteen of twenty are not longer.
    pub p95: f64,
    /// Ninety-nine of a hundred are not longer.
    pub p99: f64,
}

impl Spread {
    /// Of `values`, linear between neighbours; none of none.
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        if values.is_empty() {
            return None;
        }
        values.sort_by(f64::total_cmp);
        let at = |share| quantile(&values, share);
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        Some(Self { count: values.len(), mean, p50: at(0.5), p95: at(0.95), p99: at(0.99) })
    }
}

/// The waits of a set of requests; those that no request has are none.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Queue wait.
    pub queue: Option<Spread>,
    /// Time to the first token.
    pub ttft: Option<Spread>,
    /// Time per token after the first.
    pub tpot: Option<Spread>,
    /// Time between tokens.
    pub itl: Option<Spread>,
}

impl Latency {
    /// Of the requests with these timelines.
    pub fn of<'a>(timelines: impl IntoIterator<Item = &'a Timeline> + Clone) -> Self {
        let each = || timelines.clone().into_iter();
        Self {
            queue: Spread::of(each().map(|t| t.admitted).collect()),
            ttft: Spread::of(each().filter_map(Timeline::ttft).collect()),
            tpot: Spread::of(each().filter_map(Timeline::tpot).collect()),
            itl: Spread::of(each().flat_map(Timeline::gaps).collect()),
        }
    }
}
