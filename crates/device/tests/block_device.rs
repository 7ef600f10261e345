//! Requests to a real block device with tight limits: they are cut here, so that the kernel never has
//! to. A request that it has to cut while it must not wait goes to a thread of the kernel's own, which
//! is named `iou-wrk-…` and belongs to this process. Needs root, for the loop device.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod common;

use std::path::Path;
use std::process::Command;
use std::rc::Rc;

use common::{Bed, TempFile, bytes_of, filled, memory, pattern};
use forebay_block::{Bio, HeapMemory, Limits, Sector, Segments, Status, Target, call_with};
use forebay_device::{FileDevice, FileOptions};
use forebay_reactor::{Attachment, BufferPool};

/// Size of the device, bytes.
const BYTES: u64 = 64 << 20;
/// Bytes of the largest request.
const LARGE: u32 = 4 << 20;
/// Requests that the device has room for; what is beyond that waits on threads of the kernel as well.
const DEPTH: u32 = 128;

/// A loop device over a file of its own.
struct Loop {
    name: String,
    _file: TempFile,
}

fn output(program: &str, words: &[&str]) -> String {
    let output = Command::new(program).args(words).output().unwrap();
    assert!(output.status.success(), "{program} {words:?} (as root?): {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

impl Loop {
    fn new() -> Self {
        let file = TempFile::new("loop", BYTES);
        std::fs::write(&file.0, pattern(usize::try_from(BYTES).unwrap(), 3)).unwrap();
        let name = output("losetup", &["--find", "--show", "--direct-io=on", file.0.to_str().unwrap()]);
        Self { name, _file: file }
    }

    fn queue(&self, name: &str) -> String {
        format!("/sys/block/{}/queue/{name}", self.name.trim_start_matches("/dev/"))
    }

    fn limit(&self, name: &str, value: &str) {
        std::fs::write(self.queue(name), value).unwrap();
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        output("losetup", &["--detach", &self.name]);
    }
}

/// Threads that the kernel made for requests of this process that it could not carry out at once.
fn kernel_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).unwrap_or_default());
    names.filter(|name| name.starts_with("iou-wrk")).count()
}

/// Payload whose segments of 4 KiB lie in reverse order, so that none adjoin.
fn scattered(bytes: u32) -> Rc<Segments> {
    let ranges: Vec<(usize, u32)> = (0..bytes as usize / 4096).rev().map(|page| (page * 4096, 4096)).collect();
    Segments::ranges(Box::new(HeapMemory::new(bytes as usize, 4096)), &ranges).unwrap()
}

#[test]
fn large_requests_are_cut_where_the_kernel_would_have_to_cut_them() {
    let disk = Loop::new();
    let whole = pattern(usize::try_from(BYTES).unwrap(), 3);
    for max_sectors_kb in [1280, 64, 4] {
        disk.limit("max_sectors_kb", &max_sectors_kb.to_string());
        let bytes = LARGE.min(max_sectors_kb * 1024 * DEPTH / 2);
        let bed = Bed::new();
        let device = FileDevice::open(&bed.reactor, Path::new(&disk.name), &FileOptions::default()).unwrap();
        let limits = device.limits();
        assert_eq!((device.is_direct(), limits.by_page, limits.max_segments), (true, true, 128));
        let pool = BufferPool::new(&bed.reactor);
        let large = bytes as usize;
        for at in [0, 8, 1017] {
            let found = memory(bytes);
            assert_eq!(bed.status(&*device, Bio::read(Sector(at), Rc::clone(&found), 0, bytes)), Status::Ok);
            let start = usize::try_from(at).unwrap() * 512;
            assert!(bytes_of(found) == whole[start..start + large]);
            let found = scattered(bytes);
            assert_eq!(bed.status(&*device, Bio::read(Sector(at), Rc::clone(&found), 0, bytes)), Status::Ok);
            let pages = bytes_of(found);
            assert!(pages.rchunks(4096).flatten().eq(&whole[start..start + large]));
            let mut buffer = pool.take(large);
            assert_eq!(bed.status(&*device, Bio::read(Sector(at), Rc::clone(buffer.segments()), 0, bytes)), Status::Ok);
            assert!(buffer.bytes_mut() == &whole[start..start + large]);
            let write = Bio::write(Sector(at), Rc::clone(buffer.segments()), 0, bytes);
            assert_eq!(bed.status(&*device, write), Status::Ok);
        }
        // Small neighbours are merged, but not beyond what the device takes.
        let merged: Vec<_> = (0..u64::from(DEPTH) / 2)
            .map(|at| call_with(Bio::write(Sector(at * 8), filled(4096, 9), 0, 4096), |bio| device.submit(bio)))
            .collect();
        for one in merged {
            assert_eq!(bed.reactor.run(one).unwrap().status(), Status::Ok);
        }
        for at in 0..u64::from(DEPTH) / 2 {
            let back = Bio::write(Sector(at * 8), whole_part(&whole, at), 0, 4096);
            assert_eq!(bed.status(&*device, back), Status::Ok);
        }
        assert_eq!(kernel_threads(), 0, "at most {max_sectors_kb} KiB a request");
    }

    // The same without limits: the trap is there, and the test would see it.
    disk.limit("max_sectors_kb", "1280");
    let bed = Bed::new();
    let file = std::fs::File::open(&disk.name).unwrap();
    rustix::fs::fcntl_setfl(&file, rustix::fs::OFlags::DIRECT).unwrap();
    let attachment = Attachment {
        name: disk.name.clone(),
        limits: Limits { max_segments: 1024, ..Limits::unlimited() },
        file: Some(Rc::new(file.into())),
        inline: None,
        merging: true,
    };
    let id = bed.reactor.attach(attachment).unwrap();
    // Such a thread goes after five idle seconds, which a machine may stand still.
    let makes_one = || {
        let read = call_with(Bio::read(Sector(0), scattered(LARGE), 0, LARGE), |bio| bed.reactor.submit(id, bio));
        assert_eq!(bed.reactor.run(read).unwrap().status(), Status::Ok);
        kernel_threads() > 0
    };
    assert!((0..3).any(|_| makes_one()));
}

fn whole_part(whole: &[u8], at: u64) -> Rc<Segments> {
    let mut segments = memory(4096);
    let start = usize::try_from(at).unwrap() * 4096;
    Rc::get_mut(&mut segments).unwrap().bytes_mut().copy_from_slice(&whole[start..start + 4096]);
    segments
}
