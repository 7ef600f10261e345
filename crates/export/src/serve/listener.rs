//! Sockets that listen, and the task that takes clients from them.
//!
//! Invariants:
//! - I1: a unix socket is open to its owner only from the moment that a client can connect: its
//!   mode is set between bind and listen.
//! - I2: a socket file is removed only when nobody answers on it, or when it is our own. Servers
//!   that start at the same time take turns by a lock on the directory.
//! - I3: at most [`ServeLimits::half_open_max`](super::ServeLimits) clients of a listener are in
//!   their handshake: the oldest makes way for the next, so that silent clients keep nobody out.
//! - I4: an inherited socket belongs to others too: it is neither shut down nor removed.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, shutdown, socket_with,
    sockopt,
};

use super::connection::Bell;
use super::{ServeError, Shared};
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
/// How long a server that already listens may take to greet before it counts as one all the same.
const GREETING_LIMIT: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };
/// Replies that a unix socket may hold, bytes, where the system allows that much: the client takes
/// them while the next are prepared. TCP sockets grow by themselves.
const SEND_BYTES: usize = 4 << 20;
/// Pause when the process has no descriptors left.
const SHORTAGE: Duration = Duration::from_millis(100);

/// A socket that listens.
pub(super) struct Listening {
    socket: Rc<OwnedFd>,
    /// The socket's file, with device and inode, where it is ours.
    file: Option<(PathBuf, u64, u64)>,
    inherited: bool,
    tcp: bool,
    /// Rings when the server closes, or a connection ended.
    pub(super) bell: Bell,
    /// Clients in their handshake, oldest first.
    half_open: RefCell<VecDeque<(u64, Rc<OwnedFd>)>>,
}

/// Opens the socket that `at` describes, and tells its URI.
pub(super) fn open(at: Listen) -> Result<(Rc<Listening>, Uri), ServeError> {
    let (socket, file, inherited) = match at {
        Listen::Unix(path) => {
            let (socket, device, inode) = bind_unix(&path)?;
            (socket, Some((path, device, inode)), false)
        }
        Listen::Tcp { address, beyond_loopback } => {
            if !address.ip().is_loopback() && !beyond_loopback {
                return Err(ServeError::Exposed { address });
            }
            (bind_tcp(address).map_err(|error| failed(&address, error))?, None, false)
        }
        Listen::Inherited(socket) => {
            let listening = sockopt::socket_acceptconn(&socket).is_ok_and(|listens| listens);
            let stream = sockopt::socket_type(&socket) == Ok(SocketType::STREAM);
            if !listening || !stream {
                return Err(ServeError::NotListening);
            }
            let flags = rustix::fs::fcntl_getfl(&socket).map_err(|error| failed(&"the inherited socket", error))?;
            rustix::fs::fcntl_setfl(&socket, flags | OFlags::NONBLOCK).map_err(|error| failed(&"the inherited socket", error))?;
            (socket, None, true)
        }
    };
    let endpoint = endpoint(socket.as_fd()).ok_or(ServeError::NotListening)?;
    let tcp = matches!(endpoint, Endpoint::Tcp { .. });
    let socket = Rc::new(socket);
    let listening = Listening { socket, file, inherited, tcp, bell: Bell::default(), half_open: RefCell::default() };
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

/// Binds a unix socket; gives the device and inode of its file as well.
fn bind_unix(path: &Path) -> Result<(OwnedFd, u64, u64), ServeError> {
    let at = path.display();
    let address = SocketAddrUnix::new(path).map_err(|error| failed(&at, error))?;
    let turn = take_turn(path);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let new = || socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(|error| failed(&at, error));
    let socket = new()?;
    match bind(&socket, &address) {
        Err(Errno::ADDRINUSE) => {
            if turn.is_none() {
                return Err(ServeError::Starting { path: path.to_owned() });
            }
            remove_stale(path, &address, new)?;
            bind(&socket, &address).map_err(|error| failed(&at, error))?;
        }
        other => other.map_err(|error| failed(&at, error))?,
    }
    rustix::fs::chmod(path, Mode::RUSR | Mode::WUSR).map_err(|error| failed(&at, error))?;
    let file = rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).map_err(|error| failed(&at, error))?;
    listen(&socket, BACKLOG).map_err(|error| failed(&at, error))?;
    Ok((socket, file.st_dev, file.st_ino))
}

/// Locks the directory of `path` until the result is dropped; `None` when somebody else has it.
fn take_turn(path: &Path) -> Option<OwnedFd> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(directory, flags, Mode::empty()).ok()?;
    rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive).ok()?;
    Some(directory)
}

/// Removes the socket file at `path` when nobody answers on it.
fn remove_stale(path: &Path, address: &SocketAddrUnix, new: impl Fn() -> Result<OwnedFd, ServeError>) -> Result<(), ServeError> {
    let at = path.display();
    match rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(failed(&at, error)),
        Ok(file) if FileType::from_raw_mode(file.st_mode) != FileType::Socket => {
            return Err(ServeError::NotSocket { path: path.to_owned() });
        }
        Ok(_) => {}
    }
    let probe = new()?;
    let mut outcome = connect(&probe, address);
    if outcome.is_ok() && is_hung_up(&probe) {
        outcome = connect(new()?, address);
    }
    match outcome {
        Err(Errno::CONNREFUSED) => {
            tracing::info!("{at}: nobody answers on this socket: it is replaced");
            rustix::fs::unlink(path).map_err(|error| failed(&at, error))
        }
        Err(Errno::NOENT) => Ok(()),
        // Also when it is merely busy, or belongs to somebody else.
        _ => Err(ServeError::Answered { path: path.to_owned() }),
    }
}

/// Whether whoever took the connection of `probe` let go of it without a greeting, with which every NBD server begins.
///
/// The kernel closes the socket of a killed server only when it is done with the last of its requests: until then the
/// socket takes connections that nobody will serve.
fn is_hung_up(probe: &OwnedFd) -> bool {
    let mut ends = [PollFd::new(probe, PollFlags::IN)];
    let ready = poll(&mut ends, Some(&GREETING_LIMIT));
    ready == Ok(1) && !matches!(rustix::io::read(probe, &mut [0; 1]), Ok(1..))
}

impl Listening {
    /// Stops listening; the socket's file is removed if it is still ours.
    pub(super) fn close(&self) {
        if !self.inherited {
            // Ends the wait for clients, and with it the last use of the descriptor.
            let _ = shutdown(&*self.socket, Shutdown::Both);
        }
        if let Some((path, device, inode)) = &self.file {
            let found = rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW);
            if found.is_ok_and(|found| (found.st_dev, found.st_ino) == (*device, *inode))
                && let Err(error) = rustix::fs::unlink(path)
            {
                tracing::warn!("{}: the socket could not be removed: {error}", path.display());
            }
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
