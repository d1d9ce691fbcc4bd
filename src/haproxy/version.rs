//! HAProxy versions and what they can do.

use std::fmt;
use std::str::FromStr;

/// A release such as 3.4.7.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// 3 of 3.4.7.
    pub major: u16,
    /// 4 of 3.4.7.
    pub minor: u16,
    /// 7 of 3.4.7.
    pub patch: u16,
}

/// The oldest release that fleets run on: earlier ones lack fixes that the run-time deletion of servers needs.
pub const FLOOR: Version = Version { major: 3, minor: 2, patch: 22 };

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// Not a version: `MAJOR.MINOR` or `MAJOR.MINOR.PATCH` was expected.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a HAProxy version such as 3.4 or 3.4.7")]
pub struct InvalidVersion(String);

impl FromStr for Version {
    type Err = InvalidVersion;

    /// Reads `3.4`, `3.4.7` or `3.4.7-1` as `haproxy -v` prints it. Without a patch it is the newest.
    fn from_str(text: &str) -> Result<Self, InvalidVersion> {
        let invalid = || InvalidVersion(text.to_owned());
        let number = text.split(['-', '+', '~']).next().unwrap_or_default();
        let mut parts = number.splitn(3, '.');
        let mut part = || parts.next().map(str::parse::<u16>);
        let (Some(Ok(major)), Some(Ok(minor))) = (part(), part()) else { return Err(invalid()) };
        let patch = part().unwrap_or(Ok(u16::MAX)).map_err(|_| invalid())?;
        Ok(Self { major, minor, patch })
    }
}

/// What a HAProxy can do that not every supported one can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// `add backend`, `publish backend`, `del backend` (3.4).
    pub dynamic_backends: bool,
    /// `http-request set-timeout connect|queue` (3.4): on older ones these time-outs are part of the shape.
    pub set_timeout_connect: bool,
    /// Largest payload of one command, in bytes, with the sizes that our configuration sets.
    pub max_payload: usize,
}

impl Capabilities {
    /// What releases like `version` can do, for work without a running HAProxy.
    pub fn of(version: Version) -> Self {
        let since_3_4 = (version.major, version.minor) >= (3, 4);
        Self {
            dynamic_backends: since_3_4,
            set_timeout_connect: since_3_4,
            // reference measurement: 14.6 kB pass and 32 kB do not with a buffer of 16 kB (3.2); 128 kB (3.4)
            max_payload: if since_3_4 { 120_000 } else { 14_000 },
        }
    }
}
