//! The seam to the world: one object with one virtual call per turn.
//!
//! Everything that happens outside the process (devices, sockets, time) goes through a
//! [`Backend`]. [`Uring`] and [`Threads`] are the
//! real ones; the simulator is a third.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::request::{DeviceId, Requests, Tag};
use crate::threads::Threads;
use crate::uring::Uring;

/// How long [`Backend::enter`] may wait for a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    No,
    /// Until something completes, or until this time on the backend's clock when given.
    Until(Option<Duration>),
}

/// A request that the backend is done with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Which.
    pub tag: Tag,
    /// Bytes moved, 0 for operations that move none, or a negated errno.
    pub result: i32,
}

/// The world below a reactor.
pub trait Backend {
    /// What it is, for people: `uring`, `threads`, `sim`.
    fn name(&self) -> &'static str;

    /// Time since an arbitrary start; never runs backwards.
    fn now(&self) -> Duration;

    /// Makes a device known before its first request. `file` is open until the reactor is gone;
    /// simulated devices have none.
    ///
    /// # Errors
    /// When the device cannot be used through this backend.
    fn attach(&mut self, device: DeviceId, file: Option<BorrowedFd<'_>>) -> io::Result<()>;

    /// Offers payload memory that stays mapped until the backend is gone, so that it can be
    /// registered. `base` is an address, `bytes` a length; refusing is no error.
    fn offer_memory(&mut self, base: usize, bytes: usize);

    /// Starts the requests in `batch`, in that order, and appends what has completed to `done`.
    /// With [`Wait::Until`] it returns once something completed, the time has come, or a signal
    /// interrupted it. Requests stay untouched in their slots until they are in `done`.
    ///
    /// # Errors
    /// Only when the backend itself is broken; single requests report errors in `done`.
    fn enter(&mut self, requests: &Requests, batch: &[Tag], done: &mut Vec<Done>, wait: Wait) -> io::Result<()>;
}

/// The system's monotonic clock, which both real backends count from their start.
pub(crate) fn monotonic() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::try_from(now).expect("the monotonic clock is not negative")
}

/// Which backend to run on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// `io_uring` where it is allowed, else threads.
    #[default]
    Auto,
    /// `io_uring` or nothing.
    Uring,
    /// Threads, even where `io_uring` is allowed.
    Threads,
}

/// Makes a backend for the calling thread. With [`Engine::Auto`] one warning says why it is not
/// `io_uring`.
///
/// # Errors
/// One sentence, when what was chosen is not to be had.
pub fn engine(choice: Engine) -> io::Result<Box<dyn Backend>> {
    choose(choice, Uring::new)
}

fn choose(choice: Engine, ring: impl Fn() -> io::Result<Uring>) -> io::Result<Box<dyn Backend>> {
    match choice {
        Engine::Uring => Ok(Box::new(ring()?)),
        Engine::Threads => Ok(Box::new(Threads::new()?)),
        Engine::Auto => match ring() {
            Ok(ring) => Ok(Box::new(ring)),
            Err(error) => {
                tracing::warn!("{error}: threads are used instead, which cost more CPU time");
                Ok(Box::new(Threads::new()?))
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_takes_threads_where_the_ring_is_refused_and_the_others_what_they_name() {
        let refused = || Err(io::Error::from_raw_os_error(1));
        let name = |choice, ring: fn() -> io::Result<Uring>| choose(choice, ring).map(|backend| backend.name()).ok();
        assert_eq!(name(Engine::Auto, Uring::new), Some("uring"));
        assert_eq!(name(Engine::Auto, refused), Some("threads"));
        assert_eq!(name(Engine::Uring, Uring::new), Some("uring"));
        assert_eq!(name(Engine::Uring, refused), None);
        assert_eq!(name(Engine::Threads, Uring::new), Some("threads"));
    }
}
