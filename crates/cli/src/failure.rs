//! What a command says: its output, or why it failed in one sentence, and an exit status.

use std::error::Error;
use std::fmt::Display;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

/// What a command comes to: an exit status, or a failure to report.
pub type Outcome = Result<ExitCode, Failure>;

/// Why a command failed.
#[derive(Debug, PartialEq, Eq)]
pub enum Failure {
    /// The command line or a text given with it is wrong: exit status 2.
    Usage(String),
    /// Anything else: exit status 1.
    Failed(String),
}

impl Failure {
    /// A failure that says what `error` says.
    pub fn of(error: &dyn Error) -> Self {
        Self::Failed(error.to_string())
    }

    /// A failure of something that was tried, with what the system said about it.
    pub fn because(what: impl Display, error: &std::io::Error) -> Self {
        Self::Failed(format!("{what}: {error}"))
    }

    /// The sentence, without numbers that only programmers read.
    pub fn sentence(&self) -> String {
        let (Self::Usage(sentence) | Self::Failed(sentence)) = self;
        without_error_numbers(sentence)
    }

    /// Says why on standard error, and gives the exit status.
    pub fn report(&self) -> ExitCode {
        eprintln!("forebay: {}", self.sentence());
        ExitCode::from(match self {
            Self::Usage(_) => 2,
            Self::Failed(_) => 1,
        })
    }
}

/// Writes `text` to standard output. A reader that has left is no failure.
///
/// # Errors
/// When the output cannot be written, as on a full disk.
pub fn say(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Failure::because("writing to standard output", &error)),
        _ => Ok(()),
    }
}

/// `text` without each ` (os error N)`, which the standard library appends.
fn without_error_numbers(text: &str) -> String {
    let mut parts = text.split(" (os error ");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        plain.push_str(part.split_once(')').map_or("", |(_, rest)| rest));
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_errors_are_left_out() {
        let failure = Failure::because("opening a", &std::io::Error::from_raw_os_error(2));
        assert_eq!(failure.sentence(), "opening a: No such file or directory");
        assert_eq!(without_error_numbers("a (os error 2): b (os error 13), c"), "a: b, c");
        assert_eq!(without_error_numbers("a (b)"), "a (b)");
    }
}
