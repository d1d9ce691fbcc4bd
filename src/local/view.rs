//! How `local` shows what goes on: a live view on a terminal, one line for each thing that happens elsewhere.

use crate::cli::report::printable;
use crate::cli::{Error, Output};
use crate::status::json::{Diagnostic, Fleet, Replica, Status};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

/// Findings that the live view shows.
const FINDINGS: usize = 5;
/// A terminal is drawn at most that often.
const FRAME: Duration = Duration::from_millis(100);

/// Shows `status` on `out` until its sender is gone: as a live view if `live`, else as lines.
pub async fn show(mut status: watch::Receiver<Arc<Status>>, mut out: Output, live: bool) -> Result<(), Error> {
    let mut before = Arc::new(Status::default());
    let mut drawn = 0;
    let mut frames = interval(FRAME);
    frames.set_missed_tick_behavior(MissedTickBehavior::Delay);
    status.mark_changed();
    while status.changed().await.is_ok() {
        let now = Arc::clone(&status.borrow_and_update());
        if live {
            let (width, height) = size();
            let frame = draw(&now, width, height, out.has_colours());
            out.write(redraw(&frame, drawn))?;
            drawn = frame.lines().count();
            frames.tick().await;
        } else {
            for line in events(&before, &now) {
                out.line(&line)?;
            }
        }
        before = now;
    }
    Ok(())
}

/// Goes back to the beginning of what was drawn, and draws over it.
fn redraw(frame: &str, drawn: usize) -> String {
    let up = if drawn > 0 { format!("\x1b[{drawn}F") } else { String::new() };
    // each line clears what was right of it; the rest below goes at the end
    format!("{up}{}\x1b[J", frame.replace('\n', "\x1b[K\n"))
}

/// Columns and lines of the terminal.
fn size() -> (usize, usize) {
    let of = |size: rustix::termios::Winsize| (usize::from(size.ws_col), usize::from(size.ws_row));
    match rustix::termios::tcgetwinsize(std::io::stdout()).map(of) {
        Ok((width, height)) if width > 0 && height > 0 => (width, height),
        _ => (100, 30),
    }
}

/// The whole state in at most `height - 1` lines of at most `width` characters.
pub fn draw(status: &Status, width: usize, height: usize, colours: bool) -> String {
    let mut lines = Vec::new();
    if status.fleets.is_empty() {
        lines.push("no fleet: there is no IngressDeployment in the input".to_owned());
    }
    for fleet in &status.fleets {
        draw_fleet(fleet, &mut lines);
    }
    let room = height.saturating_sub(1).max(1);
    let findings = findings(status);
    let keep = room.saturating_sub(findings.len());
    if lines.len() > keep {
        let hidden = lines.len() - keep.saturating_sub(1);
        lines.truncate(keep.saturating_sub(1));
        lines.push(format!("… {hidden} more lines: see /status, or use --output plain"));
    }
    lines.extend(findings);
    lines.truncate(room);
    let mut text = String::new();
    for line in lines {
        let line: String = printable(&line, false).chars().take(width).collect();
        text.push_str(&if colours { coloured(&line) } else { line });
        text.push('\n');
    }
    text
}

fn draw_fleet(fleet: &Fleet, lines: &mut Vec<String>) {
    let ready = fleet.replicas.iter().filter(|replica| replica.ready).count();
    lines.push(format!(
        "{} fleet {}/{}  {ready}/{} ready  revision {}  generation {}  {}",
        mark(ready == fleet.replicas.len()),
        fleet.namespace,
        fleet.name,
        fleet.replicas.len(),
        fleet.revision,
        fleet.generation,
        fleet.digest.get(..12).unwrap_or(&fleet.digest),
    ));
    for listener in &fleet.listeners {
        lines.push(format!("    {:<12} {:<5} {}", listener.name, listener.protocol.as_str(), listener.address));
    }
    for replica in &fleet.replicas {
        lines.push(draw_replica(replica, fleet.generation));
    }
}

fn draw_replica(replica: &Replica, wanted: u64) -> String {
    let zone = replica.zone.as_ref().map(|zone| format!("  zone {zone}")).unwrap_or_default();
    let behind = if replica.generation == wanted { String::new() } else { format!(" of {wanted}") };
    let refused = if replica.refused.is_empty() { String::new() } else { format!("  {} refused", replica.refused.len()) };
    let addresses: Vec<&str> = replica.listeners.iter().map(|listener| listener.address.as_str()).collect();
    format!(
        "  {} {}{zone}  generation {}{behind}  reloads {}  commands {}{refused}  {}",
        mark(replica.ready),
        replica.name,
        replica.generation,
        replica.reload_count,
        replica.runtime_commands,
        addresses.join(" "),
    )
}

fn mark(good: bool) -> char {
    if good { '●' } else { '○' }
}

fn findings(status: &Status) -> Vec<String> {
    if status.diagnostics.is_empty() {
        return Vec::new();
    }
    let count = |severity: &str| status.diagnostics.iter().filter(|diagnostic| diagnostic.severity == severity).count();
    let mut lines = vec![format!("findings: {} errors, {} warnings, {} remarks", count("error"), count("warning"), count("info"))];
    for severity in ["error", "warning", "info"] {
        lines.extend(status.diagnostics.iter().filter(|diagnostic| diagnostic.severity == severity).map(brief));
    }
    lines.truncate(FINDINGS + 1);
    lines
}

/// One finding in one line.
fn brief(diagnostic: &Diagnostic) -> String {
    let place = match (&diagnostic.file, diagnostic.line) {
        (Some(file), Some(line)) => format!("{file}:{line}: "),
        _ => String::new(),
    };
    let object = &diagnostic.object;
    let slash = if object.namespace.is_empty() { "" } else { "/" };
    format!(
        "{}[{}] {place}{} {}{slash}{}: {}",
        diagnostic.severity, diagnostic.code, object.kind, object.namespace, object.name, diagnostic.message
    )
}

fn coloured(line: &str) -> String {
    let code = match line.trim_start() {
        start if start.starts_with('●') => "32",
        start if start.starts_with('○') || start.starts_with("warning") => "33",
        start if start.starts_with("error") => "31",
        _ => return line.to_owned(),
    };
    format!("\x1b[{code}m{line}\x1b[0m")
}

/// What happened between two states, one line each.
pub fn events(before: &Status, now: &Status) -> Vec<String> {
    let mut lines = Vec::new();
    let known: BTreeMap<_, _> = before.fleets.iter().map(|fleet| ((&fleet.namespace, &fleet.name), fleet)).collect();
    for fleet in &now.fleets {
        let id = format!("{}/{}", fleet.namespace, fleet.name);
        let old = known.get(&(&fleet.namespace, &fleet.name)).copied();
        if old.is_none_or(|old| old.listeners != fleet.listeners) {
            for listener in &fleet.listeners {
                lines.push(format!("fleet {id}: {} ({}) is at {}", listener.name, listener.protocol.as_str(), listener.address));
            }
        }
        if old.is_none_or(|old| old.generation != fleet.generation) {
            lines.push(format!("fleet {id}: generation {}, revision {}", fleet.generation, fleet.revision));
        }
        replica_events(&id, old.map_or(&[], |old| &old.replicas), &fleet.replicas, &mut lines);
    }
    for fleet in &before.fleets {
        if !now.fleets.iter().any(|other| (&other.namespace, &other.name) == (&fleet.namespace, &fleet.name)) {
            lines.push(format!("fleet {}/{}: gone", fleet.namespace, fleet.name));
        }
    }
    lines.extend(now.diagnostics.iter().filter(|diagnostic| !before.diagnostics.contains(diagnostic)).map(brief));
    for gone in before.diagnostics.iter().filter(|diagnostic| !now.diagnostics.contains(diagnostic)) {
        lines.push(format!("solved: {}", brief(gone)));
    }
    if now.ready != before.ready {
        lines.push(if now.ready { "ready".into() } else { "not ready".into() });
    }
    lines.iter().map(|line| printable(line, false)).collect()
}

fn replica_events(fleet: &str, before: &[Replica], now: &[Replica], lines: &mut Vec<String>) {
    for replica in now {
        let old = before.iter().find(|other| other.name == replica.name);
        let name = format!("fleet {fleet}: replica {}", replica.name);
        if old.is_none_or(|old| old.listeners != replica.listeners) {
            for listener in &replica.listeners {
                lines.push(format!("{name}: {} ({}) is at {}", listener.name, listener.protocol.as_str(), listener.address));
            }
        }
        if old.map_or(replica.ready, |old| old.ready != replica.ready) {
            lines.push(format!("{name}: {}", if replica.ready { "ready" } else { "not ready" }));
        }
        let mut line = String::new();
        if old.is_some_and(|old| old.generation != replica.generation) {
            // writing to a string cannot fail
            let _ = write!(line, "{name}: serves generation {}", replica.generation);
            let commands = replica.runtime_commands.saturating_sub(old.map_or(0, |old| old.runtime_commands));
            let _ = write!(line, " ({commands} commands)");
            lines.push(line);
        }
        let seen = old.map_or(0, |old| old.reload_count);
        let new = usize::try_from(replica.reload_count.saturating_sub(seen)).unwrap_or(usize::MAX);
        for reload in replica.reloads.iter().skip(replica.reloads.len().saturating_sub(new)) {
            lines.push(format!("{name}: reloaded for generation {}: {}", reload.generation, reload.reason));
        }
        for refused in replica.refused.iter().filter(|refused| !old.is_some_and(|old| old.refused.contains(refused))) {
            lines.push(format!("{name}: HAProxy refused a part of generation {}: {}", refused.generation, refused.message));
        }
    }
    for old in before.iter().filter(|old| !now.iter().any(|replica| replica.name == old.name)) {
        lines.push(format!("fleet {fleet}: replica {}: gone", old.name));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::status::json::{Listener, Object, Protocol, Reload};

    fn status() -> Status {
        let listener = |address: &str| Listener { name: "http".into(), protocol: Protocol::Http, address: address.into() };
        let replica = |name: &str, ready| Replica {
            name: name.into(),
            ready,
            generation: 4,
            listeners: vec![listener("127.0.0.2:8080")],
            ..Replica::default()
        };
        let fleet = Fleet {
            namespace: "edge".into(),
            name: "public".into(),
            revision: 2,
            generation: 4,
            digest: "0123456789abcdef".into(),
            listeners: vec![listener("127.0.0.1:8080")],
            replicas: vec![replica("public-0", true), replica("public-1", false)],
        };
        let diagnostic = Diagnostic {
            code: "NotFound".into(),
            severity: "error".into(),
            object: Object { kind: "Ingress".into(), namespace: "shop".into(), name: "web".into() },
            field: String::new(),
            message: "no Service \x1b[2J".into(),
            help: String::new(),
            file: Some("a.yaml".into()),
            line: Some(3),
        };
        Status { ready: false, fleets: vec![fleet], diagnostics: vec![diagnostic] }
    }

    #[test]
    fn the_live_view_shows_fleets_replicas_addresses_and_findings() {
        assert_eq!(
            draw(&status(), 200, 50, false),
            "\
○ fleet edge/public  1/2 ready  revision 2  generation 4  0123456789ab
    http         HTTP  127.0.0.1:8080
  ● public-0  generation 4  reloads 0  commands 0  127.0.0.2:8080
  ○ public-1  generation 4  reloads 0  commands 0  127.0.0.2:8080
findings: 1 errors, 0 warnings, 0 remarks
error[NotFound] a.yaml:3: Ingress shop/web: no Service \\u{1b}[2J
"
        );
    }

    #[test]
    fn the_live_view_fits_the_terminal_and_findings_stay_visible() {
        let small = draw(&status(), 20, 5, false);
        assert_eq!(small.lines().count(), 4);
        assert!(small.lines().all(|line| line.chars().count() <= 20), "{small}");
        assert!(small.contains("findings:"), "{small}");
    }

    #[tokio::test]
    async fn what_is_shown_ends_with_the_last_state_however_fast_states_follow() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for live in [false, true] {
            let (sender, receiver) = watch::channel(Arc::new(status()));
            let shown = tokio::spawn(show(receiver, Output::new(file.reopen().unwrap(), false), live));
            for generation in 5..50 {
                sender.send_modify(|status| Arc::make_mut(status).fleets[0].generation = generation);
                tokio::task::yield_now().await;
            }
            drop(sender);
            shown.await.unwrap().unwrap();
            let text = std::fs::read_to_string(file.path()).unwrap();
            assert!(text.rsplit("fleet edge/public").next().unwrap().contains("generation 49"), "live: {live}\n{text}");
        }
    }

    #[test]
    fn lines_tell_what_happened_once() {
        let first = status();
        let lines = events(&Status::default(), &first);
        assert!(lines.contains(&"fleet edge/public: http (HTTP) is at 127.0.0.1:8080".to_owned()), "{lines:?}");
        assert!(events(&first, &first).is_empty());
        let mut next = first.clone();
        next.ready = true;
        next.diagnostics.clear();
        let replica = &mut next.fleets[0].replicas[1];
        (replica.ready, replica.reload_count, replica.generation, replica.runtime_commands) = (true, 1, 5, 9);
        replica.reloads.push(Reload { generation: 5, reason: "a new listener".into() });
        assert_eq!(
            events(&first, &next),
            [
                "fleet edge/public: replica public-1: ready",
                "fleet edge/public: replica public-1: serves generation 5 (9 commands)",
                "fleet edge/public: replica public-1: reloaded for generation 5: a new listener",
                "solved: error[NotFound] a.yaml:3: Ingress shop/web: no Service \\u{1b}[2J",
                "ready",
            ]
        );
    }
}
