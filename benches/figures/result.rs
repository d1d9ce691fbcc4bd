//! Results as lines of JSON, and as a table.

use serde_json::{Map, Value};
use std::fmt::Write as _;
use std::io::Write as _;

/// One result.
#[derive(Clone, Debug)]
pub struct Line(Vec<(String, Value)>);

impl Line {
    /// A result of `bench`.
    pub fn new(bench: &str) -> Self {
        Self(vec![("bench".into(), bench.into())])
    }

    /// The same with another key.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.0.push((key.into(), value.into()));
        self
    }

    /// The same with a measured number, to three digits behind the point.
    #[must_use]
    pub fn measured(self, key: &str, value: f64) -> Self {
        self.with(key, (value * 1000.0).round() / 1000.0)
    }

    /// The same with what a run under load lost.
    #[must_use]
    pub fn losses(self, report: &fleet_load::Report) -> Self {
        let by_kind: Map<String, Value> = report.lost_by_kind.iter().map(|(kind, count)| (kind.to_string(), (*count).into())).collect();
        self.with("requests", report.requests).with("lost", report.lost).with("by_kind", by_kind)
    }

    /// The line, keys in the order in which they were given.
    fn json(&self) -> String {
        let fields: Vec<String> = self.0.iter().map(|(key, value)| format!("{}:{value}", Value::from(key.as_str()))).collect();
        format!("{{{}}}", fields.join(","))
    }
}

/// All results so far.
#[derive(Debug, Default)]
pub struct Results(Vec<Line>);

impl Results {
    /// Prints a result and remembers it for the table.
    pub fn add(&mut self, line: Line) {
        // a reader that went away does not want the rest
        let _ = writeln!(std::io::stdout(), "{}", line.json());
        self.0.push(line);
    }

    /// All results: benches one after the other, their keys as columns.
    pub fn table(&self) -> String {
        let mut text = String::new();
        let bench = |line: &Line| line.0.first().map(|(_, name)| name.clone());
        for lines in self.0.chunk_by(|a, b| bench(a) == bench(b)) {
            let name = bench(&lines[0]).map(|name| show(&name)).unwrap_or_default();
            let mut columns: Vec<&str> = Vec::new();
            for (key, _) in lines.iter().flat_map(|line| &line.0[1..]) {
                if !columns.contains(&key.as_str()) {
                    columns.push(key);
                }
            }
            let cell =
                |line: &Line, column: &str| line.0.iter().find(|(key, _)| key == column).map(|(_, value)| show(value)).unwrap_or_default();
            let rows: Vec<Vec<String>> = lines.iter().map(|line| columns.iter().map(|column| cell(line, column)).collect()).collect();
            let width = |index: usize| {
                let cells = rows.iter().map(|row| row[index].chars().count());
                cells.chain([columns[index].len()]).max().unwrap_or_default()
            };
            // writing to a string cannot fail
            let _ = writeln!(text, "\n{name}");
            let heading: Vec<String> = columns.iter().map(|column| (*column).to_owned()).collect();
            for row in std::iter::once(&heading).chain(&rows) {
                for (index, cell) in row.iter().enumerate() {
                    let _ = write!(text, "  {cell:>width$}", width = width(index));
                }
                text.push('\n');
            }
        }
        text
    }
}

fn show(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Object(map) if map.is_empty() => "-".into(),
        other => other.to_string(),
    }
}
