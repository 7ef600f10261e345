//! Opening a file or block device for itself alone.
//!
//! The lock is taken on the very descriptor that carries the I/O. Writes of a killed process may
//! still land as long as the kernel holds its requests, and with them its descriptor: so whoever
//! has the lock knows that nobody else writes any more, and a restart waits for it.
//!
//! How long the kernel keeps the descriptors of a process that was killed is its own affair: under load
//! it was seen to be seconds. So a lock that no living process has is waited for longer.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::time::Timespec;

use super::{Direct, FileOptions};
use crate::DeviceError;

/// Time between two tries to lock a device.
const RETRY_EVERY: Duration = Duration::from_millis(20);

/// How many times as long a lock is waited for that no living process has.
const LEFT_BEHIND_FACTOR: u32 = 6;

/// An open, locked device.
pub(super) struct Opened {
    pub(super) file: OwnedFd,
    pub(super) block_device: bool,
    /// Opened with `O_DIRECT`.
    pub(super) direct: bool,
}

/// Opens, creates where asked, and locks.
pub(super) fn open(path: &Path, options: &FileOptions) -> Result<Opened, DeviceError> {
    let block_device = match rustix::fs::stat(path) {
        Ok(stat) => is_block_device(path, FileType::from_raw_mode(stat.st_mode))?,
        Err(Errno::NOENT) if options.create_bytes.is_some() && !options.read_only => false,
        Err(error) => return Err(refused(path, options, error)),
    };
    let mut tries = 0;
    let (file, direct) = loop {
        match open_as(path, options, block_device) {
            // Another process has the block device open for itself, or just let go of it.
            Err(Errno::BUSY) if RETRY_EVERY * tries < options.lock_wait => pause(),
            Err(Errno::BUSY) => return Err(DeviceError::InUse { path: path.to_owned(), waited: options.lock_wait }),
            Err(error) => return Err(refused(path, options, error)),
            Ok(opened) => break opened,
        }
        tries += 1;
    };
    lock(&file, path, options)?;
    let stat = rustix::fs::fstat(&file).map_err(|error| system("looking at", path, error))?;
    is_block_device(path, FileType::from_raw_mode(stat.st_mode))?;
    if let Some(bytes) = options.create_bytes
        && !block_device
        && !options.read_only
        && stat.st_size == 0
    {
        rustix::fs::ftruncate(&file, bytes).map_err(|error| system("setting the size of", path, error))?;
    }
    Ok(Opened { file, block_device, direct })
}

fn open_as(path: &Path, options: &FileOptions, block_device: bool) -> Result<(OwnedFd, bool), Errno> {
    let mut flags = OFlags::CLOEXEC | if options.read_only { OFlags::RDONLY } else { OFlags::RDWR };
    if block_device && !options.read_only {
        // No file system is mounted on it, and nobody else has it for itself.
        flags |= OFlags::EXCL;
    }
    if options.create_bytes.is_some() && !block_device && !options.read_only {
        flags |= OFlags::CREATE;
    }
    let mode = Mode::RUSR | Mode::WUSR;
    if options.direct == Direct::Auto {
        match rustix::fs::open(path, flags | OFlags::DIRECT, mode) {
            Err(Errno::INVAL) => {}
            result => return result.map(|file| (file, true)),
        }
    }
    rustix::fs::open(path, flags, mode).map(|file| (file, false))
}

fn lock(file: &OwnedFd, path: &Path, options: &FileOptions) -> Result<(), DeviceError> {
    let operation =
        if options.read_only { FlockOperation::NonBlockingLockShared } else { FlockOperation::NonBlockingLockExclusive };
    let (mut tries, mut wait) = (0, options.lock_wait);
    loop {
        match rustix::fs::flock(file, operation) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) if RETRY_EVERY * tries < wait => {
                pause();
                tries += 1;
            }
            Err(Errno::WOULDBLOCK) if wait == options.lock_wait && !wait.is_zero() && is_left_behind(file) => {
                wait *= LEFT_BEHIND_FACTOR;
            }
            Err(Errno::WOULDBLOCK) => return Err(DeviceError::InUse { path: path.to_owned(), waited: wait }),
            Err(error) => return Err(system("locking", path, error)),
        }
    }
}

/// Whether nobody who lives is known to have `file` locked.
fn is_left_behind(file: &OwnedFd) -> bool {
    let Ok(stat) = rustix::fs::fstat(file) else { return false };
    let Ok(locks) = std::fs::read_to_string("/proc/locks") else { return false };
    let device = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    let lives = |process: &str| Path::new("/proc").join(process).exists();
    !holders(&locks, device, stat.st_ino).any(lives)
}

/// The process numbers that `locks`, the text of `/proc/locks`, tells for an inode of the device with the
/// numbers `device`; those that wait for one have `->` as their kind. Format: `proc_locks(5)`.
fn holders(locks: &str, device: (u32, u32), inode: u64) -> impl Iterator<Item = &str> {
    let place = format!("{:02x}:{:02x}:{inode}", device.0, device.1);
    locks.lines().filter_map(move |line| {
        let mut words = line.split_whitespace().skip(1);
        let (kind, process) = (words.next()?, words.nth(2)?);
        (kind == "FLOCK" && words.next()? == place).then_some(process)
    })
}

/// Blocks the thread: devices are opened before there is anything to serve.
fn pause() {
    let time = Timespec::try_from(RETRY_EVERY).expect("milliseconds fit");
    // A signal shortens the pause, which harms nothing.
    let _ = rustix::thread::nanosleep(&time);
}

fn is_block_device(path: &Path, found: FileType) -> Result<bool, DeviceError> {
    let found = match found {
        FileType::RegularFile => return Ok(false),
        FileType::BlockDevice => return Ok(true),
        FileType::Directory => "directory",
        FileType::CharacterDevice => "character device",
        FileType::Fifo => "pipe",
        FileType::Socket => "socket",
        _ => "special file",
    };
    Err(DeviceError::WrongType { path: path.to_owned(), found })
}

pub(super) fn system(action: &'static str, path: &Path, error: Errno) -> DeviceError {
    DeviceError::System { action, path: path.to_owned(), source: error.into() }
}

fn refused(path: &Path, options: &FileOptions, error: Errno) -> DeviceError {
    let path = path.to_owned();
    let access = if options.read_only { "reading" } else { "reading and writing" };
    match error {
        Errno::NOENT => DeviceError::Missing { path },
        Errno::ACCESS | Errno::PERM => {
            DeviceError::Denied { path, access, hint: "change its owner or mode, or run as its owner", source: error.into() }
        }
        Errno::ROFS => {
            DeviceError::Denied { path, access, hint: "it is read-only: open it for reading only", source: error.into() }
        }
        Errno::TXTBSY => DeviceError::Denied { path, access, hint: "it is in use as a program or swap", source: error.into() },
        _ => DeviceError::System { action: "opening", path, source: error.into() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holders_of_a_lock_are_found_by_device_and_inode() {
        let locks = "1: FLOCK  ADVISORY  WRITE 4066 fe:00:10420540 0 EOF\n\
                     1: -> FLOCK  ADVISORY  WRITE 4067 fe:00:10420540 0 EOF\n\
                     2: POSIX  ADVISORY  READ 12 fe:00:10420540 0 EOF\n\
                     3: FLOCK  ADVISORY  READ 77 00:1f:10420540 0 EOF\n\
                     4: torn\n";
        let found = |device, inode| holders(locks, device, inode).collect::<Vec<_>>();
        assert_eq!(found((0xfe, 0), 10_420_540), ["4066"]);
        assert_eq!(found((0, 0x1f), 10_420_540), ["77"]);
        assert_eq!(found((0xfe, 0), 1), [""; 0]);
    }

    #[test]
    fn a_lock_of_a_living_process_is_not_left_behind() {
        let path = std::env::temp_dir().join(format!("forebay-lock-{}", std::process::id()));
        let (first, second) = (std::fs::File::create(&path).unwrap(), std::fs::File::open(&path).unwrap());
        first.lock().unwrap();
        assert!(!is_left_behind(&OwnedFd::from(second)));
        std::fs::remove_file(&path).unwrap();
    }
}
