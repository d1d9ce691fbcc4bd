//! The one way to standard output: `println!` panics when its reader goes away.

use super::Error;
use std::io::{self, IsTerminal, Write};

/// Standard output or error. When the reader goes away (`| head`), the rest is dropped and the command goes on:
/// its exit status stays what it is.
pub struct Output {
    inner: Option<Box<dyn Write + Send>>,
    terminal: bool,
}

impl Output {
    /// Standard output.
    pub fn stdout() -> Self {
        Self::new(io::stdout(), io::stdout().is_terminal())
    }

    /// Standard error.
    pub fn stderr() -> Self {
        Self::new(io::stderr(), io::stderr().is_terminal())
    }

    /// Any writer.
    pub fn new(inner: impl Write + Send + 'static, terminal: bool) -> Self {
        Self { inner: Some(Box::new(inner)), terminal }
    }

    /// Whether a person looks at it.
    pub fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// Whether to use colours: on a terminal that has them, unless `NO_COLOR` is set.
    pub fn has_colours(&self) -> bool {
        self.can_redraw() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
    }

    /// Whether what was written may be written over: on a terminal that can.
    pub fn can_redraw(&self) -> bool {
        self.terminal && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
    }

    /// Writes `bytes` and flushes.
    pub fn write(&mut self, bytes: impl AsRef<[u8]>) -> Result<(), Error> {
        let Some(inner) = &mut self.inner else { return Ok(()) };
        match inner.write_all(bytes.as_ref()).and_then(|()| inner.flush()) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.inner = None;
                Ok(())
            }
            Err(error) => Err(Error::new(format_args!("cannot write the output: {error}"), "")),
        }
    }

    /// Writes `text` and a line feed.
    pub fn line(&mut self, text: &str) -> Result<(), Error> {
        self.write(format!("{text}\n"))
    }

    /// Writes `value` as indented JSON and a line feed.
    pub fn json(&mut self, value: &impl serde::Serialize) -> Result<(), Error> {
        let text = serde_json::to_string_pretty(value).map_err(|error| Error::new(format_args!("cannot write JSON: {error}"), ""))?;
        self.line(&text)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    struct Failing(io::ErrorKind);

    impl Write for Failing {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_went_away_is_no_error_and_a_full_disk_is_one() {
        let mut gone = Output::new(Failing(io::ErrorKind::BrokenPipe), false);
        gone.line("a").unwrap();
        gone.line("b").unwrap();
        assert!(Output::new(Failing(io::ErrorKind::StorageFull), false).line("a").is_err());
    }
}
