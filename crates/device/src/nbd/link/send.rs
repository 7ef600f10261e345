//! Sends requests: all that are there in one call, payloads from where they are.
//!
//! ```text
//!   queue ──▶ heads │ h1 │ h2 │ h3 │      parts: h1 payload1 h2 h3 payload3 … ──▶ one send
//! ```
//!
//! A lone request leaves at once; requests gather only while an earlier call is under way.

use std::ops::Range;
use std::rc::Rc;

use forebay_reactor::{Buffer, Part};

use super::super::dial::part;
use super::super::error::Broken;
use super::super::remote::Remote;
use super::Link;

/// Payload bytes that end a batch: the server works on the first while the next are sent.
const BATCH_BYTES: u64 = 1 << 20;

/// The sending task of a connection.
pub(super) struct Sender {
    remote: Rc<Remote>,
    link: Rc<Link>,
    /// Heads as they are made.
    heads: Vec<u8>,
    /// Heads as they are sent.
    sent_heads: Buffer,
    parts: Vec<Part>,
    /// What is sent, by slot.
    slots: Vec<usize>,
    /// Where in the heads the payload of a slot belongs.
    payloads: Vec<(usize, usize)>,
}

impl Sender {
    pub(super) fn new(remote: Rc<Remote>, link: Rc<Link>) -> Self {
        let sent_heads = remote.pool().take(4096);
        Self { remote, link, heads: Vec::new(), sent_heads, parts: Vec::new(), slots: Vec::new(), payloads: Vec::new() }
    }

    /// Sends requests until the connection breaks.
    pub(super) async fn run(mut self) {
        while self.link.send_due().await {
            self.gather();
            let sent = self.send().await;
            self.parts.clear();
            if !sent {
                break;
            }
            self.link.batch_sent(&self.remote, &self.slots);
        }
        self.link.task_over(&self.remote);
    }

    /// Puts what may leave into flight, and lists heads and payloads in their order.
    fn gather(&mut self) {
        self.heads.clear();
        self.slots.clear();
        self.payloads.clear();
        self.link.batch_begins(&self.remote);
        let mut bytes = 0;
        while bytes < BATCH_BYTES {
            let Some(slot) = self.link.take_off(self.remote.acknowledged(), &mut self.heads) else { break };
            self.slots.push(slot);
            bytes += self.link.with(slot, |work| {
                if work.has_payload() {
                    self.payloads.push((self.heads.len(), slot));
                    work.bytes
                } else {
                    0
                }
            });
        }
        if self.heads.len() > self.sent_heads.segments().bytes() as usize {
            self.sent_heads = self.remote.pool().take(self.heads.len());
        }
        self.sent_heads.bytes_mut()[..self.heads.len()].copy_from_slice(&self.heads);
        let mut at = 0;
        for &(behind, slot) in &self.payloads {
            push_heads(&mut self.parts, &self.sent_heads, at..behind);
            at = behind;
            self.link.with(slot, |work| self.parts.extend(work.parts.iter().cloned()));
        }
        push_heads(&mut self.parts, &self.sent_heads, at..self.heads.len());
    }

    /// Sends all parts; false when the server does not take them.
    async fn send(&mut self) -> bool {
        while !self.parts.is_empty() {
            let Some(reactor) = self.remote.reactor() else { return false };
            let step = reactor.send(&self.link.socket, std::mem::take(&mut self.parts));
            drop(reactor);
            match step.await {
                (Ok(sent), parts) if sent > 0 => {
                    self.parts = parts;
                    Part::drop_front(&mut self.parts, sent);
                }
                (Err(error), _) => {
                    self.link.sever(Broken::Lost(error.to_string()));
                    return false;
                }
                (Ok(_), _) => {
                    self.link.sever(Broken::Lost("nothing more can be sent".to_owned()));
                    return false;
                }
            }
        }
        true
    }
}

fn push_heads(parts: &mut Vec<Part>, heads: &Buffer, range: Range<usize>) {
    if !range.is_empty() {
        parts.push(part(heads, range.start, range.end));
    }
}
