//! Slow downloads and uploads come to their end, or it is known how they were cut; and handshakes are whole ones.

use crate::servers::{answer_all, certificate, report, request, server};
use fleet_load::{Config, Load, Loss, Protocol, Report, Target, Tls, Trust, Unit};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// 100 ms at the rates below.
const SIZE: usize = 50_000;
const DOWNLOAD: Unit = Unit::Download { bytes_per_second: 500_000 };
const UPLOAD: Unit = Unit::Upload { bytes: SIZE as u64, bytes_per_second: 500_000 };
/// Its body takes so long that whatever happens to it happens before its end.
const LONG_UPLOAD: Unit = Unit::Upload { bytes: 5_000_000, bytes_per_second: 50_000 };
const GOOD: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

fn config(address: SocketAddr, unit: Unit) -> Config {
    Config { unit, rate: 100.0, requests: Some(10), ..Config::new(vec![Target::new(address, "a.example", "/big")]) }
}

fn answer() -> Vec<u8> {
    [format!("HTTP/1.1 200 OK\r\ncontent-length: {SIZE}\r\n\r\n").as_bytes(), &vec![b'y'; SIZE]].concat()
}

fn chunked_answer() -> Vec<u8> {
    let chunk = [b"1388\r\n", &[b'y'; 0x1388][..], b"\r\n"].concat();
    [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", &chunk.repeat(10)[..], b"0\r\n\r\n"].concat()
}

/// Reads the body of an upload of [`SIZE`] and answers, on and on.
async fn take_uploads(mut stream: TcpStream) {
    let mut body = vec![0; SIZE];
    while request(&mut stream).await && stream.read_exact(&mut body).await.is_ok() {
        assert!(body.iter().all(|byte| *byte == b'x'));
        stream.write_all(GOOD).await.unwrap();
    }
}

/// Serves HTTP/2: reads each body to its end, and answers with one of [`SIZE`].
async fn serve_h2(stream: TcpStream) {
    let mut connection = h2::server::handshake(stream).await.unwrap();
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        tokio::spawn(async move {
            let mut body = request.into_body();
            let mut size = 0;
            while let Some(piece) = body.data().await {
                let length = piece.unwrap().len();
                body.flow_control().release_capacity(length).unwrap();
                size += length;
            }
            assert!(size == 0 || size == SIZE, "{size}");
            let mut answer = respond.send_response(http::Response::new(()), false).unwrap();
            answer.send_data(vec![b'y'; SIZE].into(), true).unwrap();
        });
    }
}

/// Asserts that all were lost in one way, and so many of them cut.
fn assert_all_lost(report: &Report, kind: Loss, cut: u64) {
    let seen = (report.requests, report.lost, report.lost_as(kind), report.lasting.cut);
    assert_eq!(seen, (10, 10, 10, cut), "{report:?}");
}

fn assert_all_complete(report: &Report) {
    assert_eq!((report.requests, report.lost, report.lasting.complete), (10, 0, 10), "{report:?}");
}

#[tokio::test]
async fn transfers_come_to_their_end_in_every_protocol() {
    let length = server(|stream| async move { answer_all(stream, &answer()).await }).await;
    let chunked = server(|stream| async move { answer_all(stream, &chunked_answer()).await }).await;
    let uploads = server(take_uploads).await;
    let http2 = server(serve_h2).await;
    let runs = [
        (length, DOWNLOAD, Protocol::Http1KeepAlive),
        (length, DOWNLOAD, Protocol::Http1Close),
        (chunked, DOWNLOAD, Protocol::Http1KeepAlive),
        (http2, DOWNLOAD, Protocol::Http2),
        (uploads, UPLOAD, Protocol::Http1KeepAlive),
        (uploads, UPLOAD, Protocol::Http1Close),
        (http2, UPLOAD, Protocol::Http2),
    ];
    for (address, unit, protocol) in runs {
        assert_all_complete(&report(Config { protocol, ..config(address, unit) }).await);
    }
}

#[tokio::test]
async fn a_download_that_ends_within_its_body_is_truncated_and_cut() {
    let closing = server(|mut stream| async move {
        request(&mut stream).await;
        stream.write_all(&answer()[..SIZE / 2]).await.unwrap();
    })
    .await;
    assert_all_lost(&report(config(closing, DOWNLOAD)).await, Loss::Truncated, 10);
    let resetting = server(|mut stream| async move {
        request(&mut stream).await;
        stream.write_all(&answer()[..SIZE / 2]).await.unwrap();
        stream.set_zero_linger().unwrap();
    })
    .await;
    let reset = report(config(resetting, DOWNLOAD)).await;
    // a reset may overtake the beginning of the answer
    assert_eq!((reset.lost, reset.lost_as(Loss::Truncated) + reset.lost_as(Loss::Reset)), (10, 10), "{reset:?}");
    assert_eq!(reset.lasting.cut, reset.lost_as(Loss::Truncated), "{reset:?}");
}

#[tokio::test]
async fn a_download_that_does_not_begin_is_lost_but_not_cut() {
    let refusing = server(|stream| answer_all(stream, b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n")).await;
    assert_all_lost(&report(config(refusing, DOWNLOAD)).await, Loss::ProxyError, 0);
    let closing = server(|mut stream| async move {
        request(&mut stream).await;
    })
    .await;
    assert_all_lost(&report(config(closing, DOWNLOAD)).await, Loss::Closed, 0);
}

#[tokio::test]
async fn a_transfer_that_does_not_go_on_is_a_timeout() {
    let half = server(|mut stream| async move {
        request(&mut stream).await;
        stream.write_all(&answer()[..SIZE / 2]).await.unwrap();
        // until the client gives up
        request(&mut stream).await;
    })
    .await;
    let patient = |config: Config| Config { timeout: Duration::from_secs(1), ..config };
    assert_all_lost(&report(patient(config(half, DOWNLOAD))).await, Loss::Timeout, 0);
    let silent = server(|mut stream| async move {
        let mut taken = Vec::new();
        let _ = stream.read_to_end(&mut taken).await;
    })
    .await;
    assert_all_lost(&report(patient(config(silent, UPLOAD))).await, Loss::Timeout, 0);
}

#[tokio::test]
async fn an_upload_that_ends_unanswered_is_cut_by_the_way_it_ended() {
    let closing = server(|mut stream| async move {
        request(&mut stream).await;
        // says the end, but goes on to read: with data unread the connection would be reset
        stream.shutdown().await.unwrap();
        let mut taken = Vec::new();
        let _ = stream.read_to_end(&mut taken).await;
    })
    .await;
    assert_all_lost(&report(config(closing, LONG_UPLOAD)).await, Loss::Closed, 10);
    let resetting = server(|mut stream| async move {
        request(&mut stream).await;
        stream.set_zero_linger().unwrap();
    })
    .await;
    assert_all_lost(&report(config(resetting, LONG_UPLOAD)).await, Loss::Reset, 10);
}

#[tokio::test]
async fn an_upload_that_is_answered_before_its_end_is_lost_by_its_answer() {
    let answers: [(&'static [u8], Loss); 2] =
        [(GOOD, Loss::Unexpected), (b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n", Loss::ProxyError)];
    for (answer, kind) in answers {
        let address = server(move |mut stream| async move {
            request(&mut stream).await;
            stream.write_all(answer).await.unwrap();
            let mut taken = Vec::new();
            let _ = stream.read_to_end(&mut taken).await;
        })
        .await;
        assert_all_lost(&report(config(address, LONG_UPLOAD)).await, kind, 0);
    }
}

#[tokio::test]
async fn http2_transfers_have_their_kinds_too() {
    let http2 = |address, unit| Config { protocol: Protocol::Http2, connections: 2, ..config(address, unit) };
    let resetting = server(|stream| async move {
        let mut connection = h2::server::handshake(stream).await.unwrap();
        while let Some(Ok((_, mut respond))) = connection.accept().await {
            let mut answer = respond.send_response(http::Response::new(()), false).unwrap();
            answer.send_data(vec![b'y'; SIZE / 2].into(), false).unwrap();
            answer.send_reset(h2::Reason::INTERNAL_ERROR);
        }
    })
    .await;
    let cut = report(http2(resetting, DOWNLOAD)).await;
    // a reset may overtake the answer that was queued before it
    assert_eq!((cut.lost, cut.lost_as(Loss::Truncated) + cut.lost_as(Loss::Reset)), (10, 10), "{cut:?}");
    assert_eq!(cut.lasting.cut, cut.lost_as(Loss::Truncated), "{cut:?}");
    let refusing_bodies = server(|stream| async move {
        let mut connection = h2::server::handshake(stream).await.unwrap();
        while let Some(Ok((_, mut respond))) = connection.accept().await {
            respond.send_reset(h2::Reason::INTERNAL_ERROR);
        }
    })
    .await;
    assert_all_lost(&report(http2(refusing_bodies, LONG_UPLOAD)).await, Loss::Reset, 10);
    let hasty = server(|stream| async move {
        let mut connection = h2::server::handshake(stream).await.unwrap();
        let mut bodies = Vec::new();
        while let Some(Ok((request, mut respond))) = connection.accept().await {
            respond.send_response(http::Response::new(()), true).unwrap();
            bodies.push(request.into_body());
        }
    })
    .await;
    assert_all_lost(&report(http2(hasty, LONG_UPLOAD)).await, Loss::Unexpected, 0);
}

#[tokio::test]
async fn stopping_waits_for_the_end_of_a_transfer() {
    let begun = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&begun);
    let address = server(move |mut stream| {
        let count = Arc::clone(&count);
        async move {
            request(&mut stream).await;
            count.fetch_add(1, Ordering::Relaxed);
            stream.write_all(&answer()).await.unwrap();
        }
    })
    .await;
    let load = Load::start(Config { requests: None, rate: 1.0, ..config(address, DOWNLOAD) }).unwrap();
    while begun.load(Ordering::Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    let report = load.stop().await;
    assert!(report.requests > 0 && report.lasting.complete == report.requests, "{report:?}");
}

#[tokio::test]
async fn handshakes_as_a_load_are_whole_ones_each_on_a_connection_of_its_own() {
    let (pem, acceptor, _) = certificate();
    let (full, resumed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counts = (Arc::clone(&full), Arc::clone(&resumed));
    let address = server(move |stream| {
        let (acceptor, (full, resumed)) = (acceptor.clone(), counts.clone());
        async move {
            let stream = acceptor.accept(stream).await.unwrap();
            let kind = stream.get_ref().1.handshake_kind();
            let count = if kind == Some(rustls::HandshakeKind::Resumed) { resumed } else { full };
            count.fetch_add(1, Ordering::Relaxed);
            answer_all(stream, GOOD).await;
        }
    })
    .await;
    let tls = Some(Tls { trust: Trust::Pem(pem.into_bytes()), server_name: None });
    let close = Config { protocol: Protocol::Http1Close, tls, connections: 1, ..config(address, Unit::Request) };
    let handshakes = report(Config { protocol: Protocol::TlsHandshakes, ..close.clone() }).await;
    assert_eq!((handshakes.requests, handshakes.lost), (10, 0), "{handshakes:?}");
    assert_eq!((full.load(Ordering::Relaxed), resumed.load(Ordering::Relaxed)), (10, 0));
    // which is not so of itself
    assert_eq!(report(close).await.lost, 0);
    assert!(resumed.load(Ordering::Relaxed) > 0);
    let plain = Config { protocol: Protocol::TlsHandshakes, tls: None, ..config(address, Unit::Request) };
    assert!(Load::start(plain).is_err());
}
