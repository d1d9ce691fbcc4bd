//! A rollout as a tree: the fleet, its zones, their pods. Pure.

use super::pods::{Phase, Pod};
use crate::cli::report::{Style, printable};
use crate::report::counted;
use crate::status::json::{Fleet, Rollout, RolloutZone};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Cells of a bar.
const BAR: u64 = 8;
/// Things that are waited for, at most.
const REASONS: usize = 4;

/// A line of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) text: String,
    tone: Tone,
}

/// How a line is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tone {
    Plain,
    Good,
    Moving,
    Bad,
    /// It stands for others.
    Faint,
}

/// The tree of `fleet`, in lines of at most `width` columns. `pods`: as far as they are known.
///
/// ```text
/// infra/edge  Progressing  zone a: its pods are replaced
/// ├─ zone a  ████░░░░  1/2 updated, 2 ready  template t2  its turn
/// │  ├─ edge-a-0  worker-1  t2  ready
/// │  └─ edge-a-1  worker-2  t1  terminating
/// └─ zone b  ░░░░░░░░  0/2 updated, 2 ready  template t1
/// ```
pub(super) fn rows(fleet: &Fleet, pods: &[Pod], width: usize) -> Vec<Row> {
    let nothing = Rollout::default();
    let rollout = fleet.rollout.as_ref().unwrap_or(&nothing);
    let branches = branches(rollout, pods);
    let names = branches.iter().map(|branch| branch.name.width()).max().unwrap_or(0);
    let mut rows = head(fleet, rollout, width);
    let columns = Columns::of(pods);
    for (number, branch) in branches.iter().enumerate() {
        let (knot, stem) = if number + 1 == branches.len() { ("└─", "   ") } else { ("├─", "│  ") };
        rows.push(row(branch.tone, format!("{knot} {}{}  {}", branch.name, blank(names, &branch.name), branch.said)));
        for (number, pod) in branch.pods.iter().enumerate() {
            let knot = if number + 1 == branch.pods.len() { "└─" } else { "├─" };
            rows.push(row(tone(pod.phase), format!("{stem}{knot} {}", columns.line(pod))));
        }
    }
    for row in &mut rows {
        row.text = cut(row.text.trim_end(), width);
    }
    rows
}

/// As many of `rows` as a terminal of `height` lines can draw over again.
pub(super) fn fitting(mut rows: Vec<Row>, height: usize, width: usize) -> Vec<Row> {
    // the cursor stands below them
    let room = height.saturating_sub(1).max(1);
    if rows.len() > room {
        let hidden = rows.len() - (room - 1);
        rows.truncate(room - 1);
        rows.push(row(Tone::Faint, cut(&format!("… {}", counted(hidden, "more line", "more lines")), width)));
    }
    rows
}

/// `rows` as they are written.
pub(super) fn frame(rows: &[Row], style: Style) -> String {
    let painted = |row: &Row| {
        let code = match row.tone {
            Tone::Plain => return row.text.clone(),
            Tone::Good => "32",
            Tone::Moving => "33",
            Tone::Bad => "31",
            Tone::Faint => "2",
        };
        style.paint(code, &row.text)
    };
    rows.iter().map(|row| painted(row) + "\n").collect()
}

fn row(tone: Tone, text: String) -> Row {
    Row { text, tone }
}

/// The fleet and what it waits for: what does not fit beside it stands below it.
fn head(fleet: &Fleet, rollout: &Rollout, width: usize) -> Vec<Row> {
    let tone = match rollout.state.as_str() {
        "Complete" => Tone::Good,
        "Paused" | "Frozen" | "Aborted" | "Stalled" => Tone::Bad,
        _ => Tone::Moving,
    };
    let id = clean(&format!("{}/{}", fleet.namespace, fleet.name));
    let mut first = format!("{id}  {}", clean(&rollout.state));
    let mut reasons = rollout.reasons.iter().take(REASONS).map(|reason| clean(reason)).peekable();
    if let Some(reason) = reasons.next_if(|reason| first.width() + reason.width() + 2 <= width) {
        first = format!("{first}  {reason}");
    }
    let below = reasons.map(|reason| row(Tone::Plain, format!("│  {reason}")));
    std::iter::once(row(tone, first)).chain(below).collect()
}

/// A zone with its pods.
struct Branch<'p> {
    name: String,
    tone: Tone,
    said: String,
    pods: Vec<&'p Pod>,
}

/// The zones in the order in which they are changed, then those that only have pods left.
fn branches<'p>(rollout: &Rollout, pods: &'p [Pod]) -> Vec<Branch<'p>> {
    // where no zones are listed, pods are wherever there is room
    let is_whole = matches!(&rollout.zones[..], [zone] if zone.name.is_none());
    let mut rest: Vec<&Pod> = pods.iter().collect();
    rest.sort_by(|a, b| (a.phase, &a.name).cmp(&(b.phase, &b.name)));
    let mut take = |name: Option<&str>, all: bool| -> Vec<&'p Pod> {
        let (here, others) = rest.iter().partition(|pod| all || pod.zone.as_deref() == name);
        rest = others;
        here
    };
    let mut branches: Vec<Branch<'p>> = Vec::new();
    for zone in &rollout.zones {
        branches.push(Branch {
            name: label(zone.name.as_deref()),
            tone: zone_tone(zone),
            said: said(zone),
            pods: take(zone.name.as_deref(), is_whole),
        });
    }
    while let Some(zone) = rest.first().map(|pod| pod.zone.clone()) {
        let (here, others): (Vec<&Pod>, Vec<&Pod>) = rest.iter().partition(|pod| pod.zone == zone);
        rest = others;
        branches.push(Branch { name: label(zone.as_deref()), tone: Tone::Moving, said: "is not listed".into(), pods: here });
    }
    branches
}

fn label(zone: Option<&str>) -> String {
    zone.map_or_else(|| "pods".to_owned(), |zone| clean(&format!("zone {zone}")))
}

fn zone_tone(zone: &RolloutZone) -> Tone {
    let is_done = zone.updated == zone.pods && zone.ready == zone.pods;
    if is_done { Tone::Good } else { Tone::Moving }
}

fn said(zone: &RolloutZone) -> String {
    let filled = (zone.updated.min(zone.pods) * BAR).checked_div(zone.pods).unwrap_or(BAR);
    let bar: String = (0..BAR).map(|cell| if cell < filled { '█' } else { '░' }).collect();
    let mut parts = vec![bar, format!("{}/{} updated, {} ready", zone.updated, zone.pods, zone.ready)];
    if !zone.template.is_empty() {
        parts.push(format!("template {}", clean(&zone.template)));
    }
    parts.extend(zone.turn.then(|| "its turn".to_owned()));
    parts.extend(zone.paused.then(|| "held".to_owned()));
    parts.join("  ")
}

fn tone(phase: Phase) -> Tone {
    match phase {
        Phase::Ready => Tone::Plain,
        Phase::Drained | Phase::Starting => Tone::Moving,
        Phase::Terminating => Tone::Faint,
    }
}

/// How wide what is said of pods is.
struct Columns([usize; 3]);

impl Columns {
    fn of(pods: &[Pod]) -> Self {
        let mut widths = [0; 3];
        for pod in pods {
            for (width, cell) in widths.iter_mut().zip(cells(pod)) {
                *width = (*width).max(cell.width());
            }
        }
        Self(widths)
    }

    fn line(&self, pod: &Pod) -> String {
        let padded = |(cell, width): (String, usize)| format!("{cell}{}  ", blank(width, &cell));
        let cells: String = cells(pod).into_iter().zip(self.0).filter(|(_, width)| *width > 0).map(padded).collect();
        cells + pod.phase.as_str()
    }
}

fn cells(pod: &Pod) -> [String; 3] {
    [clean(&pod.name), clean(pod.node.as_deref().unwrap_or_default()), clean(pod.template.as_deref().unwrap_or_default())]
}

fn blank(width: usize, text: &str) -> String {
    " ".repeat(width.saturating_sub(text.width()))
}

fn clean(text: &str) -> String {
    printable(text, false)
}

/// `text` in at most `width` columns: what is longer ends with `…`.
fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let room = width.saturating_sub(1);
    let mut used = 0;
    let fits = |character: &char| {
        used += character.width().unwrap_or(0);
        used <= room
    };
    let mut short: String = text.chars().take_while(fits).collect();
    short.extend((width > 0).then_some('…'));
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zone(name: Option<&str>, updated: u64, ready: u64) -> RolloutZone {
        RolloutZone { name: name.map(Into::into), template: "t2".into(), pods: 2, updated, ready, turn: false, paused: false }
    }

    fn fleet(zones: Vec<RolloutZone>) -> Fleet {
        let rollout = Rollout {
            state: "Progressing".into(),
            template: "t2".into(),
            reasons: vec!["zone a: its pods are replaced".into(), "pod edge-a-1 ends".into()],
            zones,
            ..Rollout::default()
        };
        Fleet { namespace: "infra".into(), name: "edge".into(), rollout: Some(rollout), ..Fleet::default() }
    }

    fn pod(name: &str, zone: Option<&str>, phase: Phase) -> Pod {
        Pod { name: name.into(), zone: zone.map(Into::into), node: Some("worker-1".into()), template: Some("t2".into()), phase }
    }

    fn texts(fleet: &Fleet, pods: &[Pod], width: usize) -> Vec<String> {
        rows(fleet, pods, width).into_iter().map(|row| row.text).collect()
    }

    #[test]
    fn a_fleet_has_zones_and_a_zone_has_pods() {
        let zones = vec![RolloutZone { turn: true, ..zone(Some("a"), 1, 2) }, RolloutZone { paused: true, ..zone(Some("bb"), 0, 2) }];
        let mut late = pod("edge-a-10", Some("a"), Phase::Terminating);
        (late.node, late.template) = (None, Some("t1".into()));
        let pods = [late, pod("edge-a-0", Some("a"), Phase::Ready), pod("edge-c-0", Some("c"), Phase::Starting)];
        assert_eq!(
            texts(&fleet(zones), &pods, 100),
            [
                "infra/edge  Progressing  zone a: its pods are replaced",
                "│  pod edge-a-1 ends",
                "├─ zone a   ████░░░░  1/2 updated, 2 ready  template t2  its turn",
                "│  ├─ edge-a-0   worker-1  t2  ready",
                "│  └─ edge-a-10            t1  terminating",
                "├─ zone bb  ░░░░░░░░  0/2 updated, 2 ready  template t2  held",
                "└─ zone c   is not listed",
                "   └─ edge-c-0   worker-1  t2  starting",
            ]
        );
    }

    #[test]
    fn where_no_zones_are_listed_pods_are_of_one_branch_wherever_they_are() {
        let pods = [pod("edge-1", Some("x"), Phase::Drained), pod("edge-0", None, Phase::Ready)];
        let told = texts(&fleet(vec![zone(None, 2, 2)]), &pods, 100);
        assert_eq!(
            told[2..],
            [
                "└─ pods  ████████  2/2 updated, 2 ready  template t2",
                "   ├─ edge-0  worker-1  t2  ready",
                "   └─ edge-1  worker-1  t2  drained",
            ]
        );
        assert_eq!(texts(&fleet(vec![zone(None, 2, 2)]), &[], 100)[2..], told[2..3], "pods that nobody may see");
    }

    #[test]
    fn every_line_fits_and_what_is_cut_says_so() {
        let mut wide = fleet(vec![zone(Some("日本語日本語日本語"), 1, 1), zone(Some("b"), 2, 2)]);
        wide.rollout.iter_mut().for_each(|rollout| rollout.reasons.push("ａ".repeat(500)));
        let pods = [pod(&"é".repeat(300), Some("b"), Phase::Ready)];
        for width in 0..80 {
            for text in texts(&wide, &pods, width) {
                assert!(text.width() <= width, "{width}: {text}");
            }
        }
        assert_eq!(texts(&wide, &pods, 16)[..2], ["infra/edge  Pro…", "│  zone a: its …"]);
        assert_eq!(texts(&wide, &pods, 11)[4], "├─ zone 日…", "half of a wide character is none");
    }

    #[test]
    fn nothing_that_has_a_name_acts_on_the_terminal() {
        let mut hostile = fleet(vec![zone(Some("a\x1b[2J"), 1, 1)]);
        hostile.name = "e\u{202e}dge\n".into();
        hostile.rollout.iter_mut().for_each(|rollout| rollout.state = "\x07".into());
        let mut evil = pod("p\r", Some("a\x1b[2J"), Phase::Ready);
        (evil.node, evil.template) = (Some("\u{9b}1m".into()), Some("\t".into()));
        let all = frame(&rows(&hostile, &[evil], 200), Style::PLAIN);
        assert!(all.chars().all(|character| character == '\n' || !character.is_control() && character != '\u{202e}'), "{all:?}");
        assert_eq!(all.lines().count(), 4);
    }

    #[test]
    fn a_tree_that_is_higher_than_the_terminal_says_how_much_is_not_shown() {
        let pods: Vec<Pod> = (0..50).map(|number| pod(&format!("edge-{number:02}"), None, Phase::Ready)).collect();
        let all = rows(&fleet(vec![zone(None, 1, 1)]), &pods, 80);
        let few = fitting(all.clone(), 10, 80);
        assert_eq!((all.len(), few.len(), few[8].text.as_str()), (53, 9, "… 45 more lines"));
        assert_eq!(fitting(all.clone(), 54, 80), all);
        assert_eq!(fitting(all, 0, 80).len(), 1);
    }
}
