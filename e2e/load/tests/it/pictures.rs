//! The picture holds what the report holds, is well-formed whatever texts say, and is the same for the same report.

use crate::servers::{GOOD, answer_all, report, server};
use fleet_load::{Config, Load, Mark, Mix, Part, Report, Target};
use roxmltree::{Document, Node};
use std::net::SocketAddr;
use tokio::net::TcpListener;

fn config(address: SocketAddr) -> Config {
    Config { rate: 300.0, requests: Some(30), ..Config::new(vec![Target::new(address, "a.example", "/")]) }
}

/// A mix of what is answered and what is refused, with marks.
async fn mixed() -> Report {
    let good = server(|stream| answer_all(stream, GOOD)).await;
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let part = |name: &str, address| Part { name: name.into(), share: 1.0, config: config(address) };
    let load = Load::start_mix(Mix { rate: 600.0, duration: None, parts: vec![part("good <1>", good), part("nobody", nobody)] }).unwrap();
    load.mark("pod edge-a-0 drains");
    load.mark("a & b < c > d \"e\" 'f' \u{1} ü");
    load.mark("a".repeat(500));
    load.wait().await
}

fn of_class<'a>(document: &'a Document, class: &'a str) -> impl Iterator<Item = Node<'a, 'a>> {
    document.descendants().filter(move |node| node.attribute("class") == Some(class))
}

#[tokio::test]
async fn every_mark_and_every_loss_is_in_it() {
    let report = mixed().await;
    let svg = report.svg();
    let document = Document::parse(&svg).unwrap();
    assert_eq!(document.root_element().tag_name().namespace(), Some("http://www.w3.org/2000/svg"));
    let titles: Vec<_> = of_class(&document, "label").map(|label| label.last_element_child().unwrap().text().unwrap()).collect();
    assert_eq!(titles.len(), 3);
    // control characters have no place in XML
    let replaced = |mark: &Mark| mark.text.replace('\u{1}', "\u{fffd}");
    assert!(report.marks.iter().map(replaced).zip(&titles).all(|(text, title)| title.ends_with(&text)), "{titles:?}");
    assert_eq!(of_class(&document, "mark").count(), 3);
    let bars = of_class(&document, "loss").map(|bar| bar.first_element_child().unwrap().text().unwrap());
    // such as "0 s: 30 refused"
    let lost: u64 = bars.map(|title| title.split(' ').nth(2).unwrap().parse::<u64>().unwrap()).sum();
    assert_eq!((lost, report.lost), (30, 30));
    let text: String = document.descendants().filter_map(|node| node.text()).collect();
    for expected in ["requests a second", "latency", "ms", "seconds since the start", "refused 30", "good <1>: 30 requests"] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

#[tokio::test]
async fn the_same_report_gives_the_same_bytes_even_after_a_journey_as_json() {
    let report = mixed().await;
    let svg = report.svg();
    assert_eq!(svg, report.svg());
    let back: Report = serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
    assert_eq!(svg, back.svg());
}

#[tokio::test]
async fn labels_do_not_run_into_each_other() {
    let address = server(|stream| answer_all(stream, GOOD)).await;
    let mut report = report(config(address)).await;
    report.marks = (0..40).map(|number| Mark { at: f64::from(number) / 4.0, text: format!("update {number} begins") }).collect();
    let svg = report.svg();
    let document = Document::parse(&svg).unwrap();
    let place = |label: Node| {
        let number = |name| label.attribute(name).unwrap().parse::<f64>().unwrap();
        // narrow glyphs: as wide as the text is at least
        let (x, width) = (number("x"), 5.0 * f64::from(u32::try_from(label.text().unwrap().len()).unwrap()));
        let start = if label.attribute("text-anchor") == Some("end") { x - width } else { x };
        (number("y"), start, start + width)
    };
    let places: Vec<_> = of_class(&document, "label").map(place).collect();
    assert_eq!(places.len(), 40);
    for (index, (y, start, end)) in places.iter().enumerate() {
        let apart = |(other, from, to): &(f64, f64, f64)| (other - y).abs() > 1.0 || to <= start || end <= from;
        assert!(places[index + 1..].iter().all(apart), "{places:?}");
    }
}

#[test]
fn a_report_of_nothing_is_a_picture_of_nothing() {
    let svg = Report::default().svg();
    let document = Document::parse(&svg).unwrap();
    assert_eq!(of_class(&document, "loss").count() + of_class(&document, "mark").count(), 0);
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
}
