//! Sends replies: all that are due in one call, payloads from where they were read to.
//!
//! ```text
//!   done slots ──▶ heads │ h1 │ h2 │ h3 │      parts: h1 payload1 h2 h3 payload3 … ──▶ one send
//! ```
//!
//! Invariants:
//! - I1: a lone reply leaves at once; replies gather only while an earlier call is under way.
//! - I2: of a read, only bytes that the target filled are sent: none when it failed.
//! - I3: a client that takes its replies too slowly ([`patience`]) is hung up on.

use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use forebay_reactor::{Buffer, Part};
use rustix::net::{Shutdown, shutdown};

use super::connection::{Connection, Outcome, SlotId};
use super::negotiate::within;
use crate::nbd::server::Command;

/// Payload bytes that end a batch: the client works on the first while the next are prepared, and
/// their buffers are free again, still in the processor's cache.
const BATCH_BYTES: u64 = 256 << 10;
/// Bytes of heads that end a batch.
const HEADS_BYTES: usize = 64 << 10;
/// How slowly a client may take replies, bytes a second.
const SLOWEST: u64 = 64 << 10;

/// How long a client may take for `bytes` bytes of replies.
fn patience(bytes: u64) -> Duration {
    Duration::from_mins(1) + Duration::from_secs(bytes / SLOWEST)
}

/// The sending side of a connection.
pub(super) struct Sender {
    connection: Rc<Connection>,
    /// Heads as they are made.
    heads: Vec<u8>,
    /// Heads as they are sent.
    sent_heads: Buffer,
    /// Slots of this batch.
    batch: Vec<SlotId>,
    /// Where in the heads the payload of a slot belongs.
    payloads: Vec<(usize, SlotId)>,
    parts: Vec<Part>,
}

impl Sender {
    pub(super) fn new(connection: Rc<Connection>) -> Self {
        let sent_heads = connection.pool.take(4096);
        Self { connection, heads: Vec::new(), sent_heads, batch: Vec::new(), payloads: Vec::new(), parts: Vec::new() }
    }

    /// Sends replies until there will be none any more.
    pub(super) async fn run(mut self) {
        while self.connection.replies_due().await {
            self.gather();
            if !self.connection.is_gone() {
                self.make_parts();
                if !self.send().await {
                    self.connection.hang_up();
                }
            }
            self.parts.clear();
            for id in self.batch.drain(..) {
                self.connection.free_slot(id);
            }
        }
        // Nothing more comes; the client may still be sending.
        let _ = shutdown(&*self.connection.socket, Shutdown::Write);
    }

    /// Makes the heads of the replies that are due.
    fn gather(&mut self) {
        self.heads.clear();
        self.payloads.clear();
        let mut payload = 0;
        while payload < BATCH_BYTES && self.heads.len() < HEADS_BYTES {
            let Some(id) = self.connection.next_done() else { break };
            payload += self.reply(id);
            self.batch.push(id);
        }
        let counts = &self.connection.served.counts;
        counts.replies.add(self.batch.len() as u64);
        counts.bytes_read.add(payload);
    }

    /// Makes the head of one reply; returns the bytes of payload that go with it.
    fn reply(&mut self, id: SlotId) -> u64 {
        let request = self.connection.request(id);
        let outcome = self.connection.with(id, |slot| slot.outcome).expect("a reply is due when the request ended");
        let session = &self.connection.session;
        let (framing, to) = (session.framing(), request.to);
        match (outcome, request.command) {
            (Outcome::Failed(error, reason), _) => {
                self.connection.served.counts.errors.add(1);
                framing.put_error(&mut self.heads, to, error, reason);
            }
            (Outcome::Empty, _) => session.put_empty(&mut self.heads, &request),
            (Outcome::Done, Command::Read { .. }) => {
                let length = u32::try_from(request.length).expect("reads are at most 32 MiB");
                framing.put_read(&mut self.heads, to, length);
                self.payloads.push((self.heads.len(), id));
                return request.length;
            }
            (Outcome::Done, Command::BlockStatus { one }) => {
                let extents = self.connection.with(id, |slot| std::mem::take(&mut slot.extents));
                framing.put_status(&mut self.heads, to, request.length, one, extents);
            }
            (Outcome::Done, _) => framing.put_done(&mut self.heads, to),
        }
        0
    }

    /// Lists heads and payloads in their order.
    fn make_parts(&mut self) {
        if self.heads.len() > self.sent_heads.segments().bytes() as usize {
            self.sent_heads = self.connection.pool.take(self.heads.len());
        }
        self.sent_heads.bytes_mut()[..self.heads.len()].copy_from_slice(&self.heads);
        let mut at = 0;
        for &(behind, id) in &self.payloads {
            push_heads(&mut self.parts, &self.sent_heads, at..behind);
            at = behind;
            let part = self.connection.with(id, |slot| {
                let request = slot.request.expect("a slot in use has its request");
                let buffer = slot.buffer.as_ref().expect("a read that was done has its data");
                let bytes = u32::try_from(request.length).expect("reads are at most 32 MiB");
                Part { segments: Rc::clone(buffer.segments()), skip: slot.skip, bytes }
            });
            self.parts.push(part);
        }
        push_heads(&mut self.parts, &self.sent_heads, at..self.heads.len());
    }

    /// Sends all parts; false when the client does not take them.
    async fn send(&mut self) -> bool {
        while !self.parts.is_empty() {
            let reactor = &self.connection.reactor;
            let bytes = self.parts.iter().map(|part| u64::from(part.bytes)).sum();
            let deadline = reactor.now() + patience(bytes);
            let step = reactor.send(&self.connection.socket, std::mem::take(&mut self.parts));
            let result = within(reactor, deadline, step).await;
            self.connection.served.counts.sends.add(1);
            match result {
                Some((Ok(sent), parts)) if sent > 0 => {
                    self.parts = parts;
                    Part::drop_front(&mut self.parts, sent);
                }
                Some((Err(error), _)) => {
                    tracing::debug!("a connection broke: {error}");
                    return false;
                }
                Some((Ok(_), _)) => return false,
                None => {
                    tracing::info!("a client that takes no replies is hung up on");
                    return false;
                }
            }
        }
        true
    }
}

fn push_heads(parts: &mut Vec<Part>, heads: &Buffer, range: Range<usize>) {
    let narrow = |length| u32::try_from(length).expect("heads are far below 4 GiB");
    if !range.is_empty() {
        let (skip, bytes) = (narrow(range.start), narrow(range.len()));
        parts.push(Part { segments: Rc::clone(heads.segments()), skip, bytes });
    }
}
