//! The name of an image.

use std::fmt;
use std::str::FromStr;

/// `NAME:TAG`, fully qualified: `haproxy-fleet.dev/haproxy:3.4`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference(String);

/// A name that would not find its image again.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BadReference {
    /// Without a tag it would mean `latest`, which is always pulled.
    #[error("image name `{0}` has no tag: write NAME:TAG")]
    NoTag(String),
    /// Without a host part a cluster would look for it in its default registry, under another name.
    #[error("image name `{0}` has no host part: write HOST/NAME:TAG, with a dot or a port in HOST")]
    NoHost(String),
    /// The tag `latest` is pulled each time, also where there is no registry.
    #[error("image name `{0}` has the tag latest, which is pulled each time: name a version")]
    Latest(String),
    /// A byte that references do not have.
    #[error("image name `{name}` has the character {character:?}: use lower-case letters, digits, `.`, `_`, `-`, `/` and one `:`")]
    Character {
        /// The name.
        name: String,
        /// The first bad character.
        character: char,
    },
}

impl Reference {
    /// The whole name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// What stands after the colon.
    pub fn tag(&self) -> &str {
        self.0.rsplit_once(':').map_or("", |(_, tag)| tag)
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl FromStr for Reference {
    type Err = BadReference;

    fn from_str(text: &str) -> Result<Self, BadReference> {
        let bad = |character: &char| !(character.is_ascii_lowercase() || character.is_ascii_digit() || "._-/:".contains(*character));
        if let Some(character) = text.chars().find(bad) {
            return Err(BadReference::Character { name: text.to_owned(), character });
        }
        let (name, tag) = text.rsplit_once(':').ok_or_else(|| BadReference::NoTag(text.to_owned()))?;
        if tag.is_empty() || tag.contains('/') {
            return Err(BadReference::NoTag(text.to_owned()));
        }
        if tag == "latest" {
            return Err(BadReference::Latest(text.to_owned()));
        }
        match name.split_once('/') {
            Some((host, path)) if host.contains(['.', ':']) && !path.is_empty() => Ok(Self(text.to_owned())),
            _ => Err(BadReference::NoHost(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_name_that_clusters_would_resolve_otherwise_is_refused() {
        assert_eq!("a.example/b/c:1.2".parse::<Reference>().unwrap().tag(), "1.2");
        assert_eq!("localhost:5000/b:1".parse::<Reference>().unwrap().tag(), "1");
        for (text, error) in [
            ("a.example/b", BadReference::NoTag("a.example/b".to_owned())),
            ("a.example:5000/b", BadReference::NoTag("a.example:5000/b".to_owned())),
            ("b:1", BadReference::NoHost("b:1".to_owned())),
            ("library/b:1", BadReference::NoHost("library/b:1".to_owned())),
            ("a.example/b:latest", BadReference::Latest("a.example/b:latest".to_owned())),
            ("a.example/B:1", BadReference::Character { name: "a.example/B:1".to_owned(), character: 'B' }),
        ] {
            assert_eq!(text.parse::<Reference>().unwrap_err(), error);
        }
    }
}
