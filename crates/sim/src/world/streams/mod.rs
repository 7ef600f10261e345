//! Streams of bytes between two ends in this process: real sockets, of which every step is the world's.
//!
//! ```text
//!   Receive, Send ──▶ due ─▶ some of the bytes, from one up to all that are there ─▶ done
//!                      ▲ └─ nothing to be had ─▶ parked ─┐
//!                      └───────── ready ─────────────────┘
//! ```
//!
//! The system only keeps the bytes and tells who hung up, at once and always alike; when a step happens, how much
//! it moves, and behind which byte a connection is cut follow from the seed.
//!
//! A cut ends both directions. What was sent before it may still be received.

mod beside;

use std::io::Result;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_block::{BvecIter, Sector, bvec};
use forebay_reactor::request::Stream;
use forebay_reactor::{Done, Kind, Requests, Tag};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, bind, listen, recv, send, shutdown,
    socket_with,
};

use super::clock::Step;
use super::{State, World};

pub(crate) use beside::Next;
pub use beside::take_turns;

/// Most bytes that one step moves.
const MOVED_MAX: usize = 256 << 10;
/// How long it takes until somebody is let in, at least: whoever lost a connection comes back to a server that has
/// finished what it had received on it.
const LET_IN: Duration = Duration::from_millis(50);

/// The streams of a world.
#[derive(Default)]
pub(crate) struct Streams {
    /// Steps that wait for their socket.
    parked: Vec<Tag>,
    /// Bytes between two cuts, on average; 0 for none.
    cut_every: u64,
    /// Bytes until the next one.
    left: u64,
    pub(crate) cuts: u64,
    /// Connections that this process had, to be ended with it.
    had: Vec<Weak<OwnedFd>>,
}

impl Streams {
    pub(crate) fn forget(&mut self) {
        self.parked.clear();
        self.had.clear();
    }

    /// Remembers a connection.
    fn meet(&mut self, file: &Rc<OwnedFd>) {
        if !self.had.iter().any(|had| had.as_ptr() == Rc::as_ptr(file)) {
            self.had.retain(|had| had.strong_count() > 0);
            self.had.push(Rc::downgrade(file));
        }
    }

    /// Ends all connections; what was sent on them may still be received.
    pub(crate) fn hang_up(&mut self) {
        for file in self.had.drain(..).filter_map(|file| file.upgrade()) {
            // The other end may have hung up before.
            let _ = shutdown(&*file, Shutdown::Both);
        }
    }
}

impl World {
    /// Cuts a connection after so many bytes on average, of all that move on any; 0 for never.
    pub fn cut_streams(&self, every: u64) {
        let state = &mut *self.0.borrow_mut();
        state.streams.cut_every = every;
        state.draw_cut();
    }
}

impl State {
    fn draw_cut(&mut self) {
        let every = self.streams.cut_every;
        self.streams.left = if every == 0 { u64::MAX } else { self.rng.u64(1..=every * 2) };
    }

    pub(crate) fn submit_stream(&mut self, requests: &Requests, kind: Kind, tag: Tag) {
        if self.paired && kind != Kind::Readable {
            self.streams.meet(&stream(requests, tag).file);
        }
        if kind == Kind::Readable {
            self.streams.parked.push(tag);
        } else {
            self.plan_step(kind, tag);
        }
    }

    fn plan_step(&mut self, kind: Kind, tag: Tag) {
        let nanoseconds = if self.rng.u32(0..20) == 0 { 1_000_000 } else { 20_000 };
        let time = Duration::from_nanos(self.rng.u64(200..nanoseconds));
        let time = if kind == Kind::Readable { LET_IN + time } else { time };
        self.clock.plan(time, tag, Step::Effect);
    }

    /// Lets those steps go on whose sockets are ready.
    pub(crate) fn wake_streams(&mut self, requests: &Requests) {
        if self.streams.parked.is_empty() {
            return;
        }
        let parked = std::mem::take(&mut self.streams.parked);
        let files = parked.iter().map(|&tag| (requests.get(tag).kind, stream(requests, tag)));
        let mut asked: Vec<PollFd<'_>> = files
            .map(|(kind, stream)| {
                let flags = if kind == Kind::Send { PollFlags::OUT } else { PollFlags::IN | PollFlags::RDHUP };
                PollFd::new(&*stream.file, flags)
            })
            .collect();
        // Where it fails nobody is ready, which ends as a deadlock that names the seed.
        let _ = poll(&mut asked, Some(&Timespec::default()));
        let ready: Vec<bool> = asked.iter().map(|asked| !asked.revents().is_empty()).collect();
        for (tag, ready) in parked.into_iter().zip(ready) {
            if ready {
                self.plan_step(requests.get(tag).kind, tag);
            } else {
                self.streams.parked.push(tag);
            }
        }
    }

    /// Takes a step of a stream, as far as it goes.
    pub(crate) fn move_bytes(&mut self, requests: &Requests, tag: Tag, done: &mut Vec<Done>) {
        let (kind, stream) = (requests.get(tag).kind, stream(requests, tag));
        let offered: u64 = stream.parts.iter().map(|part| u64::from(part.bytes)).sum();
        let most = self.piece(offered).min(self.streams.left);
        let most = usize::try_from(most).unwrap_or(MOVED_MAX).min(MOVED_MAX);
        let result = match kind {
            Kind::Receive => receive(stream, most),
            Kind::Send => transmit(stream, most),
            _ => Ok(0),
        };
        let result = match result {
            Err(Errno::AGAIN) => return self.streams.parked.push(tag),
            Ok(moved) => i32::try_from(moved).expect("at most MOVED_MAX"),
            Err(error) => -error.raw_os_error(),
        };
        self.idle_turns = 0;
        self.note(&[6, u64::from(kind == Kind::Send), u64::from(result.cast_unsigned())], || {
            format!("{kind:?} tag {tag}: {result}")
        });
        done.push(Done { tag, result });
        if self.streams.cut_every > 0 {
            self.streams.left -= u64::try_from(result).unwrap_or(0);
            if self.streams.left == 0 {
                self.note(&[7], || format!("tag {tag} is cut"));
                // The other end may have hung up meanwhile.
                let _ = shutdown(&*stream.file, Shutdown::Both);
                self.streams.cuts += 1;
                self.draw_cut();
            }
        }
    }

    /// How many of `offered` bytes a step moves: mostly all, and sometimes hardly any.
    fn piece(&mut self, offered: u64) -> u64 {
        match self.rng.u32(0..8) {
            0 => self.rng.u64(1..=16).min(offered),
            1 => self.rng.u64(1..=offered.max(1)),
            2 => self.rng.u64(1..=4096).min(offered),
            _ => offered,
        }
    }
}

fn stream(requests: &Requests, tag: Tag) -> &Stream {
    requests.get(tag).stream.as_ref().expect("a step of a stream has one")
}

fn receive(stream: &Stream, most: usize) -> std::result::Result<usize, Errno> {
    let mut bytes = vec![0; most];
    let (_, received) = recv(&*stream.file, bytes.as_mut_slice(), RecvFlags::DONTWAIT)?;
    let mut from = &bytes[..received];
    for part in &stream.parts {
        let iter = BvecIter::over(Sector(0), &part.segments, part.skip, part.bytes);
        let copied = bvec::copy_in(&part.segments, iter, from);
        from = &from[copied..];
    }
    Ok(received)
}

fn transmit(stream: &Stream, most: usize) -> std::result::Result<usize, Errno> {
    let mut bytes = vec![0; most];
    let mut at = 0;
    for part in &stream.parts {
        let iter = BvecIter::over(Sector(0), &part.segments, part.skip, part.bytes);
        at += bvec::copy_out(&part.segments, iter, &mut bytes[at..]);
    }
    send(&*stream.file, &bytes[..at], SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
}

/// A socket that listens, at a name that nobody else has.
///
/// # Errors
/// As the system says.
pub fn listener() -> Result<(OwnedFd, SocketAddrUnix)> {
    static LISTENERS: AtomicU64 = AtomicU64::new(0);
    let name = format!("forebay-sim-{}-{}", std::process::id(), LISTENERS.fetch_add(1, Ordering::Relaxed));
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    bind(socket.as_fd(), &address)?;
    listen(&socket, 64)?;
    Ok((socket, address))
}
