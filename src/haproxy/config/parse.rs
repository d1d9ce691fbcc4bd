//! A reader of the configuration language of our own, after the rules of HAProxy's lexer (`parse_line` in
//! its `tools.c`) and not after our writer: what it finds is what HAProxy would do.

/// A section as HAProxy would read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsedSection {
    /// Words of the first line.
    pub head: Vec<String>,
    /// Words of each directive.
    pub directives: Vec<Vec<String>>,
}

/// What HAProxy would refuse, or worse, read otherwise than it looks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// A quote that is not closed on its line.
    #[error("line {0}: unmatched quote")]
    UnmatchedQuote(usize),
    /// A NUL, or a carriage return that silently cuts the line.
    #[error("line {0}: control byte")]
    ControlByte(usize),
    /// `$` and no name in weak quotes.
    #[error("line {0}: bad variable")]
    BadVariable(usize),
    /// More than 64 words.
    #[error("line {0}: too many words")]
    TooManyWords(usize),
    /// An empty word, which ends the arguments.
    #[error("line {0}: empty word")]
    EmptyWord(usize),
    /// A directive before the first section.
    #[error("line {0}: outside of a section")]
    NoSection(usize),
    /// The last line has no line feed.
    #[error("the last line is not ended")]
    NoFinalLineFeed,
}

const SECTIONS: &[&str] = &[
    "global",
    "defaults",
    "frontend",
    "backend",
    "listen",
    "resolvers",
    "peers",
    "userlist",
    "mailers",
    "cache",
    "program",
    "http-errors",
    "ring",
    "log-forward",
    "log-profile",
    "crt-store",
    "fcgi-app",
    "traces",
    "acme",
];

/// Reads `text`. Variables are kept as `${NAME}`.
pub fn parse(text: &str) -> Result<Vec<ParsedSection>, ParseError> {
    if !text.is_empty() && !text.ends_with('\n') {
        return Err(ParseError::NoFinalLineFeed);
    }
    let mut sections: Vec<ParsedSection> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let words = words(line, index + 1)?;
        let Some(first) = words.first() else { continue };
        if SECTIONS.contains(&first.as_str()) {
            sections.push(ParsedSection { head: words, directives: Vec::new() });
        } else {
            sections.last_mut().ok_or(ParseError::NoSection(index + 1))?.directives.push(words);
        }
    }
    Ok(sections)
}

/// The words of one line.
pub fn words(line: &str, number: usize) -> Result<Vec<String>, ParseError> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = line.chars().peekable();
    let (mut strong, mut weak) = (false, false);
    while let Some(c) = chars.next() {
        match c {
            '\0' | '\r' => return Err(ParseError::ControlByte(number)),
            '\'' if !weak => {
                strong = !strong;
                word.get_or_insert_default();
            }
            '"' if !strong => {
                weak = !weak;
                word.get_or_insert_default();
            }
            c if strong => word.get_or_insert_default().push(c),
            '\\' => escape(&mut chars, word.get_or_insert_default(), weak),
            '$' if weak => variable(&mut chars, word.get_or_insert_default()).ok_or(ParseError::BadVariable(number))?,
            '#' if !weak => break,
            ' ' | '\t' if !weak => words.extend(word.take()),
            c => word.get_or_insert_default().push(c),
        }
    }
    if strong || weak {
        return Err(ParseError::UnmatchedQuote(number));
    }
    words.extend(word);
    if words.iter().any(String::is_empty) {
        return Err(ParseError::EmptyWord(number));
    }
    if words.len() > 64 {
        return Err(ParseError::TooManyWords(number));
    }
    Ok(words)
}

type Chars<'a> = std::iter::Peekable<std::str::Chars<'a>>;

fn escape(chars: &mut Chars<'_>, word: &mut String, weak: bool) {
    let plain = match chars.peek() {
        Some('n') => '\n',
        Some('r') => '\r',
        Some('t') => '\t',
        Some('x') => {
            chars.next();
            let mut digits = chars.clone();
            let (high, low) = (digits.next().and_then(|c| c.to_digit(16)), digits.next().and_then(|c| c.to_digit(16)));
            if let (Some(high), Some(low)) = (high, low) {
                *chars = digits;
                word.extend(char::from_u32(high * 16 + low));
            } else {
                word.push_str("\\x");
            }
            return;
        }
        Some('$') if weak => '$',
        Some(c @ ('\\' | ' ' | '#' | '"' | '\'')) => *c,
        _ => {
            word.push('\\');
            return;
        }
    };
    chars.next();
    word.push(plain);
}

fn variable(chars: &mut Chars<'_>, word: &mut String) -> Option<()> {
    let braced = chars.next_if_eq(&'{').is_some();
    let mut name = String::new();
    while let Some(c) = chars.next_if(|c| c.is_ascii_alphanumeric() || *c == '_') {
        name.push(c);
    }
    if name.is_empty() || (braced && chars.next_if_eq(&'}').is_none()) {
        return None;
    }
    word.push_str("${");
    word.push_str(&name);
    word.push('}');
    Some(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::{Expr, Fmt, Line, Section, Word, write};
    use super::*;

    #[test]
    fn words_split_on_blanks_and_quotes_join_them() {
        assert_eq!(words(r#"a 'b c' "d \" e" f\ g h#i"#, 1).unwrap(), ["a", "b c", "d \" e", "f g", "h"]);
    }

    #[test]
    fn a_carriage_return_is_an_error_because_haproxy_cuts_the_line_there() {
        assert_eq!(words("deny if a \r !b", 3), Err(ParseError::ControlByte(3)));
    }

    #[test]
    fn any_text_comes_back_as_one_word() {
        for text in ["it's", "a b", "#x", "${HOME}", "%[src]", "\\", "\"", "'", "''", "a\\'b", "é", "`$(x)`", "{", "}"] {
            let line = Line::of("set").with(Word::text(text).unwrap());
            let mut section = Section::new(Line::of("global"));
            section.push(line);
            let parsed = parse(&write(&[section]).unwrap()).unwrap();
            assert_eq!(parsed[0].directives, [["set", text]]);
        }
    }

    #[test]
    fn control_bytes_and_empty_words_are_refused() {
        assert!(Word::text("a\nb").is_err() && Word::text("a\rb").is_err() && Word::text("a\0").is_err() && Word::text("").is_err());
        assert!(Word::name("a b").is_err() && Word::name("a/b").is_err() && Word::name("é").is_err());
    }

    #[test]
    fn a_percent_sign_in_a_format_is_doubled_and_an_expression_is_not() {
        let expr = Expr::of("be_name").then("map_str", &["maps/x.map"]).unwrap();
        assert_eq!(
            Word::fmt(&[Fmt::Text("100%[src] "), Fmt::Expr(&expr)]).unwrap().as_str(),
            "'100%%[src] %[be_name,map_str(maps/x.map)]'"
        );
    }

    #[test]
    fn a_closing_brace_cannot_end_a_test() {
        let line = Line::of("deny if").test(&Expr::of("path"), "str", "}").unwrap();
        assert_eq!(line.words().last().unwrap().as_str(), "}");
        assert_eq!(line.words().iter().filter(|word| word.as_str().trim_matches('\'') == "}").count(), 1);
    }
}
