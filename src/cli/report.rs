//! Findings and changes as text: for a terminal, and plain.

use crate::report::{Kind, Located, Location, Severity, counted, severities};
use crate::status::json::{Change, Class};
use std::fmt::Write;

/// Whether to colour what is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    /// Use ANSI colours.
    pub colours: bool,
}

impl Style {
    /// No colours.
    pub const PLAIN: Self = Self { colours: false };

    pub(super) fn paint(self, code: &str, text: &str) -> String {
        if self.colours { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    pub(super) fn severity(self, severity: Severity, text: &str) -> String {
        let code = match severity {
            Severity::Error => "1;31",
            Severity::Warning => "1;33",
            Severity::Info => "1;36",
        };
        self.paint(code, text)
    }

    pub(super) fn frame(self, text: &str) -> String {
        self.paint("1;34", text)
    }

    pub(super) fn strong(self, text: &str) -> String {
        self.paint("1", text)
    }
}

/// Longest part of a source line that is shown.
const WINDOW: usize = 120;

/// `text` without what a terminal would act on: it may come from anybody who can write a manifest.
pub fn printable(text: &str, line_feeds: bool) -> String {
    let mut clean = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' if line_feeds => clean.push('\n'),
            '\t' => clean.push(' '),
            // control characters, and those that turn the direction of what follows
            character if character.is_control() || matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}') => {
                clean.extend(character.escape_unicode());
            }
            character => clean.push(character),
        }
    }
    clean
}

/// One finding:
///
/// ```text
/// error[NotFound]: Service shop/cart does not exist
///   --> examples/shop.yaml:12:19
///    |
/// 12 |             name: cart
///    |                   ^^^^
///    = object: Ingress shop/web, spec.rules[0].http.paths[0].backend.service.name
///    = help: create it, or name another one
/// ```
pub fn finding(located: &Located, style: Style) -> String {
    let Located { diagnostic, location } = located;
    let title = format!("{}[{}]", diagnostic.severity.as_str(), diagnostic.code.as_str());
    let message = printable(&diagnostic.message, false);
    let mut text = format!("{}{}\n", style.severity(diagnostic.severity, &title), style.strong(&format!(": {message}")));
    let mut object = printable(&diagnostic.object.to_string(), false);
    if !diagnostic.field.is_empty() {
        object.push_str(", ");
        object.push_str(&printable(&diagnostic.field, false));
    }
    // writing to a string cannot fail
    let mut line = |content: std::fmt::Arguments<'_>| {
        let _ = text.write_fmt(content);
    };
    let mut margin = 1;
    match location {
        Some(location) => {
            let number = location.line.to_string();
            margin = number.len();
            let file = printable(&location.file, false);
            line(format_args!("{:margin$}{} {file}:{number}:{}\n", "", style.frame("-->"), location.column));
            if !is_secret(located) {
                let (shown, before, width) = excerpt(location);
                let bar = style.frame("|");
                line(format_args!("{:margin$} {bar}\n{} {bar} {shown}\n", "", style.frame(&number)));
                let caret = style.severity(diagnostic.severity, &"^".repeat(width));
                line(format_args!("{:margin$} {bar} {:before$}{caret}\n", "", ""));
            }
            line(format_args!("{:margin$} {} object: {object}\n", "", style.frame("=")));
        }
        None => line(format_args!("{:margin$}{} {object}\n", "", style.frame("-->"))),
    }
    if !diagnostic.help.is_empty() {
        line(format_args!("{:margin$} {} help: {}\n", "", style.frame("="), printable(&diagnostic.help, false)));
    }
    text
}

/// The source line may be a key.
fn is_secret(located: &Located) -> bool {
    located.diagnostic.object.kind == Kind::Secret
}

/// The part of the source line around the place that is meant, how many characters stand before the place in it,
/// and how many characters are meant.
fn excerpt(location: &Location) -> (String, usize, usize) {
    let characters: Vec<char> = location.text.trim_end().chars().collect();
    let column = usize::try_from(location.column.saturating_sub(1)).unwrap_or_default().min(characters.len());
    let width = location.width.clamp(1, WINDOW / 2).min((characters.len() - column).max(1));
    let from = if column + width > WINDOW { column - WINDOW / 4 } else { 0 };
    let to = (from + WINDOW).min(characters.len());
    let mut shown = String::new();
    let mut before = 0;
    if from > 0 {
        shown.push('…');
        before += 1;
    }
    for (index, character) in characters[from..to].iter().enumerate() {
        // one character for one, so that the caret stays where it belongs
        let visible = if character.is_control() || *character == '\t' { ' ' } else { *character };
        shown.push(if printable(&visible.to_string(), false).chars().count() == 1 { visible } else { ' ' });
        before += usize::from(from + index < column);
    }
    if to < characters.len() {
        shown.push('…');
    }
    (shown.trim_end().to_owned(), before, width)
}

/// All findings, with an empty line between them, and a sum.
pub fn findings(all: &[Located], style: Style) -> String {
    let mut text = String::new();
    for located in all {
        text.push_str(&finding(located, style));
        text.push('\n');
    }
    text.push_str(&sum(all));
    text.push('\n');
    text
}

/// How many findings of which severity there are.
pub fn sum(all: &[Located]) -> String {
    let sum = severities(|severity| all.iter().filter(|located| located.diagnostic.severity == severity).count());
    if sum.is_empty() { "no findings".into() } else { sum }
}

/// Changes, one after the other, and a sum:
///
/// ```text
/// live      edge/public: servers shop_cart_80
///           from EndpointSlice shop/cart-1: servers are added and drained in the running worker
/// ```
pub fn changes(all: &[Change], style: Style) -> String {
    let mut text = String::new();
    for change in all {
        let class = style.paint(
            match change.class {
                Class::Live => "32",
                Class::Deferred => "36",
                Class::Reload => "1;33",
            },
            &format!("{:<9}", change.class.as_str()),
        );
        let from = match &change.object {
            Some(object) if object.namespace.is_empty() => format!("from {} {}: ", object.kind, object.name),
            Some(object) => format!("from {} {}/{}: ", object.kind, object.namespace, object.name),
            None => String::new(),
        };
        let (key, from, reason) = (printable(&change.key, false), printable(&from, false), printable(&change.reason, false));
        // writing to a string cannot fail
        let _ = writeln!(text, "{class} {}\n          {from}{reason}", style.strong(&key));
    }
    let count = |class| all.iter().filter(|change| change.class == class).count();
    let parts: Vec<String> = [Class::Live, Class::Deferred, Class::Reload]
        .into_iter()
        .filter(|class| count(*class) > 0)
        .map(|class| counted(count(class), class.as_str(), class.as_str()))
        .collect();
    let sum =
        if all.is_empty() { "no changes".to_owned() } else { format!("{}: {}", counted(all.len(), "change", "changes"), parts.join(", ")) };
    text.push_str(&sum);
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Diagnostic, ObjectRef, codes};

    fn located(kind: Kind, text: &str, column: u32, width: usize) -> Located {
        let object = ObjectRef::new(kind, "shop", "web");
        let diagnostic = Diagnostic::error(&object, "spec.rules[0]", codes::NOT_FOUND, "Service shop/cart does not exist", "create it");
        let location = Location { file: "a/shop.yaml".into(), line: 12, column, text: text.into(), width };
        Located { diagnostic, location: Some(location) }
    }

    #[test]
    fn a_finding_points_at_its_place_in_the_source() {
        assert_eq!(
            finding(&located(Kind::Ingress, "\tname: cart", 8, 4), Style::PLAIN),
            "\
error[NotFound]: Service shop/cart does not exist
  --> a/shop.yaml:12:8
   |
12 |  name: cart
   |        ^^^^
   = object: Ingress shop/web, spec.rules[0]
   = help: create it
"
        );
    }

    #[test]
    fn a_finding_without_a_file_names_its_object() {
        let without = Located { location: None, ..located(Kind::Ingress, "", 1, 1) };
        let text = finding(&without, Style::PLAIN);
        assert!(text.contains("\n --> Ingress shop/web, spec.rules[0]\n"), "{text}");
    }

    #[test]
    fn the_source_line_of_a_secret_is_never_shown() {
        let text = finding(&located(Kind::Secret, "  tls.key: LS0tLS1CRUdJ", 3, 7), Style::PLAIN);
        assert!(!text.contains("LS0t") && text.contains("a/shop.yaml:12:3"), "{text}");
    }

    #[test]
    fn nothing_from_a_manifest_reaches_the_terminal_as_a_command() {
        let mut hostile = located(Kind::Ingress, "name: \x1b[2J\u{202e}x", 1, 4);
        hostile.diagnostic.message = "bad \x1b]0;owned\x07\nname".into();
        hostile.diagnostic.field = "a\u{9b}b".into();
        let text = finding(&hostile, Style::PLAIN);
        assert!(text.chars().all(|character| character == '\n' || (!character.is_control() && character != '\u{202e}')), "{text:?}");
        assert!(text.contains("bad \\u{1b}]0;owned\\u{7}\\u{a}name"), "{text}");
    }

    #[test]
    fn a_very_long_line_is_cut_around_the_place() {
        let line = format!("{}needle{}", "x".repeat(5000), "y".repeat(5000));
        let text = finding(&located(Kind::Ingress, &line, 5001, 6), Style::PLAIN);
        let lines: Vec<&str> = text.lines().collect();
        let (shown, caret) = (lines[3], lines[4]);
        assert!(shown.chars().count() < 140, "{shown}");
        let at = caret.find('^').unwrap_or_default();
        assert_eq!(shown.chars().skip(at).take(6).collect::<String>(), "needle", "{text}");
    }

    #[test]
    fn colours_stand_around_the_very_same_text() {
        let example = located(Kind::Ingress, "name: cart", 7, 4);
        let mut coloured = finding(&example, Style { colours: true });
        assert!(coloured.starts_with("\x1b[1;31merror[NotFound]\x1b[0m"), "{coloured:?}");
        for code in ["\x1b[1;31m", "\x1b[1;34m", "\x1b[1m", "\x1b[0m"] {
            coloured = coloured.replace(code, "");
        }
        assert_eq!(coloured, finding(&example, Style::PLAIN));
    }

    #[test]
    fn findings_are_summed_up() {
        assert_eq!(sum(&[]), "no findings");
        let one = located(Kind::Ingress, "", 1, 1);
        let mut warning = one.clone();
        warning.diagnostic.severity = Severity::Warning;
        assert_eq!(sum(&[one.clone(), warning, one]), "2 errors, 1 warning");
    }

    #[test]
    fn changes_say_how_and_why() {
        let object = (&ObjectRef::new(Kind::EndpointSlice, "shop", "cart-1")).into();
        let change = |key: &str, class, object| Change { key: key.into(), object, class, reason: "because".into() };
        let all = [change("edge/public: servers a", Class::Live, Some(object)), change("edge/public: section b", Class::Reload, None)];
        assert_eq!(
            changes(&all, Style::PLAIN),
            "\
live      edge/public: servers a
          from EndpointSlice shop/cart-1: because
reload    edge/public: section b
          because
2 changes: 1 live, 1 reload
"
        );
        assert_eq!(changes(&[], Style::PLAIN), "no changes\n");
    }
}
