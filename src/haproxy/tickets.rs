//! Keys of TLS session tickets.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::fmt::Write as _;

/// Keys that HAProxy holds at a time: it encrypts with the last but one, and decrypts with all (configuration
/// manual, `tls-ticket-keys`).
const KEYS: usize = 3;
/// Bytes of a key: a name of 16, AES-256 and HMAC keys of 32 each.
const LENGTH: usize = 80;

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

#[cfg(test)]
mod tests {
    use super::*;

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
