//! `diff`: what a change of manifests would do to running HAProxies.

use super::arguments::{DiffArguments, Format};
use super::evaluate::{Comparison, check, compare};
use super::report::{Style, changes, finding};
use super::{Error, Exit, Output};
use crate::status::json::{Diagnostic, Diff};

pub(super) fn run(arguments: &DiffArguments, out: &mut Output) -> Result<Exit, Error> {
    // before the first is read, which may take long
    check(&[arguments.before.clone(), arguments.after.clone()])?;
    let comparison = compare(&arguments.before, &arguments.after, arguments.haproxy.version)?;
    let exit = if comparison.changes.is_empty() { Exit::Success } else { Exit::Findings };
    show(comparison, arguments.output, out)?;
    Ok(exit)
}

fn show(comparison: Comparison, format: Format, out: &mut Output) -> Result<(), Error> {
    match format {
        Format::Json => {
            let diagnostics = comparison.diagnostics.iter().map(Diagnostic::from).collect();
            out.json(&Diff { changes: comparison.changes, diagnostics })
        }
        Format::Text => {
            let style = Style { colours: out.has_colours() };
            for located in &comparison.diagnostics {
                out.line(&finding(located, style))?;
            }
            out.write(changes(&comparison.changes, style))
        }
    }
}
