//! Processors that read the text so far: penalties, minimum length, bad words.
//!
//! The text of a tree node is prompt, committed answer and the drafted tokens of its own branch. Engines that penalise
//! by the committed text alone give drafted positions another distribution than plain decoding has there.

use super::{Context, ProcessError, Processors};
use std::collections::HashMap;

/// Repetition, then frequency and presence penalties.
///
/// Repetition counts prompt and answer; frequency and presence count the answer only. Path tokens are answer tokens.
pub(super) fn penalise(settings: &Processors, row: &mut [f64], context: &Context<'_>) -> Result<(), ProcessError> {
    let counting = settings.frequency_penalty != 0.0 || settings.presence_penalty != 0.0;
    if settings.repetition_penalty == 1.0 && !counting {
        return Ok(());
    }
    let mut counts: HashMap<u32, usize> = HashMap::new();
    context.prompt.iter().for_each(|&token| {
        counts.entry(token).or_insert(0);
    });
    context.answer.iter().chain(context.path).for_each(|&token| *counts.entry(token).or_insert(0) += 1);
    for (token, count) in counts {
        let logit = entry(row, token, "history token")?;
        // Infinity would survive a division, but not its product with a penalty below one.
        if *logit == f64::NEG_INFINITY {
            continue;
        }
        let factor = settings.repetition_penalty;
        *logit = if *logit > 0.0 { *logit / factor } else { *logit * factor };
        *logit -= settings.frequency_penalty * count as f64;
        if count > 0 {
            *logit -= settings.presence_penalty;
        }
    }
    Ok(())
}

/// Bars end tokens before the minimum length and the last token of every bad word whose beginning was just written.
pub(super) fn bar(settings: &Processors, row: &mut [f64], context: &Context<'_>) -> Result<(), ProcessError> {
    if context.answer.len() + context.path.len() < settings.min_length {
        for &token in context.end_tokens {
            *entry(row, token, "end token")? = f64::NEG_INFINITY;
        }
    }
    for word in &settings.bad_words {
        let (&last, start) = word.split_last().ok_or(ProcessError::EmptyBadWord)?;
        if ends_with(context, start) {
            *entry(row, last, "bad word token")? = f64::NEG_INFINITY;
        }
    }
    Ok(())
}

/// Whether the text so far ends with `start`.
fn ends_with(context: &Context<'_>, start: &[u32]) -> bool {
    let newest_first = [context.path, context.answer, context.prompt].into_iter().flat_map(|part| part.iter().rev());
    let length = context.prompt.len() + context.answer.len() + context.path.len();
    start.len() <= length && start.iter().rev().eq(newest_first.take(start.len()))
}

/// The entry of a token.
fn entry<'a>(row: &'a mut [f64], token: u32, what: &'static str) -> Result<&'a mut f64, ProcessError> {
    let vocabulary = row.len();
    row.get_mut(token as usize).ok_or(ProcessError::Vocabulary { what, value: token as usize, vocabulary })
}
