//! The report as a picture: rate, latency and losses over time, and what happened meanwhile.
//!
//! Written by hand: three step lines and some bars take less than a library for charts, and the same report gives the
//! same bytes. Colours follow the reader's preference of light or dark.

use crate::report::{Latency, Loss, Mark, Report};
use crate::series::Second;
use std::fmt::{self, Write};

const WIDTH: f64 = 960.0;
const LEFT: f64 = 72.0;
const RIGHT: f64 = 944.0;
const PANEL: f64 = 120.0;
/// From the bottom of a panel to the top of the next: its heading.
const GAP: f64 = 40.0;
const LINE: f64 = 15.0;
/// Where the first row of labels stands.
const LABELS: f64 = 60.0;
/// How wide a character is at most, on average, in the text of marks.
const CHARACTER: f64 = 6.4;
const LONGEST_LABEL: usize = 72;

const STYLE: &str = "\
text{font:11px system-ui,sans-serif;fill:#1f2328;paint-order:stroke;stroke:#ffffff;stroke-width:3}\
.head{font-size:13px;font-weight:600}\
.paper{fill:#ffffff}\
.grid{stroke:#d0d7de;stroke-width:1}\
.line{fill:none;stroke-width:1.5}\
.sent{stroke:#6e7781;stroke-dasharray:4 3}\
.answered{stroke:#0969da}\
.p50{stroke:#1a7f37}\
.p99{stroke:#bc4c00}\
.mark{stroke:#8250df;stroke-width:1;stroke-dasharray:2 2}\
.label{fill:#8250df}\
@media(prefers-color-scheme:dark){\
text{fill:#e6edf3;stroke:#0d1117}\
.paper{fill:#0d1117}\
.grid{stroke:#30363d}\
.sent{stroke:#8d96a0}\
.answered{stroke:#58a6ff}\
.p50{stroke:#3fb950}\
.p99{stroke:#f0883e}\
.mark{stroke:#bc8cff}\
.label{fill:#bc8cff}}";

impl Report {
    /// Rate, latency and losses over time as SVG, with [`Report::marks`] as labelled lines: the same bytes for the same
    /// report.
    pub fn svg(&self) -> String {
        let mut text = String::new();
        // writing to a string cannot fail
        let _ = Picture::new(self).write(&mut text);
        text
    }
}

/// Where everything is.
struct Picture<'a> {
    report: &'a Report,
    labels: Vec<Label<'a>>,
    /// The top of the first panel.
    top: f64,
    seconds: f64,
}

/// A mark and where its text is.
struct Label<'a> {
    mark: &'a Mark,
    x: f64,
    row: usize,
    /// The text is to the left of its line, as there is no room to the right.
    is_left: bool,
}

impl Label<'_> {
    fn y(&self) -> f64 {
        LABELS + LINE * number(self.row as u64)
    }
}

impl<'a> Picture<'a> {
    fn new(report: &'a Report) -> Self {
        let last_mark = report.marks.iter().map(|mark| mark.at.ceil()).fold(1.0, f64::max);
        let seconds = number(report.series.len() as u64).max(last_mark);
        let labels = labels(&report.marks, seconds);
        let rows = labels.iter().map(|label| label.row + 1).max().unwrap_or_default();
        Self { report, labels, top: LABELS + 28.0 + number(rows as u64) * LINE, seconds }
    }

    fn x(&self, second: f64) -> f64 {
        at(second, self.seconds)
    }

    fn panel_top(&self, index: u64) -> f64 {
        self.top + number(index) * (PANEL + GAP)
    }

    fn write(&self, out: &mut String) -> fmt::Result {
        let report = self.report;
        let bottom = self.panel_top(2) + PANEL;
        let height = bottom + 48.0 + LINE * number(self.report.parts.len() as u64);
        write!(
            out,
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">"#
        )?;
        let (outcome, latency) = (outcome(report), latency(report));
        writeln!(out, "\n<title>{outcome}; {latency}</title>\n<style>{STYLE}</style>")?;
        writeln!(out, r#"<rect class="paper" width="{WIDTH}" height="{height}"/>"#)?;
        self.write_mark_lines(out, bottom)?;
        writeln!(out, r#"<text class="head" x="16" y="22">{outcome}</text>"#)?;
        writeln!(out, r#"<text x="16" y="38">{latency}</text>"#)?;
        self.write_rate(out)?;
        self.write_latency(out)?;
        self.write_losses(out)?;
        self.write_time(out, bottom)?;
        self.write_labels(out)?;
        self.write_parts(out, bottom + 48.0)?;
        out.push_str("</svg>\n");
        Ok(())
    }

    fn write_rate(&self, out: &mut String) -> fmt::Result {
        let top = self.panel_top(0);
        let series = &self.report.series;
        let most = series.iter().map(|second| second.sent.max(second.answered)).max().unwrap_or_default();
        let scale = Linear::of(most, top);
        heading(out, top, "requests a second", &[("sent", "line sent"), ("answered", "line answered")])?;
        scale.write_grid(out)?;
        self.write_steps(out, "sent", |second| Some(scale.y(second.sent)))?;
        self.write_steps(out, "answered", |second| Some(scale.y(second.answered)))
    }

    fn write_latency(&self, out: &mut String) -> fmt::Result {
        let top = self.panel_top(1);
        let scale = Decades::of(&self.report.series, top);
        heading(out, top, "latency from the planned start", &[("median", "line p50"), ("99th percentile", "line p99")])?;
        scale.write_grid(out)?;
        self.write_steps(out, "p50", |second| second.p50_ms.map(|ms| scale.y(ms)))?;
        self.write_steps(out, "p99", |second| second.p99_ms.map(|ms| scale.y(ms)))
    }

    /// A line that keeps its height for each second, and is interrupted where there is no value.
    fn write_steps(&self, out: &mut String, class: &str, y: impl Fn(&Second) -> Option<f64>) -> fmt::Result {
        let mut path = String::new();
        let mut is_down = false;
        for second in &self.report.series {
            let Some(y) = y(second) else {
                is_down = false;
                continue;
            };
            let (start, end) = (self.x(number(second.at)), self.x(number(second.at + 1)));
            if is_down {
                write!(path, "V{y:.1}")?;
            } else {
                write!(path, "M{start:.1} {y:.1}")?;
            }
            write!(path, "H{end:.1}")?;
            is_down = true;
        }
        if path.is_empty() {
            return Ok(());
        }
        writeln!(out, r#"<path class="line {class}" d="{path}"/>"#)
    }

    fn write_losses(&self, out: &mut String) -> fmt::Result {
        let top = self.panel_top(2);
        let most = self.report.series.iter().map(|second| second.lost).max().unwrap_or_default();
        let scale = Linear::of(most, top);
        let title = if self.report.lost == 0 { "lost a second: none" } else { "lost a second" };
        writeln!(out, r#"<text class="head" x="{LEFT}" y="{:.1}">{title}</text>"#, top - 10.0)?;
        let mut x = LEFT + 120.0;
        for (kind, count) in &self.report.lost_by_kind {
            let text = format!("{kind} {count}");
            writeln!(out, r#"<rect fill="{}" x="{x:.1}" y="{:.1}" width="10" height="10"/>"#, colour(*kind), top - 19.0)?;
            writeln!(out, r#"<text x="{:.1}" y="{:.1}">{text}</text>"#, x + 14.0, top - 10.0)?;
            x += 28.0 + number(text.len() as u64) * CHARACTER;
        }
        scale.write_grid(out)?;
        self.report.series.iter().try_for_each(|second| self.write_bars(out, second, &scale))
    }

    /// The losses of a second, one kind on top of the other.
    fn write_bars(&self, out: &mut String, second: &Second, scale: &Linear) -> fmt::Result {
        let x = self.x(number(second.at));
        // a single loss in a long run must be seen
        let width = (self.x(number(second.at + 1)) - x).max(2.0);
        let mut below = 0;
        for (kind, count) in &second.lost_by_kind {
            let (bottom, top) = (scale.y(below), scale.y(below + count));
            let (fill, height) = (colour(*kind), bottom - top);
            write!(out, r#"<rect class="loss" fill="{fill}" x="{x:.1}" y="{top:.1}" width="{width:.1}" height="{height:.1}">"#)?;
            writeln!(out, "<title>{} s: {count} {kind}</title></rect>", second.at)?;
            below += count;
        }
        Ok(())
    }

    fn write_time(&self, out: &mut String, bottom: f64) -> fmt::Result {
        let step = nice(self.seconds / 10.0).max(1.0);
        let mut second = 0.0;
        while second <= self.seconds {
            let x = self.x(second);
            writeln!(out, r#"<path class="grid" d="M{x:.1} {bottom:.1}v4"/>"#)?;
            writeln!(out, r#"<text x="{x:.1}" y="{:.1}" text-anchor="middle">{second}</text>"#, bottom + 16.0)?;
            second += step;
        }
        let (middle, y) = (f64::midpoint(LEFT, RIGHT), bottom + 30.0);
        writeln!(out, r#"<text x="{middle:.1}" y="{y:.1}" text-anchor="middle">seconds since the start</text>"#)
    }

    /// Below everything else, as lines may cross texts.
    fn write_mark_lines(&self, out: &mut String, bottom: f64) -> fmt::Result {
        self.labels
            .iter()
            .try_for_each(|label| writeln!(out, r#"<path class="mark" d="M{:.1} {:.1}V{bottom:.1}"/>"#, label.x, label.y() - 10.0))
    }

    fn write_labels(&self, out: &mut String) -> fmt::Result {
        self.labels.iter().try_for_each(|label| {
            let (x, anchor) = if label.is_left { (label.x - 3.0, "end") } else { (label.x + 3.0, "start") };
            let (at, text) = (label.mark.at, &label.mark.text);
            write!(out, r#"<text class="label" x="{x:.1}" y="{:.1}" text-anchor="{anchor}">{}"#, label.y(), escape(&shown(text)))?;
            writeln!(out, "<title>{at:.3} s: {}</title></text>", escape(text))
        })
    }

    fn write_parts(&self, out: &mut String, top: f64) -> fmt::Result {
        for (index, (name, part)) in self.report.parts.iter().enumerate() {
            let y = top + LINE * number(index as u64);
            writeln!(out, r#"<text x="{LEFT}" y="{y:.1}">{}: {}; {}</text>"#, escape(name), outcome(part), latency(part))?;
        }
        Ok(())
    }
}

/// Puts each mark's text into the first row where it does not run into another.
fn labels<'a>(marks: &'a [Mark], seconds: f64) -> Vec<Label<'a>> {
    let mut rows: Vec<f64> = Vec::new();
    let mut sorted: Vec<&Mark> = marks.iter().collect();
    sorted.sort_by(|a, b| a.at.total_cmp(&b.at));
    let place = |mark: &'a Mark| {
        let (x, width) = (at(mark.at, seconds), 8.0 + number(shown(&mark.text).chars().count() as u64) * CHARACTER);
        let is_left = x + width > WIDTH;
        let (start, end) = if is_left { (x - width, x) } else { (x, x + width) };
        let row = rows.iter().position(|taken| *taken <= start).unwrap_or(rows.len());
        if row == rows.len() {
            rows.push(end);
        } else {
            rows[row] = end;
        }
        Label { mark, x, row, is_left }
    };
    sorted.into_iter().map(place).collect()
}

fn at(second: f64, seconds: f64) -> f64 {
    LEFT + (RIGHT - LEFT) * (second / seconds).clamp(0.0, 1.0)
}

/// What became of the requests of a run, in a line.
fn outcome(report: &Report) -> String {
    let cut = if report.lasting.cut == 0 { String::new() } else { format!(", {} cut before their deadline", report.lasting.cut) };
    format!("{} requests in {:.1} s, {} lost{cut}", report.requests, report.seconds, report.lost)
}

/// How long answers took, in a line.
fn latency(report: &Report) -> String {
    let Latency { p50_ms, p99_ms, max_ms, .. } = report.latency;
    format!("latency: median {p50_ms:.1} ms, 99th percentile {p99_ms:.1} ms, longest {max_ms:.1} ms")
}

/// The title of a panel and what its lines are.
fn heading(out: &mut String, top: f64, title: &str, lines: &[(&str, &str)]) -> fmt::Result {
    let y = top - 10.0;
    writeln!(out, r#"<text class="head" x="{LEFT}" y="{y:.1}">{title}</text>"#)?;
    let mut x = LEFT + 230.0;
    for (name, class) in lines {
        writeln!(out, r#"<path class="{class}" d="M{x:.1} {:.1}h20"/>"#, y - 4.0)?;
        writeln!(out, r#"<text x="{:.1}" y="{y:.1}">{name}</text>"#, x + 25.0)?;
        x += 45.0 + number(name.len() as u64) * CHARACTER;
    }
    Ok(())
}

fn grid_line(out: &mut String, y: f64, label: &str) -> fmt::Result {
    writeln!(out, r#"<path class="grid" d="M{LEFT:.1} {y:.1}H{RIGHT:.1}"/>"#)?;
    writeln!(out, r#"<text x="{:.1}" y="{:.1}" text-anchor="end">{label}</text>"#, LEFT - 6.0, y + 4.0)
}

/// Counts from 0 to a round number.
struct Linear {
    top: f64,
    step: f64,
    most: f64,
}

impl Linear {
    fn of(most: u64, top: f64) -> Self {
        let step = nice(number(most) / 4.0).max(1.0);
        let most = (number(most) / step).ceil().max(1.0) * step;
        Self { top, step, most }
    }

    fn y(&self, count: u64) -> f64 {
        self.top + PANEL * (1.0 - number(count) / self.most)
    }

    fn write_grid(&self, out: &mut String) -> fmt::Result {
        let mut value = 0.0;
        while value <= self.most {
            grid_line(out, self.top + PANEL * (1.0 - value / self.most), &value.to_string())?;
            value += self.step;
        }
        Ok(())
    }
}

/// Milliseconds in powers of ten, as a stall is a thousand times what is usual.
struct Decades {
    top: f64,
    lowest: i32,
    highest: i32,
}

impl Decades {
    #[allow(clippy::cast_possible_truncation)] // exponents of ten of what a histogram holds
    fn of(series: &[Second], top: f64) -> Self {
        let values = || series.iter().flat_map(|second| [second.p50_ms, second.p99_ms]).flatten().filter(|ms| *ms > 0.0);
        let lowest = values().reduce(f64::min).map_or(0, |ms| ms.log10().floor() as i32);
        let highest = values().reduce(f64::max).map_or(0, |ms| ms.log10().ceil() as i32);
        Self { top, lowest, highest: highest.max(lowest + 1) }
    }

    fn y(&self, ms: f64) -> f64 {
        let share = (ms.log10() - f64::from(self.lowest)) / f64::from(self.highest - self.lowest);
        self.top + PANEL * (1.0 - share.clamp(0.0, 1.0))
    }

    fn write_grid(&self, out: &mut String) -> fmt::Result {
        for exponent in self.lowest..=self.highest {
            let ms = 10_f64.powi(exponent);
            let label = match exponent {
                3.. => format!("{} s", 10_f64.powi(exponent - 3)),
                0..3 => format!("{ms} ms"),
                // powers below one have no exact value, and the label none of their rounding
                _ => format!("{ms:.digits$} ms", digits = usize::try_from(-exponent).unwrap_or_default()),
            };
            grid_line(out, self.y(ms), &label)?;
        }
        Ok(())
    }
}

/// The next of 1, 2, 5, 10, 20, 50 …, from `value` up.
fn nice(value: f64) -> f64 {
    if value <= 0.0 {
        return 0.0;
    }
    let power = 10_f64.powf(value.log10().floor());
    let step = [1.0, 2.0, 5.0].into_iter().find(|step| step * power >= value).unwrap_or(10.0);
    step * power
}

#[allow(clippy::cast_precision_loss)] // counts far below 2^52
fn number(count: u64) -> f64 {
    count as f64
}

/// Colours of middling lightness, which stand out from white and from black.
fn colour(kind: Loss) -> &'static str {
    match kind {
        Loss::Refused => "#e15759",
        Loss::RefusedStream => "#f28e2b",
        Loss::Reset => "#d4a72c",
        Loss::Closed => "#b07aa1",
        Loss::Truncated => "#4e79a7",
        Loss::ProxyError => "#d37295",
        Loss::Unexpected => "#9c755f",
        Loss::Timeout => "#59a14f",
        Loss::ClosedEarly => "#499894",
        Loss::NoEcho => "#a0a000",
        Loss::Tls => "#6b8fd6",
        Loss::Local => "#8a8a8a",
    }
}

/// The text of a mark as far as there is room.
fn shown(text: &str) -> String {
    if text.chars().count() <= LONGEST_LABEL {
        return text.to_owned();
    }
    text.chars().take(LONGEST_LABEL - 1).chain(['…']).collect()
}

/// Text for XML: markup as entities, and what XML has no place for replaced.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '\u{0}'..='\u{1f}' | '\u{7f}' | '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            other => escaped.push(other),
        }
    }
    escaped
}
