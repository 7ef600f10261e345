//! What a warm request to a file costs: no byte is copied, no segment, nothing is allocated, and the
//! system gets the very memory that the caller gave.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use allocation_counter::measure;
use forebay::block::bvec::{Copied, copied};
use forebay::block::{Sector, Target};
use forebay::{BufferPool, Direct, Disk, DiskOptions, FileOptions, Payload, Reactor, Stack};
use forebay_reactor::uring::Features;
use forebay_reactor::{Backend, DeviceId, Done, Requests, Tag, Threads, Uring, Wait};

const BYTES: u64 = 16 << 20;

struct Image(PathBuf);

impl Image {
    fn new(name: &str) -> Self {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        std::fs::write(&path, vec![1; usize::try_from(BYTES).unwrap()]).unwrap();
        Self(path)
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).unwrap();
    }
}

/// The memory that requests named to the system, by address, and how many requests there were.
#[derive(Default)]
struct Seen {
    memory: RefCell<BTreeMap<usize, usize>>,
    requests: Cell<u64>,
    listening: Cell<bool>,
}

/// A backend that notes which memory it is given.
struct Spy {
    inner: Box<dyn Backend>,
    seen: Rc<Seen>,
}

impl Backend for Spy {
    fn name(&self) -> &'static str {
        self.inner.name()
    }
    fn now(&self) -> Duration {
        self.inner.now()
    }
    fn attach(&mut self, device: DeviceId, file: Option<BorrowedFd<'_>>) -> io::Result<()> {
        self.inner.attach(device, file)
    }
    fn offer_memory(&mut self, base: usize, bytes: usize) {
        self.inner.offer_memory(base, bytes);
    }
    fn enter(&mut self, requests: &Requests, batch: &[Tag], done: &mut Vec<Done>, wait: Wait) -> io::Result<()> {
        if self.seen.listening.get() {
            self.seen.requests.set(self.seen.requests.get() + batch.len() as u64);
            for &tag in batch {
                let pieces = requests.get(tag).pieces().map(|piece| (piece.base() as usize, piece.bytes() as usize));
                self.seen.memory.borrow_mut().extend(pieces);
            }
        }
        self.inner.enter(requests, batch, done, wait)
    }
}

fn since(before: Copied) -> (u64, u64) {
    (copied().bytes - before.bytes, copied().segments - before.segments)
}

/// Segments of 4 KiB of a payload, by address; adjoining ones stay apart.
fn memory_of(payload: &mut Payload) -> BTreeMap<usize, usize> {
    (0..payload.segments())
        .map(|index| {
            let segment = payload.segment_mut(index).unwrap();
            (segment.as_ptr() as usize, segment.len())
        })
        .collect()
}

#[test]
fn requests_to_files_copy_nothing_and_name_the_callers_own_memory() {
    let backends: [fn() -> Box<dyn Backend>; 3] = [
        || Box::new(Uring::new().unwrap()),
        || Box::new(Uring::with_features(Features::ALL.without(Features::BUFFERS)).unwrap()),
        || Box::new(Threads::new().unwrap()),
    ];
    let image = Image::new("named");
    // One row that moves, one that splits at chunks of 64 KiB over two places of the file.
    let path = image.0.display();
    let text = format!("0 8192 linear {path} 8192; 8192 8192 striped 2 128 {path} 0 {path} 4096");
    for make in backends {
        let seen = Rc::<Seen>::default();
        let reactor = Reactor::new(Box::new(Spy { inner: make(), seen: Rc::clone(&seen) }));
        let pool = BufferPool::new(&reactor);
        reactor
            .run(async {
                let stack = Stack::open(&reactor, &pool, "disk", &text).await.unwrap();
                assert!(stack.table().limits().memory_align > 1, "the folder of the build takes direct I/O");
                for sector in [16, 8192 + 16, 8192 - 64] {
                    let mut payload = Payload::of(&pool, &[4096; 256]).unwrap();
                    let given = memory_of(&mut payload);
                    for writing in [true, false] {
                        seen.memory.take();
                        seen.listening.set(true);
                        let before = copied();
                        let transfer =
                            if writing { stack.write(Sector(sector), payload) } else { stack.read(Sector(sector), payload) };
                        let (result, back) = transfer.await;
                        result.unwrap();
                        assert_eq!(since(before), (0, 0));
                        seen.listening.set(false);
                        assert_eq!(*seen.memory.borrow(), given, "sector {sector}");
                        payload = back;
                    }
                }
                assert!(seen.requests.get() > 6, "some were split");
            })
            .unwrap();
        reactor.clear();
    }
}

#[test]
fn warm_requests_allocate_nothing_awaited_or_blocking() {
    let image = Image::new("warm");
    let text = format!("0 32768 linear {} 0", image.0.display());
    let disk = Disk::open(&text).unwrap();
    let (stack, reactor) = (disk.stack(), disk.reactor());
    let mut payloads: Vec<Option<Payload>> = (0..32).map(|_| Payload::of(disk.pool(), &[4096; 8]).ok()).collect();
    let mut flying = Vec::with_capacity(payloads.len());
    let mut rounds = |count: u64| {
        for round in 0..count {
            let all = async {
                for (index, payload) in payloads.iter_mut().enumerate() {
                    // None adjoin: which request carries merged ones, and needs room for them, is up to the disk.
                    let at = Sector((round * 7 + index as u64 * 13) % 250 * 128);
                    let payload = payload.take().unwrap();
                    flying.push(if index % 2 == 0 { stack.read(at, payload) } else { stack.write(at, payload) });
                }
                for (transfer, place) in flying.drain(..).zip(&mut payloads) {
                    let (result, payload) = transfer.await;
                    result.unwrap();
                    *place = Some(payload);
                }
                stack.flush().await.unwrap();
            };
            reactor.run(all).unwrap();
        }
    };
    rounds(50);
    let before = copied();
    // Lists grow once more when a turn is fuller than any before; when that is, is up to the scheduler.
    let made: Vec<u64> = (0..4).map(|_| measure(|| rounds(100)).count_total).collect();
    assert!(made.contains(&0), "{made:?}");
    assert_eq!(since(before), (0, 0));

    let mut payload = Payload::of(disk.pool(), &[4096; 8]).unwrap();
    let mut blocking = |count: u64| {
        for round in 0..count {
            disk.write_payload(Sector(round * 64), &mut payload).unwrap();
            disk.read_payload(Sector(round * 64), &mut payload).unwrap();
        }
    };
    blocking(10);
    let made: Vec<u64> = (0..4).map(|_| measure(|| blocking(100)).count_total).collect();
    assert!(made.contains(&0), "{made:?}");
    assert_eq!(since(before), (0, 0));
    disk.close().unwrap();

    // Lent slices need segments of their own, as many as there are slices; nothing else.
    let buffered = DiskOptions { files: FileOptions { direct: Direct::Off, ..FileOptions::default() }, ..DiskOptions::default() };
    let disk = Disk::open_with(&text, &buffered).unwrap();
    let mut memory = vec![0; 16_384];
    let mut lending = |count: u64| {
        for round in 0..count {
            let (head, tail) = memory.split_at_mut(1000);
            disk.write(Sector(round * 64), &[IoSlice::new(head), IoSlice::new(tail)]).unwrap();
            disk.read(Sector(round * 64), &mut [IoSliceMut::new(tail), IoSliceMut::new(head)]).unwrap();
        }
    };
    lending(10);
    let before = copied();
    let made: Vec<u64> = (0..4).map(|_| measure(|| lending(100)).count_total).collect();
    assert!(made.contains(&0), "{made:?}");
    assert_eq!(since(before), (0, 1600));
    disk.close().unwrap();
}
