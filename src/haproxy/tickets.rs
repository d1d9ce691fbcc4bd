//! Keys of TLS session tickets.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::fmt::Write as _;

/// Keys that HAProxy holds at a time: it encrypts with the last but one, and decrypts with all (configuration
/// manual, `tls-ticket-keys`).
const KEYS: usize = 3;
/// Bytes of a key: a name of 16, AES-256 and HMAC keys of 32 each.
pub const LENGTH: usize = 80;

/// The ticket keys of the fleet `fleet` in the form that HAProxy reads, made from a `secret` that nobody else has:
/// the same wherever the secret is the same.
pub fn ticket_keys(secret: &[u8], fleet: &str) -> Vec<u8> {
    let mut hasher = blake3::Hasher::new_derive_key("haproxy-fleet 2026-11-30 keys of TLS session tickets");
    hasher.update(&(secret.len() as u64).to_le_bytes()).update(secret).update(fleet.as_bytes());
    let mut bytes = [0; KEYS * LENGTH];
    hasher.finalize_xof().fill(&mut bytes);
    let mut text = String::new();
    for key in bytes.chunks(LENGTH) {
        // writing to a string cannot fail
        let _ = writeln!(text, "{}", STANDARD.encode(key));
    }
    text.into_bytes()
}

/// The keys that are in a text, the oldest first; `None` if they are not as many as there have to be, or are none.
fn lines(text: &[u8]) -> Option<[&str; KEYS]> {
    let lines: Vec<&str> = std::str::from_utf8(text).ok()?.lines().collect();
    let is_key = |line: &&str| STANDARD.decode(line).is_ok_and(|bytes| bytes.len() == LENGTH);
    lines.try_into().ok().filter(|lines: &[&str; KEYS]| lines.iter().all(is_key))
}

/// `keys` after a turn: the oldest one is gone, and `next` is what every HAProxy knows a turn before it is used. `None` if
/// `keys` are none.
pub fn turned(keys: &[u8], next: &[u8; LENGTH]) -> Option<Vec<u8>> {
    let [_, middle, last] = lines(keys)?;
    Some(format!("{middle}\n{last}\n{}\n", STANDARD.encode(next)).into_bytes())
}

/// What a HAProxy that holds the keys `before` is to be given, one after the other, so that it holds `after`: each new key
/// pushes the oldest one out. `None` if `after` are no keys.
pub fn to_give<'a>(before: &[u8], after: &'a [u8]) -> Option<Vec<&'a str>> {
    let after = lines(after)?;
    let known = lines(before).map_or(0, |before| (0..=KEYS).rev().find(|known| before[KEYS - known..] == after[..*known]).unwrap_or(0));
    Some(after[known..].to_vec())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn after_a_turn_a_haproxy_is_given_what_it_does_not_hold() {
        let first = ticket_keys(b"secret", "infra/edge");
        let second = turned(&first, &[1; LENGTH]).unwrap();
        let third = turned(&second, &[2; LENGTH]).unwrap();
        let (one, two) = (STANDARD.encode([1; LENGTH]), STANDARD.encode([2; LENGTH]));
        assert_eq!(lines(&second).unwrap()[..2], lines(&first).unwrap()[1..]);
        assert_eq!(to_give(&first, &first), Some(Vec::new()));
        assert_eq!(to_give(&first, &second), Some(vec![one.as_str()]));
        assert_eq!(to_give(&first, &third), Some(vec![one.as_str(), two.as_str()]));
        let others = ticket_keys(b"another", "infra/edge");
        assert_eq!(to_give(&first, &others), Some(lines(&others).unwrap().to_vec()));
        for broken in [&b""[..], b"a\nb\nc\n", &first[..200], b"\xff"] {
            assert_eq!((to_give(&first, broken), turned(broken, &[0; LENGTH])), (None, None));
            assert_eq!(to_give(broken, &first), Some(lines(&first).unwrap().to_vec()));
        }
    }

    #[test]
    fn a_fleet_has_three_keys_of_its_own_that_follow_from_the_secret() {
        let keys = ticket_keys(b"secret", "infra/edge");
        assert_eq!(keys, ticket_keys(b"secret", "infra/edge"));
        assert_ne!(keys, ticket_keys(b"secret", "infra/other"));
        assert_ne!(keys, ticket_keys(b"another", "infra/edge"));
        let lines: Vec<&[u8]> = keys.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).collect();
        assert_eq!(lines.iter().map(|line| line.len()).collect::<Vec<_>>(), [108, 108, 108]);
        assert!(lines[0] != lines[1] && lines[1] != lines[2]);
    }
}
