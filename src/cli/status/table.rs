//! The state of fleets for people. Pure.

use crate::cli::report::{Style, printable};
use crate::report::{Severity, severities};
use crate::status::json::{Diagnostic, Fleet, Object, Replica, Status};
use std::fmt::Write;

/// All fleets, one after the other:
///
/// ```text
/// infra/edge  class public  AsAsked  2/2 pods, 2 confirmed  revision 3  generation 42  192.0.2.1
///   the fleet serves as asked
///   POD     ZONE  SERVES  GENERATION  CONFIRMED  RELOADS  HAPROXY
///   edge-0  a     yes     42          yes        1        3.4.7
/// ```
pub(super) fn page(status: &Status, style: Style) -> String {
    let mut text = String::new();
    if status.operator.as_ref().is_some_and(|operator| !operator.leads) {
        text.push_str("No replica of the operator leads: this is what one of them sees that stands by.\n\n");
    }
    for fleet in &status.fleets {
        self::fleet(&mut text, fleet, style);
        text.push('\n');
    }
    let shown = |diagnostic: &&Diagnostic| status.fleets.iter().any(|fleet| fleet.worst.contains(diagnostic));
    let others = status.diagnostics.iter().filter(|diagnostic| !shown(diagnostic)).collect::<Vec<_>>();
    let sum = sum(&others);
    if !sum.is_empty() {
        // writing to a string cannot fail
        let _ = writeln!(text, "not shown: {sum}; -o json has all of them");
    }
    text
}

fn fleet(text: &mut String, fleet: &Fleet, style: Style) {
    let code = match fleet.ready {
        Some(true) => "1;32",
        Some(false) => "1;31",
        None => "1;33",
    };
    let state = fleet.state.as_deref().unwrap_or("Unknown");
    let serving = fleet.replicas.iter().filter(|replica| replica.ready).count();
    let confirmed = fleet.replicas.iter().filter(|replica| replica.ready && replica.confirmed).count();
    let wanted = fleet.desired.unwrap_or(fleet.replicas.len() as u64);
    let mut parts = vec![style.strong(&clean(format!("{}/{}", fleet.namespace, fleet.name)))];
    if !fleet.class.is_empty() {
        parts.push(clean(format!("class {}", fleet.class)));
    }
    parts.push(style.paint(code, &clean(state)));
    parts.push(format!("{serving}/{wanted} pods, {confirmed} confirmed"));
    if fleet.revision > 0 {
        parts.push(format!("revision {}", fleet.revision));
    }
    if fleet.generation > 0 {
        parts.push(format!("generation {}", fleet.generation));
    }
    parts.extend(fleet.addresses.iter().map(clean));
    text.push_str(&parts.join("  "));
    text.push('\n');
    if let Some(message) = &fleet.message {
        // writing to a string cannot fail
        let _ = writeln!(text, "  {}", clean(message));
    }
    replicas(text, &fleet.replicas);
    for diagnostic in &fleet.worst {
        finding(text, diagnostic, style);
    }
}

/// A line for each pod, in columns.
fn replicas(text: &mut String, replicas: &[Replica]) {
    if replicas.is_empty() {
        return;
    }
    let heads = ["POD", "ZONE", "SERVES", "GENERATION", "CONFIRMED", "RELOADS", "HAPROXY"].map(str::to_owned);
    let rows: Vec<[String; 7]> = std::iter::once(heads).chain(replicas.iter().map(row)).collect();
    let mut widths = [0; 7];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    for row in &rows {
        let cells: Vec<String> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        // writing to a string cannot fail
        let _ = writeln!(text, "  {}", cells.join("  ").trim_end());
    }
}

fn row(replica: &Replica) -> [String; 7] {
    let dash = |text: &Option<String>| text.as_deref().filter(|text| !text.is_empty()).map_or_else(|| "-".to_owned(), clean);
    let confirmed = match (replica.connected, replica.confirmed, replica.refused.len()) {
        (false, ..) => "not connected".to_owned(),
        (true, true, 0) => "yes".to_owned(),
        (true, true, refused) => format!("yes, {refused} refused"),
        (true, false, 0) => "no".to_owned(),
        (true, false, refused) => format!("no, {refused} refused"),
    };
    let number = |number: u64| if number > 0 { number.to_string() } else { "-".to_owned() };
    [
        clean(&replica.name),
        dash(&replica.zone),
        if replica.ready { "yes" } else { "no" }.to_owned(),
        number(replica.generation),
        confirmed,
        replica.reload_count.to_string(),
        dash(&replica.haproxy_version),
    ]
}

/// As `lint` prints one that has no file.
fn finding(text: &mut String, diagnostic: &Diagnostic, style: Style) {
    let title = style.severity(severity(diagnostic), &format!("{}[{}]", clean(&diagnostic.severity), clean(&diagnostic.code)));
    let message = style.strong(&format!(": {}", clean(&diagnostic.message)));
    let field = if diagnostic.field.is_empty() { String::new() } else { format!(", {}", clean(&diagnostic.field)) };
    let place = match (&diagnostic.file, diagnostic.line) {
        (Some(file), Some(line)) => format!(" ({}:{line})", clean(file)),
        _ => String::new(),
    };
    // writing to a string cannot fail
    let _ = writeln!(text, "  {title}{message}\n   {} {}{field}{place}", style.frame("-->"), named(&diagnostic.object));
    if !diagnostic.help.is_empty() {
        let _ = writeln!(text, "   {} help: {}", style.frame("="), clean(&diagnostic.help));
    }
}

fn named(object: &Object) -> String {
    let place = if object.namespace.is_empty() { String::new() } else { format!("{}/", object.namespace) };
    clean(format!("{} {place}{}", object.kind, object.name))
}

fn severity(diagnostic: &Diagnostic) -> Severity {
    match diagnostic.severity.as_str() {
        "error" => Severity::Error,
        "warning" => Severity::Warning,
        _ => Severity::Info,
    }
}

fn sum(diagnostics: &[&Diagnostic]) -> String {
    severities(|wanted| diagnostics.iter().filter(|diagnostic| severity(diagnostic) == wanted).count())
}

fn clean(text: impl AsRef<str>) -> String {
    printable(text.as_ref(), false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::json::{Operator, Refused};

    fn status() -> Status {
        let replica = |name: &str, generation| Replica {
            name: name.into(),
            zone: Some("zone-a".into()),
            ready: true,
            connected: true,
            confirmed: generation == 42,
            generation,
            reload_count: 1,
            haproxy_version: Some("3.4.7".into()),
            ..Replica::default()
        };
        let mut behind = replica("edge-zone-a-1", 40);
        behind.refused = vec![Refused { generation: 41, object: None, message: "no".into() }];
        let lost = Replica { name: "edge-zone-a-2".into(), ..Replica::default() };
        let finding = |severity: &str, name: &str| Diagnostic {
            code: "NotFound".into(),
            severity: severity.into(),
            object: Object { kind: "Ingress".into(), namespace: "shop".into(), name: name.into() },
            field: "spec.rules[0]".into(),
            message: "there is no Service shop/cart".into(),
            help: "create it".into(),
            ..Diagnostic::default()
        };
        let fleet = Fleet {
            namespace: "infra".into(),
            name: "edge".into(),
            class: "public".into(),
            ready: Some(false),
            state: Some("PodsBehind".into()),
            message: Some("1 pod does not confirm".into()),
            desired: Some(3),
            revision: 3,
            generation: 42,
            addresses: vec!["192.0.2.1".into()],
            replicas: vec![replica("edge-zone-a-0", 42), behind, lost],
            worst: vec![finding("error", "web")],
            ..Fleet::default()
        };
        let diagnostics = vec![finding("error", "web"), finding("warning", "b"), finding("info", "c")];
        Status { fleets: vec![fleet], diagnostics, ..Status::default() }
    }

    #[test]
    fn a_fleet_is_a_line_a_table_of_pods_and_its_worst_findings() {
        assert_eq!(
            page(&status(), Style::PLAIN),
            "\
infra/edge  class public  PodsBehind  2/3 pods, 1 confirmed  revision 3  generation 42  192.0.2.1
  1 pod does not confirm
  POD            ZONE    SERVES  GENERATION  CONFIRMED      RELOADS  HAPROXY
  edge-zone-a-0  zone-a  yes     42          yes            1        3.4.7
  edge-zone-a-1  zone-a  yes     40          no, 1 refused  1        3.4.7
  edge-zone-a-2  -       no      -           not connected  0        -
  error[NotFound]: there is no Service shop/cart
   --> Ingress shop/web, spec.rules[0]
   = help: create it

not shown: 1 warning, 1 remark; -o json has all of them
"
        );
    }

    #[test]
    fn who_stands_by_is_told_to() {
        let mut status = status();
        status.operator = Some(Operator::default());
        assert!(page(&status, Style::PLAIN).starts_with("No replica of the operator leads: "));
    }

    #[test]
    fn nothing_of_an_object_reaches_the_terminal_as_a_command() {
        let mut hostile = status();
        hostile.fleets[0].message = Some("\x1b[2J\n".into());
        hostile.fleets[0].replicas[0].zone = Some("\x07".into());
        hostile.fleets[0].worst[0].object.name = "\u{202e}".into();
        let text = page(&hostile, Style::PLAIN);
        assert!(text.chars().all(|character| character == '\n' || !character.is_control() && character != '\u{202e}'), "{text:?}");
    }
}
