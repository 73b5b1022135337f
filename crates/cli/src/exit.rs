//! How a command ends: exit code 0 done, 1 the work failed, 2 the request is wrong; the error is one line on stderr.

use std::process::ExitCode;

use anyhow::Error;

/// Why a command did not do what was asked.
#[derive(Debug)]
pub enum Failure {
    /// Arguments, recipe, or files that do not fit together; found before any work. Exit code 2.
    Request(Error),
    /// The work itself failed. Exit code 1.
    Work(Error),
}

#[cfg_attr(not(feature = "cuda"), allow(dead_code))]
impl Failure {
    /// The same failure, its error told as part of `context`.
    pub fn context(self, context: String) -> Self {
        match self {
            Self::Request(error) => Self::Request(error.context(context)),
            Self::Work(error) => Self::Work(error.context(context)),
        }
    }
}

/// Says whose fault an error is, so that every `?` in a command decides its exit code.
pub trait Blame<T> {
    /// The request is wrong.
    fn request(self) -> Result<T, Failure>;
    /// The work failed.
    fn work(self) -> Result<T, Failure>;
}

impl<T, E: Into<Error>> Blame<T> for Result<T, E> {
    fn request(self) -> Result<T, Failure> {
        self.map_err(|error| Failure::Request(error.into()))
    }

    fn work(self) -> Result<T, Failure> {
        self.map_err(|error| Failure::Work(error.into()))
    }
}

/// Prints the failure, if there is one, and returns the exit code.
pub fn report(result: Result<(), Failure>) -> ExitCode {
    let (code, error) = match result {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Failure::Work(error)) => (1, error),
        Err(Failure::Request(error)) => (2, error),
    };
    eprintln!("error: {}", one_line(&error));
    ExitCode::from(code)
}

/// The error with its causes, on one line; a cause that the text before it already tells is not told again.
fn one_line(error: &Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string).filter(|c| !c.is_empty()) {
        if !text.contains(&cause) {
            text += if text.is_empty() { "" } else { ": " };
            text += &cause;
        }
    }
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn the_chain_of_causes_is_one_line() {
        let cause: Result<(), Error> = Err(anyhow::anyhow!("tensor a.b:\n  expected [2, 3]\n\n  found [3, 2]"));
        let error = cause.context("cannot load model.safetensors").err();
        let line = error.map(|error| one_line(&error));
        let right = "cannot load model.safetensors: tensor a.b:; expected [2, 3]; found [3, 2]";
        assert_eq!(line.as_deref(), Some(right));
    }

    #[test]
    fn a_cause_that_was_told_is_not_told_again() {
        let cause: Result<(), Error> = Err(anyhow::anyhow!("no such file"));
        let error = cause.context("a.jsonl: no such file").context("data.prompts").err();
        assert_eq!(error.map(|e| one_line(&e)).as_deref(), Some("data.prompts: a.jsonl: no such file"));
    }

    #[test]
    fn blame_decides_the_exit_code() {
        let wrong = || "x".parse::<u8>();
        assert!(matches!(wrong().request(), Err(Failure::Request(_))));
        assert!(matches!(wrong().work(), Err(Failure::Work(_))));
        assert_eq!(report(Ok(())), ExitCode::SUCCESS);
        assert_eq!(report(wrong().work().map(drop)), ExitCode::from(1));
        assert_eq!(report(wrong().request().map(drop)), ExitCode::from(2));
    }
}
