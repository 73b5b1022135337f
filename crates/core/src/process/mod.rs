//! Logit processors: from the logits of one position to the distribution that is sampled and verified.
//!
//! There is one declared order, used for the target and, with its own settings, for the drafter:
//!
//! 1. repetition, frequency and presence penalties, over the node's own path
//! 2. minimum length (end tokens barred before it)
//! 3. bad words
//! 4. masks (grammar, allowed tokens)
//! 5. temperature
//! 6. top-k, then top-p, then min-p
//!
//! Masks stand before the truncations, as in serving engines: a truncation then chooses among what the grammar allows,
//! while behind one the two would often share no token and end the answer half-way. Temperature 0 is greedy: all mass on
//! the best token still allowed after steps 1 to 4 (step 6 always keeps it), ties to the lowest id. If nothing is left the position is *finished*: a row
//! of zeros and [`Processed::Finished`], never a NaN.

mod history;
mod truncate;

use crate::rules::greedy::argmax;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Settings of the processors. The default samples the raw distribution: temperature 1 and nothing else.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Processors {
    /// Positive logits of tokens in prompt or answer are divided by this, negative ones multiplied; 1 is off.
    pub repetition_penalty: f64,
    /// Subtracted from a logit for every time its token stands in the answer; 0 is off.
    pub frequency_penalty: f64,
    /// Subtracted from the logit of every token that stands in the answer; 0 is off.
    pub presence_penalty: f64,
    /// Answer tokens before an end token is allowed; 0 is off.
    pub min_length: usize,
    /// Token sequences that must not appear: the last token of each is barred after the ones before it.
    pub bad_words: Vec<Vec<u32>>,
    /// Logits are divided by this; 0 is greedy.
    pub temperature: f64,
    /// Only this many most probable tokens stay; 0 is off.
    pub top_k: usize,
    /// Only the fewest most probable tokens whose mass reaches this stay; 1 is off.
    pub top_p: f64,
    /// Only tokens of at least this fraction of the largest probability stay; 0 is off.
    pub min_p: f64,
}

impl Default for Processors {
    fn default() -> Self {
        Self {
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            min_length: 0,
            bad_words: Vec::new(),
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
        }
    }
}

/// What a position's processors need to know besides its logits.
#[derive(Clone, Copy, Debug, Default)]
pub struct Context<'a> {
    /// Prompt tokens.
    pub prompt: &'a [u32],
    /// Committed answer tokens.
    pub answer: &'a [u32],
    /// Drafted tokens between the committed text and this position: those of the node's own branch, no other.
    pub path: &'a [u32],
    /// Tokens that end an answer.
    pub end_tokens: &'a [u32],
    /// Allowed tokens at this position, one entry per token; `None` allows all.
    pub mask: Option<&'a [bool]>,
}

/// What became of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Processed {
    /// The row now holds a distribution.
    Distribution,
    /// Every token is barred: the row now holds zeros, and generation ends here.
    Finished,
}

/// Why a row cannot be processed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ProcessError {
    /// A setting is outside its range.
    #[error("{name} = {value} is outside its range: {range}")]
    Setting {
        /// Key of the setting.
        name: &'static str,
        /// Its value.
        value: f64,
        /// Where it must lie.
        range: &'static str,
    },
    /// An empty bad word.
    #[error("a bad word has no token")]
    EmptyBadWord,
    /// A logit is not a number or plus infinity (minus infinity is a masked token).
    #[error("the logit of token {token} is {value}")]
    Logit {
        /// The token.
        token: usize,
        /// Its logit.
        value: f64,
    },
    /// A token of the history or a setting lies outside the vocabulary, or the mask has another length.
    #[error("{what} {value} does not fit the vocabulary of {vocabulary}")]
    Vocabulary {
        /// What does not fit.
        what: &'static str,
        /// Its value.
        value: usize,
        /// Vocabulary size.
        vocabulary: usize,
    },
}

/// A row of logits that cannot be made a distribution, and whose it is.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("request {request}, position {position}: {fault}")]
pub struct RowError {
    /// The request's number.
    pub request: u64,
    /// Absolute position of the token that the row was to decide.
    pub position: usize,
    /// What is wrong.
    pub fault: ProcessError,
}

impl Processors {
    /// Greedy decoding and nothing else.
    pub fn greedy() -> Self {
        Self::at(0.0)
    }

    /// Sampling at `temperature` and nothing else.
    pub fn at(temperature: f64) -> Self {
        Self { temperature, ..Self::default() }
    }

    /// Whether nothing but a temperature is set.
    pub fn temperature_only(&self) -> bool {
        !self.reads_history() && !self.truncates()
    }

    /// Whether the distribution depends on the text otherwise than through the logits.
    pub fn reads_history(&self) -> bool {
        self.repetition_penalty != 1.0
            || self.frequency_penalty != 0.0
            || self.presence_penalty != 0.0
            || self.min_length > 0
            || !self.bad_words.is_empty()
    }

    /// What is set besides the temperature, by the settings' keys; of bad words, their number.
    pub fn named(&self) -> BTreeMap<String, f64> {
        let off = Self::default();
        let all = [
            ("repetition_penalty", self.repetition_penalty, off.repetition_penalty),
            ("frequency_penalty", self.frequency_penalty, off.frequency_penalty),
            ("presence_penalty", self.presence_penalty, off.presence_penalty),
            ("min_length", self.min_length as f64, off.min_length as f64),
            ("bad_words", self.bad_words.len() as f64, off.bad_words.len() as f64),
            ("top_k", self.top_k as f64, off.top_k as f64),
            ("top_p", self.top_p, off.top_p),
            ("min_p", self.min_p, off.min_p),
        ];
        all.into_iter().filter(|(_, value, off)| value != off).map(|(key, value, _)| (key.to_owned(), value)).collect()
    }

    /// Checks every setting's range.
    ///
    /// # Errors
    /// The first setting that is outside.
    pub fn validate(&self) -> Result<(), ProcessError> {
        let checks = [
            ("repetition_penalty", self.repetition_penalty, self.repetition_penalty > 0.0, "above 0"),
            ("frequency_penalty", self.frequency_penalty, true, "finite"),
            ("presence_penalty", self.presence_penalty, true, "finite"),
            ("temperature", self.temperature, self.temperature >= 0.0, "0 or above"),
            ("top_p", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0, "above 0, at most 1"),
            ("min_p", self.min_p, (0.0..=1.0).contains(&self.min_p), "0 to 1"),
        ];
        for (name, value, inside, range) in checks {
            if !inside || !value.is_finite() {
                return Err(ProcessError::Setting { name, value, range });
            }
        }
        if self.bad_words.iter().any(Vec::is_empty) { Err(ProcessError::EmptyBadWord) } else { Ok(()) }
    }

    /// Whether any token is left out by its rank or its probability.
    fn truncates(&self) -> bool {
        self.top_k != 0 || self.top_p != 1.0 || self.min_p != 0.0
    }

    /// Steps 1, 2, 3 and 6 in place: the logits of one position (length = vocabulary) as the text so far leaves them,
    /// which order the tokens as the distribution does, without temperature and truncations.
    ///
    /// # Errors
    /// A [`ProcessError`] for malformed logits, settings, history or mask; the row is then unspecified.
    pub fn rank(&self, row: &mut [f64], context: &Context<'_>) -> Result<(), ProcessError> {
        self.adjust(row, context)?;
        bar_masked(row, context.mask);
        Ok(())
    }

    /// Steps 1 to 3.
    fn adjust(&self, row: &mut [f64], context: &Context<'_>) -> Result<(), ProcessError> {
        self.validate()?;
        check_row(row, context)?;
        history::penalise(self, row, context)?;
        history::bar(self, row, context)
    }

    /// Turns the logits of one position (length = vocabulary) into its distribution, in place.
    ///
    /// # Errors
    /// As [`Self::rank`].
    pub fn apply(&self, row: &mut [f64], context: &Context<'_>) -> Result<Processed, ProcessError> {
        self.rank(row, context)?;
        if self.temperature == 0.0 {
            return Ok(one_hot(row));
        }
        if softmax(row, self.temperature) == Processed::Finished {
            return Ok(Processed::Finished);
        }
        truncate::top_k(row, self.top_k);
        truncate::top_p(row, self.top_p);
        truncate::min_p(row, self.min_p);
        Ok(normalise(row))
    }
}

/// Checks logits, mask length and history.
fn check_row(row: &[f64], context: &Context<'_>) -> Result<(), ProcessError> {
    if let Some(token) = row.iter().position(|logit| logit.is_nan() || *logit == f64::INFINITY) {
        return Err(ProcessError::Logit { token, value: row[token] });
    }
    match context.mask {
        Some(mask) if mask.len() != row.len() => {
            Err(ProcessError::Vocabulary { what: "mask length", value: mask.len(), vocabulary: row.len() })
        }
        _ => Ok(()),
    }
}

/// Bars every token that the mask forbids.
fn bar_masked(row: &mut [f64], mask: Option<&[bool]>) {
    if let Some(mask) = mask {
        row.iter_mut().zip(mask).filter(|(_, allowed)| !**allowed).for_each(|(entry, _)| *entry = f64::NEG_INFINITY);
    }
}

/// All mass on the largest entry, ties to the lowest id.
fn one_hot(row: &mut [f64]) -> Processed {
    let best = argmax(row);
    row.fill(0.0);
    match best {
        Some(best) => {
            row[best as usize] = 1.0;
            Processed::Distribution
        }
        None => Processed::Finished,
    }
}

/// `softmax(row / temperature)`, stable for any finite logits and any positive temperature.
fn softmax(row: &mut [f64], temperature: f64) -> Processed {
    let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if largest == f64::NEG_INFINITY {
        row.fill(0.0);
        return Processed::Finished;
    }
    row.iter_mut().for_each(|logit| *logit = ((*logit - largest) / temperature).exp());
    normalise(row)
}

/// Divides by the sum; a row without mass is finished.
fn normalise(row: &mut [f64]) -> Processed {
    let sum: f64 = row.iter().sum();
    if sum > 0.0 {
        row.iter_mut().for_each(|entry| *entry /= sum);
        Processed::Distribution
    } else {
        Processed::Finished
    }
}
