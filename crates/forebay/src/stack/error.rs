//! Why a stack does not open.

use std::path::PathBuf;

use forebay_block::TableError;
use forebay_device::DeviceError;
use forebay_target::snapshot::SnapshotError;
use forebay_target::zram::ZramError;
use forebay_target::{BuildError, cache, clone, mirror};

use crate::image::ImageFileError;
use crate::text::TextError;

/// Why a stack does not open: one sentence that names the table line and the device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The text is not a table. The only kind that is wrong whatever the devices hold.
    #[error(transparent)]
    Text(#[from] TextError),
    /// A device does not open.
    #[error("table line {line}: {source}")]
    Device {
        /// Place in the text, from 1.
        line: usize,
        /// Why.
        source: DeviceError,
    },
    /// A target does not fit its devices.
    #[error("table line {line}: {source}")]
    Target {
        /// Place in the text, from 1.
        line: usize,
        /// Why.
        source: BuildError,
    },
    /// A cache does not open.
    #[error("table line {line}: the cache on {fast} in front of {origin} does not open: {source}")]
    Cache {
        /// Place in the text, from 1.
        line: usize,
        /// The fast device.
        fast: String,
        /// The slow device.
        origin: String,
        /// Why.
        source: cache::OpenError,
    },
    /// A mirror does not open.
    #[error("table line {line}: the mirror does not open: {source}")]
    Mirror {
        /// Place in the text, from 1.
        line: usize,
        /// Why.
        source: mirror::OpenError,
    },
    /// A clone does not open.
    #[error("table line {line}: the clone on {destination} does not open: {source}")]
    Clone {
        /// Place in the text, from 1.
        line: usize,
        /// The destination.
        destination: String,
        /// Why.
        source: clone::OpenError,
    },
    /// One device as two of a target's.
    #[error("table line {line}: {name} is named twice: give different devices")]
    DeviceTwice {
        /// Place in the text, from 1.
        line: usize,
        /// The device.
        name: String,
    },
    /// A compressed RAM disk cannot be made.
    #[error("table line {line}: {source}")]
    Zram {
        /// Place in the text, from 1.
        line: usize,
        /// Why.
        source: ZramError,
    },
    /// The dictionary of a compressed RAM disk cannot be read.
    #[error("table line {line}: the dictionary {path} cannot be read: {source}")]
    Dictionary {
        /// Place in the text, from 1.
        line: usize,
        /// Its path.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// A snapshot does not open.
    #[error("table line {line}: the snapshot of {origin} on {cow} does not open: {source}")]
    Snapshot {
        /// Place in the text, from 1.
        line: usize,
        /// The device of its store.
        cow: String,
        /// What it is of.
        origin: String,
        /// Why.
        source: SnapshotError,
    },
    /// A compressed RAM disk cannot be restored.
    #[error("table line {line}: {source}")]
    Image {
        /// Place in the text, from 1.
        line: usize,
        /// Why.
        source: ImageFileError,
    },
    /// One image for two disks.
    #[error("table line {line}: {} is the image of another disk: give each its own", path.display())]
    SameImage {
        /// Place in the text, from 1.
        line: usize,
        /// The image.
        path: PathBuf,
    },
    /// One device in two roles.
    #[error("table line {line}: {name} cannot be its own {role}: give two devices")]
    SameDevice {
        /// Place in the text, from 1.
        line: usize,
        /// The device.
        name: String,
        /// What else it should be.
        role: &'static str,
    },
    /// The rows do not fit together.
    #[error("{0}")]
    Table(#[from] TableError),
}
