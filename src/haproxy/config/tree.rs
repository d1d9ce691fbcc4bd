//! Tokens of the configuration. A [`Word`] can only be made by a constructor that says what it holds, and
//! keeps the text in the form in which it is written.

use crate::model::LogPart;
use std::fmt::Write as _;

/// Why a text cannot stand in the configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Bytes below 0x20 or 0x7f: a line feed ends a line even in quotes, a carriage return cuts it off.
    #[error("holds a control byte")]
    ControlByte,
    /// An empty word ends the list of arguments.
    #[error("is empty")]
    Empty,
    /// Something else than letters, digits and `_.:-`.
    #[error("holds something else than letters, digits, dots, colons, dashes and underscores")]
    Name,
    /// HAProxy reads at most 64 words a line.
    #[error("has more than 64 words")]
    TooManyWords,
}

/// One word of a line, as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word(Box<str>);

/// Whether `text` needs no quotes.
fn plain(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.:/-".contains(&b))
}

fn check(text: &str) -> Result<(), Refused> {
    if text.is_empty() {
        return Err(Refused::Empty);
    }
    if text.bytes().any(|b| b < 0x20 || b == 0x7f) {
        return Err(Refused::ControlByte);
    }
    Ok(())
}

/// `text` in strong quotes, in which nothing is special; a quote itself stands between two such strings.
fn quoted(text: &str) -> Box<str> {
    if plain(text) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len() + 2);
    out.push('\'');
    for c in text.chars() {
        if c == '\'' {
            out.push_str("'\\''");
        } else {
            out.push(c);
        }
    }
    out.push('\'');
    out.into()
}

/// Text of ours, without quotes unless the lexer would see something special in it.
fn ours(text: &str) -> Box<str> {
    if text.bytes().all(|b| b.is_ascii_graphic() && !b"'\"#$\\".contains(&b)) { text.into() } else { quoted(text) }
}

impl Word {
    /// Any text, taken literally.
    pub fn text(text: &str) -> Result<Self, Refused> {
        check(text)?;
        Ok(Self(quoted(text)))
    }

    /// A word of our own.
    pub fn of(text: &'static str) -> Self {
        debug_assert!(check(text).is_ok());
        Self(ours(text))
    }

    /// A number.
    pub fn number(number: impl Into<i64>) -> Self {
        Self(number.into().to_string().into())
    }

    /// A duration in milliseconds, with its unit: without one HAProxy warns of every small number.
    pub fn millis(millis: u32) -> Self {
        Self(format!("{millis}ms").into())
    }

    /// A duration in seconds, with its unit.
    pub fn seconds(seconds: u32) -> Self {
        Self(format!("{seconds}s").into())
    }

    /// The name of a section, a server or the like.
    pub fn name(name: &str) -> Result<Self, Refused> {
        check(name)?;
        if !name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.:-".contains(&b)) {
            return Err(Refused::Name);
        }
        Ok(Self(name.into()))
    }

    /// A sample expression.
    pub fn expr(expr: &Expr) -> Self {
        Self(ours(&expr.0))
    }

    /// A log-format string made of literal text and expressions.
    pub fn fmt(parts: &[Fmt<'_>]) -> Result<Self, Refused> {
        let mut out = String::new();
        for part in parts {
            match part {
                Fmt::Text(text) => {
                    if !text.is_empty() {
                        check(text)?;
                    }
                    out.push_str(&text.replace('%', "%%"));
                }
                Fmt::Expr(expr) => {
                    // Infallible for a String.
                    let _ = write!(out, "%[{}]", expr.0);
                }
            }
        }
        check(&out)?;
        Ok(Self(quoted(&out)))
    }

    /// A log format: literal text, and variables with flags, all of them of our own.
    pub fn log_format(parts: &[LogPart]) -> Result<Self, Refused> {
        let mut out = String::new();
        for part in parts {
            match part {
                LogPart::Text(text) => out.push_str(&text.replace('%', "%%")),
                LogPart::Variable { flags, name } => {
                    let flag = |(on, letter): &(bool, char)| format!("{}{letter}", if *on { '+' } else { '-' });
                    let flags = flags.iter().map(flag).collect::<Vec<_>>().join(",");
                    out.push('%');
                    if !flags.is_empty() {
                        // Infallible for a String.
                        let _ = write!(out, "{{{flags}}}");
                    }
                    out.push_str(name);
                }
            }
        }
        check(&out)?;
        Ok(Self(quoted(&out)))
    }

    /// A log-format string that is one expression.
    pub fn value(expr: &Expr) -> Self {
        Self(ours(&format!("%[{}]", expr.0)))
    }

    /// `PREFIX${VARIABLE}SUFFIX` with the variable filled in by HAProxy. All three are names (the prefix may
    /// end in `@`), so that nothing else is special in the weak quotes.
    pub fn env(prefix: &'static str, variable: &str, suffix: &str) -> Result<Self, Refused> {
        Self::name(variable)?;
        if !suffix.is_empty() {
            Self::name(suffix)?;
        }
        Ok(Self(format!("\"{prefix}${{{variable}}}{suffix}\"").into()))
    }

    /// As it is written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A part of a log-format string.
#[derive(Clone, Copy, Debug)]
pub enum Fmt<'a> {
    /// Literal text.
    Text(&'a str),
    /// An expression. Arguments in it must be our own: a bracket in one would end it.
    Expr(&'a Expr),
}

/// A sample expression: a fetch and converters, with arguments that are quoted as often as needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expr(Box<str>);

impl Expr {
    /// A fetch or chain of our own that needs no quoting inside, such as `req.hdr(host),host_only`.
    pub fn of(text: &'static str) -> Self {
        Self(text.into())
    }

    /// A fetch with one argument.
    pub fn fetch(name: &'static str, argument: &str) -> Result<Self, Refused> {
        Ok(Self(format!("{name}({})", Self::argument(argument)?).into()))
    }

    /// The same, then a converter with its arguments.
    pub fn then(&self, converter: &'static str, arguments: &[&str]) -> Result<Self, Refused> {
        if arguments.is_empty() {
            return Ok(Self(format!("{},{converter}", self.0).into()));
        }
        let arguments = arguments.iter().map(|text| Self::argument(text)).collect::<Result<Vec<_>, _>>()?;
        Ok(Self(format!("{},{converter}({})", self.0, arguments.join(",")).into()))
    }

    /// Arguments are read a second time, after the words of the line: these are the quotes for that.
    fn argument(text: &str) -> Result<String, Refused> {
        if text.is_empty() {
            return Ok(String::new());
        }
        check(text)?;
        if plain(text) {
            return Ok(text.to_owned());
        }
        Ok(format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"")))
    }
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line(Vec<Word>);

impl Line {
    /// A line of these words of our own, separated by blanks.
    pub fn of(words: &'static str) -> Self {
        Self(words.split(' ').map(Word::of).collect())
    }

    /// The line with one more word.
    #[must_use]
    pub fn with(mut self, word: Word) -> Self {
        self.0.push(word);
        self
    }

    /// The line with more words of our own.
    #[must_use]
    pub fn and(mut self, words: &'static str) -> Self {
        self.0.extend(words.split(' ').map(Word::of));
        self
    }

    /// Its words.
    pub fn words(&self) -> &[Word] {
        &self.0
    }

    /// `{ EXPR -m METHOD -- PATTERN }`: a test of `expr` against a text of somebody else's.
    pub fn test(self, expr: &Expr, method: &'static str, pattern: &str) -> Result<Self, Refused> {
        // A closing brace as a word ends the test, quotes or not.
        let (method, pattern) = match (method, pattern) {
            ("str", "}") => ("reg", "^[}]$"),
            ("reg", "}") => ("reg", "[}]"),
            other => other,
        };
        let line = self.with(Word::of("{")).with(Word::expr(expr)).and("-m").with(Word::of(method));
        Ok(line.and("--").with(Word::text(pattern)?).and("}"))
    }
}

/// A section: its head and its lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// The first line, such as `backend NAME from SHAPE`.
    pub head: Line,
    /// What stands below.
    pub lines: Vec<Line>,
}

impl Section {
    /// A section without lines.
    pub fn new(head: Line) -> Self {
        Self { head, lines: Vec::new() }
    }

    /// Adds a line of words of our own.
    pub fn add(&mut self, words: &'static str) -> &mut Self {
        self.lines.push(Line::of(words));
        self
    }

    /// Adds a line.
    pub fn push(&mut self, line: Line) -> &mut Self {
        self.lines.push(line);
        self
    }
}
