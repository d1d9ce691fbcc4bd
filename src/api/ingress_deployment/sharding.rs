//! Which part of a class a fleet serves.

use super::patterns::{ANY_LABEL_VALUE, LABEL_KEY};
use super::pods::Texts;
use crate::api::{Meta, Namespace, Pairs};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What labels have to say, as in a Service's or a NetworkPolicy's selector: all of it. An empty one is content with any.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Selector {
    /// Labels with exactly these values.
    #[serde(default, skip_serializing_if = "Texts::is_empty")]
    #[schemars(extend("maxProperties" = 16), inner(length(max = 63), pattern(ANY_LABEL_VALUE)))]
    pub match_labels: Texts,
    /// What else labels have to say.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub match_expressions: Vec<Requirement>,
}

/// What one label has to say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("(self.operator == 'In' || self.operator == 'NotIn') == (has(self.values) && self.values.size() > 0)")
    .message("In and NotIn take values, Exists and DoesNotExist take none"))]
pub struct Requirement {
    /// The label's name.
    #[schemars(length(min = 1, max = 317), pattern(LABEL_KEY))]
    pub key: String,
    /// What is asked of it.
    pub operator: Operator,
    /// The values that are meant.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(max = 63), pattern(ANY_LABEL_VALUE)))]
    pub values: Vec<String>,
}

/// What is asked of a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Operator {
    /// It is there with one of the values.
    In,
    /// It is not there, or has none of the values.
    NotIn,
    /// It is there.
    Exists,
    /// It is not there.
    DoesNotExist,
}

impl Selector {
    /// Whether any labels will do.
    pub fn is_empty(&self) -> bool {
        self.match_labels.is_empty() && self.match_expressions.is_empty()
    }

    /// Whether `labels` say all that they have to.
    pub fn matches(&self, labels: &Pairs) -> bool {
        self.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value))
            && self.match_expressions.iter().all(|one| one.holds(labels))
    }
}

impl Requirement {
    /// Whether operator and values fit: a rule of the schema.
    pub fn is_whole(&self) -> bool {
        matches!(self.operator, Operator::In | Operator::NotIn) != self.values.is_empty()
    }

    fn holds(&self, labels: &Pairs) -> bool {
        let value = labels.get(&self.key);
        let is_meant = || value.is_some_and(|value| self.values.iter().any(|meant| meant == value));
        match self.operator {
            Operator::In => is_meant(),
            Operator::NotIn => !is_meant(),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
        }
    }
}

/// The label that the API server writes on every namespace: its name. Namespaces of files, or of which nothing is known,
/// have it, too.
const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// Which part of a class is a fleet's. No selector of it is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shard {
    /// What labels of namespaces have to say.
    pub namespaces: Option<Selector>,
    /// What labels of routes have to say.
    pub routes: Option<Selector>,
}

impl Shard {
    /// Whether it is the whole class.
    pub fn is_whole(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a route is of it. `namespace` is the route's, if it is known.
    pub fn takes(&self, route: &Meta, namespace: Option<&Namespace>) -> bool {
        let of_namespace = self.namespaces.as_ref().is_none_or(|selector| {
            let known = namespace.map(|namespace| namespace.meta.labels.iter()).into_iter().flatten();
            selector.matches(&known.chain([(NAMESPACE_NAME, &*route.namespace)]).collect())
        });
        of_namespace && self.routes.as_ref().is_none_or(|selector| selector.matches(&route.labels))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selector(labels: &[(&str, &str)], expressions: &[(&str, Operator, &[&str])]) -> Selector {
        let text = |text: &&str| (*text).to_owned();
        Selector {
            match_labels: labels.iter().map(|(key, value)| (text(key), text(value))).collect(),
            match_expressions: expressions
                .iter()
                .map(|(key, operator, values)| Requirement {
                    key: text(key),
                    operator: *operator,
                    values: values.iter().map(text).collect(),
                })
                .collect(),
        }
    }

    #[test]
    fn labels_have_to_say_all_that_is_asked() {
        let labels: Pairs = [("team", "shop"), ("tier", "gold")].into_iter().collect();
        let cases = [
            (selector(&[], &[]), true),
            (selector(&[("team", "shop")], &[]), true),
            (selector(&[("team", "shop"), ("tier", "iron")], &[]), false),
            (selector(&[("gone", "")], &[]), false),
            (selector(&[], &[("tier", Operator::In, &["iron", "gold"])]), true),
            (selector(&[], &[("tier", Operator::In, &["iron"])]), false),
            (selector(&[], &[("gone", Operator::In, &["iron"])]), false),
            (selector(&[], &[("tier", Operator::NotIn, &["iron"])]), true),
            (selector(&[], &[("gone", Operator::NotIn, &["iron"])]), true),
            (selector(&[], &[("tier", Operator::NotIn, &["gold"])]), false),
            (selector(&[], &[("tier", Operator::Exists, &[])]), true),
            (selector(&[], &[("gone", Operator::Exists, &[])]), false),
            (selector(&[], &[("gone", Operator::DoesNotExist, &[])]), true),
            (selector(&[("team", "shop")], &[("tier", Operator::DoesNotExist, &[])]), false),
        ];
        for (selector, matches) in cases {
            assert_eq!(selector.matches(&labels), matches, "{selector:?}");
        }
    }
}
