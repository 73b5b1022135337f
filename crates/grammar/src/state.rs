//! One answer, or one branch of a draft, under a grammar.

use crate::{Tokens, readable};
use llguidance::Matcher;
use llguidance::api::StopReason;
use spectrain_core::constraint::{ConstraintError, ConstraintState};
use std::fmt;
use std::sync::Arc;

/// Where in the grammar a text stands.
#[derive(Clone)]
pub(crate) struct State {
    place: Place,
    tokens: Arc<Tokens>,
}

#[derive(Clone)]
enum Place {
    /// Inside it, or at an end that may still go on.
    Within(Box<Matcher>),
    /// Behind an end token: only end tokens follow.
    Ended,
    /// Behind what may not stand where it does.
    Broken(ConstraintError),
}

impl State {
    pub(crate) fn new(start: Matcher, tokens: Arc<Tokens>) -> Self {
        Self { place: Place::Within(Box::new(start)), tokens }
    }

    /// Where `token` leads.
    fn behind(&mut self, token: u32) -> Result<Place, ConstraintError> {
        let ends = self.tokens.end.contains(&token);
        match &mut self.place {
            Place::Ended if ends => Ok(Place::Ended),
            Place::Ended => Err(ConstraintError::Refused(token)),
            Place::Broken(why) => Err(why.clone()),
            Place::Within(matcher) if ends => {
                if accepts(matcher)? {
                    Ok(Place::Ended)
                } else {
                    Err(ConstraintError::Refused(token))
                }
            }
            Place::Within(_) if token as usize >= self.tokens.vocabulary => Err(ConstraintError::Refused(token)),
            Place::Within(matcher) => match matcher.try_consume_tokens(&[token]) {
                Ok(1) => Ok(Place::Within(matcher.clone())),
                Ok(_) => Err(ConstraintError::Refused(token)),
                Err(e) => Err(failed(&e)),
            },
        }
    }
}

impl ConstraintState for State {
    fn fork(&self) -> Box<dyn ConstraintState> {
        Box::new(self.clone())
    }

    fn advance(&mut self, token: u32) -> Result<(), ConstraintError> {
        let behind = self.behind(token);
        self.place = behind.clone().unwrap_or_else(Place::Broken);
        behind.map(drop)
    }

    fn mask(&self) -> Result<Vec<bool>, ConstraintError> {
        let mut mask = vec![false; self.tokens.vocabulary];
        let ends = match &self.place {
            Place::Ended => true,
            Place::Broken(why) => return Err(why.clone()),
            Place::Within(matcher) => {
                let mut matcher = matcher.clone();
                let ends = accepts(&mut matcher)?;
                // A parser that has stopped or finds nothing more leaves the end tokens alone.
                if !matcher.is_stopped() {
                    match matcher.compute_mask() {
                        Ok(allowed) => allowed.iter_set_entries(|token| mask[token] = true),
                        Err(_) if matcher.stop_reason() == StopReason::NoExtensionBias => {}
                        Err(e) => return Err(failed(&e)),
                    }
                }
                ends
            }
        };
        self.tokens.end.iter().for_each(|&token| mask[token as usize] = ends);
        Ok(mask)
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = match &self.place {
            Place::Within(_) => "within",
            Place::Ended => "ended",
            Place::Broken(_) => "broken",
        };
        f.debug_tuple("State").field(&place).finish()
    }
}

/// Whether the text so far matches the whole grammar.
fn accepts(matcher: &mut Matcher) -> Result<bool, ConstraintError> {
    match matcher.stop_reason() {
        StopReason::NotStopped => matcher.is_accepting().map_err(|e| failed(&e)),
        StopReason::NoExtension | StopReason::EndOfSentence => Ok(true),
        StopReason::NoExtensionBias => Ok(false),
        other => Err(ConstraintError::Failed(other.to_string())),
    }
}

fn failed(why: &dyn fmt::Display) -> ConstraintError {
    ConstraintError::Failed(readable(&why.to_string()))
}
