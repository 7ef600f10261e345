//! Where it is copied to.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::rc::Rc;

use forebay::block::{Bio, Target, call};
use forebay::{Devices, FileOptions, Reactor};
use forebay_device::{FileDevice, open_alone};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use super::bytes::write_at;
use super::{End, LOCK_WAIT, Seen, Source, look, look_again, look_behind};
use crate::copy::words;
use crate::failure::Failure;

/// Where it is copied to.
pub struct Destination {
    pub name: String,
    pub end: End,
    /// What the engine writes to.
    pub target: Option<Rc<dyn Target>>,
    /// A file by a descriptor of its own, and a block device where there is no target.
    pub file: Option<Rc<File>>,
    /// Its size when the copy began, and what tells it apart.
    pub seen: Option<Seen>,
    /// It was missing or empty, and is zero therefore.
    pub made: bool,
    /// It was missing, and is made by this copy.
    created: bool,
    /// Space for all of it is reserved.
    pub reserved: bool,
}

/// How destinations are opened.
#[derive(Clone, Copy)]
pub struct Opening<'a> {
    pub devices: &'a Devices,
    pub reactor: &'a Reactor,
    /// How much will come; `None` where nobody knows, so that new files grow.
    pub bytes: Option<u64>,
    /// Whether space is reserved for it.
    pub allocate: bool,
}

/// Looks at the destinations that `words` name, and whether what comes from `source` fits each; changes nothing.
pub fn look_at(words: &[String], source: &Source, bytes: Option<u64>) -> Result<Vec<Destination>, Failure> {
    let mut all: Vec<Destination> = Vec::new();
    for word in words {
        let to = Destination::look(&End::parse(word)?, word, bytes)?;
        let same = |end: &End, seen: Option<Seen>| {
            let file = seen.is_some() && seen.map(|seen| seen.identity) == to.seen.map(|seen| seen.identity);
            file || end.is_same(&to.end)
        };
        if same(&source.end, source.seen) {
            let what = if matches!(to.end, End::Device(_)) { "device" } else { "file" };
            return Err(Failure::Failed(format!("{word} and {} are the same {what}: give another destination", source.name)));
        }
        if all.iter().any(|other| same(&other.end, other.seen)) {
            return Err(Failure::Failed(format!("{word} is given twice: give each destination once")));
        }
        all.push(to);
    }
    Ok(all)
}

/// Opens all that were looked at: first what is no file, then what is there, and what is to be made last.
pub fn open_all(mut all: Vec<Destination>, how: Opening<'_>) -> Result<Vec<Destination>, Failure> {
    let mut opened = Ok(());
    for turn in 0..3 {
        for to in &mut all {
            if opened.is_ok() && to.turn() == turn {
                opened = to.open(how);
            }
        }
    }
    if opened.is_err() {
        all.iter().for_each(Destination::unmake);
    }
    opened.map(|()| all)
}

impl Destination {
    fn look(end: &End, name: &str, bytes: Option<u64>) -> Result<Self, Failure> {
        let nothing = Self {
            name: name.to_owned(),
            end: end.clone(),
            target: None,
            file: None,
            seen: None,
            made: false,
            created: false,
            reserved: false,
        };
        match end {
            End::Path(path) => {
                let seen = look(path)?;
                let made = seen.is_none_or(|seen| seen.bytes == 0 && !seen.block_device);
                let found = Self { seen, made, ..nothing };
                if let (Some(seen), Some(bytes), false) = (seen, bytes, made) {
                    found.fits(seen.bytes, bytes)?;
                }
                Ok(found)
            }
            End::Stream => Ok(Self { seen: look_behind(std::io::stdout()), ..nothing }),
            End::Nowhere | End::Device(_) => Ok(nothing),
        }
    }

    fn fits(&self, room: u64, bytes: u64) -> Result<(), Failure> {
        if room >= bytes {
            return Ok(());
        }
        let lacks = bytes - room;
        Err(Failure::Failed(format!("{} has {room} bytes, {lacks} less than the source: nothing was written", self.name)))
    }

    fn turn(&self) -> u8 {
        match (&self.end, self.made) {
            (End::Path(_), true) => 2,
            (End::Path(_), false) => 1,
            _ => 0,
        }
    }

    fn open(&mut self, how: Opening<'_>) -> Result<(), Failure> {
        match self.end.clone() {
            End::Stream | End::Nowhere => Ok(()),
            End::Device(device) => {
                let target = how.devices.target(&device, false).map_err(|error| Failure::of(&error))?;
                self.fits(target.sectors().to_bytes(), how.bytes.unwrap_or(0))?;
                self.target = Some(target);
                Ok(())
            }
            End::Path(path) => self.open_path(&path, how),
        }
    }

    fn open_path(&mut self, path: &Path, how: Opening<'_>) -> Result<(), Failure> {
        let failed = |error| Failure::because(format!("making {}", path.display()), &error);
        if self.seen.is_none() {
            // With the mode that a new file has; its size comes under the lock.
            File::options().write(true).create_new(true).open(path).map_err(failed)?;
            self.created = true;
        }
        let create_bytes = how.bytes.filter(|_| self.made);
        let options = FileOptions { create_bytes, lock_wait: LOCK_WAIT, ..FileOptions::default() };
        let block_device = self.seen.is_some_and(|seen| seen.block_device);
        if how.bytes.is_some_and(|bytes| bytes >= 4096) {
            let device = FileDevice::open(how.reactor, path, &options).map_err(|error| Failure::of(&error))?;
            self.target = Some(device);
            if !block_device {
                let opening = |error| Failure::because(format!("opening {}", path.display()), &error);
                self.file = Some(Rc::new(File::options().read(true).write(true).open(path).map_err(opening)?));
            }
        } else {
            self.file = Some(Rc::new(open_alone(path, &options).map_err(|error| Failure::of(&error))?));
        }
        let seen = look_again(path, self.seen)?;
        self.seen = Some(seen);
        match how.bytes {
            // Whoever had the lock before may have changed it.
            _ if self.made && seen.bytes != how.bytes.unwrap_or(0) => {
                (self.made, self.created) = (false, false);
                return Err(Failure::Failed(format!("{} was written by another process meanwhile: look into it", self.name)));
            }
            Some(bytes) => self.fits(seen.bytes, bytes)?,
            None => {}
        }
        if how.allocate && !block_device {
            self.reserve(how.bytes.unwrap_or(0)).map_err(failed)?;
        }
        Ok(())
    }

    fn reserve(&mut self, bytes: u64) -> std::io::Result<()> {
        let Some(file) = self.file.as_ref().filter(|_| bytes > 0) else { return Ok(()) };
        match rustix::fs::fallocate(&**file, FallocateFlags::KEEP_SIZE, 0, bytes) {
            // Where space cannot be reserved, zeroes are written.
            Err(Errno::OPNOTSUPP) => Ok(()),
            Err(error) => Err(error.into()),
            Ok(()) => {
                self.reserved = true;
                Ok(())
            }
        }
    }

    /// Takes back what was made, as far as it was.
    pub fn unmake(&self) {
        // The error that led here is what counts.
        let _ = match (&self.end, &self.file) {
            (End::Path(path), _) if self.created => std::fs::remove_file(path),
            (_, Some(file)) if self.made => file.set_len(0),
            _ => Ok(()),
        };
    }

    /// How much it takes; `None` where it grows, or swallows everything.
    pub fn room(&self) -> Option<u64> {
        match (&self.target, self.seen) {
            (Some(target), _) => Some(target.sectors().to_bytes()),
            (None, Some(seen)) => (!self.made && self.file.is_some()).then_some(seen.bytes),
            (None, None) => None,
        }
    }

    /// Whether it is a file, whose changes show.
    pub fn is_file(&self) -> bool {
        matches!(self.end, End::Path(_)) && self.seen.is_some_and(|seen| !seen.block_device)
    }

    /// Writes bytes that need be no whole blocks.
    pub async fn write_bytes(&self, at: u64, bytes: &[u8]) -> std::io::Result<()> {
        match (&self.file, &self.target) {
            _ if bytes.is_empty() => Ok(()),
            (Some(file), _) => file.write_all_at(bytes, at),
            (None, Some(target)) => write_at(&**target, at, bytes).await,
            (None, None) => Ok(()),
        }
    }

    /// Writes what is left behind the whole blocks.
    pub async fn write_tail(&self, at: u64, bytes: &[u8]) -> Result<(), Failure> {
        let failed = |error| Failure::because(format!("writing {} at {at}", self.name), &error);
        self.write_bytes(at, bytes).await.map_err(failed)
    }

    /// Makes what was written durable, and its name where that is new.
    pub async fn sync(&self) -> Result<(), Failure> {
        let failed = |error| Failure::because(format!("making {} durable", self.name), &error);
        if let Some(target) = &self.target {
            let status = call(&**target, Bio::flush()).await.status();
            if !status.is_ok() {
                return Err(failed(std::io::Error::other(words(status))));
            }
        }
        if let Some(file) = &self.file {
            file.sync_all().map_err(failed)?;
        }
        if self.made { self.sync_name().map_err(failed) } else { Ok(()) }
    }

    /// Makes its name durable.
    pub fn sync_name(&self) -> std::io::Result<()> {
        let End::Path(path) = &self.end else { return Ok(()) };
        sync_folder(path)
    }
}

/// Makes the name of a new file durable.
pub fn sync_folder(path: &Path) -> std::io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}
