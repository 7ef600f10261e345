//! The ends of a copy: what they are, how large, and that they fit, found out before anything is written.
//!
//! ```text
//!   word ─▶ look (nothing is opened for writing, nothing made) ─▶ fits? ─▶ open: a device for the engine
//!                                                                         └─ a plain descriptor for what is no whole block
//! ```
//!
//! The engine copies whole logical blocks of all ends. What is left of a file whose size is odd, less than
//! one block, goes through [`Source::read_bytes`] and [`Destination::write_tail`].

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use forebay::block::{Bio, HeapMemory, Sector, Segments, Target, call};
use forebay::{BufferPool, DeviceName, Devices, FileOptions, Reactor};
use forebay_device::FileDevice;

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

/// What lies under a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Tells files apart whatever they are called.
    pub identity: (u64, u64),
    /// Bytes in it.
    pub bytes: u64,
    /// When it was changed last: seconds and nanoseconds.
    pub changed: (i64, i64),
    pub block_device: bool,
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
    let block_device = kind.is_block_device();
    let bytes = if block_device {
        let file = File::open(path).map_err(failed)?;
        rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0)).map_err(|error| failed(error.into()))?
    } else {
        metadata.len()
    };
    if kind.is_file() && bytes == 0 && File::open(path).and_then(|mut file| file.read(&mut [0])).is_ok_and(|read| read > 0) {
        return Err(Failure::Failed(format!("{} does not tell its size: pipe it in, and give - as the source", path.display())));
    }
    let identity = if block_device { (u64::MAX, metadata.rdev()) } else { (metadata.dev(), metadata.ino()) };
    Ok(Some(Seen { identity, bytes, changed: (metadata.mtime(), metadata.mtime_nsec()), block_device }))
}

/// What is copied.
pub struct Source {
    pub name: String,
    /// Whole blocks; `None` where there is not one.
    pub target: Option<Rc<dyn Target>>,
    pub bytes: u64,
    pub path: Option<PathBuf>,
    pub seen: Option<Seen>,
}

impl Source {
    /// Opens what `end` names for reading.
    pub fn open(devices: &Devices, reactor: &Reactor, end: &End, name: &str) -> Result<Self, Failure> {
        let name = name.to_owned();
        match end {
            End::Stream => Err(Failure::Usage("standard input cannot be used here: give a file or a device".to_owned())),
            End::Nowhere => Err(Failure::Usage("null: has no size to read: write it as in null:64M".to_owned())),
            End::Device(device) => {
                let target = devices.target(device, true).map_err(|error| Failure::of(&error))?;
                let bytes = target.sectors().to_bytes();
                Ok(Self { name, target: Some(target), bytes, path: None, seen: None })
            }
            End::Path(path) => {
                let missing = || Failure::Failed(format!("{name} does not exist: name a file or device that does"));
                let seen = look(path)?.ok_or_else(missing)?;
                let target = if seen.bytes < 4096 { None } else { Some(open(reactor, path, true)?) };
                Ok(Self { bytes: seen.bytes, target, path: Some(path.clone()), seen: Some(seen), name })
            }
        }
    }

    /// `length` bytes from `at` on, which lie inside: what is no whole block.
    pub async fn read_bytes(&self, at: u64, length: u64) -> Result<Vec<u8>, Failure> {
        let mut bytes = vec![0; tail_length(length)];
        if bytes.is_empty() {
            return Ok(bytes);
        }
        let failed = |error| Failure::because(format!("reading {} at {at}", self.name), &error);
        if let Some(path) = &self.path {
            File::open(path).and_then(|file| file.read_exact_at(&mut bytes, at)).map_err(failed)?;
        } else if let Some(target) = &self.target {
            read_at(&**target, at, &mut bytes).await.map_err(failed)?;
        }
        Ok(bytes)
    }
}

fn tail_length(bytes: u64) -> usize {
    usize::try_from(bytes).expect("less than a few blocks are left")
}

fn open(reactor: &Reactor, path: &Path, read_only: bool) -> Result<Rc<dyn Target>, Failure> {
    let options = FileOptions { read_only, lock_wait: LOCK_WAIT, ..FileOptions::default() };
    let device = FileDevice::open(reactor, path, &options).map_err(|error| Failure::of(&error))?;
    Ok(device)
}

/// The first logical block that holds byte `at`, and how many bytes of whole ones hold all.
fn blocks(target: &dyn Target, at: u64, bytes: usize) -> (u64, usize) {
    let block = u64::from(target.limits().logical_bytes);
    let start = at - at % block;
    (start, tail_length((at + bytes as u64).next_multiple_of(block) - start))
}

async fn read_whole(target: &dyn Target, start: u64, bytes: usize) -> std::io::Result<Vec<u8>> {
    let align = target.limits().memory_align.max(4096) as usize;
    let length = u32::try_from(bytes).expect("a few blocks");
    let mut memory = Segments::whole(Box::new(HeapMemory::new(bytes, align)), length).expect("not empty");
    let status = call(target, Bio::read(Sector(start / 512), Rc::clone(&memory), 0, length)).await.status();
    if !status.is_ok() {
        return Err(std::io::Error::other(super::words(status)));
    }
    Ok(Rc::get_mut(&mut memory).expect("the request is over").bytes_mut().to_vec())
}

async fn read_at(target: &dyn Target, at: u64, bytes: &mut [u8]) -> std::io::Result<()> {
    let (start, length) = blocks(target, at, bytes.len());
    let whole = read_whole(target, start, length).await?;
    let skip = tail_length(at - start);
    bytes.copy_from_slice(&whole[skip..skip + bytes.len()]);
    Ok(())
}

/// Changes bytes inside of blocks.
async fn write_at(target: &dyn Target, at: u64, bytes: &[u8]) -> std::io::Result<()> {
    let (start, length) = blocks(target, at, bytes.len());
    let mut whole = read_whole(target, start, length).await?;
    let skip = tail_length(at - start);
    whole[skip..skip + bytes.len()].copy_from_slice(bytes);
    let length = u32::try_from(length).expect("a few blocks");
    let align = target.limits().memory_align.max(4096) as usize;
    let mut memory = Segments::whole(Box::new(HeapMemory::new(whole.len(), align)), length).expect("not empty");
    Rc::get_mut(&mut memory).expect("nobody else has it yet").bytes_mut().copy_from_slice(&whole);
    let status = call(target, Bio::write(Sector(start / 512), memory, 0, length)).await.status();
    if status.is_ok() { Ok(()) } else { Err(std::io::Error::other(super::words(status))) }
}

/// Where it is copied to.
pub struct Destination {
    pub name: String,
    pub target: Option<Rc<dyn Target>>,
    pub path: Option<PathBuf>,
    /// Its size when the copy began, and what tells it apart.
    pub seen: Option<Seen>,
    /// It was missing or empty, and is zero therefore.
    pub made: bool,
}

impl Destination {
    /// Looks whether `bytes` fit what `end` names; changes nothing.
    pub fn look(end: &End, name: &str, bytes: u64) -> Result<Self, Failure> {
        let nothing = Self { name: name.to_owned(), target: None, path: None, seen: None, made: false };
        let End::Path(path) = end else { return Ok(nothing) };
        let seen = look(path)?;
        let made = seen.is_none_or(|seen| seen.bytes == 0 && !seen.block_device);
        let found = Self { path: Some(path.clone()), seen, made, ..nothing };
        match seen {
            Some(seen) if !made => found.fits(seen.bytes, bytes),
            _ => Ok(found),
        }
    }

    fn fits(self, room: u64, bytes: u64) -> Result<Self, Failure> {
        if room >= bytes {
            return Ok(self);
        }
        let Self { name, .. } = &self;
        Err(Failure::Failed(format!("{name} has {room} bytes, {} less than the source: nothing was written", bytes - room)))
    }

    /// Makes the file where it is missing, and opens it.
    pub fn open(self, devices: &Devices, reactor: &Reactor, end: &End, bytes: u64, allocate: bool) -> Result<Self, Failure> {
        match end {
            End::Stream | End::Nowhere => Ok(self),
            End::Device(device) => {
                let target = devices.target(device, false).map_err(|error| Failure::of(&error))?;
                let room = target.sectors().to_bytes();
                Self { target: Some(target), ..self }.fits(room, bytes)
            }
            End::Path(path) => {
                if self.made {
                    make(path, bytes, allocate)?;
                }
                let target = if bytes < 4096 { None } else { Some(open(reactor, path, false)?) };
                Ok(Self { target, seen: look(path)?, ..self })
            }
        }
    }

    /// Writes what is left behind the whole blocks.
    pub async fn write_tail(&self, at: u64, bytes: &[u8]) -> Result<(), Failure> {
        let failed = |error| Failure::because(format!("writing {} at {at}", self.name), &error);
        if bytes.is_empty() {
            return Ok(());
        }
        match (&self.path, &self.target) {
            (Some(path), _) => File::options().write(true).open(path).and_then(|file| file.write_all_at(bytes, at)),
            (None, Some(target)) => write_at(&**target, at, bytes).await,
            (None, None) => Ok(()),
        }
        .map_err(failed)
    }

    /// Makes what was written durable, and its name where that is new.
    pub async fn sync(&self) -> Result<(), Failure> {
        let failed = |error| Failure::because(format!("making {} durable", self.name), &error);
        if let Some(target) = &self.target {
            let status = call(&**target, Bio::flush()).await.status();
            if !status.is_ok() {
                return Err(failed(std::io::Error::other(super::words(status))));
            }
        }
        if let Some(path) = &self.path {
            File::open(path).and_then(|file| file.sync_all()).map_err(failed)?;
            if self.made {
                sync_folder(path).map_err(failed)?;
            }
        }
        Ok(())
    }
}

fn make(path: &Path, bytes: u64, allocate: bool) -> Result<(), Failure> {
    let failed = |error| Failure::because(format!("making {} with {bytes} bytes", path.display()), &error);
    let file = File::options().write(true).create(true).truncate(false).open(path).map_err(failed)?;
    if allocate && bytes > 0 {
        match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes) {
            // Where space cannot be reserved, writing finds out.
            Err(rustix::io::Errno::OPNOTSUPP) => {}
            other => other.map_err(|error| failed(error.into()))?,
        }
    }
    file.set_len(bytes).map_err(failed)
}

/// Makes the name of a new file durable.
pub fn sync_folder(path: &Path) -> std::io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}
