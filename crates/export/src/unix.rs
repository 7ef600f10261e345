//! Unix sockets that listen, each at a path that belongs to one server at a time.
//!
//! 1. A socket is open to its owner only from the moment that a client can connect: its mode is set between bind and
//!    listen.
//! 2. A socket file is removed only when nobody answers on it, or when it is our own. What is no socket stays.
//! 3. Servers that start at the same time take turns by a lock on the directory.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, send, socket_with};

use crate::serve::ServeError;

/// How long whoever took a connection may take to say something before it counts as a living server all the same.
const ANSWER_LIMIT: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };
/// Times that a socket is asked before it counts as answered, and the pause where it takes nobody at the moment.
const PROBES_MAX: usize = 50;
const PROBE_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// A socket that listens at a path.
pub struct UnixSocket {
    socket: Rc<OwnedFd>,
    path: PathBuf,
    /// Device and inode of the socket's file.
    file: (u64, u64),
}

impl UnixSocket {
    /// Listens at `path`, where at most `backlog` clients wait to be taken; takes the place of a socket on which
    /// nobody answers. `question` is what makes a living server say something, empty where it speaks first.
    ///
    /// # Errors
    /// [`ServeError`]: somebody answers there, it is no socket, or the system refuses.
    pub fn bind(path: &Path, backlog: i32, question: &[u8]) -> Result<Self, ServeError> {
        let failed = |error: Errno| ServeError::Listen { at: path.display().to_string(), source: error.into() };
        let address = SocketAddrUnix::new(path).map_err(failed)?;
        let turn = take_turn(path);
        let socket = unbound().map_err(failed)?;
        match bind(&socket, &address) {
            Err(Errno::ADDRINUSE) => {
                if turn.is_none() {
                    return Err(ServeError::Starting { path: path.to_owned() });
                }
                remove_stale(path, &address, question)?;
                bind(&socket, &address).map_err(failed)?;
            }
            other => other.map_err(failed)?,
        }
        rustix::fs::chmod(path, Mode::RUSR | Mode::WUSR).map_err(failed)?;
        let file = rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
        listen(&socket, backlog).map_err(failed)?;
        Ok(Self { socket: Rc::new(socket), path: path.to_owned(), file: (file.st_dev, file.st_ino) })
    }

    /// The socket itself, which does not block.
    #[must_use]
    pub fn socket(&self) -> &Rc<OwnedFd> {
        &self.socket
    }

    /// Removes the socket's file if it is still ours.
    pub fn remove(&self) {
        let found = rustix::fs::statat(CWD, &self.path, AtFlags::SYMLINK_NOFOLLOW);
        if found.is_ok_and(|found| (found.st_dev, found.st_ino) == self.file)
            && let Err(error) = rustix::fs::unlink(&self.path)
        {
            tracing::warn!("{}: the socket could not be removed: {error}", self.path.display());
        }
    }
}

fn unbound() -> Result<OwnedFd, Errno> {
    socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
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
fn remove_stale(path: &Path, address: &SocketAddrUnix, question: &[u8]) -> Result<(), ServeError> {
    let failed = |error: Errno| ServeError::Listen { at: path.display().to_string(), source: error.into() };
    match rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(failed(error)),
        Ok(file) if FileType::from_raw_mode(file.st_mode) != FileType::Socket => {
            return Err(ServeError::NotSocket { path: path.to_owned() });
        }
        Ok(_) => {}
    }
    if is_answered(address, question).map_err(failed)? {
        return Err(ServeError::Answered { path: path.to_owned() });
    }
    tracing::info!("{}: nobody answers on this socket: it is replaced", path.display());
    match rustix::fs::unlink(path) {
        Err(Errno::NOENT) => Ok(()),
        removed => removed.map_err(failed),
    }
}

/// Whether somebody lives behind a socket, be he too busy to answer.
///
/// The kernel closes the socket of a killed server only when it is done with the last of its requests: until then the
/// socket takes connections that nobody will serve, and then hangs up on them.
fn is_answered(address: &SocketAddrUnix, question: &[u8]) -> Result<bool, Errno> {
    for _ in 0..PROBES_MAX {
        let probe = unbound()?;
        match connect(&probe, address) {
            Err(Errno::CONNREFUSED | Errno::NOENT) => return Ok(false),
            // So many wait already that there is no room for more.
            Err(Errno::AGAIN) => {
                // A signal shortens the pause, which harms nothing.
                let _ = rustix::thread::nanosleep(&PROBE_PAUSE);
            }
            Ok(()) if is_hung_up(&probe, question) => {}
            // Also when the socket belongs to somebody else.
            _ => return Ok(true),
        }
    }
    Ok(true)
}

/// Whether whoever took the connection of `probe` let go of it without a word.
fn is_hung_up(probe: &OwnedFd, question: &[u8]) -> bool {
    if !question.is_empty() && send(probe, question, SendFlags::NOSIGNAL).is_err() {
        return true;
    }
    let mut ends = [PollFd::new(probe, PollFlags::IN)];
    let ready = poll(&mut ends, Some(&ANSWER_LIMIT));
    ready == Ok(1) && !matches!(rustix::io::read(probe, &mut [0; 1]), Ok(1..))
}
