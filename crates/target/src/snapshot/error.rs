//! Why a snapshot, or a merge, does not open: one sentence for each reason.
//!
//! Units: sectors of 512 bytes, chunks of the snapshot.

use forebay_block::Status;

use super::disk::FormatError;
use crate::below::BuildError;

/// Why a snapshot does not open.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// It does not fit its origin.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The device holds no store that can be used.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The store does not read.
    #[error("its metadata cannot be read ({0:?}): look at the log for the device's own error")]
    Read(Status),
    /// The store cannot be made or mended.
    #[error("its metadata cannot be written ({0:?}): look at the log for the device's own error")]
    Write(Status),
    /// Two on one store, or a store on an origin, or an origin on a store.
    #[error(
        "the device of its store is that of another snapshot, or one of the two is an origin and a store at once: give it one of its own"
    )]
    InUse,
    /// A second merge.
    #[error("another snapshot is being merged into the same origin: wait until that is done")]
    Merging,
    /// The origin is in use with smaller blocks than the store takes.
    #[error(
        "its device takes only larger blocks than those that snapshot-origin of the same origin was opened with: open the merge first"
    )]
    Fronted,
    /// A chunk that the origin does not have.
    #[error("its store keeps chunk {chunk}, and the origin ends with chunk {last}: give the origin its former size again")]
    BeyondOrigin {
        /// The chunk.
        chunk: u64,
        /// The last one of the origin.
        last: u64,
    },
    /// No room for a header and an area.
    #[error("{sectors} sectors have no room for a header and an area of {chunk} sectors each: use a larger device")]
    Small {
        /// Size of the device, sectors.
        sectors: u64,
        /// Size of a chunk, sectors.
        chunk: u64,
    },
}
