//! The ends of a copy: what they are, how large, and that they fit, found out before anything is written.
//!
//! ```text
//!   word ─▶ look (nothing is opened for writing, nothing made) ─▶ fits? ─▶ locked and open, looked at again
//!                                                          a device for the engine ─┤
//!                                       a plain descriptor for what is no whole block ─┘
//! ```
//!
//! The engine copies whole logical blocks of all ends. What is left of a file whose size is odd, less than
//! one block, goes through [`Source::read_bytes`] and [`Destination::write_tail`].
//!
//! 1. Every file and block device is locked as one under a stack is, whatever its size and wherever the other end is;
//!    block devices that are mounted or in use are not written.
//! 2. No two ends are one: not by links, not by two spellings of a server, not by a redirection.
//! 3. New files are made last, and taken away again when a later end cannot be opened.

mod bytes;
mod destination;
mod source;

use std::fs::{File, Metadata};
use std::io::{ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use forebay::{BufferPool, DeviceName, Devices};

pub use self::destination::{Destination, Opening, look_at, open_all, sync_folder};
pub use self::source::Source;
use crate::failure::Failure;

/// How long to wait for whoever has an end in use.
pub const LOCK_WAIT: Duration = Duration::from_secs(2);

/// What a word names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// Standard input or output.
    Stream,
    /// Swallows what is written.
    Nowhere,
    /// A file or block device.
    Path(PathBuf),
    /// Anything else that is a device.
    Device(DeviceName),
}

impl End {
    /// Reads a word of the command line.
    pub fn parse(word: &str) -> Result<Self, Failure> {
        match (word, DeviceName::read(word)) {
            ("-", _) => Ok(Self::Stream),
            ("null:", _) => Ok(Self::Nowhere),
            (_, Ok(DeviceName::File(path))) => Ok(Self::Path(path)),
            (_, Ok(device)) => Ok(Self::Device(device)),
            (_, Err(error)) => Err(Failure::Usage(error.to_string())),
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Path(one), Self::Path(other)) => DeviceName::File(one.clone()).is_same(&DeviceName::File(other.clone())),
            (Self::Device(one), Self::Device(other)) => one.is_same(other),
            _ => false,
        }
    }
}

/// `devices` with the servers connected that are among the ends named by `read` and `written`.
pub async fn connect(devices: Devices, pool: &BufferPool, read: &[&str], written: &[&str]) -> Result<Devices, Failure> {
    let ends = read.iter().map(|word| (word, true)).chain(written.iter().map(|word| (word, false)));
    for (word, read_only) in ends {
        if let End::Device(name) = End::parse(word)? {
            devices.connect(pool, &name, read_only).await.map_err(|error| Failure::of(&error))?;
            let left = devices.left_bytes(&name);
            if left > 0 {
                let what = format!("{word} has {left} bytes behind its last whole block, which are out of reach");
                return Err(Failure::Failed(format!("{what}: serve it with a size in whole blocks")));
            }
        }
    }
    Ok(devices)
}

/// What lies under a path or behind a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Tells files apart whatever they are called.
    pub identity: (u64, u64),
    /// Bytes in it.
    pub bytes: u64,
    /// When its content and when anything of it was changed last: seconds and nanoseconds; zeroes for a block device,
    /// which does not tell.
    pub changed: [(i64, i64); 2],
    /// When it was made, where that is known.
    pub born: Option<Duration>,
    pub block_device: bool,
}

impl Seen {
    fn of(metadata: &Metadata, bytes: u64) -> Self {
        if metadata.file_type().is_block_device() {
            let identity = (u64::MAX, metadata.rdev());
            return Self { identity, bytes, changed: [(0, 0); 2], born: None, block_device: true };
        }
        let changed = [(metadata.mtime(), metadata.mtime_nsec()), (metadata.ctime(), metadata.ctime_nsec())];
        let born = metadata.created().ok().and_then(|born| born.duration_since(SystemTime::UNIX_EPOCH).ok());
        Self { identity: (metadata.dev(), metadata.ino()), bytes, changed, born, block_device: false }
    }
}

/// Looks at a path; `None` where nothing is.
pub fn look(path: &Path) -> Result<Option<Seen>, Failure> {
    let failed = |error| Failure::because(format!("looking at {}", path.display()), &error);
    let metadata = match std::fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        other => other.map_err(failed)?,
    };
    let kind = metadata.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(Failure::Failed(format!("{} is neither a file nor a block device: give one of these", path.display())));
    }
    let bytes = if kind.is_block_device() {
        let file = File::open(path).map_err(failed)?;
        rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0)).map_err(|error| failed(error.into()))?
    } else {
        metadata.len()
    };
    if kind.is_file() && bytes == 0 && File::open(path).and_then(|mut file| file.read(&mut [0])).is_ok_and(|read| read > 0) {
        return Err(Failure::Failed(format!("{} does not tell its size: pipe it in, and give - as the source", path.display())));
    }
    Ok(Some(Seen::of(&metadata, bytes)))
}

/// What standard input or output is, where it is a file or a block device.
fn look_behind(stream: impl AsFd) -> Option<Seen> {
    let metadata = stream.as_fd().try_clone_to_owned().ok().and_then(|owned| File::from(owned).metadata().ok())?;
    let kind = metadata.file_type();
    (kind.is_file() || kind.is_block_device()).then(|| Seen::of(&metadata, metadata.len()))
}

/// What an end is found to be again, now that it is open and locked; it must be the `before`, if there was one.
fn look_again(path: &Path, before: Option<Seen>) -> Result<Seen, Failure> {
    let replaced = || Failure::Failed(format!("{} was replaced while it was opened: leave it alone", path.display()));
    let seen = look(path)?.ok_or_else(replaced)?;
    if before.is_some_and(|before| before.identity != seen.identity) { Err(replaced()) } else { Ok(seen) }
}
