//! A WebSocket: messages that must come back, and how the connection ended.

use crate::account::Account;
use crate::connect::Io;
use crate::report::{Answer, End, Failure, Loss};
use futures::{SinkExt, StreamExt};
use std::collections::VecDeque;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, frame::coding::CloseCode};
use tokio_tungstenite::tungstenite::{Error, Message, error::ProtocolError};

/// What is to happen on a WebSocket.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub lasts: Duration,
    pub every: Duration,
    pub stays: Duration,
    /// How late an echo may be.
    pub patience: Duration,
}

/// A message under way.
struct Sent {
    text: String,
    planned: Instant,
}

/// An open WebSocket.
pub(crate) struct Talk<'a> {
    socket: WebSocketStream<Io>,
    plan: Plan,
    opened: Instant,
    /// The number of the unit: no message of another WebSocket is taken for an echo.
    unit: u64,
    sent: u32,
    /// Nothing can be sent any more, but what the server sent before may still be read.
    mute: bool,
    waiting: VecDeque<Sent>,
    account: &'a Account,
}

impl<'a> Talk<'a> {
    /// Takes over a connection after the handshake, and what was read beyond it.
    pub(crate) async fn new(io: Io, read: Vec<u8>, plan: Plan, unit: u64, account: &'a Account) -> Self {
        let socket = WebSocketStream::from_partially_read(io, read, Role::Client, None).await;
        Self { socket, plan, opened: Instant::now(), unit, sent: 0, mute: false, waiting: VecDeque::new(), account }
    }

    /// Talks until the end, whoever brings it about. `stop` takes away the time after the deadline.
    pub(crate) async fn run(mut self, mut stop: watch::Receiver<bool>) -> Result<Answer, Failure> {
        let deadline = self.opened + self.plan.lasts;
        loop {
            let end = if *stop.borrow_and_update() { deadline } else { deadline + self.plan.stays };
            let next = self.next_message();
            let now = Instant::now();
            if next < end && next <= now && !self.mute {
                self.send(next).await;
                continue;
            }
            if now >= end && self.waiting.is_empty() {
                self.close().await;
                return Ok(self.answer(End::Complete));
            }
            let late = self.waiting.front().map(|oldest| oldest.planned + self.plan.patience);
            if late.is_some_and(|late| now >= late) {
                return Err(self.no_echo());
            }
            // the next to happen of all that is still to come
            let wake = [Some(next).filter(|next| *next < end && !self.mute), Some(end).filter(|end| now < *end), late];
            let wake = wake.into_iter().flatten().min().unwrap_or(end);
            tokio::select! {
                biased;
                heard = self.socket.next() => {
                    let closed = matches!(heard, Some(Ok(Message::Close(_))));
                    let verdict = self.heard(heard, deadline);
                    if closed {
                        // the answer is written by now and only has to leave; if it cannot, the server has gone before
                        let _ = timeout_at(now + self.plan.patience, self.socket.flush()).await;
                    }
                    if let Some(end) = verdict? {
                        return Ok(self.answer(end));
                    }
                }
                () = sleep_until(wake) => {}
                // an error says that nobody is there to stop it: the run is being dropped
                Ok(()) = stop.changed() => {}
            }
        }
    }

    /// When the next message is to be sent.
    fn next_message(&self) -> Instant {
        self.opened + self.plan.every * self.sent
    }

    async fn send(&mut self, planned: Instant) {
        let text = format!("fleet-load {} {}", self.unit, self.sent);
        let message = Message::text(text.clone());
        self.sent += 1;
        self.account.message();
        self.waiting.push_back(Sent { text, planned });
        let sent = timeout_at(planned + self.plan.patience, self.socket.send(message)).await;
        self.mute = !matches!(sent, Ok(Ok(())));
    }

    /// Takes what came, and says how the WebSocket ended if that was it.
    fn heard(&mut self, heard: Option<Result<Message, Error>>, deadline: Instant) -> Result<Option<End>, Failure> {
        match heard {
            Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => Ok(None),
            Some(Ok(Message::Close(frame))) => {
                let reason = frame.map_or_else(|| "without a reason".into(), |frame| frame.to_string());
                self.ended(deadline, End::ClosedLate, Loss::ClosedEarly, &format!("closed by the server: {reason}")).map(Some)
            }
            Some(Ok(message)) => self.echoed(&message).map(|()| None),
            None => self.ended(deadline, End::CutLate, Loss::Truncated, "cut").map(Some),
            Some(Err(error @ (Error::Io(_) | Error::Protocol(ProtocolError::ResetWithoutClosingHandshake)))) => {
                self.ended(deadline, End::CutLate, Loss::Truncated, &format!("cut: {error}")).map(Some)
            }
            Some(Err(error)) => Err(Failure::new(Loss::Unexpected, error)),
        }
    }

    fn echoed(&mut self, message: &Message) -> Result<(), Failure> {
        let expected = self.waiting.pop_front();
        let planned = expected.filter(|sent| matches!(message, Message::Text(text) if text.as_str() == sent.text)).map(|sent| sent.planned);
        let planned = planned.ok_or_else(|| Failure::new(Loss::Unexpected, format_args!("not the next echo: {message}")))?;
        self.account.echo(planned);
        Ok(())
    }

    /// What it means that the server, or what is between, has ended the WebSocket.
    fn ended(&self, deadline: Instant, late: End, early: Loss, how: &str) -> Result<End, Failure> {
        let before = deadline.saturating_duration_since(Instant::now());
        if !before.is_zero() {
            return Err(Failure::new(early, format_args!("{before:?} before its deadline: {how}")).after_begin());
        }
        // what was sent after the deadline may have crossed the end on its way
        if self.waiting.iter().any(|sent| sent.planned < deadline) { Err(self.no_echo()) } else { Ok(late) }
    }

    fn no_echo(&self) -> Failure {
        Failure::new(Loss::NoEcho, format_args!("{} of {} messages did not come back", self.waiting.len(), self.sent))
    }

    /// Closes as the client, and gives the server time to say the same.
    async fn close(&mut self) {
        let until = Instant::now() + self.plan.patience;
        let closed = async {
            self.socket.close(Some(CloseFrame { code: CloseCode::Normal, reason: "".into() })).await?;
            while self.socket.next().await.transpose()?.is_some() {}
            Ok::<_, Error>(())
        };
        // all has come back, and the end is the client's: how the server takes it does not matter
        let _ = timeout_at(until, closed).await;
    }

    /// The handshake was the answer; what came after it was planned.
    fn answer(&self, end: End) -> Answer {
        Answer { pod: None, planned: self.opened.elapsed(), end }
    }
}
