//! HTTP/2: many requests on few connections.

use crate::connect::{Io, unanswered};
use crate::http1::Expected;
use crate::report::{Failure, Loss};
use bytes::Bytes;
use h2::client::SendRequest;
use tokio::time::Instant;

/// A connection that requests can be sent on.
#[derive(Clone)]
pub(crate) struct Connection {
    sender: SendRequest<Bytes>,
    pub last_used: Instant,
}

impl Connection {
    pub(crate) async fn new(io: Io) -> Result<Self, Failure> {
        let (sender, connection) = h2::client::Builder::new()
            .initial_window_size(1 << 20)
            .initial_connection_window_size(1 << 24)
            .handshake(io)
            .await
            .map_err(|error| before_answer(&error))?;
        // its end shows in the requests that it carries, so there is nobody to tell
        tokio::spawn(async move { drop(connection.await) });
        Ok(Self { sender, last_used: Instant::now() })
    }

    /// Waits until another request may be sent; `None` if the connection takes no more, and nothing was sent.
    pub(crate) async fn ready(self) -> Option<Self> {
        let sender = self.sender.ready().await.ok()?;
        Some(Self { sender, last_used: Instant::now() })
    }

    /// Sends a request and reads the whole answer; `None` if the connection turned out to take no more.
    pub(crate) async fn exchange(mut self, request: http::Request<()>, expected: &Expected<'_>) -> Option<Result<(), Failure>> {
        let (response, _) = self.sender.send_request(request, true).ok()?;
        Some(answer(response, expected).await)
    }
}

async fn answer(response: h2::client::ResponseFuture, expected: &Expected<'_>) -> Result<(), Failure> {
    let response = response.await.map_err(|error| before_answer(&error))?;
    let service = response.headers().get("x-service").map(http::HeaderValue::as_bytes);
    let verdict = expected.check(response.status().as_u16(), service);
    let mut body = response.into_body();
    while let Some(piece) = body.data().await {
        let truncated = |error: h2::Error| Failure::new(Loss::Truncated, format_args!("within the body of the answer: {error}"));
        let length = piece.map_err(truncated)?.len();
        body.flow_control().release_capacity(length).map_err(truncated)?;
    }
    verdict
}

fn before_answer(error: &h2::Error) -> Failure {
    let loss = if let Some(io) = error.get_io() {
        // h2 calls the end of the connection a broken pipe
        if io.kind() == std::io::ErrorKind::BrokenPipe { Loss::Closed } else { unanswered(io) }
    } else if error.reason() == Some(h2::Reason::REFUSED_STREAM) || (error.is_go_away() && error.is_remote()) {
        Loss::RefusedStream
    } else if error.is_remote() {
        Loss::Reset
    } else {
        Loss::Unexpected
    };
    Failure::new(loss, format_args!("before an answer: {error}"))
}
