//! A bundle in a directory, and a real HAProxy that runs it.

use haproxy_fleet::haproxy::bundle::{Bundle, Content, ResourceKey};
use haproxy_fleet::haproxy::tickets::ticket_keys;
use std::cell::RefCell;
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// The text of one file of `bundle`.
pub fn file_text(bundle: &Bundle, path: &str) -> String {
    let mut text = String::new();
    // The servers of a backend stand right below its head.
    let by_backend = |key: &&ResourceKey| match key {
        ResourceKey::Backend(name) => (Some(name.clone()), 0),
        ResourceKey::Servers(name) => (Some(name.clone()), 1),
        _ => (None, 0),
    };
    let mut keys: Vec<&ResourceKey> = bundle.in_file(path).collect();
    keys.sort_by_key(by_backend);
    for key in keys {
        match &bundle.get(key).unwrap().content {
            Content::Section(lines) => text.push_str(lines),
            Content::Backend(head) => text.push_str(&head.text),
            Content::Servers(servers) => {
                for s in servers.iter() {
                    let weight = if s.drain { 0 } else { s.weight };
                    writeln!(text, "    server {} {} id {} guid {} weight {weight} {}", s.name, s.address, s.id, s.guid, s.keywords)
                        .unwrap();
                }
            }
            Content::MapEntries(entries) => {
                for e in entries {
                    writeln!(text, "{} {}", e.key, e.value).unwrap();
                }
            }
            Content::CertificateList(entries) => {
                for e in entries {
                    writeln!(text, "{} {}", e.file, e.names.join(" ")).unwrap();
                }
            }
            Content::Certificate(bytes) | Content::File(bytes) => text.push_str(std::str::from_utf8(bytes.expose()).unwrap()),
        }
    }
    text
}

/// Writes `bundle` and what the agent adds to it.
pub fn write_bundle(bundle: &Bundle, directory: &Path, pod: &str) {
    for path in bundle.files() {
        let file = directory.join(&**path);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, file_text(bundle, path)).unwrap();
    }
    let default = directory.join("certs/_default.pem");
    if !default.exists() {
        std::fs::create_dir_all(default.parent().unwrap()).unwrap();
        std::fs::write(default, self_signed("default.test")).unwrap();
    }
    std::fs::write(directory.join("certs/_tickets.keys"), ticket_keys(b"test", "running")).unwrap();
    std::fs::write(directory.join("00-pod.cfg"), pod).unwrap();
}

/// Chain and key for `name`.
pub fn self_signed(name: &str) -> String {
    let made = rcgen::generate_simple_self_signed(vec![name.to_owned()]).unwrap();
    format!("{}{}", made.cert.pem(), made.signing_key.serialize_pem())
}

/// `00-pod.cfg` with these addresses for listeners.
pub fn pod(binds: &[(&str, SocketAddr)], health: SocketAddr, socket: &Path) -> String {
    let mut text = "global\n    maxconn 500\n    nbthread 1\n".to_owned();
    for (listener, address) in binds {
        writeln!(text, "    setenv FLEET_BIND_{} \"{address}\"", listener.to_uppercase().replace('-', "_")).unwrap();
    }
    writeln!(text, "    setenv FLEET_BIND_HEALTH \"{health}\"\n    setenv FLEET_RELAY relay-{}", health.port()).unwrap();
    writeln!(text, "    stats socket {} mode 600 level admin", socket.display()).unwrap();
    text
}

/// Asserts that `haproxy -c` takes the directory.
pub fn assert_accepted(haproxy: &Path, directory: &Path, what: &str) {
    let output = Command::new(haproxy).args(["-c", "-f"]).arg(directory).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{what}: {}: {said}", haproxy.display());
    assert!(!said.contains("[WARNING]"), "{what}: {}: {said}", haproxy.display());
}

/// A free address on loopback.
pub fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// A HAProxy that ends with the test.
pub struct Running {
    child: Child,
    output: RefCell<Option<ChildStdout>>,
    pub directory: tempfile::TempDir,
    pub binds: Vec<(String, SocketAddr)>,
    pub health: SocketAddr,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Running {
    /// Starts `haproxy` with `bundle` and waits until its health frontend answers.
    pub fn start(haproxy: &Path, bundle: &Bundle, listeners: &[&str]) -> Self {
        Self::start_with(haproxy, bundle, listeners, Stdio::null())
    }

    /// The same; what it says can be read.
    pub fn with_output(haproxy: &Path, bundle: &Bundle, listeners: &[&str]) -> Self {
        Self::start_with(haproxy, bundle, listeners, Stdio::piped())
    }

    fn start_with(haproxy: &Path, bundle: &Bundle, listeners: &[&str], output: Stdio) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (binds, health): (Vec<_>, _) = (listeners.iter().map(|name| ((*name).to_owned(), free())).collect(), free());
        let named: Vec<(&str, SocketAddr)> = binds.iter().map(|(name, address): &(String, SocketAddr)| (name.as_str(), *address)).collect();
        write_bundle(bundle, directory.path(), &pod(&named, health, &directory.path().join("s")));
        assert_accepted(haproxy, directory.path(), "start");
        let mut command = Command::new(haproxy);
        command.args(["-db", "-f"]).arg(directory.path()).stdout(output).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let running = Self { output: RefCell::new(child.stdout.take()), child, directory, binds, health };
        let deadline = Instant::now() + Duration::from_secs(20);
        while !ask(health, "GET /healthz HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").starts_with("HTTP/1.1 200") {
            assert!(Instant::now() < deadline, "HAProxy did not become ready");
            std::thread::sleep(Duration::from_millis(2));
        }
        running
    }

    /// What it says, once.
    pub fn output(&self) -> ChildStdout {
        self.output.borrow_mut().take().unwrap()
    }

    /// The address of a listener.
    pub fn address(&self, listener: &str) -> SocketAddr {
        self.binds.iter().find(|(name, _)| name == listener).unwrap().1
    }

    /// The answer to a GET on `http`.
    pub fn get(&self, host: &str, target: &str) -> String {
        self.request("GET", host, target, "")
    }

    /// The answer to a request with more header lines, each ended by CRLF.
    pub fn request(&self, method: &str, host: &str, target: &str, headers: &str) -> String {
        ask(self.address("http"), &format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n{headers}Connection: close\r\n\r\n"))
    }

    /// Lets it take nothing new and end with its last connection.
    pub fn stop_softly(&self) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), rustix::process::Signal::USR1).unwrap();
    }

    /// The answer of the runtime API.
    pub fn command(&self, command: &str) -> String {
        let mut stream = std::os::unix::net::UnixStream::connect(self.directory.path().join("s")).unwrap();
        stream.write_all(format!("{command}\n").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.trim().to_owned()
    }
}

/// Everything that comes back for `request`; empty if nothing listens or the connection is cut.
pub fn ask(address: SocketAddr, request: &str) -> String {
    let Ok(mut stream) = TcpStream::connect(address) else { return String::new() };
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    if stream.write_all(request.as_bytes()).is_err() {
        return String::new();
    }
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// The status of an answer.
pub fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0)
}

/// The value of a header of an answer.
pub fn header<'a>(answer: &'a str, name: &str) -> Option<&'a str> {
    let head = answer.split("\r\n\r\n").next()?;
    head.lines().skip(1).filter_map(|line| line.split_once(": ")).find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

/// A server that answers `NAME METHOD TARGET` and then the header lines that it got.
pub fn origin(name: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else { continue };
            std::thread::spawn(move || serve(stream, name));
        }
    });
    address
}

fn serve(mut stream: TcpStream, name: &str) {
    let mut head = Vec::new();
    let mut byte = [0];
    loop {
        while !head.ends_with(b"\r\n\r\n") {
            match stream.read(&mut byte) {
                Ok(1) => head.push(byte[0]),
                _ => return,
            }
        }
        let text = String::from_utf8_lossy(&head).into_owned();
        head.clear();
        let Some((first, rest)) = text.split_once("\r\n") else { return };
        if first.contains("/never-answered") {
            // Until the other side gives up.
            let _ = stream.read(&mut byte);
            return;
        }
        if first.contains("/upgrade") {
            // nobody has to hear it
            let _ = stream.write_all(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: test\r\n\r\n");
            return;
        }
        let body = format!("{name} {}\n{}", first.trim_end_matches(" HTTP/1.1"), rest.replace("\r\n", "\n"));
        let answer = format!("HTTP/1.1 200 OK\r\nX-Origin: {name}\r\nX-Gone: 1\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        if stream.write_all(answer.as_bytes()).is_err() || text.to_lowercase().contains("connection: close\r\n") {
            return;
        }
    }
}

/// What an origin got, from an answer: `(NAME METHOD TARGET, header lines)`.
pub fn got(answer: &str) -> (String, String) {
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body).unwrap_or_default();
    let (first, rest) = body.split_once('\n').unwrap_or((body, ""));
    (first.to_owned(), rest.to_owned())
}
