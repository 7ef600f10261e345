//! An NBD export as a block device of this machine.

use super::Loop;
use crate::{Scratch, require, run};
use std::fs;
use std::path::Path;
use std::process::Child;
use std::time::Duration;

const LIMIT: Duration = Duration::from_mins(1);

/// nbdfuse makes a file of the export, and a loop device, past the page cache, a block device of the file.
#[derive(Debug)]
pub struct Attached {
    // Dropped first: it stands on the other.
    device: Loop,
    fuse: Fuse,
}

/// nbdfuse, until it is unmounted.
#[derive(Debug)]
struct Fuse {
    process: Child,
    folder: String,
}

impl Attached {
    /// Attaches the export at `uri`; the folder `name` of `scratch` is what nbdfuse is mounted at.
    pub fn new(scratch: &Scratch, name: &str, uri: &str) -> Self {
        require(&["nbdfuse", "fusermount3"]);
        let folder = scratch.file(name);
        fs::create_dir_all(&folder).expect("a scratch folder is writable");
        let process = run::limited(600, &["nbdfuse", &folder, uri]).spawn().expect("nbdfuse can be started");
        let fuse = Fuse { process, folder };
        let file = format!("{}/nbd", fuse.folder);
        run::wait_for("nbdfuse's file", LIMIT, || Path::new(&file).exists().then_some(()));
        Self { device: Loop::new(&file, &["--direct-io=on"]), fuse }
    }

    /// The path of the block device.
    pub fn device(&self) -> &str {
        self.device.path()
    }

    /// Takes both down again; with the server gone this must not hang either.
    pub fn detach(self) {
        let Self { device, mut fuse } = self;
        device.detach();
        assert!(fuse.unmount(), "{} cannot be unmounted", fuse.folder);
        fuse.process.wait().expect("nbdfuse ends when it is unmounted");
    }
}

impl Fuse {
    fn unmount(&mut self) -> bool {
        run::happens_within(LIMIT, || run::outcome(30, &["fusermount3", "-u", &self.folder]).code == 0)
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        if matches!(self.process.try_wait(), Ok(None)) && self.unmount() {
            let _ = self.process.wait(); // nobody is left to tell
        }
    }
}
