//! Clients that keep a connection to a worker from before a reload, in front of rendered configurations: they are
//! answered from the present state, whatever they speak.

use crate::models::{host, name, prefix, route, to};
use crate::rig::{Origin, Rig, address, eventually};
use crate::running;
use crate::site::{CERTIFIED, Site, all, all_by_https, listening, of_kind, of_method, serve};
use crate::support::haproxies;
use bytes::Bytes;
use h2::client::SendRequest;
use haproxy_fleet::agent::Drain;
use haproxy_fleet::model::{HostMatch, Model, Target};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use std::fmt::Write as _;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_rustls::TlsConnector;

/// What a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Speaks {
    Http,
    Https,
    Http2,
    Http2OverTls,
}

const ALL: [Speaks; 4] = [Speaks::Http, Speaks::Https, Speaks::Http2, Speaks::Http2OverTls];

impl Speaks {
    fn is_secure(self) -> bool {
        matches!(self, Self::Https | Self::Http2OverTls)
    }

    async fn connect(self, rig: &Rig, pem: &str) -> Client {
        let stream: Box<dyn Stream> = if self.is_secure() { Box::new(tls(rig, pem, self).await) } else { Box::new(plain(rig.http).await) };
        if matches!(self, Self::Http | Self::Https) {
            return Client::One(stream);
        }
        let (sender, connection) = h2::client::handshake(stream).await.unwrap();
        Client::Two(sender, Some(Box::pin(connection)))
    }
}

async fn plain(address: std::net::SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

async fn tls(rig: &Rig, pem: &str, speaks: Speaks) -> impl Stream + use<> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()).unwrap();
    let builder = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![if speaks == Speaks::Https { b"http/1.1".to_vec() } else { b"h2".to_vec() }];
    let server = ServerName::try_from(CERTIFIED).unwrap();
    TlsConnector::from(Arc::new(config)).connect(server, plain(rig.https).await).await.unwrap()
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// A connection that is kept open. Nothing is tried twice. It reads only while it waits for an answer: what speaks
/// HTTP/2 has sent its next request before it sees that the other side wants to end the connection.
enum Client {
    One(Box<dyn Stream>),
    Two(SendRequest<Bytes>, Option<Driver>),
}

type Driver = Pin<Box<dyn Future<Output = Result<(), h2::Error>> + Send>>;

/// A request that has been sent.
enum Asked {
    One,
    Two(h2::client::ResponseFuture),
}

impl Client {
    /// Who answers for `target` (`HOST/PATH`): the name of an origin, or a status code.
    async fn ask(&mut self, target: &str, headers: &[(&str, &str)]) -> Result<String, String> {
        let asked = self.send(target, headers).await?;
        self.answer(asked).await
    }

    async fn send(&mut self, target: &str, headers: &[(&str, &str)]) -> Result<Asked, String> {
        match self {
            Self::One(stream) => {
                let (host, path) = target.split_once('/').unwrap_or((target, ""));
                let mut request = format!("GET /{path} HTTP/1.1\r\nHost: {host}\r\n");
                for (name, value) in headers {
                    write!(request, "{name}: {value}\r\n").unwrap();
                }
                request.push_str("\r\n");
                stream.write_all(request.as_bytes()).await.map_err(|error| error.to_string())?;
                stream.flush().await.map_err(|error| error.to_string())?;
                Ok(Asked::One)
            }
            Self::Two(sender, _) => {
                let mut request = http::Request::get(format!("https://{target}"));
                for (name, value) in headers {
                    request = request.header(*name, *value);
                }
                let mut ready = sender.clone().ready().await.map_err(|error| format!("takes no request: {error}"))?;
                let sent = ready.send_request(request.body(()).unwrap(), true);
                Ok(Asked::Two(sent.map_err(|error| format!("takes no request: {error}"))?.0))
            }
        }
    }

    async fn answer(&mut self, asked: Asked) -> Result<String, String> {
        let (code, body) = match (self, asked) {
            (Self::One(stream), _) => answer_of_one(stream).await.map_err(|error| error.to_string())?,
            (client, Asked::Two(response)) => client.reading(answer_of_two(response)).await.map_err(|error| error.to_string())?,
            (Self::Two(..), Asked::One) => unreachable!("it was asked here"),
        };
        Ok(if code == "200" { body } else { code })
    }

    /// Reads what comes in while `work` is not done.
    async fn reading<T>(&mut self, work: impl Future<Output = T>) -> T {
        let Self::Two(_, driver) = self else { return work.await };
        let mut work = std::pin::pin!(work);
        if let Some(connection) = driver {
            tokio::select! {
                done = &mut work => return done,
                // how it ended shows in the requests
                _ = connection => *driver = None,
            }
        }
        work.await
    }
}

async fn answer_of_two(response: h2::client::ResponseFuture) -> Result<(String, String), h2::Error> {
    let response = response.await?;
    let (code, mut stream) = (response.status().as_str().to_owned(), response.into_body());
    let mut body = Vec::new();
    while let Some(piece) = stream.data().await.transpose()? {
        stream.flow_control().release_capacity(piece.len())?;
        body.extend_from_slice(&piece);
    }
    Ok((code, String::from_utf8(body).unwrap()))
}

/// Status and body of an answer in HTTP/1.1.
async fn answer_of_one(stream: &mut Box<dyn Stream>) -> std::io::Result<(String, String)> {
    let mut answer = Vec::new();
    loop {
        if stream.read_buf(&mut answer).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let text = String::from_utf8_lossy(&answer).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ").map(|n| n.parse().unwrap()));
        if body.len() >= length.unwrap_or(0) {
            return Ok((head.split(' ').nth(1).unwrap_or_default().to_owned(), body.to_owned()));
        }
    }
}

/// Connections of every kind that have had one answer each. A worker that ends closes a connection with the next
/// answer, so each of them is good for one more.
struct Crowd(Vec<(Speaks, Vec<Client>)>);

impl Crowd {
    async fn connect(site: &Site, pem: &str, each: usize, (host, answer): (&str, &str)) -> Self {
        let mut crowd = Vec::new();
        for speaks in ALL {
            let mut clients = Vec::new();
            for _ in 0..each {
                let mut client = speaks.connect(&site.rig, pem).await;
                assert_eq!(client.ask(host, &[]).await.as_deref(), Ok(answer), "{speaks:?}");
                clients.push(client);
            }
            crowd.push((speaks, clients));
        }
        Self(crowd)
    }

    /// One client of each kind asks for `target` and gets `answer`.
    async fn gets(&mut self, target: &str, answer: &str) {
        self.get(target, answer, answer).await;
    }

    /// The same where TLS makes a difference.
    async fn get(&mut self, target: &str, plain: &str, secure: &str) {
        for (speaks, clients) in &mut self.0 {
            let mut client = clients.pop().expect("enough connections");
            let wanted = if speaks.is_secure() { secure } else { plain };
            let answer = client.ask(target, &[("x-kind", "special")]).await;
            assert_eq!(answer.as_deref(), Ok(wanted), "{target} by a client of an old worker that speaks {speaks:?}");
        }
    }
}

/// What only a reload brings: a route with a condition.
fn by_reload(model: &mut Model, host_name: &str, service: &str) {
    host(model, name(host_name), vec![of_kind("special", to(service)), route(prefix("/"), Target::Unavailable)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_of_an_old_worker_see_everything_that_changes_after_the_reload() {
    for (version, haproxy) in haproxies() {
        let (old, cart) = (Origin::start("old").await, Origin::start("cart").await);
        let (mut model, pem) = listening();
        serve(&mut model, "shop", &[old.address]);
        serve(&mut model, "cart", &[cart.address]);
        for host in ["shop.test", "moved.test", "removed.test", "opened.test"] {
            all(&mut model, host, "shop");
        }
        all_by_https(&mut model, "secured.test", "shop");
        let mut site = Site::start(*version, haproxy, model).await;
        let mut crowd = Crowd::connect(&site, &pem, 9, ("shop.test", "old")).await;
        let worker = site.rig.status().worker_pid;

        let status = site.change(|model| by_reload(model, "special.test", "shop")).await;
        assert!(status.reload_count == 2 && status.worker_pid != worker, "{version}: {:?}", status.reloads);
        crowd.gets("special.test", "old").await;
        crowd.get("secured.test", "308", "old").await;

        let new = Origin::start("new").await;
        site.change(|model| serve(model, "shop", &[new.address])).await;
        drop(old);
        crowd.gets("shop.test", "new").await;
        crowd.gets("special.test/below", "new").await;

        site.change(|model| all(model, "moved.test", "cart")).await;
        crowd.gets("moved.test", "cart").await;
        site.change(|model| all(model, "added.test", "cart")).await;
        crowd.gets("added.test", "cart").await;
        site.change(|model| _ = model.tables.get_mut("t").unwrap().hosts.remove(&HostMatch::Exact("removed.test".into()))).await;
        crowd.gets("removed.test", "404").await;
        site.change(|model| {
            all(model, "secured.test", "shop");
            all_by_https(model, "opened.test", "shop");
        })
        .await;
        crowd.gets("secured.test", "new").await;
        crowd.get("opened.test", "308", "new").await;

        let status = site.rig.status();
        assert_eq!(status.reload_count, 2, "{version}: {:?}", status.reloads);
        assert_eq!(site.rig.agent.check_drift().await, 0, "{version}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_of_several_old_workers_see_what_the_reloads_themselves_brought() {
    for (version, haproxy) in haproxies() {
        let old = Origin::start("old").await;
        let (mut model, pem) = listening();
        serve(&mut model, "shop", &[old.address]);
        all(&mut model, "shop.test", "shop");
        all_by_https(&mut model, "secured.test", "shop");
        let mut site = Site::start(*version, haproxy, model).await;
        let mut eldest = Crowd::connect(&site, &pem, 5, ("shop.test", "old")).await;

        let (next, cart) = (Origin::start("next").await, Origin::start("cart").await);
        let status = site
            .change(|model| {
                by_reload(model, "special.test", "cart");
                serve(model, "cart", &[cart.address]);
                serve(model, "shop", &[next.address]);
                all(model, "secured.test", "shop");
            })
            .await;
        assert_eq!(status.reload_count, 2, "{version}: {:?}", status.reloads);
        drop(old);
        eldest.gets("shop.test", "next").await;
        eldest.gets("special.test", "cart").await;
        eldest.gets("secured.test", "next").await;
        let mut younger = Crowd::connect(&site, &pem, 2, ("shop.test", "next")).await;

        let last = Origin::start("last").await;
        let status = site
            .change(|model| {
                by_reload(model, "special.test", "shop");
                host(model, name("shop.test"), vec![of_method("GET", to("cart")), route(prefix("/"), to("shop"))]);
                serve(model, "shop", &[last.address]);
            })
            .await;
        assert_eq!(status.reload_count, 3, "{version}: {:?}", status.reloads);
        drop(next);
        for crowd in [&mut eldest, &mut younger] {
            crowd.gets("shop.test", "cart").await;
            crowd.gets("special.test", "last").await;
        }
        assert_eq!(site.rig.agent.check_drift().await, 0, "{version}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relayed_request_tells_its_origin_what_a_direct_one_does() {
    for (version, haproxy) in haproxies() {
        let (mut model, pem) = listening();
        serve(&mut model, "shop", &[running::origin("shop")]);
        all(&mut model, "shop.test", "shop");
        let mut site = Site::start(*version, haproxy, model).await;
        for speaks in ALL {
            let mut client = speaks.connect(&site.rig, &pem).await;
            let direct = client.ask("shop.test/path?query=1", &[("x-kind", "any")]).await.unwrap();
            site.change(|model| by_reload(model, &format!("{speaks:?}.test").to_lowercase(), "shop")).await;
            let relayed = client.ask("shop.test/path?query=1", &[("x-kind", "any")]).await.unwrap();
            let lines = |text: &str| {
                let mut lines: Vec<String> = text.to_lowercase().lines().map(str::to_owned).collect();
                lines.sort();
                lines
            };
            assert_eq!(lines(&direct), lines(&relayed), "{version} {speaks:?}");
            let scheme = if speaks.is_secure() { "x-forwarded-proto: https" } else { "x-forwarded-proto: http" };
            assert!(lines(&relayed).iter().any(|line| line == scheme), "{version} {speaks:?}: {relayed}");
            assert!(relayed.to_lowercase().contains("x-forwarded-for: 127."), "{version} {speaks:?}: {relayed}");
        }
    }
}

/// An origin that answers only when it is told to.
struct Slow {
    address: std::net::SocketAddr,
    arrived: mpsc::UnboundedReceiver<()>,
    may_answer: Arc<Semaphore>,
}

impl Slow {
    async fn start() -> Self {
        let listener = TcpListener::bind((address(), 9000)).await.unwrap();
        let (tell, arrived) = mpsc::unbounded_channel();
        let slow = Self { address: listener.local_addr().unwrap(), arrived, may_answer: Arc::new(Semaphore::new(0)) };
        let may_answer = slow.may_answer.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (tell, may_answer) = (tell.clone(), may_answer.clone());
                tokio::spawn(async move {
                    let mut request = Vec::new();
                    while !request.ends_with(b"\r\n\r\n") {
                        // a health check, or the end
                        if !matches!(stream.read_buf(&mut request).await, Ok(read) if read > 0) {
                            return;
                        }
                    }
                    let _ = tell.send(());
                    may_answer.acquire().await.unwrap().forget();
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\nconnection: close\r\n\r\nslow").await;
                });
            }
        });
        slow
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_under_way_during_a_reload_is_answered_by_the_endpoint_that_has_it() {
    for (version, haproxy) in haproxies() {
        let (mut slow, quick) = (Slow::start().await, Origin::start("quick").await);
        let (mut model, pem) = listening();
        serve(&mut model, "slow", &[slow.address]);
        serve(&mut model, "quick", &[quick.address]);
        all(&mut model, "slow.test", "slow");
        all(&mut model, "quick.test", "quick");
        let mut site = Site::start(*version, haproxy, model).await;
        let mut clients = Vec::new();
        for speaks in ALL {
            clients.push((speaks, speaks.connect(&site.rig, &pem).await));
        }
        let mut under_way = Vec::new();
        for (_, client) in &mut clients {
            under_way.push(client.send("slow.test", &[]).await.unwrap());
            client.reading(slow.arrived.recv()).await.unwrap();
        }
        let next = Origin::start("next").await;
        let status = site
            .change(|model| {
                by_reload(model, "special.test", "quick");
                serve(model, "slow", &[next.address]);
                all(model, "quick.test", "slow");
            })
            .await;
        assert_eq!(status.reload_count, 2, "{version}: {:?}", status.reloads);
        for (speaks, client) in &mut clients {
            // what speaks HTTP/2 has room for another request meanwhile
            if matches!(client, Client::Two(..)) {
                assert_eq!(client.ask("quick.test", &[]).await.as_deref(), Ok("next"), "{version} {speaks:?}");
            }
        }
        slow.may_answer.add_permits(clients.len());
        for ((speaks, client), asked) in clients.iter_mut().zip(under_way) {
            assert_eq!(client.answer(asked).await.as_deref(), Ok("slow"), "{version} {speaks:?}");
        }
        assert_eq!(site.rig.ask("slow.test").await, "next", "{version}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_of_an_old_worker_are_answered_when_haproxy_stops_softly_after_the_reload() {
    for (version, haproxy) in haproxies() {
        let shop = Origin::start("shop").await;
        let (mut model, pem) = listening();
        serve(&mut model, "shop", &[shop.address]);
        all(&mut model, "shop.test", "shop");
        all_by_https(&mut model, "secured.test", "shop");
        let mut site = Site::start(*version, haproxy, model).await;
        let mut crowd = Crowd::connect(&site, &pem, 3, ("shop.test", "shop")).await;
        let status = site.change(|model| by_reload(model, "special.test", "shop")).await;
        assert_eq!(status.reload_count, 2, "{version}: {:?}", status.reloads);
        // nothing was passed on yet: a connection to the present worker that is there would be good for one more request
        let agent = site.rig.agent.clone();
        let drained = tokio::spawn(async move { agent.drain(Drain { deadline: Duration::from_secs(20) }).await });
        eventually(async || TcpStream::connect(site.rig.http).await.is_err().then_some(())).await;
        crowd.gets("shop.test", "shop").await;
        crowd.get("secured.test", "308", "shop").await;
        drop(crowd);
        assert!(drained.await.unwrap().in_time, "{version}");
    }
}
