//! Takes requests in: many headers from one receive call, payloads to where they go down from.
//!
//! ```text
//!   input  │ hdr │ payload │ hdr │ hdr │ payl          small payloads: copied once, many per call
//!                                        └──▶ buffer ◀── the rest of a large one: received there,
//!                                                        with the next headers behind it in input
//! ```
//!
//! Invariants:
//! - I1: a write is begun only when its whole payload is there; a client that leaves before that
//!   has written nothing.
//! - I2: while a client has too much in flight, nothing is received from it.
//! - I3: received bytes lie in `input[start..end]`; none when a payload or a drain is unfinished
//!   and a receive call starts.
//!
//! Units: bytes.

use std::rc::Rc;
use std::time::Duration;

use forebay_reactor::{Buffer, Part};

use super::connection::{Connection, Outcome, SlotId};
use super::negotiate::within;
use super::submit::Span;
use crate::nbd::WireError;
use crate::nbd::server::{Command, ReplyTo, Request, Verdict, parse_request};

/// Size of the input, bytes: all that a unix socket holds by default, and yet it stays in the
/// processor's cache.
const INPUT_BYTES: usize = 256 << 10;
/// Payloads up to this size, bytes, are copied out of the input: for a few microseconds of copying
/// they share a receive call with others.
const COPY_BYTES_MAX: u64 = 32 << 10;
/// How much of the input a receive call is offered while large writes come in, bytes: enough for
/// the headers of what follows, so that little of a large payload is copied.
const HEADERS_BYTES: usize = 4 << 10;
/// How long a client may take to notice that it was hung up on.
const LINGER: Duration = Duration::from_secs(2);

/// What the bytes that come next are.
enum Expected {
    Header,
    /// Payload for the buffer of this slot, from `filled` to `end`.
    Payload {
        id: SlotId,
        filled: usize,
        end: usize,
    },
    /// Payload of a refused request, to be dropped.
    Drain {
        id: SlotId,
        left: usize,
        outcome: Outcome,
    },
}

/// What must happen before more requests can be taken in.
enum Next {
    Receive,
    /// The client has too much in flight for a request with so many bytes of payload.
    Room(u64),
    /// There will be no more requests.
    Over,
    /// The client did what cannot be answered.
    HangUp,
    /// The client did what can be answered, but not trusted.
    Linger,
}

/// The receiving side of a connection.
pub(super) struct Receiver {
    connection: Rc<Connection>,
    input: Buffer,
    start: usize,
    end: usize,
    expected: Expected,
    /// Large writes come in now.
    large: bool,
    parts: Vec<Part>,
}

impl Receiver {
    /// A receiver that begins with what came in behind the handshake.
    pub(super) fn new(connection: Rc<Connection>, received: &[u8]) -> Self {
        let mut input = connection.pool.take(INPUT_BYTES.max(received.len()));
        input.bytes_mut()[..received.len()].copy_from_slice(received);
        Self { connection, input, start: 0, end: received.len(), expected: Expected::Header, large: false, parts: Vec::new() }
    }

    /// Takes requests in until there are no more.
    pub(super) async fn run(mut self) {
        let mut linger = false;
        loop {
            match self.take_in() {
                Next::Receive => {
                    if !self.receive().await {
                        break;
                    }
                }
                Next::Room(charge) => self.connection.room(charge).await,
                Next::Over => break,
                Next::HangUp => {
                    self.connection.hang_up();
                    break;
                }
                Next::Linger => {
                    linger = true;
                    break;
                }
            }
        }
        match self.expected {
            Expected::Payload { id, .. } | Expected::Drain { id, .. } => self.connection.free_slot(id),
            Expected::Header => {}
        }
        self.connection.input_over();
        if linger {
            self.linger().await;
        }
    }

    /// Takes in all that was received, as far as possible.
    fn take_in(&mut self) -> Next {
        loop {
            let available = self.end - self.start;
            match self.expected {
                Expected::Header => {
                    if let Some(next) = self.header() {
                        return next;
                    }
                }
                Expected::Payload { id, filled, end } => {
                    let length = available.min(end - filled);
                    self.copy_payload(id, filled, length);
                    if filled + length < end {
                        self.expected = Expected::Payload { id, filled: filled + length, end };
                        return Next::Receive;
                    }
                    self.expected = Expected::Header;
                    self.connection.begin(id);
                }
                Expected::Drain { id, left, outcome } => {
                    let length = available.min(left);
                    self.start += length;
                    if length < left {
                        self.expected = Expected::Drain { id, left: left - length, outcome };
                        return Next::Receive;
                    }
                    self.expected = Expected::Header;
                    self.connection.finish(id, outcome);
                }
            }
        }
    }

    fn copy_payload(&mut self, id: SlotId, filled: usize, length: usize) {
        if length == 0 {
            return;
        }
        let from = &self.input.bytes_mut()[self.start..self.start + length];
        self.connection.with(id, |slot| {
            let buffer = slot.buffer.as_mut().expect("a payload has its buffer");
            buffer.bytes_mut()[filled..filled + length].copy_from_slice(from);
        });
        self.start += length;
    }

    /// Takes in one header; `None` when that went well.
    fn header(&mut self) -> Option<Next> {
        let session = self.connection.session;
        let received = &self.input.bytes_mut()[self.start..self.end];
        let (header, length) = match parse_request(received, session.framing()) {
            Ok(Some(found)) => found,
            Ok(None) => return Some(Next::Receive),
            Err(error) => {
                tracing::info!("a client is hung up on: {error}");
                return Some(Next::HangUp);
            }
        };
        let verdict = match session.judge(&header) {
            Verdict::Accept(request) | Verdict::Empty(request) if self.connection.is_closing() => shutting_down(&request),
            verdict => verdict,
        };
        let next = match verdict {
            Verdict::Accept(request) => self.accept(request),
            Verdict::Empty(request) => self.answer(request, 0, Outcome::Empty),
            Verdict::Refuse { to, error, reason, drain } => self.answer(bare(to), drain as usize, Outcome::Failed(error, reason)),
            Verdict::RefuseAndClose { to, error, reason } => {
                tracing::info!("a client is hung up on: {reason}");
                self.answer(bare(to), 0, Outcome::Failed(error, reason)).or(Some(Next::Linger))
            }
            Verdict::Disconnect => Some(Next::Over),
        };
        if !matches!(next, Some(Next::Room(_))) {
            self.start += length;
        }
        next
    }

    /// Takes in a request that will be carried out.
    fn accept(&mut self, request: Request) -> Option<Next> {
        let payload = matches!(request.command, Command::Read { .. } | Command::Write);
        let charge = if payload { request.length } else { 0 };
        let Some(id) = self.connection.take_slot(request, charge) else { return Some(Next::Room(charge)) };
        self.large = request.command == Command::Write && request.length > COPY_BYTES_MAX;
        if request.command == Command::Write {
            let span = Span::of(&request);
            let wide = span.widened(self.connection.block());
            let buffer = self.connection.pool.take(wide.bytes_u32() as usize);
            let filled = usize::try_from(span.start - wide.start).expect("less than a block");
            self.connection.with(id, |slot| slot.buffer = Some(buffer));
            self.expected = Expected::Payload { id, filled, end: filled + span.bytes_u32() as usize };
        } else {
            self.connection.begin(id);
        }
        None
    }

    /// Takes in a request whose outcome is known.
    fn answer(&mut self, request: Request, drain: usize, outcome: Outcome) -> Option<Next> {
        let Some(id) = self.connection.take_slot(request, 0) else { return Some(Next::Room(0)) };
        if drain > 0 {
            self.expected = Expected::Drain { id, left: drain, outcome };
        } else {
            self.connection.finish(id, outcome);
        }
        None
    }

    /// Receives more; false when there is no more.
    async fn receive(&mut self) -> bool {
        self.compact();
        let mut direct = 0;
        if let Expected::Payload { id, filled, end } = self.expected {
            direct = end - filled;
            let segments = self.connection.with(id, |slot| Rc::clone(slot.buffer.as_ref().expect("it has one").segments()));
            self.parts.push(Part { segments, skip: narrow(filled), bytes: narrow(direct) });
        }
        let most = if self.large { HEADERS_BYTES } else { self.input.segments().bytes() as usize };
        let room = (self.input.segments().bytes() as usize - self.end).min(most);
        self.parts.push(Part { segments: Rc::clone(self.input.segments()), skip: narrow(self.end), bytes: narrow(room) });
        let parts = std::mem::take(&mut self.parts);
        let (result, parts) = self.connection.reactor.receive(&self.connection.socket, parts).await;
        self.parts = parts;
        self.parts.clear();
        self.connection.served.counts.receives.add(1);
        let received = match result {
            Ok(0) => return false,
            Ok(received) => received,
            Err(error) => {
                tracing::debug!("a connection broke: {error}");
                self.connection.hang_up();
                return false;
            }
        };
        let straight = received.min(direct);
        if let Expected::Payload { filled, .. } = &mut self.expected {
            *filled += straight;
        }
        self.end += received - straight;
        true
    }

    /// Moves what is left of the input, less than a header, to its front.
    fn compact(&mut self) {
        let (start, end) = (self.start, self.end);
        if start > 0 {
            if start < end {
                self.input.bytes_mut().copy_within(start..end, 0);
            }
            self.start = 0;
            self.end = end - start;
        }
    }

    /// Drops what the client still sends, so that its system delivers the last reply to it instead
    /// of an error.
    async fn linger(mut self) {
        let deadline = self.connection.reactor.now() + LINGER;
        loop {
            self.start = 0;
            self.end = 0;
            let part = Part { segments: Rc::clone(self.input.segments()), skip: 0, bytes: self.input.segments().bytes() };
            let step = self.connection.reactor.receive(&self.connection.socket, vec![part]);
            match within(&self.connection.reactor, deadline, step).await {
                Some((Ok(received), _)) if received > 0 => {}
                _ => return self.connection.hang_up(),
            }
        }
    }
}

/// A request of which only the reply matters.
fn bare(to: ReplyTo) -> Request {
    Request { command: Command::Cache, fua: false, to, length: 0 }
}

fn shutting_down(request: &Request) -> Verdict {
    let drain = if request.command == Command::Write { request.length } else { 0 };
    Verdict::Refuse {
        to: request.to,
        error: WireError::ShuttingDown,
        reason: "the server is shutting down",
        drain: u32::try_from(drain).expect("payloads are at most 32 MiB"),
    }
}

fn narrow(length: usize) -> u32 {
    u32::try_from(length).expect("buffers are smaller than 4 GiB")
}
