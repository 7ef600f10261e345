//! One end of a connection to the server: bytes there and back, and the handshake.

use std::rc::Rc;

use forebay_nbd::client::{Entered, Handshake, Refused, Step};
use forebay_reactor::{Buffer, BufferPool, Part, Reactor};
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, connect, shutdown, socket_with};

/// Bytes that are received or sent in one step at most.
const STEP_BYTES: usize = 64 << 10;

/// A connection.
pub(super) struct Wire {
    reactor: Reactor,
    socket: Rc<OwnedFd>,
    buffer: Buffer,
    /// What was received and not taken.
    pub(super) input: Vec<u8>,
}

impl Wire {
    /// Connects; `None` where too many wait to be let in.
    pub(super) fn connect(reactor: &Reactor, pool: &BufferPool, address: &SocketAddrUnix) -> Option<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok()?;
        connect(&socket, address).ok()?;
        Some(Self { reactor: reactor.clone(), socket: Rc::new(socket), buffer: pool.take(STEP_BYTES), input: Vec::new() })
    }

    fn part(&self, bytes: usize) -> Part {
        let bytes = u32::try_from(bytes).expect("at most STEP_BYTES");
        Part { segments: Rc::clone(self.buffer.segments()), skip: 0, bytes }
    }

    /// Sends all of `bytes`; false when the connection ends before.
    pub(super) async fn send(&mut self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            let length = bytes.len().min(STEP_BYTES);
            self.buffer.bytes_mut()[..length].copy_from_slice(&bytes[..length]);
            let (sent, parts) = self.reactor.send(&self.socket, vec![self.part(length)]).await;
            drop(parts);
            match sent {
                Ok(sent) if sent > 0 => bytes = &bytes[sent..],
                _ => return false,
            }
        }
        true
    }

    /// Sends nothing more.
    pub(super) fn close_output(&self) {
        // It may have been cut.
        let _ = shutdown(&*self.socket, Shutdown::Write);
    }

    /// Receives more; false when nothing more comes.
    pub(super) async fn receive(&mut self) -> bool {
        let (received, parts) = self.reactor.receive(&self.socket, vec![self.part(STEP_BYTES)]).await;
        drop(parts);
        match received {
            Ok(received) if received > 0 => {
                let bytes = &self.buffer.bytes_mut()[..received];
                self.input.extend_from_slice(bytes);
                true
            }
            _ => false,
        }
    }

    /// Negotiates; `None` when the connection ends before.
    pub(super) async fn enter(&mut self) -> Result<Option<Entered>, Refused> {
        let mut handshake = Handshake::new("");
        let mut out = Vec::new();
        loop {
            let (used, step) = handshake.advance(&self.input, &mut out)?;
            self.input.drain(..used);
            if !self.send(&out).await {
                return Ok(None);
            }
            out.clear();
            match step {
                Step::Continue => {}
                Step::NeedMore(_) => {
                    if !self.receive().await {
                        return Ok(None);
                    }
                }
                Step::Enter(entered) => return Ok(Some(entered)),
            }
        }
    }
}
