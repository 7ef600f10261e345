//! Files as block devices of this machine, and mounts.

use crate::{require, require_root, run};
use std::time::Duration;

const LIMIT: Duration = Duration::from_mins(1);

/// A file as a block device, until it is dropped.
#[derive(Debug)]
pub struct Loop {
    path: String,
    file: String,
    /// From the moment on at which it is taken down, the name may be that of somebody else's device.
    is_ours: bool,
}

impl Loop {
    /// `options` are more words for `losetup`.
    pub fn new(file: &str, options: &[&str]) -> Self {
        require_root();
        require(&["losetup"]);
        let path = run::ok(30, &[&["losetup", "--find", "--show"], options, &[file]].concat()).trim().to_owned();
        Self { path, file: file.to_owned(), is_ours: true }
    }

    /// The path of the block device.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Takes it down, and waits until it does not hold its file any more.
    pub fn detach(mut self) {
        assert!(self.release(), "{} of {} cannot be taken down", self.path, self.file);
    }

    /// Whether it is gone, or was before. The kernel may let go of the file later than it says.
    fn release(&mut self) -> bool {
        if !std::mem::take(&mut self.is_ours) {
            return true;
        }
        run::outcome(30, &["losetup", "--detach", &self.path]);
        run::happens_within(LIMIT, || {
            let list = run::outcome(30, &["losetup", "--list", "--noheadings", "--output", "NAME,BACK-FILE"]);
            let ours = |line: &str| line.split_whitespace().next() == Some(&self.path) && line.contains(&self.file);
            list.code == 0 && !list.stdout.lines().any(ours)
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
