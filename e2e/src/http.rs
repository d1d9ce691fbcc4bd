//! One request, one connection: what a client sees.

use crate::{Failure, Outcome};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// One answer may take so long.
const PATIENCE: Duration = Duration::from_secs(5);

/// What came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// Everything, head and body.
    pub text: String,
}

impl Answer {
    /// What comes after the head.
    pub fn body(&self) -> &str {
        self.text.split_once("\r\n\r\n").map_or("", |(_, body)| body)
    }
}

/// Asks `address` for `path` of `host`.
pub async fn get(address: SocketAddr, host: &str, path: &str) -> Outcome<Answer> {
    let connection = tokio::time::timeout(PATIENCE, TcpStream::connect(address)).await;
    let stream = connection.map_err(|_| Failure::new(format_args!("{address} does not answer")))??;
    ask(stream, host, path).await
}

/// Asks over a connection that is there, and closes it.
pub async fn ask(mut stream: impl AsyncReadExt + AsyncWriteExt + Unpin, host: &str, path: &str) -> Outcome<Answer> {
    let exchange = async {
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        Ok::<_, Failure>(String::from_utf8_lossy(&answer).into_owned())
    };
    let text = tokio::time::timeout(PATIENCE, exchange).await.map_err(|_| Failure::new(format_args!("no answer for {host}{path}")))??;
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| Failure::new(format_args!("no status in the answer for {host}{path}: {text:?}")))?;
    Ok(Answer { status, text })
}

/// Asks, and fails unless the status is `status`.
pub async fn expect(address: SocketAddr, host: &str, path: &str, status: u16) -> Outcome<Answer> {
    let answer = get(address, host, path).await?;
    if answer.status == status {
        return Ok(answer);
    }
    Err(Failure::new(format_args!("{host}{path} answers {} in the place of {status}", answer.status)))
}
