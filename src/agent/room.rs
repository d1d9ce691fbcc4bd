//! How much one HAProxy can take here.

use crate::haproxy::render;

/// What each HAProxy can take, by the files that it may open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Connections at once.
    pub connections: u32,
    /// Servers whose health it can check.
    pub checked_servers: usize,
}

/// Lets this process and its children open as many files as they may, and says what that is enough for.
pub fn make_room() -> Room {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // without success it stays at the lower one
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    room_within(limit.maximum.unwrap_or(u64::MAX))
}

/// Half of the descriptors for connections, a quarter for health checks, the rest for all else.
///
/// HAProxy needs two descriptors for a connection and one for every server that it checks; it does not start
/// with less than both ask for.
fn room_within(descriptors: u64) -> Room {
    let quarter = descriptors / 4;
    Room {
        connections: u32::try_from(quarter).map_or(u32::MAX, |quarter| quarter.max(50)),
        checked_servers: usize::try_from(quarter).map_or(usize::MAX, |quarter| quarter.min(render::Options::default().max_checked_servers)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_and_checks_fit_into_the_descriptors_that_there_are() {
        let room = |connections, checked_servers| Room { connections, checked_servers };
        let expected = [room(256, 256), room(1024, 1024), room(262_144, 20_000), room(u32::MAX, 20_000)];
        assert_eq!([1024, 4096, 1 << 20, u64::MAX].map(room_within), expected);
    }
}
