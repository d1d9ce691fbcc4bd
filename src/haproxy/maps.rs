//! What maps are called and what their values lead to: the one place that knows both.
//!
//! The renderer takes paths from here; whoever reads a path (plan, relay) asks here what it is.

use super::render::safe_name;

/// What the values of a map are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Purpose {
    /// Routes of a table: backends, or `~ID` for candidates that rules of the frontends resolve.
    Routes,
    /// Backends of a table's candidates, by `~ID…`.
    Targets,
    /// Codes of redirects to HTTPS, by the keys of `Routes` and `Targets`.
    Redirects,
    /// Backends of TCP listeners and of names of TLS listeners.
    Streams,
    /// What policies say, by backend.
    Values,
}

impl Purpose {
    /// Of the map at `path`.
    pub fn of(path: &str) -> Self {
        let name = path.rsplit('/').next().unwrap_or_default();
        match name {
            _ if path.starts_with(VALUES) => Self::Values,
            "routes.map" => Self::Routes,
            "targets.map" => Self::Targets,
            "https.map" => Self::Redirects,
            "names.map" | "tcp.map" => Self::Streams,
            _ => Self::Values,
        }
    }

    /// Whether a value names something that has to be loaded: a backend, or rules.
    pub fn leads_somewhere(self) -> bool {
        matches!(self, Self::Routes | Self::Targets | Self::Streams)
    }

    /// Whether a request reads it before it has a backend: what it leads to must be complete by then.
    pub fn is_entrance(self) -> bool {
        matches!(self, Self::Routes | Self::Streams)
    }
}

const VALUES: &str = "maps/values/";

/// The map that leads TCP listeners to their backends, by listener.
pub const TCP: &str = "maps/tcp.map";

/// What is the case with a pod, by what it is: [`CLOSING`], [`DRAINED`]. The bundle says that nothing is; a pod is told
/// otherwise by whoever stops it, or by its agent while it is drained by hand.
pub const POD: &str = "maps/pod.map";
/// The key of [`POD`] that is [`TRUE`] while clients are asked to close their connections.
pub const CLOSING: &str = "closing";
/// The key of [`POD`] that is [`TRUE`] while the pod is to get no traffic, though it serves what it gets.
pub const DRAINED: &str = "drained";
/// The key of [`POD`] that a worker of before a reload has, and no other: the backend that leads to the present worker.
pub const RELAYED: &str = "relayed";
/// What is the case.
pub const TRUE: &str = "1";
/// What is not.
pub const FALSE: &str = "0";

/// The maps that every table has.
pub const TABLE: [Purpose; 3] = [Purpose::Routes, Purpose::Redirects, Purpose::Targets];

/// The map of the table `table` for `purpose`, one of [`TABLE`].
pub fn of_table(table: &str, purpose: Purpose) -> String {
    // `values` is where those of policies are
    let room = if table == "values" { "x-values".to_owned() } else { safe_name(table) };
    format!("maps/{room}/{}.map", file(purpose))
}

fn file(purpose: Purpose) -> &'static str {
    match purpose {
        Purpose::Routes => "routes",
        Purpose::Targets => "targets",
        Purpose::Redirects => "https",
        Purpose::Streams => "names",
        Purpose::Values => "values",
    }
}

/// The map that leads names of the TLS listener `listener` to backends.
pub fn of_listener(listener: &str) -> String {
    of_table(listener, Purpose::Streams)
}

/// The map for `purpose` of the table whose routes are at `routes`.
pub fn beside(routes: &str, purpose: Purpose) -> String {
    let room = routes.rsplit_once('/').map_or("", |(room, _)| room);
    format!("{room}/{}.map", file(purpose))
}

/// What stands for the candidates of a node in the values of `Routes`.
pub const CANDIDATES: char = '~';

/// Whether the key of `Targets` or `Redirects` belongs to the candidates `id` (with its `~`).
pub fn is_of_candidates(key: &str, id: &str) -> bool {
    key.strip_prefix(id).is_some_and(|rest| rest.starts_with(['/', '.']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_says_what_its_map_is_for() {
        for table in ["http", "values", "a b", ""] {
            for purpose in TABLE {
                assert_eq!(Purpose::of(&of_table(table, purpose)), purpose);
            }
        }
        assert_eq!(Purpose::of(&of_listener("tls")), Purpose::Streams);
        assert_eq!(Purpose::of(TCP), Purpose::Streams);
        for map in crate::haproxy::shape::ValueMap::ALL {
            assert_eq!(Purpose::of(map.path()), Purpose::Values);
        }
        assert_eq!(beside("maps/http/routes.map", Purpose::Targets), of_table("http", Purpose::Targets));
    }

    #[test]
    fn the_keys_of_candidates_are_told_apart() {
        assert!(is_of_candidates("~ab/", "~ab") && is_of_candidates("~ab.0/12", "~ab"));
        assert!(!is_of_candidates("~abc/", "~ab") && !is_of_candidates("h|/", "~ab"));
    }
}
