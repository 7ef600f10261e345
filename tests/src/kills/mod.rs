//! File systems on a served device, through nbdfuse and a loop device, while the server is killed in the middle of writes.
//!
//! ```text
//!  forebay serve ◀─ unix socket ─ nbdfuse ◀─ file ─ loop device ◀─ ext4 or xfs ◀─ files, each fsynced,
//!                                                                                then noted outside
//! ```
//!
//! 1. After every kill: restart, mount (the journal is replayed), every noted file is intact, unmount, and the checker finds
//!    nothing.
//! 2. A server that came back holds no more memory and descriptors than the first that did.
//! 3. In the end what stands on the stack's other devices holds too: a snapshot, the other leg ([`Stack`]).

mod stack;

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

pub use self::stack::Stack;
use crate::{Scratch, Server, pattern, require, require_root, run};

/// Size of the device, bytes: xfs wants at least 300 MiB.
const BYTES: u64 = 320 << 20;
const LIMIT: Duration = Duration::from_mins(1);
/// Bytes of memory that a server may hold beyond what the first one that came back held: what it has read and written
/// differs from life to life.
const MEMORY_SLACK: u64 = 64 << 20;
/// Descriptors beyond the first one's: those of threads are made when they are needed.
const DESCRIPTOR_SLACK: usize = 8;

/// A file system under test.
#[derive(Clone, Copy, Debug)]
pub struct FileSystem {
    make: &'static [&'static str],
    /// The checker, which must exit with 0 and change nothing.
    check: &'static [&'static str],
    options: &'static str,
}

/// ext4.
pub const EXT4: FileSystem =
    FileSystem { make: &["mkfs.ext4", "-q", "-F"], check: &["fsck.ext4", "-f", "-n"], options: "errors=remount-ro" };
/// xfs.
pub const XFS: FileSystem = FileSystem { make: &["mkfs.xfs", "-q", "-f"], check: &["xfs_repair", "-n"], options: "nouuid" };

impl FileSystem {
    fn make(&self, device: &str) {
        run::ok(60, &[self.make, &[device]].concat());
    }
}

/// The served device as a loop device of this machine.
struct Attached {
    server: Option<Server>,
    fuse: Child,
    folder: String,
    device: String,
}

impl Attached {
    fn new(scratch: &Scratch, stack: Stack) -> Self {
        let server = stack.serve(scratch);
        let folder = scratch.file("fuse");
        fs::create_dir_all(&folder).expect("a scratch folder is writable");
        let fuse = run::limited(300, &["nbdfuse", &folder, server.uri()]).spawn().expect("nbdfuse can be started");
        let file = format!("{folder}/nbd");
        run::wait_for("nbdfuse's file", LIMIT, || Path::new(&file).exists().then_some(()));
        let device = run::ok(20, &["losetup", "--find", "--show", "--direct-io=on", &file]).trim().to_owned();
        Self { server: Some(server), fuse, folder, device }
    }

    fn kill_server(&mut self) {
        self.server.take().expect("a server is killed once").kill();
    }

    /// Takes the loop device and nbdfuse down again; with the server gone this must not hang either.
    fn detach(mut self) {
        run::ok(30, &["losetup", "--detach", &self.device]);
        run::wait_for("the loop device to be free", LIMIT, || {
            run::ok(20, &["losetup", "--list", "--noheadings", "--output", "NAME"])
                .lines()
                .all(|line| line.trim() != self.device)
                .then_some(())
        });
        run::ok(30, &["fusermount3", "-u", &self.folder]);
        self.fuse.wait().expect("nbdfuse ends when it is unmounted");
        if let Some(server) = self.server.take() {
            server.stop();
        }
    }
}

/// Writes files until it is told to stop or the device fails; notes each in `manifest` once its fsync has returned.
fn write_files(mount: &str, manifest: &str, generation: u64, stop: &AtomicBool) {
    let mut notes = File::options().append(true).create(true).open(manifest).expect("the manifest is outside the device");
    for number in 0.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let sectors = 1 + number % 7 * 40;
        let name = format!("{generation}-{number}");
        // A few names are written over again and again, the others once.
        let path = format!("{mount}/{}", if number % 3 == 0 { format!("again-{}", number % 5) } else { name });
        let bytes = pattern::of(&(0..sectors), generation * 100_000 + number);
        // Written beside and renamed, so that a kill leaves the old content or the new.
        let fresh = format!("{mount}/fresh");
        let written = File::create(&fresh).and_then(|mut file| file.write_all(&bytes).and_then(|()| file.sync_all()));
        let named = written.and_then(|()| fs::rename(&fresh, &path)).and_then(|()| File::open(mount)?.sync_all());
        if named.is_err() {
            return; // the server was killed
        }
        writeln!(notes, "{path} {} {sectors}", generation * 100_000 + number).expect("the manifest is writable");
    }
}

/// Whether a file of this generation is in the manifest.
fn noted(manifest: &str, generation: u64) -> bool {
    let notes = fs::read_to_string(manifest).unwrap_or_default();
    let versions = notes.lines().filter_map(|note| note.split(' ').nth(1)?.parse::<u64>().ok());
    versions.max().is_some_and(|version| version / 100_000 == generation)
}

/// Checks every file that was noted; of those noted several times, the last note counts, or what was being written.
fn check_files(manifest: &str) -> usize {
    let notes = fs::read_to_string(manifest).expect("the manifest is outside the device");
    let mut last = std::collections::BTreeMap::new();
    for note in notes.lines() {
        let (path, rest) = note.split_once(' ').expect("a note has a path");
        let (version, sectors) = rest.split_once(' ').expect("a note has a version and a length");
        let numbers: (u64, u64) = (version.parse().expect("a version"), sectors.parse().expect("a length"));
        last.insert(path, numbers);
    }
    for (path, (version, sectors)) in &last {
        let bytes = fs::read(path).unwrap_or_else(|error| panic!("{path} was fsynced and is gone: {error}"));
        let found = bytes.get(..pattern::SECTOR).and_then(|sector| pattern::version_of(sector, 0));
        let newer = path.contains("again-") && found.is_some_and(|found| found > *version);
        assert!(newer || bytes == pattern::of(&(0..*sectors), *version), "{path} was fsynced as {version} and holds {found:?}");
    }
    last.len()
}

/// A file system on a stack, whose server dies again and again.
pub struct Kills {
    system: FileSystem,
    stack: Stack,
    scratch: Scratch,
    mount: String,
    manifest: String,
    cycles: u64,
    /// What the first server that came back held, bytes of memory, and the most descriptors that others may have.
    held: Option<(u64, usize)>,
}

impl Kills {
    /// Makes the file system.
    pub fn new(system: FileSystem, stack: Stack) -> Self {
        require(&["nbdfuse", "fusermount3", "losetup", system.make[0], system.check[0]]);
        require_root();
        let scratch = Scratch::new();
        let (mount, manifest) = (scratch.file("mount"), scratch.file("manifest"));
        fs::create_dir_all(&mount).expect("a scratch folder is writable");
        if !stack.make(&scratch, &system) {
            let attached = Attached::new(&scratch, stack);
            system.make(&attached.device);
            attached.detach();
        }
        Self { system, stack, scratch, mount, manifest, cycles: 0, held: None }
    }

    /// One kill in the middle of writes, and a look at what is left.
    pub fn cycle(&mut self) {
        self.cycles += 1;
        let (mount, cycle) = (&self.mount, self.cycles);
        let mut attached = Attached::new(&self.scratch, self.stack);
        run::ok(30, &["mount", "-o", self.system.options, &attached.device, mount]);
        let stop = AtomicBool::new(false);
        thread::scope(|threads| {
            threads.spawn(|| write_files(mount, &self.manifest, cycle, &stop));
            run::wait_for("a file to be fsynced", LIMIT, || noted(&self.manifest, cycle).then_some(()));
            run::pause(Duration::from_millis(fastrand::u64(0..600)));
            attached.kill_server();
            stop.store(true, Ordering::Relaxed);
        });
        run::ok(60, &["umount", mount]);
        attached.detach();

        let attached = Attached::new(&self.scratch, self.stack);
        run::ok(30, &["mount", "-o", self.system.options, &attached.device, mount]);
        let checked = check_files(&self.manifest);
        assert!(checked > 0, "cycle {cycle}: no file was fsynced before the kill");
        run::ok(30, &["umount", mount]);
        run::ok(60, &[self.system.check, &[&attached.device]].concat());
        let server = attached.server.as_ref().expect("it runs");
        let (bytes, open) = (server.resident(), server.descriptors());
        let first = *self.held.get_or_insert((bytes, open + DESCRIPTOR_SLACK));
        assert!(bytes <= first.0 + MEMORY_SLACK, "cycle {cycle}: {bytes} bytes of memory, {} at first", first.0);
        assert!(open <= first.1, "cycle {cycle}: {open} descriptors, at most {} are expected", first.1);
        attached.detach();
    }

    /// Looks at what else stands on the stack; gives the number of kills.
    pub fn finish(self) -> u64 {
        self.stack.judge(&self.scratch);
        self.cycles
    }
}
