//! Several loads at once: each has its share, its part of the report, and the report is their sum.

use crate::servers::{GOOD, answer_all, serve_h2, server};
use fleet_load::{Config, ConfigError, Load, Loss, Mix, Part, Protocol, Target};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpListener;

fn part(name: &str, share: f64, address: SocketAddr, protocol: Protocol) -> Part {
    let target = Target::new(address, "a.example", "/").answered_by("shop/cart");
    Part { name: name.into(), share, config: Config { protocol, ..Config::new(vec![target]) } }
}

#[tokio::test]
async fn parts_have_their_shares_of_the_rate_and_the_report_is_their_sum() {
    let http1 = server(|stream| answer_all(stream, GOOD)).await;
    let http2 = server(serve_h2).await;
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let parts = vec![
        part("keep-alive", 6.0, http1, Protocol::Http1KeepAlive),
        part("h2", 3.0, http2, Protocol::Http2),
        part("nobody", 1.0, nobody, Protocol::Http1Close),
    ];
    let mix = Mix { rate: 200.0, duration: Some(Duration::from_millis(500)), parts };
    let report = Load::start_mix(mix).unwrap().wait().await;
    let counts = |name: &str| (report.parts[name].requests, report.parts[name].lost);
    assert_eq!((counts("keep-alive"), counts("h2"), counts("nobody")), ((60, 0), (30, 0), (10, 10)), "{report:?}");
    assert_eq!((report.requests, report.lost, report.lost_as(Loss::Refused)), (100, 10, 10), "{report:?}");
    let sent = |series: &[fleet_load::Second]| series.iter().map(|second| second.sent).sum::<u64>();
    assert_eq!(sent(&report.series), 100);
    assert_eq!(report.parts.values().map(|part| sent(&part.series)).sum::<u64>(), 100);
    let longest = report.parts.values().map(|part| part.latency.max_ms).fold(0.0, f64::max);
    assert!((report.latency.max_ms - longest).abs() < f64::EPSILON, "{report:?}");
}

#[tokio::test]
async fn all_parts_stop_at_once_and_progress_is_of_all() {
    let http1 = server(|stream| answer_all(stream, GOOD)).await;
    let parts = vec![part("a", 1.0, http1, Protocol::Http1KeepAlive), part("b", 1.0, http1, Protocol::Http1Close)];
    let load = Load::start_mix(Mix { rate: 200.0, duration: None, parts }).unwrap();
    while load.answered() < 20 {
        tokio::task::yield_now().await;
    }
    let report = load.stop().await;
    assert!(report.requests >= 20 && report.lost == 0, "{report:?}");
    assert!(report.parts.values().all(|part| part.requests > 0), "{report:?}");
}

#[tokio::test]
async fn a_mix_that_cannot_be_is_refused() {
    let address = ([127, 0, 0, 1], 1).into();
    let mix = |parts| Load::start_mix(Mix { rate: 10.0, duration: None, parts });
    let part = |name: &str, share| part(name, share, address, Protocol::Http1Close);
    assert!(matches!(mix(Vec::new()), Err(ConfigError::NoTarget)));
    assert!(matches!(mix(vec![part("a", 1.0), part("a", 1.0)]), Err(ConfigError::SameName(name)) if name == "a"));
    assert!(matches!(mix(vec![part("a", 1.0), part("b", 0.0)]), Err(ConfigError::Rate(_))));
}
