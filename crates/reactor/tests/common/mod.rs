//! What every backend must do, whatever it is built on.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot go on ends, and plays the other side on a thread"
)]

use std::cell::{Cell, RefCell};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{Bio, Extent, Flags, HeapMemory, Limits, Sector, SectorCount, Segments, Status, call_with};
use forebay_reactor::mailbox::Mailbox;
use forebay_reactor::{Attachment, Backend, BufferPool, DeviceId, Part, Reactor};

/// Size of the test file, bytes.
const FILE_BYTES: u64 = 8 << 20;

type Behaviour = fn(&Bed);

/// Runs every behaviour, each on a fresh backend and file.
pub fn behaves(make: &dyn Fn() -> Box<dyn Backend>) {
    let behaviours: [(&str, Behaviour); 14] = [
        ("data comes back", data_comes_back),
        ("segments are kept in order", segments_keep_their_order),
        ("merged requests reach their places", merged_requests_reach_their_places),
        ("flush and fua succeed", flush_and_fua_succeed),
        ("discards and zeroes read as zeroes", discards_and_zeroes_read_as_zeroes),
        ("reads behind the end fail", reads_behind_the_end_fail),
        ("writes to a descriptor for reading fail", writes_to_a_descriptor_for_reading_fail),
        ("more requests than any ring holds", more_requests_than_any_ring_holds),
        ("streams carry bytes both ways", streams_carry_bytes_both_ways),
        ("a closed stream ends", a_closed_stream_ends),
        ("timers fire in time", timers_fire_in_time),
        ("mail rouses a sleeping reactor", mail_rouses_a_sleeping_reactor),
        ("registered and plain memory give the same bytes", registered_and_plain_memory_agree),
        ("dropping with steps in flight does not hang", dropping_with_steps_in_flight),
    ];
    for (name, behaviour) in behaviours {
        println!("  {name}");
        behaviour(&Bed::new(make()));
    }
}

/// A reactor with one device on a file of its own.
pub struct Bed {
    reactor: Reactor,
    device: DeviceId,
    file: File,
    path: PathBuf,
    kept: RefCell<Vec<UnixStream>>,
}

impl Drop for Bed {
    fn drop(&mut self) {
        std::fs::remove_file(&self.path).unwrap();
    }
}

thread_local! {
    static FILES: Cell<u32> = const { Cell::new(0) };
}

fn path() -> PathBuf {
    let number = FILES.get();
    FILES.set(number + 1);
    let thread = format!("{:?}", std::thread::current().id()).replace(['(', ')'], "");
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("backend-{}-{thread}-{number}", std::process::id()))
}

impl Bed {
    fn new(backend: Box<dyn Backend>) -> Self {
        let path = path();
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        file.set_len(FILE_BYTES).unwrap();
        let direct = OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
        let reactor = Reactor::new(backend);
        let device = attach(&reactor, direct.into());
        Self { reactor, device, file, path, kept: RefCell::default() }
    }

    fn bio(&self, bio: Bio) -> Bio {
        self.reactor.run(call_with(bio, |bio| self.reactor.submit(self.device, bio))).unwrap()
    }

    fn contents(&self, offset: u64, bytes: usize) -> Vec<u8> {
        let mut found = vec![0; bytes];
        self.file.read_exact_at(&mut found, offset).unwrap();
        found
    }
}

fn attach(reactor: &Reactor, file: OwnedFd) -> DeviceId {
    let limits = Limits { memory_align: 512, max_sectors: 2048, max_segments: 1024, ..Limits::unlimited() };
    let file = Some(Rc::new(file));
    reactor.attach(Attachment { name: "file".into(), limits, file, inline: None, merging: true }).unwrap()
}

fn memory(bytes: u32) -> Rc<Segments> {
    Segments::whole(Box::new(HeapMemory::new(bytes as usize, 4096)), bytes).unwrap()
}

fn filled(bytes: u32, seed: u8) -> Rc<Segments> {
    let mut segments = memory(bytes);
    Rc::get_mut(&mut segments).unwrap().bytes_mut().copy_from_slice(&pattern(bytes as usize, seed));
    segments
}

fn low<N: TryInto<u64>>(number: N) -> u8 {
    number.try_into().map_or(0, |number| number.to_le_bytes()[0])
}

fn pattern(bytes: usize, seed: u8) -> Vec<u8> {
    (0..bytes).map(|at| low(at / 512 * 7 + at % 251) ^ seed).collect()
}

fn bytes_of(segments: Rc<Segments>) -> Vec<u8> {
    Rc::into_inner(segments).expect("no bio holds the memory any more").bytes_mut().to_vec()
}

fn data_comes_back(bed: &Bed) {
    for (sector, bytes) in [(0, 512), (8, 4096), (64, 65_536), (512, 1 << 20)] {
        let written = bed.bio(Bio::write(Sector(sector), filled(bytes, 3), 0, bytes));
        assert_eq!(written.status(), Status::Ok);
        drop(written);
        assert_eq!(bed.contents(sector * 512, bytes as usize), pattern(bytes as usize, 3));
        let segments = memory(bytes);
        let read = bed.bio(Bio::read(Sector(sector), Rc::clone(&segments), 0, bytes));
        assert_eq!(read.status(), Status::Ok);
        drop(read);
        assert_eq!(bytes_of(segments), pattern(bytes as usize, 3));
    }
}

fn segments_keep_their_order(bed: &Bed) {
    let memory = HeapMemory::new(16_384, 4096);
    let ranges = [(8192, 4096), (0, 512), (12_288, 1024)];
    let mut segments = Segments::ranges(Box::new(memory), &ranges).unwrap();
    Rc::get_mut(&mut segments).unwrap().bytes_mut().copy_from_slice(&pattern(16_384, 9));
    let bio = bed.bio(Bio::write(Sector(16), Rc::clone(&segments), 0, 5632));
    assert_eq!(bio.status(), Status::Ok);
    drop(bio);
    let whole = pattern(16_384, 9);
    let expected = [&whole[8192..12_288], &whole[..512], &whole[12_288..13_312]].concat();
    assert_eq!(bed.contents(8192, 5632), expected);
    Rc::get_mut(&mut segments).unwrap().bytes_mut().fill(0);
    drop(bed.bio(Bio::read(Sector(16), Rc::clone(&segments), 0, 5632)));
    let found = bytes_of(segments);
    assert_eq!([&found[8192..12_288], &found[..512], &found[12_288..13_312]].concat(), expected);
    assert!(found[512..8192].iter().all(|&byte| byte == 0), "memory between the segments is not touched");
}

fn merged_requests_reach_their_places(bed: &Bed) {
    let before = bed.reactor.device_counts(bed.device);
    let waiting: Vec<_> = [5u64, 2, 7, 1, 4, 3, 6, 0]
        .into_iter()
        .map(|at| {
            let bio = Bio::write(Sector(at * 8), filled(4096, low(at)), 0, 4096);
            call_with(bio, |bio| bed.reactor.submit(bed.device, bio))
        })
        .collect();
    let statuses = bed.reactor.run(async {
        let mut statuses = Vec::new();
        for one in waiting {
            statuses.push(one.await.status());
        }
        statuses
    });
    assert_eq!(statuses.unwrap(), [Status::Ok; 8]);
    let expected: Vec<u8> = (0..8).flat_map(|at| pattern(4096, at)).collect();
    assert_eq!(bed.contents(0, 32_768), expected);
    let counts = bed.reactor.device_counts(bed.device);
    assert_eq!((counts.bios - before.bios, counts.requests - before.requests), (8, 1));
}

fn flush_and_fua_succeed(bed: &Bed) {
    let fua = Flags { fua: true, ..Flags::default() };
    assert_eq!(bed.bio(Bio::write(Sector(0), filled(4096, 1), 0, 4096).with(fua)).status(), Status::Ok);
    assert_eq!(bed.bio(Bio::flush()).status(), Status::Ok);
    assert_eq!(bed.contents(0, 4096), pattern(4096, 1));
}

fn discards_and_zeroes_read_as_zeroes(bed: &Bed) {
    drop(bed.bio(Bio::write(Sector(0), filled(65_536, 1), 0, 65_536)));
    let extent = |start, count| Extent::new(Sector(start), SectorCount(count));
    assert_eq!(bed.bio(Bio::discard(extent(0, 8))).status(), Status::Ok);
    assert_eq!(bed.bio(Bio::write_zeroes(extent(16, 8))).status(), Status::Ok);
    let no_unmap = Flags { no_unmap: true, ..Flags::default() };
    let zeroed = bed.bio(Bio::write_zeroes(extent(33, 1)).with(no_unmap)).status();
    assert!(matches!(zeroed, Status::Ok | Status::Unsupported), "{zeroed:?}");
    let mut expected = pattern(65_536, 1);
    expected[..4096].fill(0);
    expected[8192..12_288].fill(0);
    if zeroed == Status::Ok {
        expected[33 * 512..34 * 512].fill(0);
    }
    assert_eq!(bed.contents(0, 65_536), expected);
    assert_eq!(bed.file.metadata().unwrap().len(), FILE_BYTES, "the size stays");
}

fn reads_behind_the_end_fail(bed: &Bed) {
    bed.file.set_len(8192).unwrap();
    let segments = memory(8192);
    let across = bed.bio(Bio::read(Sector(8), Rc::clone(&segments), 0, 8192));
    assert_eq!(across.status(), Status::IoError, "half of it is there, half is not");
    assert_eq!(bed.bio(Bio::read(Sector(64), segments, 0, 4096)).status(), Status::IoError);
    assert_eq!(bed.reactor.device_counts(bed.device).errors, 2);
}

fn writes_to_a_descriptor_for_reading_fail(bed: &Bed) {
    let device = attach(&bed.reactor, File::open(&bed.path).unwrap().into());
    let bio = Bio::write(Sector(0), filled(4096, 1), 0, 4096);
    let bio = bed.reactor.run(call_with(bio, |bio| bed.reactor.submit(device, bio))).unwrap();
    assert_eq!(bio.status(), Status::ReadOnly);
    drop(bio);
    assert_eq!(bed.contents(0, 4096), vec![0; 4096]);
}

fn more_requests_than_any_ring_holds(bed: &Bed) {
    // Every second block, so that nothing merges; more than the completion ring holds as well.
    const COUNT: u64 = 6000;
    let waiting: Vec<_> = (0..COUNT)
        .map(|at| {
            let bio = Bio::write(Sector(at * 2), filled(512, low(at)), 0, 512);
            call_with(bio, |bio| bed.reactor.submit(bed.device, bio))
        })
        .collect();
    for one in waiting {
        assert_eq!(bed.reactor.run(one).unwrap().status(), Status::Ok);
    }
    for at in 0..COUNT {
        assert_eq!(bed.contents(at * 1024, 512), pattern(512, low(at)), "request {at}");
    }
}

fn stream_pair() -> (Rc<OwnedFd>, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    (Rc::new(ours.into()), theirs)
}

fn part(segments: &Rc<Segments>, skip: u32, bytes: u32) -> Part {
    Part { segments: Rc::clone(segments), skip, bytes }
}

fn streams_carry_bytes_both_ways(bed: &Bed) {
    let (ours, mut theirs) = stream_pair();
    for parts in [vec![(0, 1000)], vec![(0, 3), (100, 50), (8, 900)]] {
        let total: usize = parts.iter().map(|&(_, bytes)| bytes as usize).sum();
        let sent = filled(4096, 5);
        let list = parts.iter().map(|&(skip, bytes)| part(&sent, skip, bytes)).collect();
        let (result, list) = bed.reactor.run(bed.reactor.send(&ours, list)).unwrap();
        assert_eq!((result.unwrap(), list.len()), (total, parts.len()));
        let mut found = vec![0; total];
        theirs.read_exact(&mut found).unwrap();
        let whole = pattern(4096, 5);
        let expected: Vec<u8> = parts.iter().flat_map(|&(skip, n)| whole[skip as usize..][..n as usize].to_vec()).collect();
        assert_eq!(found, expected);

        theirs.write_all(&expected).unwrap();
        let received = memory(4096);
        let list = parts.iter().map(|&(skip, bytes)| part(&received, skip, bytes)).collect();
        let (result, list) = bed.reactor.run(bed.reactor.receive(&ours, list)).unwrap();
        assert_eq!(result.unwrap(), total);
        drop(list);
        let found = bytes_of(received);
        let found: Vec<u8> = parts.iter().flat_map(|&(skip, n)| found[skip as usize..][..n as usize].to_vec()).collect();
        assert_eq!(found, expected);
    }
    // A receive that has to wait, and a send that is larger than the socket takes at once.
    let received = memory(4096);
    let waiting = bed.reactor.receive(&ours, vec![part(&received, 0, 4096)]);
    bed.reactor.turn(false).unwrap();
    theirs.write_all(b"late").unwrap();
    assert_eq!(bed.reactor.run(waiting).unwrap().0.unwrap(), 4);
    let large = filled(4 << 20, 6);
    let reader = std::thread::spawn(move || {
        let mut found = vec![0; 4 << 20];
        theirs.read_exact(&mut found).unwrap();
        found
    });
    let mut sent = 0;
    while sent < 4 << 20 {
        let list = vec![part(&large, sent, (4 << 20) - sent)];
        sent += u32::try_from(bed.reactor.run(bed.reactor.send(&ours, list)).unwrap().0.unwrap()).unwrap();
    }
    assert!(reader.join().unwrap() == pattern(4 << 20, 6), "all bytes arrived in order");
}

fn a_closed_stream_ends(bed: &Bed) {
    let (ours, theirs) = stream_pair();
    drop(theirs);
    let segments = memory(512);
    let (received, _) = bed.reactor.run(bed.reactor.receive(&ours, vec![part(&segments, 0, 512)])).unwrap();
    assert_eq!(received.unwrap(), 0);
    let (sent, _) = bed.reactor.run(bed.reactor.send(&ours, vec![part(&segments, 0, 512)])).unwrap();
    assert_eq!(sent.unwrap_err().raw_os_error(), Some(libc::EPIPE), "and no signal ends the process");
}

fn timers_fire_in_time(bed: &Bed) {
    let three_times = || {
        let start = bed.reactor.now();
        for _ in 0..3 {
            bed.reactor.run(bed.reactor.sleep(Duration::from_millis(20))).unwrap();
        }
        bed.reactor.now().saturating_sub(start)
    };
    let took = [three_times(), three_times(), three_times()];
    assert!(took.iter().all(|took| *took >= Duration::from_millis(60)), "{took:?}");
    // One of them on a machine that does not stand still.
    assert!(took.iter().any(|took| *took < Duration::from_secs(2)), "{took:?}");
    // A timer that comes too late does not keep I/O from being noticed.
    let (ours, mut theirs) = stream_pair();
    let late = bed.reactor.sleep(Duration::from_mins(1));
    assert!(bed.reactor.spawn(late));
    let writer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        theirs.write_all(b"x").unwrap();
    });
    let (ready, _) = bed.reactor.run(bed.reactor.readable(&ours)).unwrap();
    assert!(ready.unwrap() > 0);
    writer.join().unwrap();
}

fn mail_rouses_a_sleeping_reactor(bed: &Bed) {
    let (post, mut mailbox) = Mailbox::new(&bed.reactor, 4).unwrap();
    let sender = std::thread::spawn(move || {
        for number in 0..100u32 {
            if number % 10 == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            while post.post(number).is_err() {
                std::thread::yield_now();
            }
        }
        // The receiver sleeps when the last sender goes, and must hear of it.
        std::thread::sleep(Duration::from_millis(10));
    });
    let received = bed.reactor.run(async {
        let mut received = Vec::new();
        while let Some(number) = mailbox.receive().await {
            received.push(number);
        }
        received
    });
    assert_eq!(received.unwrap(), (0..100).collect::<Vec<_>>());
    sender.join().unwrap();
}

fn registered_and_plain_memory_agree(bed: &Bed) {
    let pool = BufferPool::new(&bed.reactor);
    for (at, bytes) in [(0u64, 4096u32), (1, 65_536), (2, 524_288)] {
        let sector = Sector(at * 2048);
        let mut pooled = pool.take(bytes as usize);
        pooled.bytes_mut()[..bytes as usize].copy_from_slice(&pattern(bytes as usize, 11));
        assert_eq!(bed.bio(Bio::write(sector, Rc::clone(pooled.segments()), 0, bytes)).status(), Status::Ok);
        let plain = memory(bytes);
        drop(bed.bio(Bio::read(sector, Rc::clone(&plain), 0, bytes)));
        assert_eq!(bytes_of(plain), pattern(bytes as usize, 11));
        assert_eq!(bed.bio(Bio::write(sector, filled(bytes, 12), 0, bytes)).status(), Status::Ok);
        drop(bed.bio(Bio::read(sector, Rc::clone(pooled.segments()), 0, bytes)));
        assert_eq!(&pooled.bytes_mut()[..bytes as usize], pattern(bytes as usize, 12));
    }
    // Several segments of one region, and of a region and plain memory, merged into one request.
    let mut buffers = [pool.take(4096), pool.take(4096)];
    for (buffer, seed) in buffers.iter_mut().zip([21, 22]) {
        buffer.bytes_mut().copy_from_slice(&pattern(4096, seed));
    }
    let all = [Rc::clone(buffers[1].segments()), Rc::clone(buffers[0].segments()), filled(4096, 23)];
    let waiting: Vec<_> = all
        .into_iter()
        .zip([0u64, 8, 16])
        .map(|(segments, sector)| {
            call_with(Bio::write(Sector(sector), segments, 0, 4096), |bio| bed.reactor.submit(bed.device, bio))
        })
        .collect();
    for one in waiting {
        assert_eq!(bed.reactor.run(one).unwrap().status(), Status::Ok);
    }
    assert_eq!(bed.contents(0, 12_288), [pattern(4096, 22), pattern(4096, 21), pattern(4096, 23)].concat());
}

fn dropping_with_steps_in_flight(bed: &Bed) {
    let (ours, theirs) = stream_pair();
    let segments = memory(4096);
    let steps =
        [bed.reactor.receive(&ours, vec![part(&segments, 0, 512), part(&segments, 1024, 512)]), bed.reactor.readable(&ours)];
    for at in 0..64 {
        bed.reactor.submit(bed.device, Bio::write(Sector(at * 16), filled(4096, 1), 0, 4096));
    }
    bed.reactor.turn(false).unwrap();
    drop((steps, ours));
    // Right after this the bed drops the reactor, and after it the other end of the stream.
    bed.kept.borrow_mut().push(theirs);
}
