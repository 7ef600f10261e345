//! Files as block devices of this machine, and mounts.

use crate::{require, require_root, run};
use std::time::Duration;

const LIMIT: Duration = Duration::from_mins(1);

/// A file as a block device, until it is dropped.
#[derive(Debug)]
pub struct Loop(String);

impl Loop {
    /// `options` are more words for `losetup`.
    pub fn new(file: &str, options: &[&str]) -> Self {
        require_root();
        require(&["losetup"]);
        Self(run::ok(30, &[&["losetup", "--find", "--show"], options, &[file]].concat()).trim().to_owned())
    }

    /// The path of the block device.
    pub fn path(&self) -> &str {
        &self.0
    }

    /// Takes it down, and waits until nothing holds its file.
    pub fn detach(self) {
        assert!(self.release(), "{} cannot be taken down", self.0);
    }

    /// Whether it is gone. The kernel may let go of the file later than it says.
    fn release(&self) -> bool {
        run::outcome(30, &["losetup", "--detach", &self.0]);
        run::happens_within(LIMIT, || {
            let list = run::outcome(30, &["losetup", "--list", "--noheadings", "--output", "NAME"]);
            list.code == 0 && list.stdout.lines().all(|line| line.trim() != self.0)
        })
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        self.release();
    }
}

/// Unmounts `folder`. The kernel lets go of the files of a process a moment after its end.
pub fn unmount(folder: &str) {
    let unmounted = || (run::outcome(60, &["umount", folder]).code == 0).then_some(());
    run::wait_for("the file system to be free", LIMIT, unmounted);
}
