//! Servers that behave and misbehave, each on a free port of loopback.

use fleet_load::{Config, Load, Report};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

pub const GOOD: &[u8] = b"HTTP/1.1 200 OK\r\nx-service: shop/cart\r\ncontent-length: 5\r\n\r\nhello";

/// Serves every connection with `serve` until the test ends.
pub async fn server<F>(serve: impl Fn(TcpStream) -> F + Send + 'static) -> SocketAddr
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream));
        }
    });
    address
}

/// The report of a run to its end.
pub async fn report(config: Config) -> Report {
    Load::start(config).unwrap().wait().await
}

/// Reads one request; false at the end of the connection.
pub async fn request(stream: &mut (impl AsyncRead + Unpin)) -> bool {
    let mut seen = Vec::new();
    while !seen.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => seen.push(byte),
            Err(_) => return false,
        }
    }
    true
}

pub async fn answer_all(mut stream: impl AsyncRead + AsyncWrite + Unpin, answer: &[u8]) {
    while request(&mut stream).await && stream.write_all(answer).await.is_ok() {}
}

pub fn certificate() -> (String, TlsAcceptor, TlsAcceptor) {
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["a.example".to_owned()]).unwrap();
    let acceptor = |alpn: &[u8]| {
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(signing_key.serialize_der()));
        let mut config = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key)
            .unwrap();
        config.alpn_protocols = vec![alpn.to_vec()];
        TlsAcceptor::from(Arc::new(config))
    };
    (cert.pem(), acceptor(b"http/1.1"), acceptor(b"h2"))
}

/// Serves HTTP/2 on `stream` with 200s.
pub async fn serve_h2(stream: impl AsyncRead + AsyncWrite + Unpin) {
    let mut connection = h2::server::handshake(stream).await.unwrap();
    while let Some(Ok((_, mut respond))) = connection.accept().await {
        let response = http::Response::builder().header("x-service", "shop/cart").body(()).unwrap();
        respond.send_response(response, false).unwrap().send_data("hello".into(), true).unwrap();
    }
}
