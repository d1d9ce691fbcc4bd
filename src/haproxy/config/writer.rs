//! The only place where configuration text is put together.

use super::{Line, Refused, Section};

/// HAProxy's `MAX_LINE_ARGS`.
const MAX_WORDS: usize = 64;

/// The text of `sections`, each line ended by a line feed.
pub fn write(sections: &[Section]) -> Result<String, Refused> {
    let mut out = String::new();
    for section in sections {
        line(&mut out, "", &section.head)?;
        for one in &section.lines {
            line(&mut out, "    ", one)?;
        }
    }
    Ok(out)
}

fn line(out: &mut String, indent: &str, line: &Line) -> Result<(), Refused> {
    if line.words().len() > MAX_WORDS {
        return Err(Refused::TooManyWords);
    }
    out.push_str(indent);
    for (i, word) in line.words().iter().enumerate() {
        if i > 0 {
            out.push(' ');
        }
        out.push_str(word.as_str());
    }
    out.push('\n');
    Ok(())
}
