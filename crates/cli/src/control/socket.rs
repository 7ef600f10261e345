//! The server's end of the control socket, on the same reactor as everything else.
//!
//! A client that sends too much, or nothing that is understood, is told so; one that leaves in
//!    the middle harms nobody. What it asked for is still done.

use std::future::{Future, poll_fn};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;

use forebay::{BufferPool, Reactor, StackError};
use forebay_export::unix::UnixSocket;
use forebay_reactor::Part;
use forebay_target::zram::Zram;
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};

use super::protocol::{LINE_BYTES_MAX, Reply, Request};
use super::{report, show};
use crate::failure::Failure;
use crate::serve::Running;

/// Clients that may wait to be taken.
const BACKLOG: i32 = 16;
/// Bytes received or sent in one step.
const STEP_BYTES: usize = 16 << 10;

/// What every server answers.
const QUESTION: &[u8] = b"{\"command\":\"status\"}\n";

/// A control socket, whose file is removed on drop.
pub struct ControlSocket(UnixSocket);

impl ControlSocket {
    /// Listens at `path` and answers questions about `running`.
    ///
    /// # Errors
    /// When another server answers there, or the system refuses.
    pub fn open(path: &Path, running: &Rc<Running>, pool: &BufferPool) -> Result<Self, Failure> {
        let unix = UnixSocket::bind(path, BACKLOG, QUESTION);
        let unix = unix.map_err(|error| Failure::Failed(format!("the control socket cannot be opened: {error}")))?;
        let clients = Clients { socket: Rc::clone(unix.socket()), running: Rc::clone(running), pool: pool.clone() };
        if !running.reactor().spawn(clients.take()) {
            return Err(Failure::Failed("the control socket has no room: serve fewer devices".to_owned()));
        }
        Ok(Self(unix))
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        self.0.remove();
    }
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
            Ok(Request::ZramGet { device, name }) => {
                return match zram(&self.running, &device).and_then(|zram| zram.get(&name).map_err(|error| error.to_string())) {
                    Ok(text) => Reply::Text(text),
                    Err(sentence) => Reply::Error(sentence),
                };
            }
            Ok(Request::ZramSet { device, name, value }) => match zram(&self.running, &device) {
                Ok(zram) => zram.set(&name, &value).await.map_err(|error| error.to_string()),
                Err(sentence) => Err(sentence),
            },
            Ok(Request::ZramSave { device, path }) => match report::find(&self.running, &device) {
                Ok(stack) => Box::pin(stack.save_image(&path)).await.map(|_| ()).map_err(|error| with_way_out(&error)),
                Err(sentence) => Err(sentence),
            },
            Ok(Request::ZramRestore { device, path }) => match report::find(&self.running, &device) {
                Ok(stack) => Box::pin(stack.restore_image(&path)).await.map(|_| ()).map_err(|error| with_way_out(&error)),
                Err(sentence) => Err(sentence),
            },
            Ok(Request::Wait { device, events }) => return self.wait(device.as_deref(), events).await,
            Ok(Request::Message { device, word }) if word.starts_with("scrub") => {
                return match report::meant(&self.running, device.as_deref()) {
                    Ok(stack) => match stack.scrub(word == "scrub_repair").await {
                        Ok(reports) => Reply::Text(reports.iter().map(show::scrub).collect()),
                        Err(error) => Reply::Error(error.to_string()),
                    },
                    Err(sentence) => Reply::Error(sentence),
                };
            }
            Ok(Request::Message { device, word }) => match report::meant(&self.running, device.as_deref()) {
                Ok(stack) => stack.message(&word.split_whitespace().collect::<Vec<_>>()).await.map_err(|error| error.to_string()),
                Err(sentence) => Err(sentence),
            },
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

    /// Waits until the device has raised more than `events` events, or the client leaves or says something else.
    async fn wait(&self, device: Option<&str>, events: u64) -> Reply {
        let stack = match report::meant(&self.running, device) {
            Ok(stack) => stack,
            Err(sentence) => return Reply::Error(sentence),
        };
        let mut raised = pin!(stack.events_after(events));
        let mut heard = self.reactor.readable(&self.socket);
        poll_fn(|cx| match raised.as_mut().poll(cx) {
            Poll::Ready(Ok(events)) => Poll::Ready(Reply::Events(events)),
            Poll::Ready(Err(error)) => Poll::Ready(Reply::Error(error.to_string())),
            Poll::Pending => {
                let given_up = || Reply::Error("the wait was given up for what was said next".to_owned());
                Pin::new(&mut heard).poll(cx).map(|_| given_up())
            }
        })
        .await
    }
}

/// The compressed RAM disk of a device.
fn zram<'a>(running: &'a Running, device: &str) -> Result<&'a Rc<Zram>, String> {
    report::find(running, device)?.zram().map_err(|error| error.to_string())
}

/// `error`, and what helps when the server itself gave up the right to a file that a message names.
fn with_way_out(error: &StackError) -> String {
    let sentence = error.to_string();
    if !sentence.contains("Permission denied") {
        return sentence;
    }
    format!(
        "{sentence}; a server may use only the folders that it is told of when it starts, \
         as that of its control socket: see --allow-path"
    )
}

/// The bytes `from..to` of a buffer.
fn part(buffer: &forebay_reactor::Buffer, from: usize, to: usize) -> Part {
    let small = |number| u32::try_from(number).expect("a step is 16 KiB");
    Part { segments: Rc::clone(buffer.segments()), skip: small(from), bytes: small(to - from) }
}
