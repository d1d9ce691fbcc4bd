//! Where `local` keeps what must outlive it.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A directory of its own for each set of inputs, below `$XDG_STATE_HOME`, else `~/.local/state`, else the
/// temporary directory: what was last served from these inputs is found again, and two runs do not meet.
pub fn default_directory(inputs: &[PathBuf]) -> PathBuf {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = variable("XDG_STATE_HOME").or_else(|| Some(variable("HOME")?.join(".local/state"))).unwrap_or_else(std::env::temp_dir);
    base.join("haproxy-fleet/local").join(name_of(inputs))
}

fn name_of(inputs: &[PathBuf]) -> String {
    let mut hasher = blake3::Hasher::new();
    for input in inputs {
        let input = std::path::absolute(input).unwrap_or_else(|_| Path::new(input).to_owned());
        hasher.update(input.as_os_str().as_encoded_bytes());
        hasher.update(&[0]);
    }
    hasher.finalize().to_hex()[..12].to_owned()
}

/// The self-signed certificate of fleets that name none, with its key: made once for a state directory.
pub fn default_certificate(state: &Path) -> io::Result<Vec<u8>> {
    made_once(state, "default.pem", || {
        let names = vec!["*.localhost".to_owned(), "localhost".to_owned()];
        let made = rcgen::generate_simple_self_signed(names).map_err(io::Error::other)?;
        Ok(format!("{}{}", made.cert.pem(), made.signing_key.serialize_pem()).into_bytes())
    })
}

/// Bytes of the secret.
const SECRET: usize = 32;

/// What the fleets of a state directory make keys from: made once for it.
pub fn secret(state: &Path) -> io::Result<Vec<u8>> {
    let secret = made_once(state, "secret", || {
        let mut secret = vec![0; SECRET];
        rustls::crypto::ring::default_provider().secure_random.fill(&mut secret).map_err(|_| io::Error::other("no random numbers"))?;
        Ok(secret)
    })?;
    // keys made from a part of it could be guessed
    if secret.len() == SECRET {
        Ok(secret)
    } else {
        Err(io::Error::other("the file `secret` is damaged; remove it to have another one made"))
    }
}

/// The private file `name`, which `make` fills where it is not there yet.
fn made_once(state: &Path, name: &str, make: impl FnOnce() -> io::Result<Vec<u8>>) -> io::Result<Vec<u8>> {
    let file = state.join(name);
    match fs::read(&file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        other => return other,
    }
    let content = make()?;
    let new = state.join(format!("{name}.new"));
    let mut options = fs::OpenOptions::new();
    io::Write::write_all(&mut options.write(true).create(true).truncate(true).mode(0o600).open(&new)?, &content)?;
    fs::rename(new, file)?;
    Ok(content)
}

/// A directory for sockets that only this user can enter. Its path is short, as a socket's may hold 97 bytes
/// at most, which is why it is not in the state directory.
pub fn socket_directory(state: &Path) -> io::Result<PathBuf> {
    let state = fs::canonicalize(state)?;
    let name = blake3::hash(state.as_os_str().as_encoded_bytes()).to_hex();
    let directory = std::env::temp_dir().join(format!("haproxy-fleet-{}", &name[..12]));
    match fs::DirBuilder::new().mode(0o700).create(&directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        other => other?,
    }
    let found = fs::symlink_metadata(&directory)?;
    let private = found.is_dir() && found.uid() == rustix::process::getuid().as_raw() && found.mode().trailing_zeros() >= 6;
    if private { Ok(directory) } else { Err(io::Error::other(format!("{} belongs to somebody else", directory.display()))) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_default_certificate_and_the_secret_are_made_once_and_are_private() {
        for (name, make) in [("default.pem", default_certificate as fn(&Path) -> io::Result<Vec<u8>>), ("secret", secret)] {
            let state = tempfile::tempdir().unwrap();
            let made = make(state.path()).unwrap();
            assert_eq!(make(state.path()).unwrap(), made);
            assert_ne!(make(tempfile::tempdir().unwrap().path()).unwrap(), made);
            assert_eq!(fs::metadata(state.path().join(name)).unwrap().permissions().mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn a_secret_that_lost_bytes_is_not_used() {
        let state = tempfile::tempdir().unwrap();
        fs::write(state.path().join("secret"), b"").unwrap();
        assert!(secret(state.path()).unwrap_err().to_string().contains("remove it"));
    }

    #[test]
    fn a_socket_directory_that_others_can_enter_is_refused() {
        let state = tempfile::tempdir().unwrap();
        let directory = socket_directory(state.path()).unwrap();
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(socket_directory(state.path()).is_err());
        fs::remove_dir(directory).unwrap();
    }

    #[test]
    fn other_inputs_have_another_directory_and_the_same_ones_have_the_same() {
        let of = |names: &[&str]| default_directory(&names.iter().map(PathBuf::from).collect::<Vec<_>>());
        assert_eq!(of(&["examples"]), of(&["examples"]));
        assert_ne!(of(&["examples"]), of(&["example", "s"]));
    }
}
