//! Stand-ins for Services that have no endpoints: small servers that answer with what they were asked.
//!
//! They speak HTTP/1.1 and HTTP/2 with prior knowledge on a loopback address, one server per pod, and name
//! themselves in the header `x-service`, which is how tests and people see where a request ended up.

use bytes::Bytes;
use http::{HeaderValue, Request, Response, header};
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use serde::Serialize;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Echo servers of one port of one Service. They end when this is dropped.
#[derive(Debug)]
pub struct Echo {
    addresses: Vec<SocketAddr>,
    _servers: JoinSet<()>,
}

/// What an echo server answers.
#[derive(Serialize)]
struct Answer<'a> {
    service: &'a str,
    namespace: &'a str,
    port: &'a str,
    pod: &'a str,
    method: &'a str,
    host: Option<&'a str>,
    path: &'a str,
    protocol: &'static str,
    headers: BTreeMap<&'a str, String>,
}

struct Identity {
    namespace: String,
    service: String,
    port: String,
    pod: String,
    header: HeaderValue,
}

impl Echo {
    /// Starts `pods` servers for the port `port_name` of the Service `namespace/service`.
    pub async fn start(namespace: &str, service: &str, port_name: &str, pods: usize) -> io::Result<Self> {
        let header = HeaderValue::try_from(format!("{namespace}/{service}")).map_err(io::Error::other)?;
        let mut addresses = Vec::with_capacity(pods);
        let mut servers = JoinSet::new();
        for pod in 0..pods {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
            addresses.push(listener.local_addr()?);
            servers.spawn(serve(
                listener,
                Arc::new(Identity {
                    namespace: namespace.to_owned(),
                    service: service.to_owned(),
                    port: port_name.to_owned(),
                    pod: format!("{service}-{pod}"),
                    header: header.clone(),
                }),
            ));
        }
        Ok(Self { addresses, _servers: servers })
    }

    /// Where they listen, one address per pod.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }
}

async fn serve(listener: TcpListener, identity: Arc<Identity>) {
    // dropped with this task, and every connection with it
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(connection(stream, Arc::clone(&identity)));
                }
                // out of file descriptors, or the client went away: the next one may fare better
                Err(error) => {
                    tracing::warn!(%error, service = identity.service, "echo server: accept failed");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection(stream: TcpStream, identity: Arc<Identity>) {
    // small answers: waiting for more of them only costs time
    let _ = stream.set_nodelay(true);
    let builder = Builder::new(TokioExecutor::new());
    let service = service_fn(move |request| answer(request, Arc::clone(&identity)));
    if let Err(error) = builder.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(error, "echo server: a connection ended");
    }
}

async fn answer(request: Request<Incoming>, identity: Arc<Identity>) -> Result<Response<BoxBody<Bytes, Infallible>>, Infallible> {
    let (parts, body) = request.into_parts();
    // the whole request is taken before the answer begins, as most applications do
    let mut body = body;
    while let Some(Ok(_)) = body.frame().await {}
    let host = parts.headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let mut headers = BTreeMap::<&str, String>::new();
    for (name, value) in &parts.headers {
        let value = String::from_utf8_lossy(value.as_bytes());
        let all = headers.entry(name.as_str()).or_default();
        if !all.is_empty() {
            all.push_str(", ");
        }
        all.push_str(&value);
    }
    let answer = Answer {
        service: &identity.service,
        namespace: &identity.namespace,
        port: &identity.port,
        pod: &identity.pod,
        method: parts.method.as_str(),
        host: host.or_else(|| parts.uri.authority().map(http::uri::Authority::as_str)),
        path: parts.uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str),
        protocol: match parts.version {
            http::Version::HTTP_2 => "HTTP/2",
            http::Version::HTTP_10 => "HTTP/1.0",
            _ => "HTTP/1.1",
        },
        headers,
    };
    // plain strings in a struct always serialise
    let mut json = serde_json::to_vec(&answer).unwrap_or_default();
    json.push(b'\n');
    let mut response = Response::new(Full::new(Bytes::from(json)).boxed());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.headers_mut().insert("x-service", identity.header.clone());
    Ok(response)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    async fn ask(address: SocketAddr, request: &str) -> io::Result<String> {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }

    #[tokio::test]
    async fn an_echo_server_says_who_it_is_and_what_it_was_asked() {
        let echo = Echo::start("shop", "cart", "http", 2).await.unwrap();
        assert_eq!(echo.addresses().len(), 2);
        let request = "POST /a?b=c HTTP/1.1\r\nHost: a.example\r\nX-One: 1\r\nX-One: 2\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi";
        let answer = ask(echo.addresses()[1], request).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200") && head.contains("x-service: shop/cart"), "{head}");
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(
            body,
            serde_json::json!({
                "service": "cart", "namespace": "shop", "port": "http", "pod": "cart-1", "method": "POST", "host": "a.example",
                "path": "/a?b=c", "protocol": "HTTP/1.1",
                "headers": {"host": "a.example", "x-one": "1, 2", "content-length": "2", "connection": "close"},
            })
        );
    }

    #[tokio::test]
    async fn an_echo_server_speaks_both_versions_of_http() {
        let echo = Echo::start("shop", "cart", "http", 1).await.unwrap();
        let target = fleet_load::Target::new(echo.addresses()[0], "a.example", "/").answered_by("shop/cart");
        for protocol in [fleet_load::Protocol::Http1KeepAlive, fleet_load::Protocol::Http2] {
            let config = fleet_load::Config { protocol, requests: Some(20), rate: 500.0, ..fleet_load::Config::new(vec![target.clone()]) };
            let report = fleet_load::Load::start(config).unwrap().wait().await;
            assert_eq!((report.requests, report.lost), (20, 0), "{report:?}");
        }
    }

    #[tokio::test]
    async fn dropping_it_frees_its_ports_and_ends_its_connections() {
        let echo = Echo::start("shop", "cart", "http", 1).await.unwrap();
        let address = echo.addresses()[0];
        let mut kept = TcpStream::connect(address).await.unwrap();
        drop(echo);
        let mut rest = Vec::new();
        // both a close and a reset are an end
        let _ = kept.read_to_end(&mut rest).await;
        assert!(rest.is_empty());
        while TcpStream::connect(address).await.is_ok() {
            tokio::task::yield_now().await;
        }
    }
}
