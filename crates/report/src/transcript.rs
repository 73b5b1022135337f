//! A written answer in which one sees what the drafter did.

use crate::markup::Markup;

/// Where a piece of text came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The prompt.
    Prompt,
    /// Drafted and accepted.
    Drafted,
    /// Written by the target itself.
    Target,
}

/// One answer with its prompt, piece by piece.
#[derive(Debug, Clone)]
pub struct Transcript {
    /// Its task.
    pub task: String,
    /// Texts in order; commonly one a token.
    pub pieces: Vec<(String, Origin)>,
}

impl Origin {
    /// The class of the style sheet.
    fn class(self) -> &'static str {
        match self {
            Self::Prompt => "prompt",
            Self::Drafted => "drafted",
            Self::Target => "written",
        }
    }
}

/// What the colours mean.
pub fn key(m: &mut Markup) {
    m.element("p", &[], |m| {
        m.leaf("span", &[("class", &Origin::Drafted.class())], "Underlined");
        m.text(" text was drafted and accepted, ");
        m.leaf("span", &[("class", &Origin::Target.class())], "plain");
        m.text(" text was written by the target itself, ");
        m.leaf("span", &[("class", &Origin::Prompt.class())], "grey");
        m.text(" text is the prompt.");
    });
}

/// One transcript. Neighbours of one origin become one element, which keeps long texts small.
pub fn write(m: &mut Markup, transcript: &Transcript) {
    m.leaf("h3", &[], &transcript.task);
    m.element("p", &[("class", &"transcript")], |m| {
        for run in transcript.pieces.chunk_by(|a, b| a.1 == b.1) {
            let text: String = run.iter().map(|(text, _)| text.as_str()).collect();
            m.leaf("span", &[("class", &run[0].1.class())], &text);
        }
    });
}
