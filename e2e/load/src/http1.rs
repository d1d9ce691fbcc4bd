//! HTTP/1.1, as much of it as it takes to know whether a whole answer came.
//!
//! Read by hand and not with a client library: which byte was the last one before a connection ended is the very
//! thing to find out.

use crate::config::time_of;
use crate::connect::{Io, unanswered};
use crate::pace::Pace;
use crate::report::{Answer, End, Failure, Loss};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, sleep_until, timeout_at};

const LARGEST_HEAD: usize = 64 * 1024;
const READ: usize = 16 * 1024;

/// A connection that may be used again.
pub(crate) struct Connection {
    io: Io,
    buffer: BytesMut,
    /// Who answered last.
    pod: Option<Arc<str>>,
    reusable: bool,
    pub idle_since: Instant,
}

/// The expected answer.
pub(crate) struct Expected<'a> {
    pub status: u16,
    pub service: Option<&'a str>,
    /// The header that names the pod.
    pub pod_header: Option<&'a str>,
    /// What the answer to a WebSocket's handshake must say of its key.
    pub accept: Option<&'a str>,
}

impl Expected<'_> {
    /// Whether an answer with that status from that service is the expected one.
    pub(crate) fn check(&self, status: u16, service: Option<&[u8]>) -> Result<(), Failure> {
        if status != self.status {
            let loss = if status >= 500 { Loss::ProxyError } else { Loss::Unexpected };
            return Err(Failure::new(loss, format_args!("status {status} instead of {}", self.status)));
        }
        match self.service {
            Some(wanted) if service != Some(wanted.as_bytes()) => {
                let got = service.map_or_else(|| "nobody".into(), |service| String::from_utf8_lossy(service).into_owned());
                Err(Failure::new(Loss::Unexpected, format_args!("answered by {got} instead of {wanted}")))
            }
            _ => Ok(()),
        }
    }

    /// Whether the head of an answer is the expected one.
    fn check_head(&self, status: u16, head: &[u8]) -> Result<(), Failure> {
        self.check(status, field(head, "x-service"))?;
        match self.accept {
            Some(accept) if field(head, "sec-websocket-accept") != Some(accept.as_bytes()) => {
                Err(Failure::new(Loss::Unexpected, "the answer does not accept this handshake of a WebSocket"))
            }
            _ => Ok(()),
        }
    }
}

/// Keeps the name of a pod that an answer came from, unless it is the one before.
pub(crate) fn remember(pod: &mut Option<Arc<str>>, named: Option<&[u8]>) {
    if let Some(named) = named
        && pod.as_ref().is_none_or(|pod| pod.as_bytes() != named)
    {
        *pod = Some(String::from_utf8_lossy(named).into());
    }
}

/// The body of an upload: how much of what.
pub(crate) struct Upload {
    pub bytes: u64,
    pub bytes_per_second: u64,
}

impl Upload {
    /// How long it takes at its rate.
    pub(crate) fn planned(&self) -> Duration {
        time_of(self.bytes, self.bytes_per_second)
    }
}

/// A piece of the body of an upload.
pub(crate) static FILLING: [u8; READ] = [b'x'; READ];

impl Connection {
    pub(crate) fn new(io: Io) -> Self {
        Self { io, buffer: BytesMut::with_capacity(READ), pod: None, reusable: true, idle_since: Instant::now() }
    }

    /// Whether it can still be used: the last answer came to its end, and since then the server neither closed nor spoke.
    pub(crate) fn is_usable(&self) -> bool {
        self.reusable && self.io.is_quiet()
    }

    /// Whether its last answer came to an end that allows another.
    pub(crate) fn is_reusable(&self) -> bool {
        self.reusable
    }

    /// Who answered last on it, if its answers say so.
    pub(crate) fn pod(&self) -> Option<Arc<str>> {
        self.pod.clone()
    }

    /// The connection below, and what was read beyond the last head.
    pub(crate) fn into_parts(self) -> (Io, BytesMut) {
        (self.io, self.buffer)
    }

    /// Sends `request` and reads the whole answer.
    pub(crate) async fn request(&mut self, request: &Bytes, expected: &Expected<'_>) -> Result<Answer, Failure> {
        self.begin(request).await?;
        self.answer(expected).await?;
        Ok(Answer { pod: self.pod(), planned: Duration::ZERO, end: End::Answered })
    }

    /// Sends `request` and reads the head of the answer.
    pub(crate) async fn ask(&mut self, request: &Bytes, expected: &Expected<'_>) -> Result<Begun, Failure> {
        self.begin(request).await?;
        self.head(expected).await
    }

    /// Reads the rest of an answer at its pace.
    pub(crate) async fn download(&mut self, begun: Begun, mut pace: Pace) -> Result<Answer, Failure> {
        let clean = self.body(&begun.body, Some(&mut pace)).await.map_err(Failure::after_begin)?;
        self.end(clean && !begun.close);
        begun.verdict.map(|()| Answer { pod: self.pod(), planned: pace.planned(), end: End::Complete })
    }

    /// Sends `request` and then the body at its pace, and reads the whole answer.
    pub(crate) async fn upload(
        &mut self,
        request: &Bytes,
        expected: &Expected<'_>,
        upload: &Upload,
        pace: Pace,
    ) -> Result<Answer, Failure> {
        self.begin(request).await?;
        let whole = self.send_body(upload.bytes, pace).await.map_err(Failure::after_begin)?;
        let answer = self.answer(expected).await.map_err(Failure::after_begin);
        // the server still waits for the rest of the body
        self.reusable &= whole;
        answer?;
        if !whole {
            return Err(Failure::new(Loss::Unexpected, "answered before the whole body was sent"));
        }
        Ok(Answer { pod: self.pod(), planned: upload.planned(), end: End::Complete })
    }

    /// Sends a body; false if an answer, or the end of the connection, came before its end.
    async fn send_body(&mut self, bytes: u64, mut pace: Pace) -> Result<bool, Failure> {
        let (mut reader, mut writer) = tokio::io::split(&mut self.io);
        let sent = async {
            let mut left = bytes;
            while left > 0 {
                sleep_until(pace.due()).await;
                let piece = usize::try_from(left).map_or(pace.piece(), |left| left.min(pace.piece()));
                writer.write_all(&FILLING[..piece]).await?;
                writer.flush().await?;
                pace.passed(piece);
                left -= piece as u64;
            }
            io::Result::Ok(())
        };
        tokio::select! {
            biased;
            read = reader.read_buf(&mut self.buffer) => match read {
                Ok(0) => Err(Failure::new(Loss::Closed, "closed within the body of the request")),
                Ok(_) => Ok(false),
                Err(error) => Err(Failure::new(unanswered(&error), format_args!("within the body of the request: {error}"))),
            },
            // an answer may have come before the server stopped to read: it tells more than the error does
            sent = sent => Ok(sent.is_ok()),
        }
    }

    async fn begin(&mut self, request: &Bytes) -> Result<(), Failure> {
        self.reusable = false;
        self.buffer.clear();
        let sent = async {
            self.io.write_all(request).await?;
            self.io.flush().await
        };
        sent.await.map_err(|error| Failure::new(unanswered(&error), format_args!("while sending: {error}")))
    }

    fn end(&mut self, reusable: bool) {
        self.reusable = reusable;
        self.idle_since = Instant::now();
    }

    /// Reads a whole answer, which must be the expected one.
    async fn answer(&mut self, expected: &Expected<'_>) -> Result<(), Failure> {
        let begun = self.head(expected).await?;
        let clean = self.body(&begun.body, None).await?;
        self.end(clean && !begun.close);
        begun.verdict
    }

    /// Reads the head of the final answer.
    async fn head(&mut self, expected: &Expected<'_>) -> Result<Begun, Failure> {
        loop {
            let end = self.read_head().await?;
            let bytes = &self.buffer[..end];
            let head = Head::parse(bytes).map_err(|reason| Failure::new(Loss::Unexpected, reason))?;
            // after 101 comes no other answer, but another protocol
            let is_final = head.status >= 200 || head.status == 101;
            let verdict = expected.check_head(head.status, bytes);
            remember(&mut self.pod, expected.pod_header.and_then(|name| field(bytes, name)));
            self.buffer.advance(end);
            if is_final {
                return Ok(Begun { body: head.body, close: head.close, verdict });
            }
        }
    }

    /// Reads until the end of a head and says where that is.
    async fn read_head(&mut self) -> Result<usize, Failure> {
        let mut scanned = 0;
        loop {
            if let Some(at) = self.buffer[scanned..].windows(4).position(|window| window == b"\r\n\r\n") {
                return Ok(scanned + at + 4);
            }
            scanned = self.buffer.len().saturating_sub(3);
            if self.buffer.len() > LARGEST_HEAD {
                return Err(Failure::new(Loss::Unexpected, "the head of the answer is larger than 64 KiB"));
            }
            match self.read().await {
                Ok(0) if self.buffer.is_empty() => return Err(Failure::new(Loss::Closed, "closed before an answer")),
                Ok(0) => return Err(Failure::new(Loss::Truncated, "closed within the head of the answer")),
                Err(error) if self.buffer.is_empty() => {
                    return Err(Failure::new(unanswered(&error), format_args!("before an answer: {error}")));
                }
                Err(error) => return Err(Failure::new(Loss::Truncated, format_args!("within the head of the answer: {error}"))),
                Ok(_) => {}
            }
        }
    }

    /// Reads the rest of the answer, if need be no faster than its pace. True if nothing came after it.
    async fn body(&mut self, body: &Body, mut pace: Option<&mut Pace>) -> Result<bool, Failure> {
        if let Some(pace) = &mut pace {
            pace.passed(self.buffer.len());
        }
        let mut chunks = Chunks::default();
        let mut left = if let Body::Length(length) = body { *length } else { 0 };
        loop {
            match body {
                Body::Length(_) => {
                    let here = self.buffer.len() as u64;
                    if here >= left {
                        return Ok(here == left);
                    }
                    left -= here;
                }
                Body::Chunked => {
                    if let Some(used) = chunks.feed(&self.buffer).map_err(|reason| Failure::new(Loss::Unexpected, reason))? {
                        return Ok(used == self.buffer.len());
                    }
                }
                Body::UntilClose => {}
            }
            self.buffer.clear();
            let read = match &mut pace {
                Some(pace) => self.read_at(pace).await,
                None => self.read().await,
            };
            match read {
                Ok(0) if matches!(body, Body::UntilClose) => return Ok(false),
                // TLS without close_notify is no proof of an end, but all that HTTP/1.0 style bodies have
                Err(error) if matches!(body, Body::UntilClose) && error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
                Ok(0) => return Err(Failure::new(Loss::Truncated, "closed within the body of the answer")),
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    return Err(Failure::new(Loss::Timeout, "the body of the answer does not go on"));
                }
                Err(error) => return Err(Failure::new(Loss::Truncated, format_args!("within the body of the answer: {error}"))),
                Ok(_) => {}
            }
        }
    }

    async fn read(&mut self) -> io::Result<usize> {
        self.buffer.reserve(READ / 2);
        self.io.read_buf(&mut self.buffer).await
    }

    /// Reads what is due.
    async fn read_at(&mut self, pace: &mut Pace) -> io::Result<usize> {
        sleep_until(pace.due()).await;
        let mut piece = (&mut self.buffer).limit(pace.piece());
        let read = timeout_at(pace.late(), self.io.read_buf(&mut piece)).await.map_err(io::Error::from)??;
        pace.passed(read);
        Ok(read)
    }
}

/// An answer of which the head has come.
pub(crate) struct Begun {
    body: Body,
    close: bool,
    /// Whether it is the expected one.
    pub verdict: Result<(), Failure>,
}

enum Body {
    Length(u64),
    Chunked,
    UntilClose,
}

struct Head {
    status: u16,
    body: Body,
    close: bool,
}

/// The value of a field of a head.
fn field<'a>(head: &'a [u8], name: &str) -> Option<&'a [u8]> {
    head.split(|byte| *byte == b'\n').find_map(|line| {
        let colon = line.iter().position(|byte| *byte == b':')?;
        line[..colon].eq_ignore_ascii_case(name.as_bytes()).then(|| line[colon + 1..].trim_ascii())
    })
}

impl Head {
    /// Reads what matters of a head that ends with an empty line.
    fn parse(bytes: &[u8]) -> Result<Self, String> {
        let no_http = || format!("not an HTTP/1 answer: {:?}", String::from_utf8_lossy(&bytes[..bytes.len().min(40)]));
        let version = bytes.get(..9).ok_or_else(no_http)?;
        if !version.starts_with(b"HTTP/1.") {
            return Err(no_http());
        }
        let digits = bytes.get(9..12).and_then(|digits| std::str::from_utf8(digits).ok()).ok_or_else(no_http)?;
        let status = digits.parse::<u16>().map_err(|_| no_http())?;
        let mut head = Self { status, body: Body::UntilClose, close: version[7] == b'0' };
        let mut start = 0;
        while let Some(length) = bytes[start..].windows(2).position(|window| window == b"\r\n") {
            head.line(&bytes[start..start + length])?;
            start += length + 2;
        }
        if status < 200 || matches!(status, 204 | 304) {
            head.body = Body::Length(0);
        }
        Ok(head)
    }

    fn line(&mut self, line: &[u8]) -> Result<(), String> {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { return Ok(()) };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"content-length") {
            let length = std::str::from_utf8(value).ok().and_then(|value| value.parse().ok());
            if !matches!(self.body, Body::Chunked) {
                self.body = Body::Length(length.ok_or("the answer's Content-Length is not a number")?);
            }
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            self.body = Body::Chunked;
        } else if name.eq_ignore_ascii_case(b"connection") {
            self.close |= value.split(|byte| *byte == b',').any(|option| option.trim_ascii().eq_ignore_ascii_case(b"close"));
        }
        Ok(())
    }
}

/// Finds the end of a chunked body over any division into pieces.
#[derive(Default)]
struct Chunks {
    state: ChunkState,
}

#[derive(Default)]
enum ChunkState {
    #[default]
    SizeStart,
    Size(u64),
    Extension(u64),
    Data(u64),
    DataEnd,
    TrailerStart,
    Trailer,
    LastNewline,
}

impl Chunks {
    /// Takes a piece; once the body has ended, says how much of the piece belonged to it.
    fn feed(&mut self, piece: &[u8]) -> Result<Option<usize>, &'static str> {
        let mut at = 0;
        while let Some(&byte) = piece.get(at) {
            self.state = match std::mem::take(&mut self.state) {
                ChunkState::Data(left) => {
                    let here = usize::try_from(left).unwrap_or(usize::MAX).min(piece.len() - at);
                    at += here;
                    self.state = match left - here as u64 {
                        0 => ChunkState::DataEnd,
                        left => ChunkState::Data(left),
                    };
                    continue;
                }
                ChunkState::SizeStart => ChunkState::Size(digit(byte)?),
                ChunkState::Size(size) | ChunkState::Extension(size) if byte == b'\n' => match size {
                    0 => ChunkState::TrailerStart,
                    size => ChunkState::Data(size),
                },
                ChunkState::Size(size) if byte == b';' || byte == b'\r' || byte == b' ' => ChunkState::Extension(size),
                ChunkState::Size(size) => ChunkState::Size(size.checked_mul(16).ok_or("a chunk is too long")? + digit(byte)?),
                ChunkState::Extension(size) => ChunkState::Extension(size),
                ChunkState::DataEnd if byte == b'\r' => ChunkState::DataEnd,
                ChunkState::DataEnd if byte == b'\n' => ChunkState::SizeStart,
                ChunkState::DataEnd => return Err("a chunk is longer than it says"),
                ChunkState::TrailerStart if byte == b'\r' => ChunkState::LastNewline,
                ChunkState::TrailerStart | ChunkState::LastNewline if byte == b'\n' => return Ok(Some(at + 1)),
                ChunkState::Trailer if byte == b'\n' => ChunkState::TrailerStart,
                ChunkState::TrailerStart | ChunkState::Trailer => ChunkState::Trailer,
                ChunkState::LastNewline => return Err("a chunked body does not end in an empty line"),
            };
            at += 1;
        }
        Ok(None)
    }
}

fn digit(byte: u8) -> Result<u64, &'static str> {
    char::from(byte).to_digit(16).map(u64::from).ok_or("the size of a chunk is not a number")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_chunked_body_ends_at_the_same_byte_however_it_is_cut() {
        let body = b"4;x=y\r\nWiki\r\n10\r\n0123456789abcdef\r\n0\r\nTrailer: a\r\n\r\n";
        for cut in 0..body.len() {
            let mut chunks = Chunks::default();
            assert_eq!(chunks.feed(&body[..cut]).unwrap(), None, "cut at {cut}");
            let mut rest = body[cut..].to_vec();
            rest.extend_from_slice(b"HTTP/1.1");
            assert_eq!(chunks.feed(&rest).unwrap(), Some(body.len() - cut), "cut at {cut}");
        }
    }

    #[test]
    fn a_head_tells_status_length_and_service() {
        let bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\nX-Service:  a/b \r\nConnection: Keep-Alive, Close\r\n\r\n";
        let head = Head::parse(bytes).unwrap();
        assert_eq!(head.status, 200);
        assert!(matches!(head.body, Body::Length(12)));
        assert!(head.close);
        assert_eq!(field(bytes, "x-service"), Some(&b"a/b"[..]));
        assert_eq!(field(bytes, "x-pod"), None);
    }
}
