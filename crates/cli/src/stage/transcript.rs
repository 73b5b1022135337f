//! One measured answer, piece by piece, for the report.

use super::setup::Setup;
use crate::exit::{Blame, Failure};
use spectrain_core::detokenizer::TextStream;
use spectrain_core::tokenizer::TokenizerError;
use spectrain_report::{Origin, Transcript};
use spectrain_verify::Measurement;
use spectrain_verify::evaluate::Question;

/// The longest answer among the first few of `measured`; none where nothing was answered.
pub fn transcript(
    setup: &Setup,
    questions: &[Question],
    measured: &Measurement,
) -> Result<Option<Transcript>, Failure> {
    const LOOKED_AT: usize = 8;
    let pairs = questions.iter().zip(&measured.transcripts).take(LOOKED_AT);
    let Some((question, answer)) = pairs.max_by_key(|(_, answer)| answer.ids.len()) else {
        return Ok(None);
    };
    let mut pieces = vec![(setup.tokenizer.decode(&question.prompt, true).work()? + "\n", Origin::Prompt)];
    let mut stream = TextStream::new(&setup.tokenizer, true);
    // The prompt's call writes one token of the target's own.
    let mut origins = vec![Origin::Target];
    for round in answer.rounds() {
        origins.extend(vec![Origin::Drafted; round.accepted]);
        origins.extend(vec![Origin::Target; round.committed - round.accepted]);
    }
    let told = answer.ids.iter().zip(&origins).map(|(&id, &origin)| Ok((stream.push(id)?, origin)));
    pieces.extend(told.collect::<Result<Vec<_>, TokenizerError>>().work()?);
    pieces.push((stream.finish().work()?, Origin::Target));
    let e = &measured.evaluation;
    let task = format!("{}, T = {}, K = {}, {}", question.task, e.temperature, e.length, e.rule);
    Ok(Some(Transcript { task, pieces }))
}
