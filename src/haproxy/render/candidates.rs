//! Routes that a path alone does not decide: conditions, expressions, weights.

use super::hosts::entry;
use crate::haproxy::bundle::MapEntry;
use crate::haproxy::config::{Expr, Line, Refused, Word};
use crate::model::{Conditions, PathMatch, Route, ValueMatch};
use crate::report::{Diagnostic, codes};

/// Tests on one line: a line takes 64 words, and a test seven of them.
const TESTS: usize = 7;

/// Digits of the random number that a split is decided by: weights are exact to a millionth.
const DIGITS: u32 = 6;

/// One candidate: the name that `txn.route` has once it is chosen, and the rules that choose it.
pub(super) struct Node<'a> {
    pub(super) name: String,
    /// `None`: nothing matched.
    pub(super) route: Option<&'a Route>,
    pub(super) lines: Vec<Line>,
}

/// The candidates of the node `id`, in order. What has neither conditions nor expression comes last and is
/// what `txn.route` says already.
pub(super) fn candidates<'a>(id: &str, list: &[&'a Route], findings: &mut Vec<Diagnostic>) -> Vec<Node<'a>> {
    let mut out = Vec::with_capacity(list.len());
    let mut otherwise = None;
    for (index, route) in list.iter().enumerate() {
        if route.conditions.is_empty() && !matches!(route.path, PathMatch::Regex(_)) {
            otherwise = Some(*route);
            break;
        }
        let name = format!("{id}.{index}");
        match rules(id, &name, route) {
            Ok(lines) => out.push(Node { name, route: Some(route), lines }),
            Err(refused) => findings.push(Diagnostic::error(
                &route.source,
                "",
                codes::INVALID_VALUE,
                format!("a condition of a route {refused}: the route is left out"),
                "correct the condition",
            )),
        }
    }
    out.push(Node { name: id.to_owned(), route: otherwise, lines: Vec::new() });
    out
}

/// `{ EXPR -m METHOD -- PATTERN }`
struct Test<'a> {
    expr: Expr,
    method: &'static str,
    pattern: Option<&'a str>,
}

fn rules(id: &str, name: &str, route: &Route) -> Result<Vec<Line>, Refused> {
    let mut tests = Vec::new();
    if let PathMatch::Regex(regex) = &route.path {
        tests.push(Test { expr: Expr::of("path"), method: "reg", pattern: Some(regex) });
    }
    let Conditions { method, headers, query } = &route.conditions;
    if let Some(method) = method {
        // A method has a way of its own to be compared.
        tests.push(Test { expr: Expr::of("method"), method: "", pattern: Some(method) });
    }
    for (header, value) in headers {
        tests.push(test(Expr::fetch("req.fhdr", header)?, value));
    }
    for (parameter, value) in query {
        tests.push(test(Expr::fetch("urlp", parameter)?.then("url_dec", &["1"])?, value));
    }
    // Each line goes on where the one before left off.
    let mut lines = Vec::new();
    let mut state = (Expr::of("var(txn.route)"), id.to_owned());
    let chunks = tests.chunks(TESTS);
    let count = chunks.len();
    for (index, chunk) in chunks.enumerate() {
        let done = index + 1 == count;
        let next = if done { name.to_owned() } else { format!("{name}.{index}") };
        let line = Line::of("http-request").and(if done { "set-var(txn.route)" } else { "set-var(txn.step)" });
        let mut line = line.with(Word::expr(&Expr::fetch("str", &next)?)).and("if").test(&state.0, "str", &state.1)?;
        for test in chunk {
            line = match test.pattern {
                Some(pattern) if test.method.is_empty() => {
                    line.and("{").with(Word::expr(&test.expr)).and("--").with(Word::name(pattern)?).and("}")
                }
                Some(pattern) => line.test(&test.expr, test.method, pattern)?,
                None => line.and("{").with(Word::expr(&test.expr)).and(test.method).and("}"),
            };
        }
        lines.push(line);
        state = (Expr::of("var(txn.step)"), next);
    }
    Ok(lines)
}

fn test(expr: Expr, value: &ValueMatch) -> Test<'_> {
    match value {
        // An empty word would end the line.
        ValueMatch::Exact(text) if text.is_empty() => Test { expr, method: "-m len 0", pattern: None },
        ValueMatch::Exact(text) => Test { expr, method: "str", pattern: Some(text) },
        ValueMatch::Regex(regex) => Test { expr, method: "reg", pattern: Some(regex) },
        ValueMatch::Present => Test { expr, method: "-m found", pattern: None },
    }
}

/// Entries that lead `NAME/1DDDDDD`, the Ds being random, to each name in proportion to its weight. Ranges
/// of numbers are covered by prefixes, as for networks, so that weights change by map entries alone.
pub(super) fn split_entries(name: &str, weights: &[(super::Name, u32)]) -> Vec<MapEntry> {
    let total: u64 = weights.iter().map(|(_, weight)| u64::from(*weight)).sum();
    if total == 0 {
        return vec![entry(&format!("{name}/"), "_503")];
    }
    let all = 10_u64.pow(DIGITS);
    let (mut out, mut sum, mut from) = (Vec::new(), 0_u64, 0);
    for (backend, weight) in weights {
        sum += u64::from(*weight);
        let to = sum * all / total;
        cover(from, to, &mut |prefix| out.push(entry(&format!("{name}/1{prefix}"), backend)));
        from = to;
    }
    out
}

/// The fewest decimal prefixes of `DIGITS` digits that make up the numbers from `from` up to but not `to`.
fn cover(mut from: u64, to: u64, found: &mut dyn FnMut(&str)) {
    while from < to {
        let mut digits = 0;
        while digits < DIGITS && from.is_multiple_of(10_u64.pow(digits + 1)) && from + 10_u64.pow(digits + 1) <= to {
            digits += 1;
        }
        let width = (DIGITS - digits) as usize;
        let text = if width == 0 { String::new() } else { format!("{:0width$}", from / 10_u64.pow(digits)) };
        found(&text);
        from += 10_u64.pow(digits);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_split_covers_every_number_once_and_in_proportion() {
        for weights in [vec![70, 30], vec![1, 1, 1], vec![0, 5], vec![999_999, 1], vec![1, 0, 7, 13]] {
            let named: Vec<_> = weights.iter().enumerate().map(|(i, weight)| (format!("b{i}").into(), *weight)).collect();
            let entries = split_entries("~x", &named);
            let mut counts = vec![0_u64; weights.len()];
            for entry in &entries {
                let prefix = entry.key.strip_prefix("~x/1").unwrap_or_default();
                let index: usize = entry.value[1..].parse().unwrap_or_default();
                counts[index] += 10_u64.pow(6 - u32::try_from(prefix.len()).unwrap_or_default());
            }
            assert_eq!(counts.iter().sum::<u64>(), 1_000_000);
            let total: u64 = weights.iter().map(|w| u64::from(*w)).sum();
            for (count, weight) in counts.iter().zip(&weights) {
                assert!(count.abs_diff(u64::from(*weight) * 1_000_000 / total) <= 1, "{weights:?} {counts:?}");
            }
            assert!(entries.len() < 120, "{}", entries.len());
        }
    }
}
