//! One attempt to reach a server: resolve, connect, negotiate, all within one time limit.
//!
//! ```text
//!   URI ─▶ address(es) ─▶ connect, which does not wait ─▶ receive the greeting ─▶ options ─▶ Dialled
//!           (names: on a thread of its own)
//! ```
//!
//! A step on a socket is never dropped while the kernel is at it: a late one is hurried by shutting the
//! socket down, and then awaited.

use std::future::{Future, poll_fn};
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use forebay_nbd::client::{Entered, Handshake, Step};
use forebay_nbd::uri::{Endpoint, Uri};
use forebay_reactor::{Buffer, BufferPool, Helper, Part, Reactor};
use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, connect, shutdown, socket_with, sockopt};

use super::error::NbdError;

/// Size of the input of a handshake, bytes: more than the longest answer.
const INPUT_BYTES: usize = 32 << 10;

/// A connection that entered its export.
pub(super) struct Dialled {
    pub(super) socket: Rc<OwnedFd>,
    pub(super) entered: Entered,
    /// What came in behind the handshake.
    pub(super) rest: Vec<u8>,
}

/// The thread that looks names up.
pub(super) type Resolver = Helper<(String, u16), io::Result<Vec<SocketAddr>>>;

/// A resolver whose thread starts when a name is to be looked up.
pub(super) fn resolver() -> Resolver {
    Helper::new("forebay-resolve")
}

/// Tries to reach `uri` within `limit`.
pub(super) async fn dial(
    reactor: &Reactor,
    pool: &BufferPool,
    names: &Resolver,
    uri: &Uri,
    limit: Duration,
) -> Result<Dialled, NbdError> {
    let deadline = reactor.now() + limit;
    let unreachable = |source| NbdError::Unreachable { uri: uri.clone(), source };
    let silent = || NbdError::Silent { uri: uri.clone(), waited: limit };
    let addresses = match &uri.endpoint {
        Endpoint::Unix(path) => {
            let socket = unix(path).map_err(unreachable)?;
            return negotiate(reactor, pool, uri, socket, deadline, limit).await;
        }
        Endpoint::Tcp { host, port } => resolve(reactor, names, host, *port, deadline).await,
    };
    let addresses = addresses.ok_or_else(silent)?.map_err(unreachable)?;
    let mut last = silent();
    let mut left = u32::try_from(addresses.len()).unwrap_or(u32::MAX);
    for address in addresses {
        // One that is silent leaves the others their part of the time.
        let until = reactor.now() + deadline.saturating_sub(reactor.now()) / left;
        left -= 1;
        last = match tcp(address) {
            Err(error) => unreachable(error),
            Ok(socket) => match negotiate(reactor, pool, uri, socket, until, limit).await {
                Err(error @ (NbdError::Unreachable { .. } | NbdError::Silent { .. })) => error,
                other => return other,
            },
        };
    }
    Err(last)
}

/// The addresses of a host; `None` when the time is up.
async fn resolve(
    reactor: &Reactor,
    names: &Resolver,
    host: &str,
    port: u16,
    deadline: Duration,
) -> Option<io::Result<Vec<SocketAddr>>> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Some(Ok(vec![SocketAddr::new(address, port)]));
    }
    let look_up = || Ok(|(host, port): (String, u16)| (host.as_str(), port).to_socket_addrs().map(Iterator::collect));
    let mut answer = match names.ask(reactor, (host.to_owned(), port), look_up) {
        Ok(answer) => answer,
        Err(error) => return Some(Err(error)),
    };
    let found = within(reactor, deadline, answer.receive()).await?;
    Some(found.unwrap_or_else(|| Err(io::Error::other("the name could not be looked up"))))
}

/// Waits for `future` until `deadline`; `None` when that passed first.
async fn within<F: Future>(reactor: &Reactor, deadline: Duration, future: F) -> Option<F::Output> {
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

fn unix(path: &Path) -> io::Result<OwnedFd> {
    let name = path.as_os_str().as_bytes();
    let address = match name.split_first() {
        Some((0, name)) => SocketAddrUnix::new_abstract_name(name)?,
        _ => SocketAddrUnix::new(path)?,
    };
    let socket = stream_socket(AddressFamily::UNIX)?;
    connect(&socket, &address)?;
    Ok(socket)
}

/// A socket that is being connected: its first step waits for that.
fn tcp(address: SocketAddr) -> io::Result<OwnedFd> {
    let socket = stream_socket(if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 })?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    sockopt::set_socket_keepalive(&socket, true)?;
    match connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error.into()),
    }
}

fn stream_socket(family: AddressFamily) -> io::Result<OwnedFd> {
    Ok(socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?)
}

/// A step on `socket`, hurried when it is late; whether it was.
async fn hurried<F: Future>(reactor: &Reactor, socket: &OwnedFd, deadline: Duration, step: F) -> (F::Output, bool) {
    let mut sleep = pin!(reactor.sleep_until(deadline));
    let mut step = pin!(step);
    let mut late = false;
    poll_fn(|cx| {
        if !late && sleep.as_mut().poll(cx).is_ready() {
            late = true;
            // A socket that is not connected yet or any more has nothing to shut down.
            let _ = shutdown(socket, Shutdown::Both);
        }
        step.as_mut().poll(cx).map(|output| (output, late))
    })
    .await
}

/// One connection's handshake in progress.
struct Negotiation<'a> {
    reactor: &'a Reactor,
    uri: &'a Uri,
    socket: Rc<OwnedFd>,
    deadline: Duration,
    limit: Duration,
    input: Buffer,
    start: usize,
    end: usize,
}

async fn negotiate(
    reactor: &Reactor,
    pool: &BufferPool,
    uri: &Uri,
    socket: OwnedFd,
    deadline: Duration,
    limit: Duration,
) -> Result<Dialled, NbdError> {
    let (socket, input) = (Rc::new(socket), pool.take(INPUT_BYTES));
    let mut negotiation = Negotiation { reactor, uri, socket, deadline, limit, input, start: 0, end: 0 };
    let mut handshake = Handshake::new(&uri.export);
    let mut out = Vec::new();
    loop {
        let received = &negotiation.input.bytes_mut()[negotiation.start..negotiation.end];
        let taken = handshake.advance(received, &mut out);
        let (used, step) = taken.map_err(|source| NbdError::Refused { uri: uri.clone(), source })?;
        negotiation.start += used;
        if !out.is_empty() {
            negotiation.send(pool, &mut out).await?;
        }
        match step {
            Step::Continue => {}
            Step::NeedMore(_) => negotiation.receive().await?,
            Step::Enter(entered) => return Ok(negotiation.done(entered)),
        }
    }
}

impl Negotiation<'_> {
    fn done(mut self, entered: Entered) -> Dialled {
        let rest = self.input.bytes_mut()[self.start..self.end].to_vec();
        Dialled { socket: self.socket, entered, rest }
    }

    /// Sends all of `out`.
    async fn send(&self, pool: &BufferPool, out: &mut Vec<u8>) -> Result<(), NbdError> {
        let mut buffer = pool.take(out.len());
        buffer.bytes_mut()[..out.len()].copy_from_slice(out);
        let mut sent = 0;
        while sent < out.len() {
            let part = part(&buffer, sent, out.len());
            let step = self.reactor.send(&self.socket, vec![part]);
            let ((result, _), late) = hurried(self.reactor, &self.socket, self.deadline, step).await;
            sent += self.moved(result, late)?;
        }
        out.clear();
        Ok(())
    }

    /// Receives more behind what is there.
    async fn receive(&mut self) -> Result<(), NbdError> {
        let (start, end) = (self.start, self.end);
        self.input.bytes_mut().copy_within(start..end, 0);
        (self.start, self.end) = (0, end - start);
        let part = part(&self.input, self.end, INPUT_BYTES);
        let step = self.reactor.receive(&self.socket, vec![part]);
        let ((result, _), late) = hurried(self.reactor, &self.socket, self.deadline, step).await;
        self.end += self.moved(result, late)?;
        Ok(())
    }

    /// How many bytes a step moved; none is the end.
    fn moved(&self, result: io::Result<usize>, late: bool) -> Result<usize, NbdError> {
        let uri = self.uri.clone();
        match result {
            Ok(moved) if moved > 0 => Ok(moved),
            _ if late => Err(NbdError::Silent { uri, waited: self.limit }),
            Ok(_) => Err(NbdError::Unreachable { uri, source: io::Error::other("the server hung up in the handshake") }),
            Err(source) => Err(NbdError::Unreachable { uri, source }),
        }
    }
}

/// The bytes `from..to` of a buffer.
pub(super) fn part(buffer: &Buffer, from: usize, to: usize) -> Part {
    let narrow = |length| u32::try_from(length).expect("buffers are smaller than 4 GiB");
    Part { segments: Rc::clone(buffer.segments()), skip: narrow(from), bytes: narrow(to - from) }
}
