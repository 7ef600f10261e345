//! Why a server is of no use: one sentence that begins with its address.

use std::io;
use std::time::Duration;

use forebay_nbd::client::{Refused, Violation};
use forebay_nbd::uri::Uri;

/// Why a server does not become a device, or no longer is one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NbdError {
    /// Nobody takes the connection.
    #[error("{uri} cannot be reached: {source}: is the server running?")]
    Unreachable {
        /// The server.
        uri: Uri,
        /// What the system said.
        source: io::Error,
    },
    /// It takes connections and says nothing.
    #[error("{uri} did not answer within {} ms: is it overloaded, or something else than an NBD server?", waited.as_millis())]
    Silent {
        /// The server.
        uri: Uri,
        /// How long it was waited for.
        waited: Duration,
    },
    /// The negotiation failed.
    #[error("{uri}: {source}")]
    Refused {
        /// The server.
        uri: Uri,
        /// Why.
        source: Refused,
    },
    /// It cannot be written.
    #[error("{uri} is read-only: serve what stands on it with --read-only, or have the server allow writes")]
    ReadOnly {
        /// The server.
        uri: Uri,
    },
    /// Not one block fits.
    #[error("{uri} has {bytes} bytes, less than one block of {block_bytes}: make it larger")]
    TooSmall {
        /// The server.
        uri: Uri,
        /// Its size.
        bytes: u64,
        /// Its smallest unit.
        block_bytes: u32,
    },
    /// The export is another one than before.
    #[error("{uri} came back with another {what} than before: open the stack again if that is meant")]
    Changed {
        /// The server.
        uri: Uri,
        /// What differs.
        what: &'static str,
    },
    /// This process is at its end of something.
    #[error("{uri}: {source}")]
    System {
        /// The server.
        uri: Uri,
        /// What the system said.
        source: io::Error,
    },
}

/// Why a connection ended.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum Broken {
    /// The server hung up, or the network did.
    #[error("the connection was lost ({0})")]
    Lost(String),
    /// The server said that it goes away.
    #[error("the server shuts down")]
    ShuttingDown,
    /// A request had no answer for too long.
    #[error("a request was not answered within {} ms", .0.as_millis())]
    Silent(Duration),
    /// The server broke the protocol.
    #[error("the server broke the protocol: {0}")]
    Nonsense(#[from] Violation),
    /// Another connection to the same server ended.
    #[error("another connection to the server ended")]
    Sibling,
    /// The server takes back that it allows several connections.
    #[error("the server does not allow several connections any more")]
    Alone,
    /// The device is not used any more.
    #[error("the device was closed")]
    Closed,
}
