//! Why a device could not be opened: one sentence that says what, where, and what to do.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why a device could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// Nothing is there.
    #[error("{} does not exist: create it first, for example with `truncate -s 1G`", path.display())]
    Missing {
        /// Of the device.
        path: PathBuf,
    },
    /// Not allowed.
    #[error("{} may not be opened for {access}: {hint}", path.display())]
    Denied {
        /// Of the device.
        path: PathBuf,
        /// What was tried.
        access: &'static str,
        /// What to do.
        hint: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// Not something that holds blocks.
    #[error("{} is a {found}: give a regular file or a block device", path.display())]
    WrongType {
        /// Of the device.
        path: PathBuf,
        /// What is there.
        found: &'static str,
    },
    /// Somebody else has it.
    #[error("{} is in use by another process, and still was after {} ms: stop that process first", path.display(), waited.as_millis())]
    InUse {
        /// Of the device.
        path: PathBuf,
        /// How long its lock was waited for.
        waited: Duration,
    },
    /// Not one block fits.
    #[error("{} has {bytes} bytes, less than one block of {block_bytes}: make it larger", path.display())]
    TooSmall {
        /// Of the device.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// Its smallest unit.
        block_bytes: u32,
    },
    /// The size asked for does not fit in memory.
    #[error("a RAM device of {bytes} bytes does not fit into the {available} bytes of memory that are free: make it smaller")]
    NoMemory {
        /// Asked for.
        bytes: u64,
        /// There.
        available: u64,
    },
    /// A server of the NBD protocol is of no use.
    #[error(transparent)]
    Nbd(#[from] crate::NbdError),
    /// Anything else that the system refused.
    #[error("{action} {} failed: {source}", path.display())]
    System {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}
