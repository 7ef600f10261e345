//! What a service manager gives and wants: sockets, readiness, a process id.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use listenfd::ListenFd;
use sd_notify::NotifyState;

use crate::failure::Failure;

/// The sockets that the service manager passed.
///
/// # Errors
/// When one of them is not a listening unix or TCP socket.
pub fn sockets() -> Result<Vec<OwnedFd>, Failure> {
    let mut passed = ListenFd::from_env();
    let mut sockets = Vec::new();
    for index in 0..passed.len() {
        let unix = passed.take_unix_listener(index).ok().flatten().map(OwnedFd::from);
        let socket = unix.or_else(|| passed.take_tcp_listener(index).ok().flatten().map(OwnedFd::from));
        let wrong =
            || Failure::Failed(format!("inherited socket {index} is not a listening unix or TCP socket: check the socket unit"));
        sockets.push(socket.ok_or_else(wrong)?);
    }
    Ok(sockets)
}

/// Tells the service manager that clients are served.
pub fn ready(status: &str) {
    notify(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Tells the service manager that the server is about to leave.
pub fn stopping() {
    notify(&[NotifyState::Stopping]);
}

fn notify(states: &[NotifyState]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("the service manager was not told: {error}");
    }
}

/// A file with the process id, removed on drop.
pub struct PidFile(PathBuf);

impl PidFile {
    /// Writes it.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn write(path: &Path) -> Result<Self, Failure> {
        std::fs::write(path, format!("{}\n", std::process::id()))
            .map_err(|error| Failure::because(format!("writing the process id to {}", path.display()), &error))?;
        Ok(Self(path.to_owned()))
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.0) {
            tracing::warn!("{} could not be removed: {error}", self.0.display());
        }
    }
}
