//! A HAProxy with its agent, bundles made by hand, and origins that say their name.

use haproxy_fleet::agent::{Agent, Pod, Settings, Status, Update, UpdateContent};
use haproxy_fleet::haproxy::bundle::{
    BackendClass, BackendHead, Bundle, Change, Content, ListEntry, MapEntry, Resource, ResourceKey, Server,
};
use haproxy_fleet::haproxy::tickets::ticket_keys;
use haproxy_fleet::report::{Kind, ObjectRef, PrivateBytes};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const GLOBAL: &str = "global
    default-path config
    hard-stop-after 1m
    mworker-max-reloads 50
defaults _front
    mode http
    timeout client 10s
    timeout http-keep-alive 10s
    timeout connect 2s
    timeout server 10s
    option idle-close-on-response
    option socket-stats
    option redispatch
    retries 3
";

const FRONTENDS: &str = "frontend _health from _front
    bind \"${FLEET_BIND_HEALTH}\"
    http-request return status 503 if { str(drained),map_str(maps/pod.map) -m str 1 }
    http-request return status 200
frontend http from _front
    bind \"${FLEET_BIND_HTTP}\"
    bind \"abns@${FLEET_RELAY}-http\" accept-proxy name relay
    bind \"${FLEET_BIND_HTTPS}\" ssl default-crt certs/_default.pem crt-list lists/https.list tls-ticket-keys certs/_tickets.keys
    http-request allow if { str(relayed),map_str(maps/pod.map),set-var(txn.route) -m found }
    http-request set-var-fmt(txn.key) \"%[req.hdr(host),field(1,:),lower]|%[path]/#\"
    http-request set-var(txn.route) var(txn.key),map_beg(maps/http/routes.map)
    http-request set-var-fmt(txn.key) \"*|%[path]/#\" if !{ var(txn.route) -m found }
    http-request set-var(txn.route) var(txn.key),map_beg(maps/http/routes.map) if !{ var(txn.route) -m found }
    http-after-response set-header Connection close if { str(closing),map_str(maps/pod.map) -m str 1 }
    use_backend %[var(txn.route)] if { var(txn.route) -m found }
    default_backend _404
backend _404 from _front
    http-request return status 404
backend _relay from _front
    server http \"abns@${FLEET_RELAY}-http\" send-proxy-v2
";

const SHAPE: &str = "defaults shape-a from _front
    balance roundrobin
    http-request set-header x-value \"%[be_name,map_str(maps/values/header.map)]\" if { be_name,map_str(maps/values/header.map) -m found }
";

/// The source object that the things called `name` come from.
pub fn source(name: &str) -> ObjectRef {
    ObjectRef::new(Kind::Ingress, "shop", name)
}

pub fn put(bundle: &mut Bundle, key: ResourceKey, content: Content, name: &str) {
    bundle.set(&key.clone(), Some(Resource::new(key, content, Arc::new([source(name)]))));
}

pub fn section(bundle: &mut Bundle, name: &str, text: &str) {
    put(bundle, ResourceKey::Section(name.into()), Content::Section(text.into()), name);
}

/// A server at `address`.
pub fn server(backend: &str, address: SocketAddr) -> Server {
    let name = format!("s-{}-{}", address.ip().to_string().replace(['.', ':'], "_"), address.port());
    let std::net::IpAddr::V4(ip) = address.ip() else { panic!("an IPv4 address") };
    let id = u32::from(ip) % 0x1_0000 + 1;
    let guid = format!("{backend}:{name}").into();
    let keywords = "check inter 2000 observe layer4".into();
    Server { name: name.into(), address, id, guid, keywords, checked: true, weight: 100, drain: false, zone: None, here: None }
}

/// The backend `name` of the shape with `servers`.
pub fn backend(bundle: &mut Bundle, name: &str, addresses: &[SocketAddr]) {
    let class = BackendClass::Shaped { shape: "shape-a".into(), mode: "http", guid: format!("b:{name}").into() };
    let text = format!("backend {name} from shape-a\n    guid b:{name}\n").into();
    put(bundle, ResourceKey::Backend(name.into()), Content::Backend(BackendHead { text, class }), name);
    servers(bundle, name, addresses.iter().map(|address| server(name, *address)).collect());
}

/// A backend that is written in full.
pub fn private(bundle: &mut Bundle, name: &str, text: &str, addresses: &[SocketAddr]) {
    let head = BackendHead { text: format!("backend {name} from _front\n{text}").into(), class: BackendClass::Private };
    put(bundle, ResourceKey::Backend(name.into()), Content::Backend(head), name);
    servers(bundle, name, addresses.iter().map(|address| server(name, *address)).collect());
}

pub fn servers(bundle: &mut Bundle, name: &str, mut servers: Vec<Server>) {
    servers.sort();
    put(bundle, ResourceKey::Servers(name.into()), Content::Servers(servers.into()), name);
}

pub fn without_backend(bundle: &mut Bundle, name: &str) {
    bundle.set(&ResourceKey::Backend(name.into()), None);
    bundle.set(&ResourceKey::Servers(name.into()), None);
}

pub fn map(bundle: &mut Bundle, map: &str, owner: &str, entries: &[(&str, &str)]) {
    let mut entries: Vec<MapEntry> = entries.iter().map(|(key, value)| MapEntry { key: (*key).into(), value: (*value).into() }).collect();
    entries.sort();
    put(bundle, ResourceKey::MapEntries { map: map.into(), owner: owner.into() }, Content::MapEntries(entries), owner);
}

/// Everything of `host` goes to the backend `name`.
pub fn route(bundle: &mut Bundle, host: &str, name: &str) {
    map(bundle, "maps/http/routes.map", host, &[(&format!("{host}|/"), name)]);
}

pub fn certificate(bundle: &mut Bundle, path: &str, pem: &str) {
    let content = Content::Certificate(PrivateBytes::new(pem.as_bytes().to_vec()));
    put(bundle, ResourceKey::Certificate(path.into()), content, path);
}

pub fn file(bundle: &mut Bundle, path: &str, text: &str) {
    let content = Content::File(PrivateBytes::new(text.as_bytes().to_vec()));
    put(bundle, ResourceKey::File(path.into()), content, path);
}

pub fn list(bundle: &mut Bundle, owner: &str, entries: &[(&str, &[&str])]) {
    let entry = |(file, names): &(&str, &[&str])| ListEntry { file: (*file).into(), names: names.iter().map(|n| (*n).into()).collect() };
    let content = Content::CertificateList(entries.iter().map(entry).collect());
    put(bundle, ResourceKey::CertificateList { list: "lists/https.list".into(), owner: owner.into() }, content, owner);
}

/// A certificate with its key for `name`.
pub fn pem(name: &str) -> String {
    let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    format!("{}\n\n{}", made.cert.pem(), made.signing_key.serialize_pem())
}

/// What every bundle here has.
pub fn skeleton() -> Bundle {
    let mut bundle = Bundle::default();
    section(&mut bundle, "10-global", GLOBAL);
    section(&mut bundle, "20-frontends", FRONTENDS);
    section(&mut bundle, "30-shape-a", SHAPE);
    map(&mut bundle, "maps/http/routes.map", "", &[]);
    map(&mut bundle, "maps/values/header.map", "", &[]);
    map(&mut bundle, "maps/pod.map", "pod", &[("closing", "0"), ("drained", "0")]);
    list(&mut bundle, "", &[]);
    bundle
}

/// A frontend section that differs from the usual one by `number`.
pub fn frontends(number: usize) -> String {
    format!("{FRONTENDS}backend _spare{number} from _front\n    http-request return status 404\n")
}

/// An address that no other test has.
pub fn address() -> Ipv4Addr {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    let process = std::process::id();
    let [.., high, low] = next.to_be_bytes();
    Ipv4Addr::new(127, 64 + u8::try_from(process / 250 % 64).unwrap(), u8::try_from(process % 250).unwrap() ^ high, low)
}

pub struct Rig {
    pub agent: Agent,
    pub settings: Settings,
    pub bundle: Bundle,
    pub generation: u64,
    pub http: SocketAddr,
    pub https: SocketAddr,
    pub health: SocketAddr,
    pub home: PathBuf,
    _directory: Arc<tempfile::TempDir>,
}

impl Rig {
    /// A HAProxy that serves `bundle`.
    pub async fn start(haproxy: &Path, bundle: Bundle) -> Self {
        let mut rig = Self::bare(haproxy).await;
        rig.bundle = bundle;
        rig.deliver_all();
        rig.settled().await;
        rig
    }

    /// A HAProxy that was given nothing yet.
    pub async fn bare(haproxy: &Path) -> Self {
        Self::bare_in(tempfile::tempdir().unwrap(), haproxy).await
    }

    /// A HAProxy that was given nothing yet, and what its validations have to pass.
    pub async fn gated(haproxy: &Path) -> (Self, Gate) {
        let directory = tempfile::tempdir().unwrap();
        let (gate, program) = Gate::of(haproxy, directory.path());
        (Self::bare_in(directory, &program).await, gate)
    }

    async fn bare_in(directory: tempfile::TempDir, haproxy: &Path) -> Self {
        let directory = Arc::new(directory);
        let ip = address();
        let at = |port| SocketAddr::from((ip, port));
        let pod = Pod {
            name: "pod-0".to_owned(),
            binds: BTreeMap::from([("http".to_owned(), vec![at(8080)]), ("https".to_owned(), vec![at(8443)])]),
            health: at(8081),
            threads: Some(2),
            max_connections: 500,
            default_certificate: PrivateBytes::new(pem("default.example").into_bytes()),
            ticket_keys: PrivateBytes::new(ticket_keys(b"test", "rig")),
        };
        let settings = Settings {
            haproxy: haproxy.to_owned(),
            directory: directory.path().join("config"),
            sockets: directory.path().join("run"),
            attach: None,
            pod,
            reload_interval: Duration::ZERO,
            drift_interval: Duration::from_secs(3600),
            launcher: None,
        };
        let agent = Agent::start(settings.clone()).await.unwrap();
        Self {
            agent,
            settings,
            bundle: Bundle::default(),
            generation: 0,
            http: at(8080),
            https: at(8443),
            health: at(8081),
            home: directory.path().to_owned(),
            _directory: directory,
        }
    }

    pub fn deliver_all(&mut self) {
        self.generation += 1;
        let content = UpdateContent::Full(Arc::new(self.bundle.clone()));
        self.agent.deliver(Update { generation: self.generation, digest: self.bundle.digest(), content });
    }

    /// Delivers what `change` does to the bundle.
    pub fn send(&mut self, change: impl FnOnce(&mut Bundle)) {
        let before = self.bundle.clone();
        change(&mut self.bundle);
        self.generation += 1;
        let changes: Arc<[Change]> = before.diff(&self.bundle).into();
        let content = UpdateContent::Changes(changes);
        self.agent.deliver(Update { generation: self.generation, digest: self.bundle.digest(), content });
    }

    /// Delivers it and waits until nothing of it waits any more.
    pub async fn change(&mut self, change: impl FnOnce(&mut Bundle)) -> Status {
        self.send(change);
        self.settled().await
    }

    pub async fn settled(&self) -> Status {
        let generation = self.generation;
        self.until("applied", |status| status.generation == generation && (status.waiting == 0 || !status.refused.is_empty())).await
    }

    /// Waits until all of it is done that can be done live.
    pub async fn live(&self) -> Status {
        let generation = self.generation;
        self.until("live", |status| status.generation == generation).await
    }

    pub async fn until(&self, what: &str, condition: impl FnMut(&Status) -> bool) -> Status {
        let mut status = self.agent.status();
        let found = tokio::time::timeout(Duration::from_secs(30), status.wait_for(condition)).await.map(|found| found.unwrap().clone());
        found.unwrap_or_else(|_| panic!("not {what}: {:#?}", self.agent.status().borrow().clone()))
    }

    pub fn status(&self) -> Status {
        self.agent.status().borrow().clone()
    }

    /// Who answers for `host`: the name of an origin, or a status code.
    pub async fn ask(&self, host: &str) -> String {
        let mut client = Client::connect(self.http).await;
        client.ask(host).await.unwrap_or_else(|error| format!("lost: {error}"))
    }

    /// Waits until `host` is answered by `answer`.
    pub async fn answers(&self, host: &str, answer: &str) {
        eventually(async || (self.ask(host).await == answer).then_some(())).await;
    }

    /// A command to the worker.
    pub async fn command(&self, command: &str) -> String {
        use haproxy_fleet::agent::runtime::{Command, Session};
        let worker = self.status().worker_pid.unwrap();
        let socket = std::fs::read_dir(self.home.join("run")).unwrap().next().unwrap().unwrap().path();
        let mut session = Session::open(&socket, worker, Duration::from_secs(5)).await.unwrap();
        session.exchange(&[Command::plain(command)]).await.unwrap().remove(0)
    }
}

/// Where validations wait while it is closed.
pub struct Gate {
    home: PathBuf,
}

impl Gate {
    /// In front of `haproxy`, with the program to validate with.
    pub fn of(haproxy: &Path, home: &Path) -> (Self, PathBuf) {
        let program = home.join("haproxy");
        // a link, because a program that has just been written may not be started yet
        std::os::unix::fs::symlink(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/slow-haproxy.sh"), &program).unwrap();
        std::fs::write(home.join("real"), haproxy.as_os_str().as_encoded_bytes()).unwrap();
        (Self { home: home.to_owned() }, program)
    }

    pub fn close(&self) {
        std::fs::write(self.home.join("closed"), "").unwrap();
    }

    pub fn open(&self) {
        std::fs::remove_file(self.home.join("closed")).unwrap();
    }

    /// Whether a validation waits now.
    pub fn is_waited_at(&self) -> bool {
        self.home.join("waiting").exists()
    }

    pub async fn waited_at(&self) {
        eventually(async || self.is_waited_at().then_some(())).await;
    }
}

/// Waits until `attempt` gives something.
pub async fn eventually<T>(mut attempt: impl AsyncFnMut() -> Option<T>) -> T {
    let tries = async {
        loop {
            if let Some(found) = attempt().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), tries).await.expect("it never came to that")
}

/// A keep-alive client that never tries twice.
pub struct Client {
    stream: TcpStream,
    pub closed: bool,
}

impl Client {
    pub async fn connect(address: SocketAddr) -> Self {
        Self::of(TcpStream::connect(address).await.unwrap())
    }

    pub fn of(stream: TcpStream) -> Self {
        Self { stream, closed: false }
    }

    /// Its connection, for something else.
    pub fn into_stream(self) -> TcpStream {
        self.stream
    }

    pub async fn ask(&mut self, host: &str) -> std::io::Result<String> {
        self.stream.write_all(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes()).await?;
        let mut answer = Vec::new();
        loop {
            if self.stream.read_buf(&mut answer).await? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            let text = String::from_utf8_lossy(&answer).to_ascii_lowercase();
            let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).map_or(0, |n| n.parse().unwrap());
            if body.len() < length {
                continue;
            }
            self.closed = head.contains("connection: close");
            let code = head.split(' ').nth(1).unwrap_or_default();
            return Ok(if code == "200" { body.to_owned() } else { code.to_owned() });
        }
    }
}

/// An origin that answers every request with its name.
pub struct Origin {
    pub address: SocketAddr,
    task: tokio::task::JoinHandle<()>,
}

impl Origin {
    pub async fn start(name: &str) -> Self {
        let listener = TcpListener::bind((address(), 9000)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let name = name.to_owned();
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(stream, name.clone()));
            }
        });
        Self { address, task }
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// An origin whose answers end when they are told to.
pub struct Trickle {
    pub address: SocketAddr,
    end: tokio::sync::watch::Sender<usize>,
    task: tokio::task::JoinHandle<()>,
}

impl Trickle {
    pub async fn start() -> Self {
        let listener = TcpListener::bind((address(), 9000)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (end, ended) = tokio::sync::watch::channel(0);
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(trickle(stream, ended.clone()));
            }
        });
        Self { address, end, task }
    }

    /// Ends the first `number` of the answers that began, counted by what their requests asked for (`/1` and so on).
    pub fn end(&self, number: usize) {
        self.end.send_replace(number);
    }
}

impl Drop for Trickle {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Sends a byte now and then, so that no time-out ends it.
async fn trickle(mut stream: TcpStream, ended: tokio::sync::watch::Receiver<usize>) {
    let mut request = Vec::new();
    while !request.windows(4).any(|window| window == b"\r\n\r\n") {
        // a health check only connects
        if !matches!(stream.read_buf(&mut request).await, Ok(read) if read > 0) {
            return;
        }
    }
    let path = String::from_utf8_lossy(&request).split(' ').nth(1).map(|path| path[1..].to_owned()).unwrap_or_default();
    let number: usize = path.parse().unwrap();
    let mut text = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_owned();
    while *ended.borrow() < number {
        text.push_str("1\r\nx\r\n");
        if stream.write_all(text.as_bytes()).await.is_err() {
            return;
        }
        text.clear();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // whoever asked may be gone
    let _ = stream.write_all(b"0\r\n\r\n").await;
}

/// A download that a [`Trickle`] does not end before it is told to.
pub struct Download {
    stream: TcpStream,
}

impl Download {
    /// Asks for the one with that number, and waits until it has begun.
    pub async fn begin(mut stream: TcpStream, host: &str, number: usize) -> Self {
        stream.write_all(format!("GET /{number} HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes()).await.unwrap();
        let mut read = Vec::new();
        while !String::from_utf8_lossy(&read).contains("1\r\nx\r\n") {
            assert_ne!(stream.read_buf(&mut read).await.unwrap(), 0, "{}", String::from_utf8_lossy(&read));
        }
        Self { stream }
    }

    /// Reads to the end; whether that is the end of the answer.
    pub async fn whole(mut self) -> bool {
        let mut read = Vec::new();
        while !read.ends_with(b"0\r\n\r\n") {
            if !matches!(self.stream.read_buf(&mut read).await, Ok(length) if length > 0) {
                return false;
            }
        }
        true
    }
}

async fn serve(mut stream: TcpStream, name: String) {
    let mut request = Vec::new();
    let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{name}", name.len());
    while matches!(stream.read_buf(&mut request).await, Ok(read) if read > 0) {
        while let Some(end) = request.windows(4).position(|window| window == b"\r\n\r\n") {
            request.drain(..end + 4);
            if stream.write_all(answer.as_bytes()).await.is_err() {
                return;
            }
        }
    }
}
