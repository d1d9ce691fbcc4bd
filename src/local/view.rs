//! How `local` shows what goes on: a live view on a terminal, one line for each thing that happens elsewhere.

use super::lines;
use super::urls::command;
use crate::cli::report::printable;
use crate::cli::screen::{self, Screen};
use crate::cli::{Error, Output};
use crate::report::{Severity, counted, severities};
use crate::status::json::{Diagnostic, Fleet, Listener, Protocol, Replica, Status};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

/// Findings that the live view shows.
const FINDINGS: usize = 5;
/// Said when the first interrupt came.
pub(super) const STOPPING: &str = "stopping: what is under way may finish within 10 s; Ctrl-C again stops at once";
/// A terminal is drawn at most that often.
const FRAME: Duration = Duration::from_millis(100);

/// What there is to show.
#[derive(Clone, Debug, Default)]
pub struct Shown {
    /// The state, once it is known.
    pub status: Option<Arc<Status>>,
    /// Where the admin server is.
    pub admin: Option<SocketAddr>,
    /// Whether it is about to end.
    pub stopping: bool,
}

/// Shows what there is on `out` until its sender is gone: as a live view if `live`, else as lines.
pub async fn show(mut shown: watch::Receiver<Shown>, mut out: Output, live: bool) -> Result<(), Error> {
    let mut told = lines::Teller::default();
    let mut screen = Screen::default();
    let mut frames = interval(FRAME);
    frames.set_missed_tick_behavior(MissedTickBehavior::Delay);
    shown.mark_changed();
    while shown.changed().await.is_ok() {
        let now = shown.borrow_and_update().clone();
        if live {
            let (width, height) = screen::size();
            screen.draw(&draw(&now, width, height, out.has_colours()), &mut out)?;
            frames.tick().await;
        } else {
            for line in told.tell(&now) {
                out.line(&if out.has_colours() { coloured(&line) } else { line })?;
            }
        }
    }
    Ok(())
}

/// The whole state in at most `height - 1` lines of at most `width` characters.
pub fn draw(shown: &Shown, width: usize, height: usize, colours: bool) -> String {
    let mut lines = Vec::new();
    let starting = Arc::new(Status::default());
    let status = shown.status.as_ref().unwrap_or(&starting);
    if shown.status.is_none() {
        lines.push("starting …".to_owned());
    } else if status.fleets.is_empty() {
        lines.push("no fleet: there is no IngressDeployment in the input".to_owned());
    }
    for fleet in &status.fleets {
        draw_fleet(fleet, &mut lines);
    }
    let room = height.saturating_sub(1).max(1);
    let mut last = findings(status);
    last.push(match (shown.stopping, shown.admin) {
        (true, _) => STOPPING.to_owned(),
        (false, Some(admin)) => format!("status at http://{admin}/status · Ctrl-C drains, then stops"),
        (false, None) => "Ctrl-C drains, then stops".to_owned(),
    });
    let keep = room.saturating_sub(last.len());
    if lines.len() > keep {
        let hidden = lines.len() - keep.saturating_sub(1);
        lines.truncate(keep.saturating_sub(1));
        lines.push(format!("… {hidden} more lines: see /status, or use --output plain"));
    }
    lines.extend(last);
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
        "{} fleet {}/{}  {ready} of {} replicas ready  revision {}  generation {}",
        mark(ready == fleet.replicas.len()),
        fleet.namespace,
        fleet.name,
        fleet.replicas.len(),
        fleet.revision,
        fleet.generation,
    ));
    let stable: Vec<String> = fleet.listeners.iter().map(url).collect();
    lines.push(format!("    at {}", stable.join("  ")));
    let names = fleet.replicas.iter().map(|replica| replica.name.chars().count()).max().unwrap_or(0);
    for replica in &fleet.replicas {
        lines.push(draw_replica(replica, fleet.generation, names));
    }
    let rollout = fleet.rollout.iter().filter(|rollout| rollout.state != "AsAsked");
    lines.extend(rollout.flat_map(|rollout| &rollout.reasons).map(|reason| format!("  ○ {reason}")));
    for url in &fleet.urls {
        lines.push(format!("    {}", command(url, Ipv4Addr::LOCALHOST.into())));
    }
    lines.push(String::new());
}

fn draw_replica(replica: &Replica, wanted: u64, names: usize) -> String {
    let zone = replica.zone.as_ref().map(|zone| format!("  {zone}")).unwrap_or_default();
    let behind = if replica.generation == wanted { String::new() } else { format!("  generation {} of {wanted}", replica.generation) };
    let refused = if replica.refused.is_empty() { String::new() } else { format!("  {} refused", replica.refused.len()) };
    let addresses: Vec<&str> = replica.listeners.iter().map(|listener| listener.address.as_str()).collect();
    format!(
        "  {} {:<names$}{zone}  {}  {}  {}{behind}{refused}",
        mark(replica.ready),
        replica.name,
        addresses.join(" "),
        counted(replica.reload_count, "reload", "reloads"),
        counted(replica.runtime_commands, "runtime command", "runtime commands"),
    )
}

/// A listener's address as people use it.
pub(super) fn url(listener: &Listener) -> String {
    match listener.protocol {
        Protocol::Http => format!("http://{}", listener.address),
        Protocol::Https => format!("https://{}", listener.address),
        Protocol::Tls | Protocol::Tcp => format!("{} ({})", listener.address, listener.protocol.as_str()),
    }
}

fn mark(good: bool) -> char {
    if good { '●' } else { '○' }
}

fn findings(status: &Status) -> Vec<String> {
    if status.diagnostics.is_empty() {
        return Vec::new();
    }
    let of = |severity: Severity| status.diagnostics.iter().filter(|diagnostic| diagnostic.severity == severity.as_str()).count();
    let mut lines = vec![format!("findings: {}", severities(of))];
    for severity in ["error", "warning", "info"] {
        lines.extend(status.diagnostics.iter().filter(|diagnostic| diagnostic.severity == severity).map(brief));
    }
    lines.truncate(FINDINGS + 1);
    lines
}

/// One finding in one line.
pub(super) fn brief(diagnostic: &Diagnostic) -> String {
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

/// With the colour that goes with how it begins.
pub(super) fn coloured(line: &str) -> String {
    let code = match line.trim_start() {
        start if start.starts_with('●') || start.starts_with("ready") || start.starts_with("solved") => "32",
        start if start.starts_with('○') || start.starts_with("warning") || start.starts_with("not ready") => "33",
        start if start.starts_with("error") => "31",
        start if start.starts_with("curl") => "36",
        _ => return line.to_owned(),
    };
    format!("\x1b[{code}m{line}\x1b[0m")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::status::json::Object;

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
            urls: vec!["http://shop.localhost:8080/".into()],
            ..Fleet::default()
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
        Status { ready: false, fleets: vec![fleet], diagnostics: vec![diagnostic], ..Status::default() }
    }

    fn shown(status: Status) -> Shown {
        Shown { status: Some(Arc::new(status)), ..Shown::default() }
    }

    #[test]
    fn the_live_view_shows_fleets_replicas_addresses_and_findings() {
        assert_eq!(
            draw(&shown(status()), 200, 50, false),
            "\
○ fleet edge/public  1 of 2 replicas ready  revision 2  generation 4
    at http://127.0.0.1:8080
  ● public-0  127.0.0.2:8080  0 reloads  0 runtime commands
  ○ public-1  127.0.0.2:8080  0 reloads  0 runtime commands
    curl http://shop.localhost:8080/

findings: 1 error
error[NotFound] a.yaml:3: Ingress shop/web: no Service \\u{1b}[2J
Ctrl-C drains, then stops
"
        );
    }

    #[test]
    fn the_live_view_fits_the_terminal_and_findings_stay_visible() {
        let small = draw(&shown(status()), 20, 6, false);
        assert_eq!(small.lines().count(), 5);
        assert!(small.lines().all(|line| line.chars().count() <= 20), "{small}");
        assert!(small.contains("findings:"), "{small}");
    }

    #[tokio::test]
    async fn what_is_shown_ends_with_the_last_state_however_fast_states_follow() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let (sender, receiver) = watch::channel(shown(status()));
        let view = tokio::spawn(show(receiver, Output::new(file.reopen().unwrap(), false), true));
        for generation in 5..50 {
            sender.send_modify(|shown| Arc::make_mut(shown.status.as_mut().unwrap()).fleets[0].generation = generation);
            tokio::task::yield_now().await;
        }
        drop(sender);
        view.await.unwrap().unwrap();
        let text = std::fs::read_to_string(file.path()).unwrap();
        assert!(text.rsplit("fleet edge/public").next().unwrap().contains("generation 49"), "{text}");
    }
}
