//! The server's end of the control socket, on the same reactor as everything else.
//!
//! 1. The socket is open to its owner only from the moment that a client can connect.
//! 2. A socket file is taken over only when nobody answers on it, and removed only if it is ours.
//! 3. A client that sends too much, or nothing that is understood, is told so; one that leaves in
//!    the middle harms nobody. What it asked for is still done.

use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use forebay::{BufferPool, Reactor};
use forebay_reactor::Part;
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, socket_with};

use super::protocol::{LINE_BYTES_MAX, Reply, Request};
use super::report;
use crate::failure::Failure;
use crate::serve::Running;

/// Clients that may wait to be taken.
const BACKLOG: i32 = 16;
/// Bytes received or sent in one step.
const STEP_BYTES: usize = 16 << 10;

/// A control socket, whose file is removed on drop.
pub struct ControlSocket {
    path: PathBuf,
    inode: u64,
}

impl ControlSocket {
    /// Listens at `path` and answers questions about `running`.
    ///
    /// # Errors
    /// When another server answers there, or the system refuses.
    pub fn open(path: &Path, running: &Rc<Running>, pool: &BufferPool) -> Result<Self, Failure> {
        let socket = bound(path)?;
        let failed = |error: Errno| refused(path, error);
        rustix::fs::chmod(path, Mode::RUSR | Mode::WUSR).map_err(failed)?;
        let inode = rustix::fs::stat(path).map_err(failed)?.st_ino;
        listen(&socket, BACKLOG).map_err(failed)?;
        let clients = Clients { socket: Rc::new(socket), running: Rc::clone(running), pool: pool.clone() };
        if !running.reactor().spawn(clients.take()) {
            return Err(Failure::Failed("the control socket has no room: serve fewer devices".to_owned()));
        }
        Ok(Self { path: path.to_owned(), inode })
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        let ours = std::fs::symlink_metadata(&self.path).is_ok_and(|file| file.ino() == self.inode);
        if ours && let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!("{}: the socket could not be removed: {error}", self.path.display());
        }
    }
}

fn refused(path: &Path, error: Errno) -> Failure {
    Failure::because(format!("cannot open the control socket {}", path.display()), &error.into())
}

/// A socket bound to `path`, in place of one on which nobody answers.
fn bound(path: &Path) -> Result<OwnedFd, Failure> {
    let failed = |error: Errno| refused(path, error);
    let address = SocketAddrUnix::new(path).map_err(failed)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let new = || socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(failed);
    let socket = new()?;
    match bind(&socket, &address) {
        Err(Errno::ADDRINUSE) if connect(new()?, &address) == Err(Errno::CONNREFUSED) => {
            rustix::fs::unlink(path).map_err(failed)?;
            bind(&socket, &address).map_err(failed)?;
        }
        Err(Errno::ADDRINUSE) => {
            let place = path.display();
            return Err(Failure::Failed(format!(
                "a server answers on the control socket {place} already: stop it, or give another --control"
            )));
        }
        other => other.map_err(failed)?,
    }
    Ok(socket)
}

/// Takes clients.
struct Clients {
    socket: Rc<OwnedFd>,
    running: Rc<Running>,
    pool: BufferPool,
}

impl Clients {
    async fn take(self) {
        let reactor = self.running.reactor().clone();
        loop {
            let (ready, _) = reactor.readable(&self.socket).await;
            if ready.is_err() {
                return;
            }
            match accept_with(&self.socket, SocketFlags::CLOEXEC) {
                Ok(socket) => {
                    let socket = Rc::new(socket);
                    let client =
                        Client { socket, reactor: reactor.clone(), running: Rc::clone(&self.running), pool: self.pool.clone() };
                    // Without room for another task the client is hung up on.
                    let _ = reactor.spawn(client.serve());
                }
                Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => {}
                Err(error) => {
                    tracing::warn!("a control client could not be taken: {error}");
                    reactor.sleep(std::time::Duration::from_millis(100)).await;
                }
            }
        }
    }
}

/// One client.
struct Client {
    socket: Rc<OwnedFd>,
    reactor: Reactor,
    running: Rc<Running>,
    pool: BufferPool,
}

impl Client {
    async fn serve(self) {
        let mut input = Vec::new();
        while let Some(line) = self.line(&mut input).await {
            let reply = match line {
                Ok(line) => self.answer(&line).await,
                Err(sentence) => Reply::Error(sentence),
            };
            let mut text = serde_json::to_string(&reply).expect("a reply has only names that JSON knows");
            text.push('\n');
            if !self.send(text.as_bytes()).await {
                return;
            }
        }
    }

    /// The next line, without its end; `None` when the client is gone or has sent too much.
    async fn line(&self, input: &mut Vec<u8>) -> Option<Result<String, String>> {
        loop {
            if let Some(end) = input.iter().position(|&byte| byte == b'\n') {
                let rest = input.split_off(end + 1);
                let mut line = std::mem::replace(input, rest);
                line.truncate(end);
                return Some(String::from_utf8(line).map_err(|_| "the request is not UTF-8".to_owned()));
            }
            if input.len() > LINE_BYTES_MAX {
                return None;
            }
            let mut buffer = self.pool.take(STEP_BYTES);
            let (result, parts) = self.reactor.receive(&self.socket, vec![part(&buffer, 0, STEP_BYTES)]).await;
            drop(parts);
            let received = result.ok().filter(|&bytes| bytes > 0)?;
            input.extend_from_slice(buffer.bytes_mut().get(..received)?);
        }
    }

    /// Sends everything; false when the client is gone.
    async fn send(&self, mut bytes: &[u8]) -> bool {
        let mut buffer = self.pool.take(STEP_BYTES);
        while !bytes.is_empty() {
            let length = bytes.len().min(STEP_BYTES);
            let (now, later) = bytes.split_at(length);
            buffer.bytes_mut()[..length].copy_from_slice(now);
            let mut sent = 0;
            while sent < length {
                let (result, parts) = self.reactor.send(&self.socket, vec![part(&buffer, sent, length)]).await;
                drop(parts);
                match result {
                    Ok(bytes) if bytes > 0 => sent += bytes,
                    _ => return false,
                }
            }
            bytes = later;
        }
        true
    }

    async fn answer(&self, line: &str) -> Reply {
        let done = match serde_json::from_str(line) {
            Err(error) => Err(format!("the request is not understood: {error}")),
            Ok(Request::Status { device }) => {
                return match report::of(&self.running, device.as_deref()) {
                    Ok(report) => Reply::Status(Box::new(report)),
                    Err(sentence) => Reply::Error(sentence),
                };
            }
            Ok(_) if self.running.is_leaving() => Err("the server is about to leave: nothing but status is answered".to_owned()),
            Ok(Request::Message { words }) => self.message(&words).await,
            Ok(Request::Suspend { device }) => match report::meant(&self.running, device.as_deref()) {
                Ok(stack) => stack.suspend().await.map_err(|error| error.to_string()),
                Err(sentence) => Err(sentence),
            },
            Ok(Request::Resume { device }) => {
                let meant = report::meant(&self.running, device.as_deref());
                meant.and_then(|stack| stack.resume().map_err(|error| error.to_string()))
            }
        };
        done.map_or_else(Reply::Error, |()| Reply::Done)
    }

    /// Carries out a message. Its first word is a device's name, or with one device the message.
    async fn message(&self, words: &[String]) -> Result<(), String> {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let (stack, message) = match words.split_first() {
            Some((name, rest)) if report::find(&self.running, name).is_ok() => (report::find(&self.running, name)?, rest),
            _ => (report::meant(&self.running, None)?, words.as_slice()),
        };
        stack.message(message).await.map_err(|error| error.to_string())
    }
}

/// The bytes `from..to` of a buffer.
fn part(buffer: &forebay_reactor::Buffer, from: usize, to: usize) -> Part {
    let small = |number| u32::try_from(number).expect("a step is 16 KiB");
    Part { segments: Rc::clone(buffer.segments()), skip: small(from), bytes: small(to - from) }
}
