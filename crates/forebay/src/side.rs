//! Side files on disk, and the names by which devices are known again.
//!
//! ```text
//!   replace: SIDE.new ─ write, sync ─▶ rename to SIDE ─▶ sync the folder
//! ```
//!
//! 1. A crash leaves the old side file or the new one, whole.
//! 2. What is no regular file is never replaced.
//! 3. A file is known by its inode and the time when it was made: it may be renamed and its file system
//!    mounted elsewhere, but a copy is another file. A block device is known by what its maker or its
//!    driver calls it, and only without that by its number, which may change when the machine starts.
//!
//! Reading and writing block the thread for a moment, which happens when caches are opened and closed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::UNIX_EPOCH;

use forebay_target::cache::disk::side::{Name, SIDE_BYTES_MAX};
use forebay_target::cache::{Side, SideStore};

use crate::device::DeviceName;

#[cfg(test)]
mod tests;

/// A side file at a path.
pub struct SideFile(PathBuf);

impl SideFile {
    /// The side file at `path`, whether it exists or not.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// Where the commands for a cache look for its side file: `CACHE.side`.
    #[must_use]
    pub fn beside(cache: &Path) -> PathBuf {
        with_suffix(cache, ".side")
    }

    /// What it holds in place of the file that `path` may be a link to.
    fn place(&self) -> PathBuf {
        fs::canonicalize(&self.0).unwrap_or_else(|_| self.0.clone())
    }
}

pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Makes what happened to the names in the folder of `path` durable.
pub(crate) fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or_else(|| Path::new(".")))?.sync_all()
}

/// Takes a missing file for none.
pub(crate) fn unless_missing<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

impl SideStore for SideFile {
    fn name(&self) -> String {
        self.0.display().to_string()
    }

    fn read(&self) -> io::Result<Option<Vec<u8>>> {
        let Some(metadata) = unless_missing(fs::metadata(&self.0))? else { return Ok(None) };
        if !metadata.is_file() {
            return Err(io::Error::other("it is no regular file"));
        }
        let mut content = Vec::new();
        // One byte more than any side file has is enough to refuse it.
        File::open(&self.0)?.take(SIDE_BYTES_MAX as u64 + 1).read_to_end(&mut content)?;
        Ok(Some(content))
    }

    fn replace(&self, content: &[u8]) -> io::Result<()> {
        let place = self.place();
        let new = with_suffix(&place, ".new");
        unless_missing(fs::remove_file(&new))?;
        let written = write_new(&new, content).and_then(|()| fs::rename(&new, &place));
        if let Err(error) = written {
            // What was written in part takes up room and is of no use; the first error is the one to tell.
            let _ = fs::remove_file(&new);
            return Err(error);
        }
        sync_folder(&place)
    }

    fn remove(&self) -> io::Result<()> {
        let place = self.place();
        match unless_missing(fs::remove_file(&place))? {
            Some(()) => sync_folder(&place),
            None => Ok(()),
        }
    }
}

fn write_new(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(content)?;
    file.sync_all()
}

/// The side file of a cache.
pub(crate) fn side(path: &str, origin: &DeviceName, cache: &DeviceName) -> Side {
    let name = |device: &DeviceName| match device {
        DeviceName::File(path) => known_as(path),
        DeviceName::Ram { .. } => Name::new("memory"),
        DeviceName::Null { .. } => Name::new("nothing"),
        DeviceName::Nbd(uri) => Name::new(&uri.to_string()),
    };
    Side { store: Rc::new(SideFile::new(Path::new(path))), origin: name(origin), cache: name(cache) }
}

/// What tells the file or block device at `path` from all others; empty where nothing can be found out.
#[must_use]
pub fn known_as(path: &Path) -> Name {
    let Ok(metadata) = fs::metadata(path) else { return Name::default() };
    if metadata.file_type().is_block_device() {
        return block_device(Path::new("/sys/dev/block"), metadata.rdev());
    }
    let born = metadata.created().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let born = born.map_or(String::new(), |born| format!(", made at {}.{:09}", born.as_secs(), born.subsec_nanos()));
    Name::new(&format!("inode {}{born}", metadata.ino()))
}

/// A block device by its entry in the system's list of them.
fn block_device(list: &Path, number: u64) -> Name {
    const SOURCES: [(&str, &str); 8] = [
        ("dm/uuid", "dm"),
        ("md/uuid", "md"),
        ("wwid", "wwid"),
        ("device/wwid", "wwid"),
        ("serial", "serial"),
        ("device/serial", "serial"),
        ("loop/backing_file", "loop over"),
        ("backing_file", "loop over"),
    ];
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let entry = list.join(format!("{major}:{minor}"));
    let first_line = |path: PathBuf| {
        let text = fs::read_to_string(path).ok()?;
        let line = text.lines().next()?.trim().to_owned();
        (!line.is_empty()).then_some(line)
    };
    let partition = first_line(entry.join("partition"));
    // The entry is a link into the tree of devices, where a partition lies in the folder of its disk.
    let disk = if partition.is_some() { fs::canonicalize(&entry).map(|entry| entry.join("..")) } else { Ok(entry) };
    let disk = disk.unwrap_or_default();
    let found = SOURCES.iter().find_map(|(file, kind)| first_line(disk.join(file)).map(|line| format!("{kind} {line}")));
    let whole = found.unwrap_or_else(|| format!("block device {major}:{minor}"));
    // The part comes first, so that no length of the rest cuts it off.
    Name::new(&partition.map_or(whole.clone(), |number| format!("partition {number} of {whole}")))
}
