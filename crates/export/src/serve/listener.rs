//! Sockets that listen, and the task that takes clients from them.
//!
//! Invariants:
//! - I1: at most [`ServeLimits::half_open_max`](super::ServeLimits) clients of a listener are in
//!   their handshake: the oldest makes way for the next, so that silent clients keep nobody out.
//! - I2: an inherited socket belongs to others too: it is neither shut down nor removed.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, shutdown, socket_with, sockopt,
};

use super::connection::Bell;
use super::{ServeError, Shared};
use crate::unix::UnixSocket;
use crate::uri::{Endpoint, Uri};

/// Where to listen.
#[derive(Debug)]
pub enum Listen {
    /// On a unix socket, made with mode 0600.
    Unix(PathBuf),
    /// On a TCP port; port 0 lets the system choose one.
    Tcp {
        /// The address.
        address: SocketAddr,
        /// Whether the address may be reachable from other machines. NBD as served here has
        /// neither encryption nor passwords.
        beyond_loopback: bool,
    },
    /// On a socket that already listens, as service managers pass them.
    Inherited(OwnedFd),
}

/// Clients that may wait to be taken.
const BACKLOG: i32 = 1024;
/// Clients taken before others have their turn.
const TAKEN_MAX: usize = 16;
/// Replies that a unix socket may hold, bytes, where the system allows that much: the client takes
/// them while the next are prepared. TCP sockets grow by themselves.
const SEND_BYTES: usize = 4 << 20;
/// Pause when the process has no descriptors left.
const SHORTAGE: Duration = Duration::from_millis(100);

/// A socket that listens.
pub(super) struct Listening {
    socket: Rc<OwnedFd>,
    /// The same with its file, where that is ours.
    unix: Option<UnixSocket>,
    inherited: bool,
    tcp: bool,
    /// Rings when the server closes, or a connection ended.
    pub(super) bell: Bell,
    /// Clients in their handshake, oldest first.
    half_open: RefCell<VecDeque<(u64, Rc<OwnedFd>)>>,
}

/// Opens the socket that `at` describes, and tells its URI.
pub(super) fn open(at: Listen) -> Result<(Rc<Listening>, Uri), ServeError> {
    let (socket, unix, inherited) = match at {
        Listen::Unix(path) => {
            // Every NBD server begins with a greeting.
            let unix = UnixSocket::bind(&path, BACKLOG, b"")?;
            (Rc::clone(unix.socket()), Some(unix), false)
        }
        Listen::Tcp { address, beyond_loopback } => {
            if !address.ip().is_loopback() && !beyond_loopback {
                return Err(ServeError::Exposed { address });
            }
            (Rc::new(bind_tcp(address).map_err(|error| failed(&address, error))?), None, false)
        }
        Listen::Inherited(socket) => {
            let listening = sockopt::socket_acceptconn(&socket).is_ok_and(|listens| listens);
            let stream = sockopt::socket_type(&socket) == Ok(SocketType::STREAM);
            if !listening || !stream {
                return Err(ServeError::NotListening);
            }
            let flags = rustix::fs::fcntl_getfl(&socket).map_err(|error| failed(&"the inherited socket", error))?;
            rustix::fs::fcntl_setfl(&socket, flags | OFlags::NONBLOCK).map_err(|error| failed(&"the inherited socket", error))?;
            (Rc::new(socket), None, true)
        }
    };
    let endpoint = endpoint(socket.as_fd()).ok_or(ServeError::NotListening)?;
    let tcp = matches!(endpoint, Endpoint::Tcp { .. });
    let listening = Listening { socket, unix, inherited, tcp, bell: Bell::default(), half_open: RefCell::default() };
    Ok((Rc::new(listening), Uri { endpoint, export: String::new() }))
}

fn failed(at: &dyn std::fmt::Display, error: Errno) -> ServeError {
    ServeError::Listen { at: at.to_string(), source: error.into() }
}

/// Where clients find a socket; `None` for sockets of other families.
fn endpoint(socket: impl AsFd) -> Option<Endpoint> {
    let address = rustix::net::getsockname(socket).ok()?;
    match address.address_family() {
        AddressFamily::UNIX => {
            let address = SocketAddrUnix::try_from(address).ok()?;
            let name = match (address.abstract_name(), address.path_bytes()) {
                (Some(name), _) => [b"\0", name].concat(),
                (None, Some(path)) => path.to_vec(),
                (None, None) => return None,
            };
            Some(Endpoint::Unix(PathBuf::from(std::ffi::OsStr::from_bytes(&name))))
        }
        AddressFamily::INET | AddressFamily::INET6 => {
            let address = SocketAddr::try_from(address).ok()?;
            Some(Endpoint::Tcp { host: address.ip().to_string(), port: address.port() })
        }
        _ => None,
    }
}

fn bind_tcp(address: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &address)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

impl Listening {
    /// Stops listening; the socket's file is removed if it is still ours.
    pub(super) fn close(&self) {
        if !self.inherited {
            // Ends the wait for clients, and with it the last use of the descriptor.
            let _ = shutdown(&*self.socket, Shutdown::Both);
        }
        if let Some(unix) = &self.unix {
            unix.remove();
        }
        self.bell.ring();
    }

    /// Makes the oldest client in its handshake leave.
    fn evict(&self) {
        if let Some((_, socket)) = self.half_open.borrow_mut().pop_front() {
            let _ = shutdown(&*socket, Shutdown::Both);
        }
    }

    /// Client `id` has finished its handshake, or left.
    pub(super) fn handshake_over(&self, id: u64) {
        self.half_open.borrow_mut().retain(|(other, _)| *other != id);
    }

    /// Waits until a client is there; false when the server closes.
    async fn ready(&self, shared: &Shared) -> bool {
        let mut step = pin!(shared.reactor.readable(&self.socket));
        poll_fn(|cx| {
            if shared.closing.get() {
                return Poll::Ready(false);
            }
            self.bell.listen(cx.waker());
            step.as_mut().poll(cx).map(|_| true)
        })
        .await
    }

    /// Takes clients until the server closes.
    pub(super) async fn run(self: Rc<Self>, shared: Rc<Shared>) {
        while self.ready(&shared).await {
            for _ in 0..TAKEN_MAX {
                if shared.is_full() {
                    self.bell.wait(|| shared.closing.get() || !shared.is_full()).await;
                    break;
                }
                match accept_with(&self.socket, SocketFlags::CLOEXEC) {
                    Ok(socket) => self.welcome(&shared, socket),
                    Err(Errno::AGAIN) => break,
                    Err(Errno::CONNABORTED | Errno::INTR) => {}
                    Err(_) if shared.closing.get() => return,
                    Err(error) => {
                        tracing::warn!("a client could not be taken: {error}");
                        shared.reactor.sleep(SHORTAGE).await;
                        break;
                    }
                }
            }
        }
    }

    fn welcome(self: &Rc<Self>, shared: &Rc<Shared>, socket: OwnedFd) {
        tune(&socket, self.tcp);
        let socket = Rc::new(socket);
        if self.half_open.borrow().len() >= shared.limits.half_open_max {
            self.evict();
        }
        let id = shared.register(&socket);
        self.half_open.borrow_mut().push_back((id, Rc::clone(&socket)));
        shared.serve(self, socket, id);
    }
}

/// Sets what helps throughput and latency; a system that refuses serves as well without.
fn tune(socket: &OwnedFd, tcp: bool) {
    if tcp {
        let _ = sockopt::set_tcp_nodelay(socket, true);
        let _ = sockopt::set_socket_keepalive(socket, true);
    } else {
        let _ = sockopt::set_socket_send_buffer_size(socket, SEND_BYTES);
    }
}
