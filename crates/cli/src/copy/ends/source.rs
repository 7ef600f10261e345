//! What is copied.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::rc::Rc;

use forebay::block::Target;
use forebay::{Devices, FileOptions, Reactor};
use forebay_device::{FileDevice, open_alone};

use super::bytes::{read_at, short};
use super::{End, LOCK_WAIT, Seen, look, look_again, look_behind};
use crate::failure::Failure;

/// What is copied, or compared.
pub struct Source {
    pub name: String,
    pub end: End,
    /// Whole blocks; `None` where there is not one.
    pub target: Option<Rc<dyn Target>>,
    pub bytes: u64,
    /// A file or block device by a descriptor of its own.
    pub file: Option<Rc<File>>,
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
                Ok(Self { name, end: end.clone(), target: Some(target), bytes, file: None, seen: None })
            }
            End::Path(path) => Self::open_path(reactor, path, name),
        }
    }

    fn open_path(reactor: &Reactor, path: &Path, name: String) -> Result<Self, Failure> {
        let missing = || Failure::Failed(format!("{name} does not exist: name a file or device that does"));
        let before = look(path)?.ok_or_else(missing)?;
        let options = FileOptions { read_only: true, lock_wait: LOCK_WAIT, ..FileOptions::default() };
        let (target, file) = if before.bytes < 4096 {
            (None, open_alone(path, &options).map_err(|error| Failure::of(&error))?)
        } else {
            let device = FileDevice::open(reactor, path, &options).map_err(|error| Failure::of(&error))?;
            let plain = File::open(path).map_err(|error| Failure::because(format!("opening {name}"), &error))?;
            (Some(device as Rc<dyn Target>), plain)
        };
        // While its lock was waited for it may have become another, or larger, or smaller.
        let seen = look_again(path, Some(before))?;
        let whole = target.as_ref().map_or(0, |target| target.sectors().to_bytes());
        let left = seen.bytes.checked_sub(whole);
        if left.is_none_or(|left| left >= 4096) {
            return Err(Failure::Failed(format!("{name} changes its size while it is opened: try again when it does not")));
        }
        let (end, file) = (End::Path(path.to_owned()), Some(Rc::new(file)));
        Ok(Self { bytes: seen.bytes, target, file, seen: Some(seen), name, end })
    }

    /// What standard input is.
    pub fn stdin() -> Self {
        let (name, end) = ("standard input".to_owned(), End::Stream);
        Self { name, end, target: None, bytes: 0, file: None, seen: look_behind(std::io::stdin()) }
    }

    /// Whether it is a file, whose changes show.
    pub fn is_file(&self) -> bool {
        self.seen.is_some_and(|seen| !seen.block_device)
    }

    /// `length` bytes from `at` on, which lie inside: what is no whole block.
    pub async fn read_bytes(&self, at: u64, length: u64) -> Result<Vec<u8>, Failure> {
        let mut bytes = vec![0; short(length)];
        if bytes.is_empty() {
            return Ok(bytes);
        }
        let failed = |error| Failure::because(format!("reading {} at {at}", self.name), &error);
        if let Some(file) = &self.file {
            file.read_exact_at(&mut bytes, at).map_err(failed)?;
        } else if let Some(target) = &self.target {
            read_at(&**target, at, &mut bytes).await.map_err(failed)?;
        }
        Ok(bytes)
    }
}
