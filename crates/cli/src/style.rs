//! Colours on a terminal, and only there; `NO_COLOR` (not empty) switches them off.

use std::io::IsTerminal;

/// Whether to colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    /// It is a terminal that may be coloured.
    pub coloured: bool,
}

impl Style {
    /// For what is written to `stream`.
    pub fn of(stream: &impl IsTerminal) -> Self {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self { coloured: stream.is_terminal() && !refused }
    }

    /// Green text.
    pub fn green(self, text: &str) -> String {
        self.wrap("32", text)
    }

    /// Text that stands back.
    pub fn dim(self, text: &str) -> String {
        self.wrap("2", text)
    }

    fn wrap(self, code: &str, text: &str) -> String {
        if self.coloured && !text.is_empty() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colour_is_a_closed_span_or_nothing() {
        let on = Style { coloured: true };
        assert_eq!((on.green("a"), on.dim("b")), ("\x1b[32ma\x1b[0m".into(), "\x1b[2mb\x1b[0m".into()));
        assert_eq!((on.green(""), Style { coloured: false }.green("a")), (String::new(), "a".into()));
    }
}
