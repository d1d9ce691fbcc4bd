//! The report says when each loss was, on whose connection, and what else happened then.

use crate::servers::{GOOD, answer_all, report, request, server};
use fleet_load::{Config, Load, Loss, Pod, Protocol, Report, Target};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::AsyncWriteExt;

fn config(address: SocketAddr) -> Config {
    Config { rate: 300.0, requests: Some(60), ..Config::new(vec![Target::new(address, "a.example", "/")]) }
}

#[tokio::test]
async fn seconds_add_up_to_the_whole() {
    let served = Arc::new(AtomicUsize::new(0));
    let address = server(move |mut stream| {
        let served = Arc::clone(&served);
        async move {
            request(&mut stream).await;
            if !served.fetch_add(1, Ordering::Relaxed).is_multiple_of(3) {
                stream.write_all(GOOD).await.unwrap();
            }
        }
    })
    .await;
    // more than a second of requests
    let report = report(Config { protocol: Protocol::Http1Close, rate: 50.0, ..config(address) }).await;
    assert_eq!((report.requests, report.lost, report.lost_as(Loss::Closed)), (60, 20, 20), "{report:?}");
    let sum = |count: fn(&fleet_load::Second) -> u64| report.series.iter().map(count).sum::<u64>();
    assert_eq!((sum(|second| second.sent), sum(|second| second.answered), sum(|second| second.lost)), (60, 40, 20));
    assert_eq!(sum(|second| second.lost_by_kind.values().sum()), 20);
    // planned in the first second, whenever they left
    assert_eq!(report.series[0].sent, 50);
    assert!(report.series.iter().enumerate().all(|(index, second)| second.at == index as u64));
    let of_answers = |second: &fleet_load::Second| second.p50_ms.is_some() == (second.answered > 0) && second.p50_ms <= second.p99_ms;
    assert!(report.series.iter().all(of_answers), "{:?}", report.series);
}

#[tokio::test]
async fn a_loss_tells_which_pod_had_answered_on_its_connection() {
    let accepted = Arc::new(AtomicUsize::new(0));
    let address = server(move |mut stream| {
        let number = accepted.fetch_add(1, Ordering::Relaxed) % 2;
        async move {
            let answer = format!("HTTP/1.1 200 OK\r\nX-Pod: edge-{number}\r\ncontent-length: 0\r\n\r\n");
            // each pod answers twice, and resets what comes third
            for _ in 0..2 {
                request(&mut stream).await;
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
            request(&mut stream).await;
            stream.set_zero_linger().unwrap();
        }
    })
    .await;
    let report = report(Config { connections: 1, pod_header: Some("x-pod".into()), ..config(address) }).await;
    assert_eq!((report.requests, report.lost_as(Loss::Reset)), (60, 20), "{report:?}");
    let pod = Pod { answered: 20, lost: 10 };
    assert_eq!(report.pods, [("edge-0".to_owned(), pod), ("edge-1".to_owned(), pod)].into());
    let pods: Vec<_> = report.examples.iter().map(|example| example.pod.as_deref().unwrap()).collect();
    assert_eq!(pods, ["edge-0", "edge-1"].repeat(10));
}

#[tokio::test]
async fn http2_answers_name_their_pod_too() {
    let address = server(|stream| async move {
        let mut connection = h2::server::handshake(stream).await.unwrap();
        while let Some(Ok((_, mut respond))) = connection.accept().await {
            respond.send_response(http::Response::builder().header("x-pod", "edge-0").body(()).unwrap(), true).unwrap();
        }
    })
    .await;
    let report = report(Config { protocol: Protocol::Http2, pod_header: Some("X-Pod".into()), ..config(address) }).await;
    assert_eq!(report.pods, [("edge-0".to_owned(), Pod { answered: 60, lost: 0 })].into(), "{report:?}");
}

#[tokio::test]
async fn marks_are_in_the_report_in_order_and_within_the_run() {
    let address = server(|stream| answer_all(stream, GOOD)).await;
    let load = Load::start(Config { requests: None, ..config(address) }).unwrap();
    load.mark("pod edge-a-0 drains");
    while load.answered() < 20 {
        tokio::task::yield_now().await;
    }
    let marker = load.marker();
    std::thread::spawn(move || marker.mark("pod edge-a-0 is gone")).join().unwrap();
    let report = load.stop().await;
    let texts: Vec<_> = report.marks.iter().map(|mark| mark.text.as_str()).collect();
    assert_eq!(texts, ["pod edge-a-0 drains", "pod edge-a-0 is gone"]);
    assert!(report.marks[0].at <= report.marks[1].at && report.marks[1].at <= report.seconds, "{report:?}");
}

#[tokio::test]
async fn the_report_is_json_with_its_series_and_a_line_without() {
    let address = server(|stream| answer_all(stream, GOOD)).await;
    let load = Load::start(config(address)).unwrap();
    load.mark("begins");
    let report = load.wait().await;
    let json = serde_json::to_value(&report).unwrap();
    let second = &json["series"][0];
    assert!(second["sent"].as_u64() > Some(0) && second.get("answered").is_some() && second.get("p99_ms").is_some(), "{second}");
    assert_eq!(json["marks"][0]["text"], "begins");
    let back: Report = serde_json::from_value(json).unwrap();
    assert_eq!((back.requests, back.series.len(), back.marks), (60, report.series.len(), report.marks.clone()));
    let line = serde_json::to_value(report.without_series()).unwrap();
    assert!(line.get("series").is_none() && line["requests"] == 60, "{line}");
}

#[tokio::test]
async fn dropping_the_handle_ends_what_is_under_way() {
    let (gone, mut all_gone) = tokio::sync::mpsc::channel::<()>(1);
    let begun = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&begun);
    let address = server(move |mut stream| {
        let (gone, count) = (gone.clone(), Arc::clone(&count));
        async move {
            request(&mut stream).await;
            count.fetch_add(1, Ordering::Relaxed);
            // until the client goes
            request(&mut stream).await;
            gone.send(()).await.unwrap();
        }
    })
    .await;
    let load = Load::start(Config { requests: Some(1), timeout: Duration::from_secs(3600), ..config(address) }).unwrap();
    while begun.load(Ordering::Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    drop(load);
    all_gone.recv().await.unwrap();
}
