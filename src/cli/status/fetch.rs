//! Asks what serves `/status`, over whatever leads there.

use crate::cli::Error;
use crate::status::json::Status;
use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use std::error::Error as StdError;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// Time for an answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// A state of everything that is larger is none.
const LARGEST: usize = 1 << 28;

/// Why there is no state of everything.
#[derive(Debug, thiserror::Error)]
pub(in crate::cli) enum FetchError {
    /// The connection failed.
    #[error("{0}")]
    Connection(Box<dyn StdError + Send + Sync>),
    /// Something else than a status came.
    #[error("it answers /status with {0}")]
    Answer(StatusCode),
    /// What came is no status.
    #[error("what it answers is no state of fleets: {0}")]
    Content(#[from] serde_json::Error),
    /// Nothing came.
    #[error("it does not answer within {} s", PATIENCE.as_secs())]
    Late,
}

impl FetchError {
    /// What to do about it.
    pub(super) fn help(&self) -> &'static str {
        match self {
            Self::Connection(_) | Self::Late => "see whether it runs, and try again",
            Self::Answer(_) => "name the address of `haproxy-fleet local --admin`, or of an operator from within its pod",
            Self::Content(_) => "use the version of haproxy-fleet that runs there",
        }
    }
}

/// The state that is served at `address`.
pub(in crate::cli) async fn from_address(address: SocketAddr) -> Result<Status, Error> {
    at(address, async |stream| from_stream(stream).await).await
}

/// What `address` answers to `body` at `path`.
pub(in crate::cli) async fn post(address: SocketAddr, path: &str, body: Vec<u8>) -> Result<(StatusCode, Bytes), Error> {
    at(address, async |stream| exchange(stream, Method::POST, path, body.clone()).await).await
}

/// What `address` answers at `path`.
pub(in crate::cli) async fn get(address: SocketAddr, path: &str) -> Result<(StatusCode, Bytes), Error> {
    at(address, async |stream| exchange(stream, Method::GET, path, Vec::new()).await).await
}

/// What comes of a connection to `address`.
async fn at<T>(address: SocketAddr, ask: impl AsyncFnOnce(TcpStream) -> Result<T, FetchError>) -> Result<T, Error> {
    let fetched = tokio::time::timeout(PATIENCE, async {
        ask(TcpStream::connect(address).await.map_err(|error| FetchError::Connection(error.into()))?).await
    });
    fetched.await.unwrap_or(Err(FetchError::Late)).map_err(|error| match error {
        FetchError::Connection(error) => Error::new(
            format_args!("cannot reach {address}: {error}"),
            "start `haproxy-fleet local --admin IP:PORT`; it prints the address. For a cluster leave --admin out",
        ),
        error => Error::new(format_args!("{address}: {error}"), error.help()),
    })
}

/// The state that is served at the end of `stream`.
pub(super) async fn from_stream<S>(stream: S) -> Result<Status, FetchError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let asked = tokio::time::timeout(PATIENCE, exchange(stream, Method::GET, "/status", Vec::new()));
    let (code, body) = asked.await.unwrap_or(Err(FetchError::Late))?;
    if code != StatusCode::OK {
        return Err(FetchError::Answer(code));
    }
    Ok(serde_json::from_slice(&body)?)
}

async fn exchange<S>(stream: S, method: Method, path: &str, body: Vec<u8>) -> Result<(StatusCode, Bytes), FetchError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let connection = |error: hyper::Error| FetchError::Connection(error.into());
    let (mut sender, driver) = http1::handshake(TokioIo::new(stream)).await.map_err(connection)?;
    // it ends with the answer; what is wrong with it is wrong with that
    tokio::spawn(driver);
    let request = Request::builder().method(method).uri(path).header(header::HOST, "localhost").header(header::CONNECTION, "close");
    let request = request.body(Full::<Bytes>::from(body)).map_err(|error| FetchError::Connection(error.into()))?;
    let answer = sender.send_request(request).await.map_err(connection)?;
    let code = answer.status();
    let body = Limited::new(answer.into_body(), LARGEST).collect().await.map_err(FetchError::Connection)?;
    Ok((code, body.to_bytes()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// What comes of a server that answers with `answer`, whatever it is asked.
    async fn fetched(answer: String) -> Result<Status, FetchError> {
        let (client, mut server) = tokio::io::duplex(1 << 16);
        tokio::spawn(async move {
            let mut asked = vec![0; 4096];
            let length = server.read(&mut asked).await.unwrap();
            assert!(asked[..length].starts_with(b"GET /status HTTP/1.1\r\n"));
            server.write_all(answer.as_bytes()).await.unwrap();
        });
        from_stream(client).await
    }

    #[tokio::test]
    async fn the_state_comes_over_any_stream_and_what_is_none_is_told() {
        let body = r#"{"ready":true,"fleets":[{"namespace":"infra","name":"edge"}],"diagnostics":[]}"#;
        let ok = |body: &str| format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        let status = fetched(ok(body)).await.unwrap();
        assert_eq!((status.ready, &*status.fleets[0].name, status.fleets[0].ready), (true, "edge", None), "an older one says less");
        let forbidden = fetched("HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n".to_owned()).await.unwrap_err();
        assert_eq!(forbidden.to_string(), "it answers /status with 403 Forbidden");
        assert!(matches!(fetched(ok("<html>")).await, Err(FetchError::Content(_))));
        assert!(matches!(fetched(String::new()).await, Err(FetchError::Connection(_))));
    }
}
