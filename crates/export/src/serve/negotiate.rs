//! Carries out one client's handshake, within its deadline.

use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use forebay_reactor::{Buffer, Part, Reactor};

use super::Shared;
use crate::nbd::server::{Handshake, Session, Step};

/// First size of the input, bytes; grows for a client that sends a longer option.
const INPUT_BYTES: usize = 4096;
/// Answers that are sent before more options are looked at, bytes.
const ANSWERS_BYTES: usize = 64 << 10;

/// A client that entered an export, and what it has sent behind the handshake.
pub(super) struct Entered {
    pub(super) session: Session,
    pub(super) input: Buffer,
    pub(super) start: usize,
    pub(super) end: usize,
}

/// Waits for `future` until `deadline` on the reactor's clock; `None` when that passed first.
pub(super) async fn within<F: Future>(reactor: &Reactor, deadline: Duration, future: F) -> Option<F::Output> {
    let mut sleep = pin!(reactor.sleep_until(deadline));
    let mut future = pin!(future);
    poll_fn(|cx| {
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(output));
        }
        sleep.as_mut().poll(cx).map(|()| None)
    })
    .await
}

/// One client's handshake in progress.
struct Negotiation<'a> {
    shared: &'a Shared,
    socket: &'a Rc<OwnedFd>,
    deadline: Duration,
    input: Buffer,
    start: usize,
    end: usize,
    out: Vec<u8>,
}

/// Negotiates with the client at `socket`. `None` when it leaves, breaks the protocol, or takes
/// longer than the limit.
pub(super) async fn negotiate(shared: &Shared, socket: &Rc<OwnedFd>) -> Option<Entered> {
    let mut negotiation = Negotiation {
        shared,
        socket,
        deadline: shared.reactor.now() + shared.limits.handshake,
        input: shared.pool.take(INPUT_BYTES),
        start: 0,
        end: 0,
        out: Vec::new(),
    };
    let session = negotiation.run().await?;
    let Negotiation { input, start, end, .. } = negotiation;
    Some(Entered { session, input, start, end })
}

impl Negotiation<'_> {
    async fn run(&mut self) -> Option<Session> {
        let mut handshake = Handshake::start(&mut self.out);
        let mut needed = 0;
        loop {
            if self.end - self.start < needed || self.out.len() >= ANSWERS_BYTES {
                self.send().await?;
            }
            if self.end - self.start < needed {
                self.receive(needed).await?;
                continue;
            }
            if self.shared.closing.get() {
                handshake.shut_down();
            }
            let received = &self.input.bytes_mut()[self.start..self.end];
            let progress = handshake.advance(&self.shared.exports.borrow(), received, &mut self.out);
            self.start += progress.consumed;
            needed = match progress.step {
                Step::NeedMore { bytes } => bytes,
                Step::Continue => 0,
                Step::Transmit(session) => {
                    self.send().await?;
                    return Some(session);
                }
                Step::Close(reason) => {
                    tracing::debug!("a handshake ended: {reason}");
                    self.send().await?;
                    return None;
                }
            };
        }
    }

    /// Receives more, into an input that holds at least `needed` bytes.
    async fn receive(&mut self, needed: usize) -> Option<()> {
        let capacity = self.input.segments().bytes() as usize;
        if self.start > 0 || needed > capacity {
            let mut input = self.shared.pool.take(needed.max(capacity));
            let length = self.end - self.start;
            input.bytes_mut()[..length].copy_from_slice(&self.input.bytes_mut()[self.start..self.end]);
            self.input = input;
            self.start = 0;
            self.end = length;
        }
        let segments = Rc::clone(self.input.segments());
        let room = segments.bytes() as usize - self.end;
        let part = Part { segments, skip: narrow(self.end), bytes: narrow(room) };
        let step = self.shared.reactor.receive(self.socket, vec![part]);
        let received = self.until(step).await?;
        self.end += received;
        (received > 0).then_some(())
    }

    /// Sends all answers made so far.
    async fn send(&mut self) -> Option<()> {
        if self.out.is_empty() {
            return Some(());
        }
        let mut buffer = self.shared.pool.take(self.out.len());
        buffer.bytes_mut()[..self.out.len()].copy_from_slice(&self.out);
        let mut sent = 0;
        while sent < self.out.len() {
            let rest = self.out.len() - sent;
            let part = Part { segments: Rc::clone(buffer.segments()), skip: narrow(sent), bytes: narrow(rest) };
            let step = self.shared.reactor.send(self.socket, vec![part]);
            let moved = self.until(step).await?;
            if moved == 0 {
                return None;
            }
            sent += moved;
        }
        self.out.clear();
        Some(())
    }

    /// Waits for a step, but not beyond the deadline.
    async fn until(&self, step: impl Future<Output = (io::Result<usize>, Vec<Part>)>) -> Option<usize> {
        match within(&self.shared.reactor, self.deadline, step).await {
            Some((Ok(moved), _)) => Some(moved),
            Some((Err(error), _)) => {
                tracing::debug!("a connection broke in its handshake: {error}");
                None
            }
            None => {
                tracing::info!("a client did not finish its handshake in {:?}", self.shared.limits.handshake);
                None
            }
        }
    }
}

fn narrow(length: usize) -> u32 {
    u32::try_from(length).expect("buffers are smaller than 4 GiB")
}
