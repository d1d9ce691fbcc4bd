//! A WebSocket is one request: all its messages come back and the client ends it, or it is known how it ended.

use crate::servers::{certificate, report, request, server};
use fleet_load::{Config, ConfigError, Lasting, Load, Loss, Protocol, Report, Target, Tls, Trust, Unit};
use futures::{SinkExt, StreamExt};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, frame::coding::CloseCode};
use tokio_tungstenite::{WebSocketStream, accept_async};

const HOUR: Duration = Duration::from_secs(3600);

/// Five of them, with a message each 20 ms.
fn config(address: SocketAddr, lasts: Duration) -> Config {
    let unit = Unit::WebSocket { lasts, every: Duration::from_millis(20), stays: Duration::ZERO };
    Config { unit, rate: 100.0, requests: Some(5), ..Config::new(vec![Target::new(address, "a.example", "/ws")]) }
}

/// The same, but their deadline is after the third message, and the client stays much longer.
fn staying(address: SocketAddr) -> Config {
    let unit = Unit::WebSocket { lasts: Duration::from_millis(60), every: Duration::from_millis(20), stays: HOUR };
    Config { unit, ..config(address, HOUR) }
}

/// Sends back the next message, and says whether there was one.
async fn echo(socket: &mut WebSocketStream<impl AsyncRead + AsyncWrite + Unpin>) -> bool {
    loop {
        match socket.next().await {
            Some(Ok(message @ Message::Text(_))) => return socket.send(message).await.is_ok(),
            Some(Ok(_)) => {}
            _ => return false,
        }
    }
}

/// Opens a WebSocket and sends so many messages back.
async fn open_and_echo(stream: TcpStream, messages: usize) -> WebSocketStream<TcpStream> {
    let mut socket = accept_async(stream).await.unwrap();
    for _ in 0..messages {
        assert!(echo(&mut socket).await);
    }
    socket
}

fn assert_all_lost(report: &Report, kind: Loss, cut: u64) {
    let seen = (report.requests, report.lost, report.lost_as(kind), report.lasting.cut);
    assert_eq!(seen, (5, 5, 5, cut), "{report:?}");
}

#[tokio::test]
async fn each_message_comes_back_and_the_client_closes_as_planned() {
    let (pem, acceptor, _) = certificate();
    let closed = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&closed);
    let serve = move |mut socket: WebSocketStream<tokio_rustls::server::TlsStream<TcpStream>>| {
        let count = Arc::clone(&count);
        async move {
            while let Some(Ok(message)) = socket.next().await {
                match message {
                    Message::Close(Some(frame)) if frame.code == CloseCode::Normal => _ = count.fetch_add(1, Ordering::Relaxed),
                    message => socket.send(message).await.unwrap(),
                }
            }
        }
    };
    let address = server(move |stream| {
        let (acceptor, serve) = (acceptor.clone(), serve.clone());
        async move { serve(accept_async(acceptor.accept(stream).await.unwrap()).await.unwrap()).await }
    })
    .await;
    let tls = Some(Tls { trust: Trust::Pem(pem.into_bytes()), server_name: None });
    let report = report(Config { tls, ..config(address, Duration::from_millis(100)) }).await;
    assert_eq!((report.requests, report.lost), (5, 0), "{report:?}");
    // at 0, 20, 40, 60 and 80 ms
    assert_eq!(report.lasting, Lasting { complete: 5, messages: 25, echoes: 25, ..Lasting::default() });
    assert_eq!(closed.load(Ordering::Relaxed), 5);
}

#[tokio::test]
async fn one_that_ends_without_a_close_frame_before_its_deadline_is_truncated_and_cut() {
    let closing = server(|stream| async move { drop(open_and_echo(stream, 2).await) }).await;
    assert_all_lost(&report(config(closing, Duration::from_secs(30))).await, Loss::Truncated, 5);
    let resetting = server(|stream| async move {
        let socket = open_and_echo(stream, 2).await;
        socket.get_ref().set_zero_linger().unwrap();
    })
    .await;
    assert_all_lost(&report(config(resetting, Duration::from_secs(30))).await, Loss::Truncated, 5);
}

#[tokio::test]
async fn one_that_the_server_closes_before_its_deadline_is_closed_early_and_cut() {
    let address = server(|stream| async move {
        let mut socket = open_and_echo(stream, 2).await;
        let frame = CloseFrame { code: CloseCode::Away, reason: "draining".into() };
        socket.close(Some(frame)).await.unwrap();
        // the client says the same, and then the connection ends
        while socket.next().await.is_some() {}
    })
    .await;
    let report = report(config(address, Duration::from_secs(30))).await;
    assert_all_lost(&report, Loss::ClosedEarly, 5);
    assert!(report.examples.iter().all(|example| example.detail.contains("draining")), "{report:?}");
}

#[tokio::test]
async fn after_the_deadline_a_close_frame_of_the_server_is_told_from_a_cut_and_neither_is_a_loss() {
    // the sixth message is sent after 100 ms, and the deadline is after 60
    let closing = server(|stream| async move {
        let mut socket = open_and_echo(stream, 6).await;
        socket.close(None).await.unwrap();
        while socket.next().await.is_some() {}
    })
    .await;
    let closed = report(staying(closing)).await;
    assert_eq!((closed.requests, closed.lost), (5, 0), "{closed:?}");
    assert_eq!((closed.lasting.closed_late, closed.lasting.cut_late, closed.lasting.cut), (5, 0, 0), "{closed:?}");
    let cutting = server(|stream| async move { drop(open_and_echo(stream, 6).await) }).await;
    let cut = report(staying(cutting)).await;
    assert_eq!((cut.requests, cut.lost), (5, 0), "{cut:?}");
    assert_eq!((cut.lasting.closed_late, cut.lasting.cut_late, cut.lasting.cut), (0, 5, 0), "{cut:?}");
}

#[tokio::test]
async fn one_of_which_a_message_does_not_come_back_is_lost_but_not_cut() {
    let address = server(|stream| async move {
        let mut socket = open_and_echo(stream, 2).await;
        // listens on, and says nothing
        while socket.next().await.is_some() {}
    })
    .await;
    let report = report(Config { timeout: Duration::from_secs(2), ..config(address, Duration::from_millis(100)) }).await;
    assert_all_lost(&report, Loss::NoEcho, 0);
    assert_eq!((report.lasting.messages, report.lasting.echoes), (25, 10), "{report:?}");
}

#[tokio::test]
async fn one_that_ends_after_its_deadline_but_owes_an_echo_of_before_is_lost() {
    let address = server(|stream| async move {
        let mut socket = open_and_echo(stream, 2).await;
        // the third message, of before the deadline, is not sent back, and the sixth is of after it
        for _ in 2..6 {
            socket.next().await.unwrap().unwrap();
        }
        socket.close(None).await.unwrap();
        while socket.next().await.is_some() {}
    })
    .await;
    assert_all_lost(&report(staying(address)).await, Loss::NoEcho, 0);
}

#[tokio::test]
async fn one_that_says_something_else_than_it_was_told_is_unexpected() {
    let address = server(|stream| async move {
        let mut socket = open_and_echo(stream, 1).await;
        socket.next().await.unwrap().unwrap();
        socket.send(Message::text("welcome")).await.unwrap();
        while socket.next().await.is_some() {}
    })
    .await;
    assert_all_lost(&report(config(address, Duration::from_secs(30))).await, Loss::Unexpected, 0);
}

#[tokio::test]
async fn a_handshake_that_fails_has_the_kind_of_its_answer_and_nothing_is_cut() {
    let answers: [(&[u8], Loss); 5] = [
        (b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n", Loss::ProxyError),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", Loss::Unexpected),
        (b"HTTP/1.1 101 Switching Protocols\r\nsec-websocket-accept: of another\r\n\r\n", Loss::Unexpected),
        (b"HTTP/1.1 101 Switch", Loss::Truncated),
        (b"", Loss::Closed),
    ];
    for (answer, kind) in answers {
        let address = server(move |mut stream| async move {
            request(&mut stream).await;
            stream.write_all(answer).await.unwrap();
        })
        .await;
        assert_all_lost(&report(config(address, Duration::from_secs(30))).await, kind, 0);
    }
}

#[tokio::test]
async fn a_ping_of_the_server_is_answered() {
    let pongs = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&pongs);
    let address = server(move |stream| {
        let count = Arc::clone(&count);
        async move {
            let mut socket = accept_async(stream).await.unwrap();
            socket.send(Message::Ping("there?".into())).await.unwrap();
            while let Some(Ok(message)) = socket.next().await {
                match message {
                    Message::Pong(_) => _ = count.fetch_add(1, Ordering::Relaxed),
                    Message::Text(_) => socket.send(message).await.unwrap(),
                    _ => {}
                }
            }
        }
    })
    .await;
    let report = report(config(address, Duration::from_millis(100))).await;
    assert_eq!((report.lost, report.lasting.complete), (0, 5), "{report:?}");
    assert_eq!(pongs.load(Ordering::Relaxed), 5);
}

#[tokio::test]
async fn an_echo_that_was_held_back_delays_those_behind_it() {
    let address = server(|stream| async move {
        let mut socket = accept_async(stream).await.unwrap();
        let mut held = Vec::new();
        // the last of ten is planned 180 ms after the first
        while held.len() < 10 {
            held.push(socket.next().await.unwrap().unwrap());
        }
        for message in held {
            socket.send(message).await.unwrap();
        }
        while echo(&mut socket).await {}
    })
    .await;
    let report = report(config(address, Duration::from_millis(200))).await;
    assert_eq!((report.lost, report.lasting.echoes), (0, 50), "{report:?}");
    // counted from the planned times, the first two of each ten messages waited for 160 ms and more
    assert!(report.latency.p90_ms >= 160.0 && report.latency.max_ms >= 180.0, "{report:?}");
}

#[tokio::test]
async fn stopping_does_not_wait_for_the_server_once_the_deadline_is_over() {
    let opened = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&opened);
    let address = server(move |stream| {
        let count = Arc::clone(&count);
        async move {
            let mut socket = open_and_echo(stream, 6).await;
            count.fetch_add(1, Ordering::Relaxed);
            while echo(&mut socket).await {}
        }
    })
    .await;
    let load = Load::start(staying(address)).unwrap();
    while opened.load(Ordering::Relaxed) < 5 {
        tokio::task::yield_now().await;
    }
    let report = load.stop().await;
    assert_eq!((report.lost, report.lasting.complete), (0, 5), "{report:?}");
}

#[tokio::test]
async fn what_cannot_be_is_refused_with_its_reason() {
    let base = config(([127, 0, 0, 1], 1).into(), Duration::from_secs(10));
    let refused = |config: Config| match Load::start(config) {
        Err(ConfigError::Unit(reason)) => reason,
        other => panic!("{other:?}"),
    };
    assert!(refused(Config { protocol: Protocol::Http2, ..base.clone() }).contains("HTTP/1.1"));
    let silent = Unit::WebSocket { lasts: HOUR, every: Duration::ZERO, stays: HOUR };
    assert!(refused(Config { unit: silent, ..base.clone() }).contains("time between"));
    // 100 a second for 10 s each
    let crowded = refused(Config { requests: None, ..base });
    assert!(crowded.contains("1000 at once") && crowded.contains("64 connections"), "{crowded}");
}
