//! Where `local` keeps what must outlive it.

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_inputs_have_another_directory_and_the_same_ones_have_the_same() {
        let of = |names: &[&str]| default_directory(&names.iter().map(PathBuf::from).collect::<Vec<_>>());
        assert_eq!(of(&["examples"]), of(&["examples"]));
        assert_ne!(of(&["examples"]), of(&["example", "s"]));
    }
}
