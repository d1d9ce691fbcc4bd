//! Each way of losing a request is found and named, and a server that behaves loses none.

use crate::servers::{GOOD, answer_all, certificate, report, request, serve_h2, server};
use fleet_load::{Config, Load, Loss, Protocol, Report, Target, Tls, Trust, capacity};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

fn config(address: SocketAddr) -> Config {
    Config { rate: 300.0, requests: Some(60), ..Config::new(vec![Target::new(address, "a.example", "/x?y=z").answered_by("shop/cart")]) }
}

/// Asserts that all requests were lost in one way.
fn assert_all_lost(report: &Report, kind: Loss) {
    assert_eq!((report.requests, report.lost, report.lost_as(kind)), (60, 60, 60), "{report:?}");
}

#[tokio::test]
async fn a_server_that_behaves_loses_nothing_in_any_protocol() {
    let (pem, tls1, tls2) = certificate();
    let tls = Some(Tls { trust: Trust::Pem(pem.into_bytes()), server_name: None });
    let plain = server(|stream| answer_all(stream, GOOD)).await;
    let plain2 = server(serve_h2).await;
    let secure = server(move |stream| {
        let acceptor = tls1.clone();
        async move { answer_all(acceptor.accept(stream).await.unwrap(), GOOD).await }
    })
    .await;
    let secure2 = server(move |stream| {
        let acceptor = tls2.clone();
        async move { serve_h2(acceptor.accept(stream).await.unwrap()).await }
    })
    .await;
    let runs = [
        (plain, Protocol::Http1KeepAlive, None),
        (plain, Protocol::Http1Close, None),
        (plain2, Protocol::Http2, None),
        (secure, Protocol::Http1KeepAlive, tls.clone()),
        (secure, Protocol::Http1Close, tls.clone()),
        (secure2, Protocol::Http2, tls),
    ];
    for (address, protocol, tls) in runs {
        let report = report(Config { protocol, tls, connections: 4, ..config(address) }).await;
        assert_eq!((report.requests, report.lost), (60, 0), "{protocol:?}: {report:?}");
        assert!(report.latency.p50_ms > 0.0 && report.latency.max_ms >= report.latency.p99_ms, "{report:?}");
    }
}

#[tokio::test]
async fn every_form_of_body_is_read_to_its_end() {
    let chunked: &[u8] = b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nx-service: shop/cart\r\ntransfer-encoding: chunked\r\n\r\n\
        3\r\nabc\r\n0\r\n\r\n";
    let empty: &[u8] = b"HTTP/1.1 200 OK\r\nx-service: shop/cart\r\ncontent-length: 0\r\n\r\n";
    for answer in [chunked, empty] {
        let report = report(config(server(move |stream| answer_all(stream, answer)).await)).await;
        assert_eq!(report.lost, 0, "{report:?}");
    }
    let until_close = server(|mut stream| async move {
        request(&mut stream).await;
        stream.write_all(b"HTTP/1.0 200 OK\r\nx-service: shop/cart\r\n\r\nhello").await.unwrap();
    })
    .await;
    let report = report(config(until_close)).await;
    assert_eq!(report.lost, 0, "{report:?}");
}

#[tokio::test]
async fn nobody_listening_is_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    assert_all_lost(&report(config(address)).await, Loss::Refused);
}

#[tokio::test]
async fn a_reset_before_the_answer_is_reset() {
    let address = server(|mut stream| async move {
        request(&mut stream).await;
        stream.set_zero_linger().unwrap();
    })
    .await;
    assert_all_lost(&report(config(address)).await, Loss::Reset);
}

#[tokio::test]
async fn a_close_before_the_answer_is_closed() {
    let address = server(|mut stream| async move {
        request(&mut stream).await;
    })
    .await;
    assert_all_lost(&report(config(address)).await, Loss::Closed);
}

#[tokio::test]
async fn a_request_on_a_kept_connection_that_closes_unanswered_is_lost() {
    let address = server(|mut stream| async move {
        request(&mut stream).await;
        stream.write_all(GOOD).await.unwrap();
        request(&mut stream).await;
    })
    .await;
    let report = report(Config { connections: 1, ..config(address) }).await;
    assert_eq!((report.requests, report.lost, report.lost_as(Loss::Closed)), (60, 30, 30), "{report:?}");
}

#[tokio::test]
async fn a_kept_connection_that_closed_while_idle_is_replaced() {
    let accepted = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&accepted);
    let address = server(move |mut stream| {
        count.fetch_add(1, Ordering::Relaxed);
        async move {
            // the close follows the answer at once, and comes long before the next request is due
            request(&mut stream).await;
            stream.write_all(GOOD).await.unwrap();
        }
    })
    .await;
    let report = report(Config { rate: 2.0, requests: Some(4), connections: 1, ..config(address) }).await;
    assert_eq!((report.requests, report.lost), (4, 0), "{report:?}");
    assert_eq!(accepted.load(Ordering::Relaxed), 4);
}

#[tokio::test]
async fn an_answer_that_does_not_end_is_truncated() {
    let beginnings: [&[u8]; 4] = [
        b"HTTP/1.1 20",
        b"HTTP/1.1 200 OK\r\nx-service: shop/cart\r\n",
        b"HTTP/1.1 200 OK\r\nx-service: shop/cart\r\ncontent-length: 10\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nx-service: shop/cart\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
    ];
    for beginning in beginnings {
        let address = server(move |mut stream| async move {
            request(&mut stream).await;
            stream.write_all(beginning).await.unwrap();
        })
        .await;
        assert_all_lost(&report(config(address)).await, Loss::Truncated);
    }
}

#[tokio::test]
async fn a_status_of_the_proxy_is_a_proxy_error_and_other_surprises_are_unexpected() {
    let answers: [(&[u8], Loss); 4] = [
        (b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n", Loss::ProxyError),
        (b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n", Loss::Unexpected),
        (b"HTTP/1.1 200 OK\r\nx-service: shop/other\r\ncontent-length: 0\r\n\r\n", Loss::Unexpected),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", Loss::Unexpected),
    ];
    for (answer, kind) in answers {
        assert_all_lost(&report(config(server(move |stream| answer_all(stream, answer)).await)).await, kind);
    }
}

#[tokio::test]
async fn no_answer_in_time_is_a_timeout_even_for_requests_that_waited_for_a_connection() {
    let address = server(|mut stream| async move { while request(&mut stream).await {} }).await;
    let report = report(Config { timeout: Duration::from_millis(200), connections: 2, ..config(address) }).await;
    assert_all_lost(&report, Loss::Timeout);
}

#[tokio::test]
async fn a_handshake_that_fails_is_tls() {
    let (_, acceptor, _) = certificate();
    let (other, ..) = certificate();
    let address = server(move |stream| {
        let acceptor = acceptor.clone();
        async move { drop(acceptor.accept(stream).await) }
    })
    .await;
    let tls = Some(Tls { trust: Trust::Pem(other.into_bytes()), server_name: None });
    assert_all_lost(&report(Config { tls: tls.clone(), ..config(address) }).await, Loss::Tls);
    let no_tls = server(|stream| answer_all(stream, GOOD)).await;
    let close = server(|stream| async move { drop(stream) }).await;
    assert_eq!(report(Config { tls: tls.clone(), timeout: Duration::from_secs(1), ..config(no_tls) }).await.lost, 60);
    let closed = report(Config { tls, ..config(close) }).await;
    assert_eq!(closed.lost_as(Loss::Closed) + closed.lost_as(Loss::Reset), 60, "{closed:?}");
}

#[tokio::test]
async fn http2_losses_have_their_kinds_too() {
    let http2 = |address| Config { protocol: Protocol::Http2, connections: 2, ..config(address) };
    let refusing = server(|stream| async move {
        let mut connection = h2::server::handshake(stream).await.unwrap();
        while let Some(Ok((_, mut respond))) = connection.accept().await {
            respond.send_reset(h2::Reason::REFUSED_STREAM);
        }
    })
    .await;
    assert_all_lost(&report(http2(refusing)).await, Loss::RefusedStream);
    let resetting = server(|stream| async move {
        let mut connection = h2::server::handshake(stream).await.unwrap();
        while let Some(Ok((_, mut respond))) = connection.accept().await {
            respond.send_reset(h2::Reason::INTERNAL_ERROR);
        }
    })
    .await;
    assert_all_lost(&report(http2(resetting)).await, Loss::Reset);
    let truncating = server(|stream| async move {
        let mut connection = h2::server::handshake(stream).await.unwrap();
        while let Some(Ok((_, mut respond))) = connection.accept().await {
            let response = http::Response::builder().header("x-service", "shop/cart").body(()).unwrap();
            let mut body = respond.send_response(response, false).unwrap();
            body.send_data("hel".into(), false).unwrap();
            body.send_reset(h2::Reason::CANCEL);
        }
    })
    .await;
    let truncated = report(http2(truncating)).await;
    // a reset may overtake the answer that was queued before it
    assert_eq!((truncated.lost, truncated.lost_as(Loss::Truncated) + truncated.lost_as(Loss::Reset)), (60, 60), "{truncated:?}");
    let closing = server(|stream| async move {
        let mut connection = h2::server::handshake(stream).await.unwrap();
        let _request = connection.accept().await;
    })
    .await;
    let closed = report(http2(closing)).await;
    assert_eq!((closed.lost, closed.lost_as(Loss::Closed) + closed.lost_as(Loss::Reset)), (60, 60), "{closed:?}");
}

#[tokio::test]
async fn a_graceful_goaway_costs_nothing() {
    let address = server(|stream| async move {
        let mut connection = h2::server::handshake(stream).await.unwrap();
        let mut served = 0;
        while let Some(Ok((_, mut respond))) = connection.accept().await {
            let response = http::Response::builder().header("x-service", "shop/cart").body(()).unwrap();
            respond.send_response(response, true).unwrap();
            served += 1;
            if served == 5 {
                connection.graceful_shutdown();
            }
        }
    })
    .await;
    let report = report(Config { protocol: Protocol::Http2, connections: 1, ..config(address) }).await;
    assert_eq!((report.requests, report.lost), (60, 0), "{report:?}");
}

#[tokio::test]
async fn a_stall_shows_in_every_request_that_it_delayed() {
    let served = Arc::new(AtomicUsize::new(0));
    let address = server(move |mut stream| {
        let served = Arc::clone(&served);
        async move {
            while request(&mut stream).await {
                if served.fetch_add(1, Ordering::Relaxed) == 10 {
                    tokio::time::sleep(Duration::from_millis(300)).await;
                }
                stream.write_all(GOOD).await.unwrap();
            }
        }
    })
    .await;
    let report = report(Config { connections: 1, ..config(address) }).await;
    assert_eq!(report.lost, 0, "{report:?}");
    // 60 requests in 200 ms: all but the first 10 waited for the one that stalled; a closed loop would have seen one
    assert!(report.latency.p50_ms > 100.0, "{report:?}");
}

#[tokio::test]
async fn stopping_waits_for_what_is_under_way_and_reports_it_as_json() {
    let address = server(|stream| answer_all(stream, GOOD)).await;
    let load = Load::start(Config { requests: None, ..config(address) }).unwrap();
    while load.answered() < 20 {
        tokio::task::yield_now().await;
    }
    assert_eq!(load.lost(), 0);
    let report = load.stop().await;
    assert!(report.requests >= 20 && report.lost == 0, "{report:?}");
    let json = serde_json::to_value(report.merge(Report::default())).unwrap();
    assert_eq!(json["lost_by_kind"], serde_json::json!({}));
    assert!(json["requests"].as_u64() >= Some(20) && json["latency"]["p99_ms"].as_f64() > Some(0.0), "{json}");
}

#[tokio::test]
async fn capacity_is_what_all_connections_together_achieve() {
    let address = server(|stream| answer_all(stream, GOOD)).await;
    let config = Config { requests: None, duration: Some(Duration::from_millis(300)), connections: 4, ..config(address) };
    assert!(capacity(config).await.unwrap() > 0.0);
}
