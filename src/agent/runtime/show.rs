//! What `show …` answers, as data.

use crate::haproxy::bundle::Name;
use crate::haproxy::render::{HEALTH, RELAY_BIND};
use std::collections::BTreeMap;

/// The master's view of its workers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Processes {
    /// The process id of the master.
    pub master: Option<u32>,
    /// Reloads since its start, those that failed among them.
    pub reloads: u32,
    /// The worker that serves. After a failed reload HAProxy lists it among the old ones.
    pub worker: Option<u32>,
    /// Workers of earlier configurations that still hold connections, the newest first.
    pub old: Vec<u32>,
}

impl Processes {
    /// The worker that serves, also after a failed reload.
    pub fn serving(&self) -> Option<u32> {
        self.worker.or_else(|| self.old.first().copied())
    }

    /// All workers.
    pub fn workers(&self) -> impl Iterator<Item = u32> {
        self.worker.into_iter().chain(self.old.iter().copied())
    }
}

/// The connections of clients to one worker: not those of health checks, and not what another worker passes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Connections {
    /// Open now.
    pub open: u64,
    /// Taken since its start.
    pub taken: u64,
    /// Whether it takes none any more.
    pub stopping: bool,
}

/// Reads `show stat` of frontends and binds; `None` if it is something else. A frontend whose binds are not counted (a
/// bundle of before that was asked for) counts as a whole.
pub fn connections(text: &str) -> Option<Connections> {
    let (header, rows) = text.split_once('\n')?;
    let columns: Vec<&str> = header.strip_prefix("# ")?.split(',').collect();
    let column = |name: &str| columns.iter().position(|column| *column == name);
    let (proxy, name, kind, status) = (column("pxname")?, column("svname")?, column("type")?, column("status")?);
    let (open, taken) = (column("scur")?, column("stot")?);
    let mut frontends: BTreeMap<&str, Connections> = BTreeMap::new();
    let mut binds: BTreeMap<&str, Connections> = BTreeMap::new();
    for row in rows.lines() {
        let fields: Vec<&str> = row.split(',').collect();
        let field = |column: usize| fields.get(column).copied().unwrap_or_default();
        let number = |column| field(column).parse().unwrap_or_default();
        let found = Connections { open: number(open), taken: number(taken), stopping: field(status) == "STOP" };
        match field(kind) {
            _ if field(proxy) == HEALTH => {}
            FRONTEND => _ = frontends.insert(field(proxy), found),
            BIND => {
                let sum = binds.entry(field(proxy)).or_default();
                if field(name) != RELAY_BIND {
                    (sum.open, sum.taken) = (sum.open + found.open, sum.taken + found.taken);
                }
            }
            _ => {}
        }
    }
    let mut all = Connections { stopping: !frontends.is_empty(), ..Connections::default() };
    for (proxy, frontend) in frontends {
        let found = binds.get(proxy).copied().unwrap_or(frontend);
        all = Connections { open: all.open + found.open, taken: all.taken + found.taken, stopping: all.stopping && frontend.stopping };
    }
    Some(all)
}

/// The types of rows in `show stat`.
const FRONTEND: &str = "0";
const BIND: &str = "3";

/// Reads `show proc`.
pub fn processes(text: &str) -> Processes {
    let mut found = Processes::default();
    let mut old = false;
    let mut retired = Vec::new();
    for line in text.lines() {
        if line.starts_with("# old workers") {
            old = true;
        }
        let mut words = line.split_whitespace();
        let (Some(Ok(pid)), Some(kind)) = (words.next().map(str::parse::<u32>), words.next()) else { continue };
        let reloads = words.next().and_then(|word| word.parse().ok()).unwrap_or_default();
        match kind {
            "master" => (found.master, found.reloads) = (Some(pid), reloads),
            "worker" if old => retired.push((reloads, pid)),
            "worker" => found.worker = Some(pid),
            _ => {}
        }
    }
    retired.sort_unstable();
    found.old = retired.into_iter().map(|(_, pid)| pid).collect();
    found
}

/// Names in parentheses (`show map`) or at the start of a line (`show ssl …`).
pub fn names(text: &str) -> Vec<Name> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    let name = |line: &str| match line.split_once(" (") {
        Some((number, rest)) if number.parse::<i64>().is_ok() => rest.split(')').next().unwrap_or_default().to_owned(),
        _ => line.split_whitespace().next().unwrap_or_default().trim_start_matches('*').to_owned(),
    };
    lines.map(name).filter(|name| !name.is_empty()).map(Name::from).collect()
}

/// Reads `show map FILE`: key and value of each entry.
pub fn map_entries(text: &str) -> Vec<(&str, &str)> {
    let entry = |line: &'_ str| -> Option<(usize, usize)> {
        let first = line.find(' ')? + 1;
        let second = first + line[first..].find(' ')? + 1;
        Some((first, second))
    };
    text.lines().filter_map(|line| entry(line).map(|(key, value)| (&line[key..value - 1], &line[value..]))).collect()
}

/// A line of a crt-list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListLine {
    /// The certificate.
    pub file: String,
    /// Its number, by which it can be deleted.
    pub number: u32,
    /// The names, sorted.
    pub names: Vec<String>,
}

/// Reads `show ssl crt-list -n FILE`.
pub fn list_lines(text: &str) -> Vec<ListLine> {
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let (file, number) = words.next()?.rsplit_once(':')?;
        let mut names: Vec<String> = words.filter(|word| !word.contains('[') && !word.contains(']')).map(str::to_owned).collect();
        names.sort();
        Some(ListLine { file: file.to_owned(), number: number.parse().ok()?, names })
    };
    text.lines().filter(|text| !text.starts_with('#')).filter_map(line).collect()
}

/// What a server is at present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerState<'a> {
    /// Its backend.
    pub backend: &'a str,
    /// Its name.
    pub name: &'a str,
    /// Its address.
    pub address: &'a str,
    /// Its port.
    pub port: &'a str,
    /// Whether somebody put it into maintenance.
    pub maintenance: bool,
    /// Its weight.
    pub weight: &'a str,
}

/// Reads `show servers state`.
pub fn server_states(text: &str) -> Vec<ServerState<'_>> {
    text.lines().filter(|line| !line.starts_with('#')).filter_map(server_state).collect()
}

fn server_state(line: &str) -> Option<ServerState<'_>> {
    let words: Vec<&str> = line.split(' ').collect();
    let &[_, backend, _, name, address, _, admin, weight, .., _] = words.as_slice() else { return None };
    // in maintenance by command, by what it tracks, or by configuration
    let maintenance = admin.parse::<u32>().ok()? & 0x07 != 0;
    Some(ServerState { backend, name, address, port: words.get(18)?, maintenance, weight })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_told_from_old_workers() {
        let text = "#<PID> <type>\n16025           master          1 [failed: 0]   0d00h00m00s     3.2.26-1\n# workers\n\
            16033           worker          0               0d00h00m00s     3.2.26-1\n# old workers\n\
            16011           worker          2               0d00h00m00s     3.2.26-1\n\
            16029           worker          1               0d00h00m00s     3.2.26-1\n";
        let found = processes(text);
        assert_eq!(found, Processes { master: Some(16025), reloads: 1, worker: Some(16033), old: vec![16029, 16011] });
        assert_eq!(found.serving(), Some(16033));
        assert_eq!(Processes { worker: None, ..found }.serving(), Some(16029));
    }

    #[test]
    fn maps_certificates_and_lists_are_read_by_name() {
        let maps = "# id (file) description\n5 (maps/routes.map) pattern loaded from file 'maps/routes.map' used by map at (x)\n\n";
        assert_eq!(names(maps), ["maps/routes.map".into()]);
        assert_eq!(names("# filename\ncerts/a.pem\nca/x.pem - 1 certificate(s)\n"), ["certs/a.pem".into(), "ca/x.pem".into()]);
        assert_eq!(map_entries("0x7f a|/x some value\n\n"), [("a|/x", "some value")]);
        let expected = ListLine { file: "certs/a.pem".to_owned(), number: 3, names: vec!["a.x".to_owned(), "b.x".to_owned()] };
        assert_eq!(list_lines("# lists/x\ncerts/a.pem:3 b.x a.x\n\n"), [expected]);
    }

    #[test]
    fn connections_are_those_of_clients() {
        let rows = |status: &str| {
            format!(
                "# pxname,svname,scur,stot,status,type,\n_health,FRONTEND,9,90,{status},0,\n_health,sock-1,9,90,OPEN,3,\n\
                http,FRONTEND,6,60,{status},0,\nhttp,sock-1,1,10,OPEN,3,\nhttp,sock-2,2,20,OPEN,3,\nhttp,relay,3,30,OPEN,3,\n\
                tcp,FRONTEND,4,40,{status},0,\n\n"
            )
        };
        assert_eq!(connections(&rows("OPEN")), Some(Connections { open: 7, taken: 70, stopping: false }));
        assert_eq!(connections(&rows("STOP")), Some(Connections { open: 7, taken: 70, stopping: true }));
        let bootstrap = "# pxname,svname,scur,stot,status,type,\n_health,FRONTEND,9,90,OPEN,0,\n\n";
        assert_eq!(connections(bootstrap), Some(Connections::default()));
        assert_eq!(connections("Can't find the target PID matching the prefix '@!12'.\n"), None);
    }

    #[test]
    fn a_server_in_maintenance_is_seen() {
        let states = server_states("1\n# be_id be_name\n4 be 2 s2 127.0.0.1 0 1 100 100 1 1 0 0 2 0 0 1 - 9001 - 0 0 - - 0\n");
        assert_eq!(states.len(), 1);
        assert_eq!((states[0].backend, states[0].name, states[0].port, states[0].maintenance), ("be", "s2", "9001", true));
    }
}
