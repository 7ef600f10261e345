//! What a file system stands on while its server is killed, and what must hold of it in the end.

use std::time::Duration;

use super::{BYTES, FileSystem};
use crate::server::forebay;
use crate::{Scratch, Server, run};

/// Longest that a mirror of this size may take to be in sync again.
const RESYNC_LIMIT: Duration = Duration::from_mins(2);

/// What is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stack {
    /// A write cache, all the time writing back.
    Cache,
    /// A device with a snapshot, which must stay what the device was.
    Origin,
    /// Two legs, which must be the same in the end.
    Mirror,
}

impl Stack {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Cache, Self::Origin, Self::Mirror];

    /// Makes the files that it stands on; true when the file system is on them already.
    pub(super) fn make(self, scratch: &Scratch, system: &FileSystem) -> bool {
        match self {
            Self::Cache => drop([scratch.sparse("disk.img", BYTES), scratch.sparse("cache.img", BYTES / 10)]),
            Self::Origin => {
                let disk = scratch.sparse("disk.img", BYTES);
                let _path = scratch.sparse("store.img", 2 * BYTES);
                system.make(&disk);
                run::ok(60, &["cp", "--sparse=always", &disk, &scratch.file("before.img")]);
            }
            Self::Mirror => drop(["disk.img", "other.img"].map(|leg| scratch.sparse(leg, BYTES))),
        }
        if self == Self::Mirror {
            let _path = scratch.sparse("log.img", 1 << 20);
        }
        self == Self::Origin
    }

    /// Starts a server; the file system's device is its first export.
    pub(super) fn serve(self, scratch: &Scratch) -> Server {
        let sectors = BYTES / 512;
        let disk = scratch.file("disk.img");
        let device = |name: &str, words: &str, more: &str| {
            let socket = scratch.file(&format!("{name}.sock"));
            format!(
                "[[device]]\nname = \"{name}\"\ntable = \"0 {sectors} {words}\"\nexport = [\"nbd+unix:///?socket={socket}\"]\n{more}"
            )
        };
        let devices = match self {
            Self::Cache => {
                let words = format!("writecache s {disk} {} 4096 2 pause_writeback 0", scratch.file("cache.img"));
                vec![device("disk", &words, "")]
            }
            Self::Origin => {
                let snapshot = format!("snapshot {disk} {} P 32", scratch.file("store.img"));
                vec![device("disk", &format!("snapshot-origin {disk}"), ""), device("before", &snapshot, "read_only = true\n")]
            }
            Self::Mirror => {
                let (other, log) = (scratch.file("other.img"), scratch.file("log.img"));
                vec![device("disk", &format!("mirror disk 3 {log} 128 nosync 2 {disk} 0 {other} 0"), "")]
            }
        };
        let text = format!("control = \"{}\"\n{}", scratch.file("control.sock"), devices.concat());
        let config = scratch.write("server.toml", text.as_bytes());
        Server::start(&scratch.file("server"), devices.len(), &["--config", &config])
    }

    /// What must hold when all kills are over.
    pub(super) fn judge(self, scratch: &Scratch) {
        let server = self.serve(scratch);
        match self {
            Self::Cache => server.stop(),
            Self::Origin => {
                let snapshot = server.uris().last().expect("it has two exports");
                same(snapshot, &scratch.file("before.img"));
                server.stop();
            }
            Self::Mirror => {
                run::wait_for("the mirror to be in sync", RESYNC_LIMIT, || in_sync(scratch).then_some(()));
                server.stop();
                same(&scratch.file("disk.img"), &scratch.file("other.img"));
            }
        }
    }
}

fn same(one: &str, other: &str) {
    let ended = forebay(&["compare", one, other]);
    assert_eq!(ended.code, 0, "{one} and {other}: {}{}", ended.stdout, ended.stderr);
}

/// Whether all regions are, as the kernel's status line counts them.
fn in_sync(scratch: &Scratch) -> bool {
    let ended = forebay(&["status", "disk", "--line", "--control", &scratch.file("control.sock")]);
    let numbers = |word: &str| {
        let (synced, all) = word.split_once('/')?;
        Some((synced.parse::<u64>().ok()?, all.parse::<u64>().ok()?))
    };
    ended.stdout.split_whitespace().find_map(numbers).is_some_and(|(synced, all)| synced == all)
}
