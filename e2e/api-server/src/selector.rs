//! Label and field selectors.

use serde_json::Value;

/// One requirement of a label selector, or one field.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Requirement {
    Equals(String, String),
    NotEquals(String, String),
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Absent(String),
}

/// What a list or watch is restricted to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Selector {
    labels: Vec<Requirement>,
    fields: Vec<Requirement>,
}

impl Selector {
    /// From the query parameters `labelSelector` and `fieldSelector`. None if one cannot be read.
    pub(crate) fn parse(labels: &str, fields: &str) -> Option<Self> {
        Some(Self { labels: requirements(labels)?, fields: requirements(fields)? })
    }

    pub(crate) fn matches(&self, object: &Value) -> bool {
        let label = |name: &str| object["metadata"]["labels"][name].as_str();
        let field = |path: &str| {
            let found = path.split('.').try_fold(object, |value, name| value.get(name));
            Some(found.and_then(Value::as_str).unwrap_or_default())
        };
        self.labels.iter().all(|requirement| requirement.holds(label)) && self.fields.iter().all(|requirement| requirement.holds(field))
    }
}

impl Requirement {
    fn holds<'a>(&self, value: impl Fn(&str) -> Option<&'a str>) -> bool {
        match self {
            Self::Equals(name, wanted) => value(name) == Some(wanted),
            Self::NotEquals(name, wanted) => value(name) != Some(wanted),
            Self::In(name, wanted) => value(name).is_some_and(|value| wanted.iter().any(|other| other == value)),
            Self::NotIn(name, wanted) => value(name).is_none_or(|value| wanted.iter().all(|other| other != value)),
            Self::Exists(name) => value(name).is_some(),
            Self::Absent(name) => value(name).is_none(),
        }
    }
}

fn requirements(text: &str) -> Option<Vec<Requirement>> {
    split(text).into_iter().filter(|part| !part.is_empty()).map(requirement).collect()
}

/// At the commas outside of parentheses.
fn split(text: &str) -> Vec<&str> {
    let (mut parts, mut start, mut depth) = (Vec::new(), 0, 0);
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(text[start..].trim());
    parts
}

fn requirement(part: &str) -> Option<Requirement> {
    let owned = |text: &str| text.trim().to_owned();
    for (word, is_in) in [(" notin ", false), (" in ", true)] {
        if let Some((name, values)) = part.split_once(word) {
            let values = values.trim().strip_prefix('(')?.strip_suffix(')')?.split(',').map(owned).collect();
            return Some(if is_in { Requirement::In(owned(name), values) } else { Requirement::NotIn(owned(name), values) });
        }
    }
    if let Some((name, value)) = part.split_once("!=") {
        return Some(Requirement::NotEquals(owned(name), owned(value)));
    }
    if let Some((name, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
        return Some(Requirement::Equals(owned(name), owned(value)));
    }
    match part.strip_prefix('!') {
        Some(name) => Some(Requirement::Absent(owned(name))),
        None => Some(Requirement::Exists(owned(part))),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Source: "Labels and Selectors" of the Kubernetes documentation.
    #[test]
    fn every_kind_of_requirement_selects_as_documented() {
        let object = json!({"metadata": {"name": "a", "labels": {"app": "x", "tier": "front"}}, "type": "Opaque"});
        for (labels, fields, expected) in [
            ("", "", true),
            ("app=x", "", true),
            ("app==x,tier=front", "", true),
            ("app=y", "", false),
            ("app!=y", "", true),
            ("other!=y", "", true),
            ("app in (x, y),tier", "", true),
            ("app notin (x,y)", "", false),
            ("other notin (x)", "", true),
            ("!other", "", true),
            ("!app", "", false),
            ("other", "", false),
            ("", "metadata.name=a", true),
            ("", "metadata.name=b", false),
            ("", "type=Opaque,metadata.name!=b", true),
            ("", "metadata.namespace=", true),
        ] {
            assert_eq!(Selector::parse(labels, fields).unwrap().matches(&object), expected, "{labels} / {fields}");
        }
    }
}
