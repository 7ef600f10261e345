//! File systems on a served device, through nbdfuse and a loop device, while the server is killed in the middle of writes.
//!
//! ```text
//!  forebay serve ◀─ unix socket ─ nbdfuse ◀─ file ─ loop device ◀─ ext4 or xfs ◀─ files, each fsynced,
//!                                                                                then noted outside
//! ```
//!
//! 1. After every kill: restart, mount (the journal is replayed), every noted file is intact, unmount, and the checker finds
//!    nothing.
//! 2. As many flushes have reached the server as files were fsynced: a harness whose flushes are lost would prove nothing.
//! 3. A server that came back holds no more memory and descriptors than the first that did.
//! 4. In the end what stands on the stack's other devices holds too: a snapshot, the other leg ([`Stack`]).

mod stack;

use std::fs::{self, File};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

pub use self::stack::Stack;
use crate::foreign::{Attached, unmount};
use crate::server::flushes;
use crate::{Scratch, pattern, require, require_root, run};

/// Size of the device, bytes: xfs wants at least 300 MiB.
const BYTES: u64 = 320 << 20;
const LIMIT: Duration = Duration::from_mins(1);
/// Files of one life, of up to 120 KiB: ten lives must fit.
const NAMES: u64 = 400;
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

/// Writes files until it is told to stop or the device fails; notes each in `manifest` once its fsync has returned.
fn write_files(mount: &str, manifest: &str, generation: u64, stop: &AtomicBool) {
    let mut notes = File::options().append(true).create(true).open(manifest).expect("the manifest is outside the device");
    for number in 0.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let sectors = 1 + number % 7 * 40;
        let name = format!("{generation}-{number}");
        // A few names are written over again and again, the others once, and not so many that the device is full.
        let again = number % 3 == 0 || number >= NAMES;
        let path = format!("{mount}/{}", if again { format!("again-{}", number % 5) } else { name });
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

/// How many files of this generation are in the manifest.
fn noted(manifest: &str, generation: u64) -> u64 {
    let notes = fs::read_to_string(manifest).unwrap_or_default();
    let versions = notes.lines().filter_map(|note| note.split(' ').nth(1)?.parse::<u64>().ok());
    versions.map(|version| u64::from(version / 100_000 == generation)).sum()
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
        require(&[system.make[0], system.check[0]]);
        require_root();
        let scratch = Scratch::new();
        let (mount, manifest) = (scratch.file("mount"), scratch.file("manifest"));
        fs::create_dir_all(&mount).expect("a scratch folder is writable");
        if !stack.make(&scratch, &system) {
            let server = stack.serve(&scratch);
            let attached = Attached::new(&scratch, "fuse", server.uri());
            system.make(attached.device());
            attached.detach();
            server.stop();
        }
        Self { system, stack, scratch, mount, manifest, cycles: 0, held: None }
    }

    /// One kill in the middle of writes, and a look at what is left.
    pub fn cycle(&mut self) {
        self.cycles += 1;
        let (mount, cycle) = (&self.mount, self.cycles);
        let server = self.stack.serve(&self.scratch);
        let attached = Attached::new(&self.scratch, "fuse", server.uri());
        run::ok(30, &["mount", "-o", self.system.options, attached.device(), mount]);
        let asked = || flushes(&self.scratch.file("control.sock"), 0);
        let before = asked();
        let stop = AtomicBool::new(false);
        thread::scope(|threads| {
            threads.spawn(|| write_files(mount, &self.manifest, cycle, &stop));
            run::wait_for("a file to be fsynced", LIMIT, || (noted(&self.manifest, cycle) > 0).then_some(()));
            run::pause(Duration::from_millis(fastrand::u64(0..600)));
            let noted = noted(&self.manifest, cycle);
            let asked = asked() - before;
            server.kill();
            stop.store(true, Ordering::Relaxed);
            assert!(asked >= noted, "cycle {cycle}: {asked} flushes arrived for {noted} files: fsync does not reach the server");
        });
        unmount(mount);
        attached.detach();

        let server = self.stack.serve(&self.scratch);
        let attached = Attached::new(&self.scratch, "fuse", server.uri());
        run::ok(30, &["mount", "-o", self.system.options, attached.device(), mount]);
        let checked = check_files(&self.manifest);
        assert!(checked > 0, "cycle {cycle}: no file was fsynced before the kill");
        unmount(mount);
        run::ok(60, &[self.system.check, &[attached.device()]].concat());
        let (bytes, open) = (server.resident(), server.descriptors());
        let first = *self.held.get_or_insert((bytes, open + DESCRIPTOR_SLACK));
        assert!(bytes <= first.0 + MEMORY_SLACK, "cycle {cycle}: {bytes} bytes of memory, {} at first", first.0);
        assert!(open <= first.1, "cycle {cycle}: {open} descriptors, at most {} are expected", first.1);
        attached.detach();
        server.stop();
    }

    /// Looks at what else stands on the stack; gives the number of kills.
    pub fn finish(self) -> u64 {
        self.stack.judge(&self.scratch);
        self.cycles
    }
}
