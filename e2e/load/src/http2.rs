//! HTTP/2: many requests on few connections.

use crate::connect::{Io, unanswered};
use crate::http1::{Expected, FILLING, Upload, remember};
use crate::pace::Pace;
use crate::report::{Answer, End, Failure, Loss};
use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout_at};

/// How many bytes the server may send ahead of the reader, in a stream.
#[derive(Clone, Copy)]
pub(crate) enum Window {
    /// Answers are read at once.
    Wide,
    /// Answers are read slowly: sent ahead, they would be whole long before the reader is done.
    Narrow,
}

/// A connection that requests can be sent on.
#[derive(Clone)]
pub(crate) struct Connection {
    sender: SendRequest<Bytes>,
    /// Who answered last.
    pod: Arc<Mutex<Option<Arc<str>>>>,
    pub last_used: Instant,
}

/// A request that was sent.
pub(crate) struct Exchange {
    response: ResponseFuture,
    body: SendStream<Bytes>,
    pod: Arc<Mutex<Option<Arc<str>>>>,
}

/// An answer of which the head has come.
pub(crate) struct Begun {
    body: RecvStream,
    /// Whether it is the expected one.
    verdict: Result<(), Failure>,
}

impl Connection {
    pub(crate) async fn new(io: Io, window: Window) -> Result<Self, Failure> {
        let bytes = match window {
            Window::Wide => 1 << 20,
            Window::Narrow => 1 << 16,
        };
        let (sender, connection) = h2::client::Builder::new()
            .initial_window_size(bytes)
            .initial_connection_window_size(1 << 24)
            .handshake(io)
            .await
            .map_err(|error| before_answer(&error))?;
        // its end shows in the requests that it carries, so there is nobody to tell
        tokio::spawn(async move { drop(connection.await) });
        Ok(Self { sender, pod: Arc::default(), last_used: Instant::now() })
    }

    /// Waits until another request may be sent; `None` if the connection takes no more, and nothing was sent.
    pub(crate) async fn ready(self) -> Option<Self> {
        let sender = self.sender.ready().await.ok()?;
        Some(Self { sender, last_used: Instant::now(), ..self })
    }

    /// Sends a request, with a body to follow or none; `None` if the connection turned out to take no more.
    pub(crate) fn send(mut self, request: http::Request<()>, body_follows: bool) -> Option<Exchange> {
        let (response, body) = self.sender.send_request(request, !body_follows).ok()?;
        Some(Exchange { response, body, pod: self.pod })
    }
}

impl Exchange {
    /// Who answered last on the connection, if its answers say so.
    pub(crate) fn pod(&self) -> Option<Arc<str>> {
        // no code that holds this lock can panic half-way through a change
        self.pod.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the head of the answer.
    pub(crate) async fn head(&mut self, expected: &Expected<'_>) -> Result<Begun, Failure> {
        let response = (&mut self.response).await;
        self.begun(response, expected)
    }

    fn begun(&self, response: Result<http::Response<RecvStream>, h2::Error>, expected: &Expected<'_>) -> Result<Begun, Failure> {
        let response = response.map_err(|error| before_answer(&error))?;
        let field = |name: &str| response.headers().get(name).map(http::HeaderValue::as_bytes);
        let named = expected.pod_header.and_then(field);
        remember(&mut self.pod.lock().unwrap_or_else(PoisonError::into_inner), named);
        let verdict = expected.check(response.status().as_u16(), field("x-service"));
        Ok(Begun { body: response.into_body(), verdict })
    }

    /// Reads the whole answer.
    pub(crate) async fn request(&mut self, expected: &Expected<'_>) -> Result<Answer, Failure> {
        self.head(expected).await?.read(None).await?;
        Ok(Answer { pod: self.pod(), planned: Duration::ZERO, end: End::Answered })
    }

    /// Reads the rest of an answer at its pace.
    pub(crate) async fn download(&mut self, begun: Begun, mut pace: Pace) -> Result<Answer, Failure> {
        begun.read(Some(&mut pace)).await.map_err(Failure::after_begin)?;
        Ok(Answer { pod: self.pod(), planned: pace.planned(), end: End::Complete })
    }

    /// Sends a body at its pace, and reads the whole answer.
    pub(crate) async fn upload(&mut self, expected: &Expected<'_>, upload: &Upload, pace: Pace) -> Result<Answer, Failure> {
        let (whole, response) = tokio::select! {
            biased;
            response = &mut self.response => (false, response),
            // what went wrong in sending shows in the answer
            sent = send_body(&mut self.body, upload.bytes, pace) => (sent, (&mut self.response).await),
        };
        let begun = self.begun(response, expected).map_err(Failure::after_begin)?;
        begun.read(None).await.map_err(Failure::after_begin)?;
        if !whole {
            return Err(Failure::new(Loss::Unexpected, "answered before the whole body was sent"));
        }
        Ok(Answer { pod: self.pod(), planned: upload.planned(), end: End::Complete })
    }
}

impl Begun {
    /// Reads the rest of the answer, if need be no faster than its pace.
    async fn read(mut self, mut pace: Option<&mut Pace>) -> Result<(), Failure> {
        let truncated = |error: h2::Error| Failure::new(Loss::Truncated, format_args!("within the body of the answer: {error}"));
        loop {
            let piece = match &mut pace {
                None => self.body.data().await,
                Some(pace) => {
                    sleep_until(pace.due()).await;
                    let late = |_| Failure::new(Loss::Timeout, "the body of the answer does not go on");
                    timeout_at(pace.late(), self.body.data()).await.map_err(late)?
                }
            };
            let Some(piece) = piece else { return self.verdict };
            let length = piece.map_err(truncated)?.len();
            self.body.flow_control().release_capacity(length).map_err(truncated)?;
            if let Some(pace) = &mut pace {
                pace.passed(length);
            }
        }
    }
}

/// Sends a body; false if the stream took no more of it.
async fn send_body(body: &mut SendStream<Bytes>, bytes: u64, mut pace: Pace) -> bool {
    let mut left = bytes;
    while left > 0 {
        sleep_until(pace.due()).await;
        body.reserve_capacity(usize::try_from(left).map_or(pace.piece(), |left| left.min(pace.piece())));
        let Some(Ok(capacity)) = poll_fn(|cx| body.poll_capacity(cx)).await else { return false };
        let piece = capacity.min(pace.piece());
        left = left.saturating_sub(piece as u64);
        if body.send_data(Bytes::from_static(&FILLING[..piece]), left == 0).is_err() {
            return false;
        }
        pace.passed(piece);
    }
    true
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
