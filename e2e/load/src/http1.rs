//! HTTP/1.1, as much of it as it takes to know whether a whole answer came.
//!
//! Read by hand and not with a client library: which byte was the last one before a connection ended is the very
//! thing to find out.

use crate::connect::{Io, unanswered};
use crate::report::{Failure, Loss};
use bytes::{Buf, Bytes, BytesMut};
use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

const LARGEST_HEAD: usize = 64 * 1024;
const READ: usize = 16 * 1024;

/// A connection that may be used again.
pub(crate) struct Connection {
    io: Io,
    buffer: BytesMut,
    pub idle_since: Instant,
}

/// The expected answer.
pub(crate) struct Expected<'a> {
    pub status: u16,
    pub service: Option<&'a str>,
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
}

impl Connection {
    pub(crate) fn new(io: Io) -> Self {
        Self { io, buffer: BytesMut::with_capacity(READ), idle_since: Instant::now() }
    }

    /// Whether it can still be used: neither closed nor spoken to by the server.
    pub(crate) fn is_usable(&self) -> bool {
        self.io.is_quiet()
    }

    /// Sends `request` and reads the whole answer. The connection comes back if it can be used again.
    pub(crate) async fn exchange(mut self, request: &Bytes, expected: &Expected<'_>) -> (Option<Self>, Result<(), Failure>) {
        match self.request_and_answer(request, expected).await {
            Ok((reusable, verdict)) => {
                self.idle_since = Instant::now();
                (reusable.then_some(self), verdict)
            }
            Err(failure) => (None, Err(failure)),
        }
    }

    async fn request_and_answer(&mut self, request: &Bytes, expected: &Expected<'_>) -> Result<(bool, Result<(), Failure>), Failure> {
        self.buffer.clear();
        let sent = async {
            self.io.write_all(request).await?;
            self.io.flush().await
        };
        if let Err(error) = sent.await {
            return Err(Failure::new(unanswered(&error), format_args!("while sending: {error}")));
        }
        let (head, verdict) = loop {
            let end = self.read_head().await?;
            let head = Head::parse(&self.buffer[..end]).map_err(|reason| Failure::new(Loss::Unexpected, reason))?;
            let verdict = expected.check(head.status, head.service.clone().map(|range| &self.buffer[range]));
            self.buffer.advance(end);
            if head.status >= 200 {
                break (head, verdict);
            }
        };
        let clean = self.read_body(&head.body).await?;
        Ok((clean && !head.close, verdict))
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

    /// Reads the rest of the answer. True if nothing came after it.
    async fn read_body(&mut self, body: &Body) -> Result<bool, Failure> {
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
            match self.read().await {
                Ok(0) if matches!(body, Body::UntilClose) => return Ok(false),
                // TLS without close_notify is no proof of an end, but all that HTTP/1.0 style bodies have
                Err(error) if matches!(body, Body::UntilClose) && error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
                Ok(0) => return Err(Failure::new(Loss::Truncated, "closed within the body of the answer")),
                Err(error) => return Err(Failure::new(Loss::Truncated, format_args!("within the body of the answer: {error}"))),
                Ok(_) => {}
            }
        }
    }

    async fn read(&mut self) -> io::Result<usize> {
        self.buffer.reserve(READ / 2);
        self.io.read_buf(&mut self.buffer).await
    }
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
    service: Option<std::ops::Range<usize>>,
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
        let mut head = Self { status, body: Body::UntilClose, close: version[7] == b'0', service: None };
        let mut start = 0;
        while let Some(length) = bytes[start..].windows(2).position(|window| window == b"\r\n") {
            head.field(&bytes[start..start + length], start)?;
            start += length + 2;
        }
        if status < 200 || matches!(status, 204 | 304) {
            head.body = Body::Length(0);
        }
        Ok(head)
    }

    fn field(&mut self, line: &[u8], offset: usize) -> Result<(), String> {
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
        } else if name.eq_ignore_ascii_case(b"x-service") {
            let padding = line[colon + 1..].len() - line[colon + 1..].trim_ascii_start().len();
            let start = offset + colon + 1 + padding;
            self.service = Some(start..start + value.len());
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
        assert_eq!(&bytes[head.service.unwrap()], b"a/b");
    }
}
