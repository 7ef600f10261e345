//! Devices with odd limits under random segment layouts: what arrives is what was sent, every request
//! that leaves is one that the device takes, and what none can take is refused with nothing done.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fastrand::Rng;
use forebay_block::bvec::{copy_in, copy_out};
use forebay_block::{
    Bio, BvecIter, Extent, Flags, HeapMemory, Limits, Row, Sector, SectorCount, Segments, Status, Table, Target, call,
};
use forebay_reactor::{Attachment, Backend, DeviceId, Done, Kind, Reactor, Requests, Tag, Uring, Wait};

const DEVICE_BYTES: u64 = 2 << 20;

static FILES: AtomicU32 = AtomicU32::new(0);

/// A ring that lets only requests through that the limits allow.
struct Guard {
    ring: Uring,
    limits: Limits,
}

impl Guard {
    fn judge(&self, requests: &Requests, tag: Tag) {
        let (request, limits) = (requests.get(tag), &self.limits);
        if !matches!(request.kind, Kind::Read | Kind::Write { .. }) {
            return;
        }
        let logical = u64::from(limits.logical_bytes);
        assert!(request.bytes > 0 && request.bytes.is_multiple_of(logical) && request.offset.is_multiple_of(logical));
        assert!(request.bytes <= u64::from(limits.max_sectors) * 512);
        let chunk = u64::from(limits.chunk_sectors) * 512;
        assert!(chunk == 0 || request.offset / chunk == (request.offset + request.bytes - 1) / chunk);
        let pieces: Vec<_> = request.pieces().map(|piece| (piece.base() as usize, piece.bytes() as usize)).collect();
        let most = limits.max_segment_bytes as usize;
        let count = |&(base, bytes): &(usize, usize)| {
            if limits.by_page { (base % 4096 + bytes).div_ceil(4096) } else { bytes.div_ceil(most) }
        };
        assert!(pieces.iter().map(count).sum::<usize>() <= limits.max_segments as usize);
        let off = |address: usize| address & limits.gap_mask as usize != 0;
        assert!(!pieces.windows(2).any(|pair| off(pair[0].0 + pair[0].1) || off(pair[1].0)));
    }
}

impl Backend for Guard {
    fn name(&self) -> &'static str {
        "guard"
    }
    fn now(&self) -> Duration {
        self.ring.now()
    }
    fn attach(&mut self, device: DeviceId, file: Option<BorrowedFd<'_>>) -> io::Result<()> {
        self.ring.attach(device, file)
    }
    fn offer_memory(&mut self, base: usize, bytes: usize) {
        self.ring.offer_memory(base, bytes);
    }
    fn enter(&mut self, requests: &Requests, batch: &[Tag], done: &mut Vec<Done>, wait: Wait) -> io::Result<()> {
        for &tag in batch {
            self.judge(requests, tag);
        }
        self.ring.enter(requests, batch, done, wait)
    }
}

/// The device itself: hands everything to the reactor.
struct Odd {
    reactor: Reactor,
    id: DeviceId,
    limits: Limits,
}

impl Target for Odd {
    fn kind(&self) -> &'static str {
        "odd"
    }
    fn limits(&self) -> Limits {
        self.limits
    }
    fn sectors(&self) -> SectorCount {
        SectorCount(DEVICE_BYTES / 512)
    }
    fn submit(&self, bio: Bio) {
        self.reactor.submit(self.id, bio);
    }
}

struct Bed {
    reactor: Reactor,
    table: Table,
    file: File,
    path: PathBuf,
    limits: Limits,
}

impl Drop for Bed {
    fn drop(&mut self) {
        std::fs::remove_file(&self.path).unwrap();
    }
}

impl Bed {
    fn new(name: &str, limits: Limits) -> Self {
        let number = FILES.fetch_add(1, Ordering::Relaxed);
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("odd-{name}-{}-{number}", std::process::id()));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        file.set_len(DEVICE_BYTES).unwrap();
        let reactor = Reactor::new(Box::new(Guard { ring: Uring::new().unwrap(), limits }));
        let shared = Some(Rc::new(file.try_clone().unwrap().into()));
        let attachment = Attachment { name: name.to_owned(), limits, file: shared, inline: None, merging: true };
        let id = reactor.attach(attachment).unwrap();
        let odd = Rc::new(Odd { reactor: reactor.clone(), id, limits });
        let extent = Extent::new(Sector(0), odd.sectors());
        let table = Table::new(vec![Row { extent, target: odd }]).unwrap();
        Self { reactor, table, file, path, limits }
    }

    fn status(&self, bio: Bio) -> Status {
        self.reactor.run(call(&self.table, bio)).unwrap().status()
    }

    /// Several requests at once, so that there is something to merge.
    fn statuses(&self, bios: Vec<Bio>) -> Vec<Status> {
        let calls: Vec<_> = bios.into_iter().map(|bio| call(&self.table, bio)).collect();
        let all = async {
            let mut statuses = Vec::new();
            for call in calls {
                statuses.push(call.await.status());
            }
            statuses
        };
        self.reactor.run(all).unwrap()
    }

    fn content(&self) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(DEVICE_BYTES).unwrap()];
        self.file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }
}

fn whole(segments: &Segments) -> BvecIter {
    BvecIter::over(Sector(0), segments, 0, segments.bytes())
}

/// Memory of `blocks` logical blocks in segments of whole `unit`s, which start on multiples of the
/// device's alignment and do not adjoin.
fn layout(rng: &mut Rng, limits: &Limits, blocks: u32, most_segments: usize) -> Rc<Segments> {
    let unit = limits.logical_bytes;
    let mut left = blocks;
    let mut lengths = Vec::new();
    while left > 0 {
        let last = lengths.len() + 1 == most_segments;
        let take = if last { left } else { rng.u32(1..=left.min(8)) };
        lengths.push(take * unit);
        left -= take;
    }
    let align = limits.memory_align.max(512) as usize;
    let mut at = 0;
    let ranges: Vec<(usize, u32)> = lengths
        .into_iter()
        .map(|bytes| {
            let start = at + align * rng.usize(0..4);
            at = (start + bytes as usize + 1).next_multiple_of(align);
            (start, bytes)
        })
        .collect();
    Segments::ranges(Box::new(HeapMemory::new(at, 4096)), &ranges).unwrap()
}

fn odd_devices() -> [(&'static str, Limits); 8] {
    let plain = Limits { memory_align: 512, max_segments: 1024, ..Limits::unlimited() };
    [
        ("plain", plain),
        ("sectors-of-4096", Limits { logical_bytes: 4096, physical_bytes: 4096, max_sectors: 16, memory_align: 4, ..plain }),
        ("tiny", Limits { max_sectors: 3, physical_bytes: 4096, ..plain }),
        ("gap", Limits { gap_mask: 4095, memory_align: 4096, max_sectors: 256, ..plain }),
        ("chunks", Limits { chunk_sectors: 24, max_sectors: 100, ..plain }),
        ("few-segments", Limits { max_segments: 3, ..plain }),
        ("short-segments", Limits { max_segments: 7, max_segment_bytes: 1536, ..plain }),
        ("pages", Limits { max_segments: 5, by_page: true, max_sectors: 64, ..plain }),
    ]
}

#[test]
fn whatever_the_layout_and_the_limits_what_is_read_is_what_was_written() {
    for (name, limits) in odd_devices() {
        let bed = Bed::new(name, limits);
        let mut rng = Rng::with_seed(name.len() as u64);
        let mut model = vec![0; usize::try_from(DEVICE_BYTES).unwrap()];
        let blocks = u32::try_from(DEVICE_BYTES).unwrap() / limits.logical_bytes;
        for _ in 0..400 {
            let (mut bios, mut expected) = (Vec::new(), Vec::new());
            let mut at = rng.u32(0..blocks / 2);
            for _ in 0..rng.usize(1..6) {
                let count = rng.u32(1..64).min(blocks - at);
                let segments = layout(&mut rng, &limits, count, 1024);
                let bytes: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(segments.bytes() as usize).collect();
                copy_in(&segments, whole(&segments), &bytes);
                let start = at as usize * limits.logical_bytes as usize;
                model[start..start + bytes.len()].copy_from_slice(&bytes);
                bios.push(Bio::write(Sector(start as u64 / 512), Rc::clone(&segments), 0, segments.bytes()));
                expected.push((start, bytes.len()));
                at += count;
                if at == blocks {
                    break;
                }
            }
            rng.shuffle(&mut bios);
            assert!(bed.statuses(bios).into_iter().all(Status::is_ok), "{name}");
            let mut reads = Vec::new();
            for &(start, bytes) in &expected {
                let count = u32::try_from(bytes).unwrap() / limits.logical_bytes;
                let segments = layout(&mut rng, &limits, count, 1024);
                reads.push((Bio::read(Sector(start as u64 / 512), Rc::clone(&segments), 0, segments.bytes()), segments));
            }
            let (bios, arrays): (Vec<_>, Vec<_>) = reads.into_iter().unzip();
            assert!(bed.statuses(bios).into_iter().all(Status::is_ok), "{name}");
            for ((start, bytes), segments) in expected.into_iter().zip(arrays) {
                let mut found = vec![0; bytes];
                copy_out(&segments, whole(&segments), &mut found);
                assert!(found == model[start..start + bytes], "{name}: {:?}", segments.vecs().len());
            }
        }
        assert!(bed.content() == model, "{name}");
    }
}

#[test]
fn a_thousand_segments_and_more_go_through_every_device() {
    for (name, limits) in odd_devices() {
        let bed = Bed::new(name, limits);
        // Eight segments make a block of 4096.
        let each = 512;
        let step = (each as usize + limits.memory_align as usize).next_multiple_of(limits.memory_align as usize);
        for count in [1016_u32, 1024, 1032] {
            let ranges: Vec<(usize, u32)> = (0..count as usize).rev().map(|at| (at * step, each)).collect();
            let segments = Segments::ranges(Box::new(HeapMemory::new(count as usize * step, 4096)), &ranges).unwrap();
            let bytes: Vec<u8> = (0..segments.bytes()).map(|at| u8::try_from(at / 512 % 251).unwrap()).collect();
            copy_in(&segments, whole(&segments), &bytes);
            assert_eq!(
                bed.status(Bio::write(Sector(0), Rc::clone(&segments), 0, segments.bytes())),
                Status::Ok,
                "{name} {count}"
            );
            assert!(bed.content()[..bytes.len()] == bytes, "{name} {count}");
        }
    }
}

#[test]
fn what_no_request_can_carry_is_refused_and_nothing_is_written() {
    for (name, limits) in odd_devices() {
        let bed = Bed::new(name, limits);
        let align = limits.memory_align as usize;
        let memory = |ranges: &[(usize, u32)]| {
            let mut segments = Segments::ranges(Box::new(HeapMemory::new(1 << 20, 4096)), ranges).unwrap();
            Rc::get_mut(&mut segments).unwrap().bytes_mut().fill(9);
            segments
        };
        let block = limits.logical_bytes;
        let largest = u32::try_from(u64::from(limits.max_sectors).min(1024) * 512).unwrap();
        let end = DEVICE_BYTES / 512;
        let bytes_of = |segments: &Rc<Segments>| segments.bytes();
        let refused: Vec<(&str, u64, Rc<Segments>)> = vec![
            ("memory off by one", 0, memory(&[(1, block)])),
            ("the second segment off by half", 0, memory(&[(0, block), (8192 + align / 2, block)])),
            ("a byte more than the largest request", 0, memory(&[(0, largest + 1)])),
            ("a byte less than a block", 0, memory(&[(0, block - 1)])),
            ("half a block behind the end", end - u64::from(block / 512), memory(&[(0, block + 512)])),
            ("far outside", u64::MAX >> 9, memory(&[(0, block)])),
        ];
        for (what, sector, segments) in refused {
            let bytes = bytes_of(&segments);
            assert_eq!(bed.status(Bio::write(Sector(sector), Rc::clone(&segments), 0, bytes)), Status::IoError, "{name}: {what}");
            assert_eq!(bed.status(Bio::read(Sector(sector), segments, 0, bytes)), Status::IoError, "{name}: {what}");
        }
        // A request that may not wait is not cut.
        let no_wait = Flags { no_wait: true, ..Flags::default() };
        let scattered =
            memory(&[(0, block), (16_384, block), (32_768, block), (65_536, block), (131_072, block), (196_608, block)]);
        let cut = limits.max_segments < 6 || u64::from(limits.max_sectors) * 512 < u64::from(scattered.bytes());
        let bio = Bio::write(Sector(0), Rc::clone(&scattered), 0, scattered.bytes()).with(no_wait);
        if cut || (limits.gap_mask > 0 && block < 4096) {
            assert_eq!(bed.status(bio), Status::Again, "{name}");
        }
        assert!(bed.content().iter().all(|&byte| byte == 0), "{name}: nothing was written");
        assert_eq!(bed.status(Bio::write(Sector(0), memory(&[(0, block)]), 0, block)), Status::Ok);
    }
}

/// Segments that together are whole blocks, none of which a request of one segment can carry.
#[test]
fn a_block_in_more_segments_than_a_request_has_is_refused() {
    let limits = Limits { logical_bytes: 4096, physical_bytes: 4096, max_segments: 4, ..Limits::unlimited() };
    let bed = Bed::new("block-of-segments", limits);
    let ranges: Vec<(usize, u32)> = (0..16).map(|at| (at * 1024, 512)).collect();
    let segments = Segments::ranges(Box::new(HeapMemory::new(16_384, 4096)), &ranges).unwrap();
    assert_eq!(bed.status(Bio::write(Sector(0), Rc::clone(&segments), 0, 8192)), Status::IoError);
    let wide = Limits { max_segments: 8, ..limits };
    let bed = Bed::new("block-of-eight", wide);
    assert_eq!(bed.status(Bio::write(Sector(0), segments, 0, 8192)), Status::Ok);
    assert_eq!(bed.limits.max_segments, 8);
}
