//! One conversation: its text and ids, the supervised ones marked.

use super::facts::lines;
use crate::style::Style;
use serde_json::{Value, json};
use spectrain_core::tokenizer::{Tokenizer, TokenizerError};

/// A conversation to show.
pub struct Row {
    /// What is known beside its tokens.
    pub facts: Value,
    /// Token ids.
    pub ids: Vec<u32>,
    /// Whether token `i` is supervised.
    pub loss_mask: Vec<bool>,
    /// The tokenizer, where it was found.
    pub tokenizer: Option<Tokenizer>,
}

impl Row {
    /// The row as JSON, and as text: facts, the marked text, the marked ids.
    pub fn told(self, style: Style) -> Result<(Value, String), TokenizerError> {
        let Self { mut facts, ids, loss_mask, tokenizer } = self;
        facts["tokens"] = ids.len().into();
        facts["supervised"] = loss_mask.iter().filter(|&&supervised| supervised).count().into();
        if tokenizer.is_none() {
            facts["text"] = "not decoded: the target's tokenizer is not found from here".into();
        }
        let mut shown = lines(&facts);
        if let Some(tokenizer) = &tokenizer {
            facts["text"] = tokenizer.decode(&ids, false)?.into();
            shown += &format!("\n{}\n", marked(&ids, &loss_mask, style, |ids| tokenizer.decode(ids, false))?);
        }
        shown += &format!("\n{}\n", marked(&ids, &loss_mask, style, |ids| Ok(spaced(ids)))?);
        facts["ids"] = json!(ids);
        facts["loss_mask"] = json!(loss_mask);
        Ok((facts, shown))
    }
}

fn spaced(ids: &[u32]) -> String {
    ids.iter().map(|id| format!(" {id}")).collect()
}

/// `ids` written by `write`, what is supervised in green, or in brackets where there is no colour.
fn marked(
    ids: &[u32],
    mask: &[bool],
    style: Style,
    write: impl Fn(&[u32]) -> Result<String, TokenizerError>,
) -> Result<String, TokenizerError> {
    let mut text = String::new();
    let mut start = 0;
    for stretch in mask.chunk_by(|a, b| a == b) {
        let piece = write(&ids[start..start + stretch.len()])?;
        text += &match (stretch[0], style.coloured) {
            (false, _) => piece,
            (true, true) => style.green(&piece),
            (true, false) => format!("⟦{piece}⟧"),
        };
        start += stretch.len();
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn told(coloured: bool) -> (Value, String) {
        let loss_mask = vec![false, false, true, true, false, true];
        let row = Row { facts: json!({"row": 3}), ids: vec![5, 6, 7, 8, 9, 10], loss_mask, tokenizer: None };
        row.told(Style { coloured }).unwrap()
    }

    #[test]
    fn supervised_tokens_are_marked() {
        let (facts, text) = told(false);
        assert!(text.ends_with("\n\n 5 6⟦ 7 8⟧ 9⟦ 10⟧\n"), "{text}");
        assert!(told(true).1.ends_with("\n\n 5 6\x1b[32m 7 8\x1b[0m 9\x1b[32m 10\x1b[0m\n"));
        assert_eq!((&facts["tokens"], &facts["supervised"], &facts["ids"][2]), (&json!(6), &json!(3), &json!(7)));
    }
}
