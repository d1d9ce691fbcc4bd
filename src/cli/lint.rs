//! `lint`: findings, and an exit status for CI.

use super::arguments::{FailOn, Format, LintArguments};
use super::evaluate::evaluate;
use super::report::{Style, findings};
use super::{Error, Exit, Output};
use crate::report::{Located, Severity};
use crate::status::json::Diagnostic;

pub(super) fn run(arguments: &LintArguments, out: &mut Output) -> Result<Exit, Error> {
    let evaluation = evaluate(&arguments.input.files, arguments.haproxy.version)?;
    show(&evaluation.diagnostics, arguments.output, out)?;
    Ok(exit(&evaluation.diagnostics, arguments.fail_on))
}

fn show(diagnostics: &[Located], format: Format, out: &mut Output) -> Result<(), Error> {
    match format {
        Format::Json => out.json(&diagnostics.iter().map(Diagnostic::from).collect::<Vec<_>>()),
        Format::Text => {
            let style = Style { colours: out.has_colours() };
            out.write(findings(diagnostics, style))
        }
    }
}

/// Severities are ordered from the worst.
fn exit(diagnostics: &[Located], fail_on: FailOn) -> Exit {
    let least = match fail_on {
        FailOn::Error => Severity::Error,
        FailOn::Warning => Severity::Warning,
    };
    if diagnostics.iter().any(|located| located.diagnostic.severity <= least) { Exit::Findings } else { Exit::Success }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{self, Kind, ObjectRef, codes};

    #[test]
    fn the_exit_status_follows_the_worst_finding_and_the_threshold() {
        let object = ObjectRef::new(Kind::Service, "a", "b");
        let warning = [Located::from(report::Diagnostic::warning(&object, "", codes::UNSUPPORTED, "", ""))];
        let error = [Located::from(report::Diagnostic::error(&object, "", codes::UNSUPPORTED, "", ""))];
        let info = [Located::from(report::Diagnostic::info(&object, "", codes::UNSUPPORTED, "", ""))];
        assert_eq!(exit(&warning, FailOn::Error), Exit::Success);
        assert_eq!(exit(&warning, FailOn::Warning), Exit::Findings);
        assert_eq!(exit(&error, FailOn::Error), Exit::Findings);
        assert_eq!(exit(&info, FailOn::Warning), Exit::Success);
    }
}
