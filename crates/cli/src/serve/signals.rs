//! The signals that end a server: SIGTERM, SIGINT, SIGHUP.
//!
//! The first one is a byte in a socket that the reactor waits for. A second one ends the process at once, with exit
//! status 1, even when the reactor is stuck: what was flushed is safe at any instant. SIGHUP stays ignored where it
//! was, as under `nohup`.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use forebay::Reactor;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::{flag, low_level};

/// Whether the process was started with SIGHUP ignored: the first bit of a mask in hexadecimal.
fn hangups_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}

/// Becomes readable with the first signal.
pub struct Signals {
    socket: Rc<OwnedFd>,
}

impl Signals {
    /// From now on signals no longer end the process on their own.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn catch() -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        let again = Arc::new(AtomicBool::new(false));
        for signal in [SIGTERM, SIGINT, SIGHUP].into_iter().filter(|&signal| signal != SIGHUP || !hangups_ignored()) {
            // In this order: the first signal passes the exit by and arms it.
            flag::register_conditional_shutdown(signal, 1, Arc::clone(&again))?;
            flag::register(signal, Arc::clone(&again))?;
            low_level::pipe::register(signal, theirs.try_clone()?)?;
        }
        Ok(Self { socket: Rc::new(ours.into()) })
    }

    /// Waits for the first signal.
    pub async fn arrived(&self, reactor: &Reactor) {
        // An error here would mean that signals are never heard: leaving is then the safe choice, too.
        let _ = reactor.readable(&self.socket).await;
    }
}
