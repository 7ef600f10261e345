//! Takes replies in: many from one receive call, large payloads straight to where they belong.
//!
//! ```text
//!   input  │ head │ payload │ head │ head │ payl       small payloads: copied once, many per call
//!                                           └──▶ bio ◀── the rest of a large one: received there,
//!                                                        with the next heads behind it in input
//! ```
//!
//! Received bytes lie in `input[start..end]`; none when a payload is unfinished and a receive call starts.

use std::rc::Rc;

use forebay_nbd::client::{Took, Violation};
use forebay_reactor::{Buffer, Part};

use super::super::dial::part;
use super::super::error::Broken;
use super::super::remote::Remote;
use super::Link;

/// Size of the input, bytes: all that a unix socket holds by default.
const INPUT_BYTES: usize = 256 << 10;
/// How much of the input a receive call is offered while large reads are in flight, bytes: enough for the
/// heads of what follows, so that little of a large payload is copied.
const HEADS_BYTES: usize = 4 << 10;
/// How much it is offered while next to nothing is in flight, bytes: a few small replies, since the next
/// request may be a large read.
const IDLE_BYTES: usize = 36 << 10;
/// Requests in flight from which on replies come in many at a time.
const MANY: usize = 8;

/// The receiving task of a connection.
pub(super) struct Receiver {
    remote: Rc<Remote>,
    link: Rc<Link>,
    input: Buffer,
    start: usize,
    end: usize,
    /// Bytes that the next part of a reply needs at least.
    needed: usize,
    parts: Vec<Part>,
}

impl Receiver {
    /// A receiver that begins with what came in behind the handshake.
    pub(super) fn new(remote: Rc<Remote>, link: Rc<Link>, received: &[u8]) -> Self {
        let mut input = remote.pool().take(INPUT_BYTES.max(received.len()));
        input.bytes_mut()[..received.len()].copy_from_slice(received);
        Self { remote, link, input, start: 0, end: received.len(), needed: 0, parts: Vec::new() }
    }

    /// Takes replies in until the connection breaks.
    pub(super) async fn run(mut self) {
        loop {
            if let Err(violation) = self.take_in() {
                self.link.sever(violation.into());
                break;
            }
            if self.link.is_broken() || !self.receive().await {
                break;
            }
        }
        self.link.task_over(&self.remote);
    }

    /// Takes in all that was received, as far as possible.
    fn take_in(&mut self) -> Result<(), Violation> {
        loop {
            let payload = self.link.session.borrow().payload();
            if let Some(payload) = payload {
                let bytes = payload.bytes.min(u32::try_from(self.end - self.start).expect("inputs are small"));
                let received = &self.input.bytes_mut()[self.start..self.start + bytes as usize];
                self.link.with(payload.slot, |work| work.copy_in(payload.skip, received));
                self.start += bytes as usize;
                self.received(bytes)?;
                if bytes < payload.bytes {
                    return Ok(());
                }
                continue;
            }
            let received = &self.input.bytes_mut()[self.start..self.end];
            let (used, took) = self.link.session.borrow_mut().take(received)?;
            self.start += used;
            match took {
                Took::NeedMore(bytes) => {
                    self.needed = bytes;
                    return Ok(());
                }
                Took::Nothing | Took::Payload => {}
                Took::Zeroes(at) => self.link.with(at.slot, |work| work.zero(at.skip, at.bytes)),
                Took::Ended(ended) => self.link.ended(&self.remote, ended),
            }
        }
    }

    /// So many bytes of the payload that is due are in place.
    fn received(&self, bytes: u32) -> Result<(), Violation> {
        let ended = self.link.session.borrow_mut().received(bytes)?;
        if let Some(ended) = ended {
            self.link.ended(&self.remote, ended);
        }
        Ok(())
    }

    /// Receives more; false when there is no more.
    async fn receive(&mut self) -> bool {
        self.compact();
        let mut straight = 0;
        let payload = self.link.session.borrow().payload();
        if let Some(payload) = payload {
            straight = payload.bytes;
            self.link.with(payload.slot, |work| work.slice(payload.skip, payload.bytes, &mut self.parts));
        }
        let all = self.input.segments().bytes() as usize;
        let most = match (self.link.large.get(), self.link.flying.get()) {
            (0, MANY..) => all,
            (0, _) => IDLE_BYTES,
            _ => HEADS_BYTES.max(self.needed),
        };
        self.parts.push(part(&self.input, self.end, all.min(self.end + most)));
        let Some(reactor) = self.remote.reactor() else { return false };
        let step = reactor.receive(&self.link.socket, std::mem::take(&mut self.parts));
        drop(reactor);
        let (result, parts) = step.await;
        self.parts = parts;
        self.parts.clear();
        let received = match result {
            Ok(0) => return self.lost("the server hung up".to_owned()),
            Ok(received) => received,
            Err(error) => return self.lost(error.to_string()),
        };
        let placed = straight.min(u32::try_from(received).unwrap_or(u32::MAX));
        self.end += received - placed as usize;
        if placed > 0
            && let Err(violation) = self.received(placed)
        {
            self.link.sever(violation.into());
            return false;
        }
        true
    }

    fn lost(&self, why: String) -> bool {
        self.link.sever(Broken::Lost(why));
        false
    }

    /// Moves what is left of the input, less than a part of a reply, to its front.
    fn compact(&mut self) {
        let (start, end) = (self.start, self.end);
        if start > 0 {
            self.input.bytes_mut().copy_within(start..end, 0);
            (self.start, self.end) = (0, end - start);
        }
    }
}
