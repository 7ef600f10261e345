//! Requests through the library, awaited and blocking, on memory and on files with direct I/O.
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test that cannot go on ends, and forgets on purpose")]

use std::io::{self, IoSlice, IoSliceMut};
use std::path::PathBuf;
use std::time::Duration;

use forebay::block::bvec::SegmentsError;
use forebay::block::{Extent, Flags, Op, Sector, SectorCount, Status};
use forebay::{BufferPool, Disk, DiskOptions, Engine, FileOptions, Payload, Reactor, RequestError, Stack, engine};

fn extent(start: u64, count: u64) -> Extent {
    Extent::new(Sector(start), SectorCount(count))
}

fn pattern(bytes: usize, seed: u8) -> Vec<u8> {
    (0..bytes).map(|at| u8::try_from((at / 512 * 7 + at % 251) & 255).unwrap() ^ seed).collect()
}

/// A file of 8 MiB that is removed at the end.
struct Image(PathBuf);

impl Image {
    fn new(name: &str) -> Self {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        std::fs::File::create(&path).unwrap().set_len(8 << 20).unwrap();
        Self(path)
    }

    fn table(&self) -> String {
        format!("0 16384 linear {} 0", self.0.display())
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).unwrap();
    }
}

/// Runs `work` on a stack of a reactor of its own.
fn run(choice: Engine, table: &str, work: impl AsyncFnOnce(&Reactor, &BufferPool, &Stack)) {
    let reactor = Reactor::new(engine(choice).unwrap());
    let pool = BufferPool::new(&reactor);
    reactor
        .run(async {
            let stack = Stack::open(&reactor, &pool, "disk", table).await.unwrap();
            work(&reactor, &pool, &stack).await;
        })
        .unwrap();
    reactor.clear();
}

#[test]
fn awaited_requests_give_their_payload_back_with_the_result() {
    let image = Image::new("awaited");
    for (choice, table) in [
        (Engine::Uring, image.table()),
        (Engine::Threads, image.table()),
        (Engine::Uring, "0 8192 linear ram:8M 0; 8192 8192 linear ram:8M 8192".to_owned()),
    ] {
        run(choice, &table, async |_, pool, stack| {
            let lengths = [512, 4096, 1024, 65_536, 512];
            let content = pattern(71_680, 5);
            let mut payload = Payload::of(pool, &lengths).unwrap();
            assert_eq!(payload.copy_from(&content), content.len());
            let place = payload.segment_mut(3).unwrap().as_ptr();
            // Over the border of the two rows of the third table.
            let (written, mut payload) = stack.write(Sector(8100), payload).await;
            written.unwrap();
            assert_eq!(payload.segment_mut(3).unwrap().as_ptr(), place);
            payload.fill(0);
            stack.flush().await.unwrap();
            let (read, payload) = stack.read(Sector(8100), payload).await;
            read.unwrap();
            assert_eq!(payload.to_vec(), content);
            stack.write_zeroes(extent(8104, 8)).await.unwrap();
            let (read, mut payload) = stack.read(Sector(8100), payload).await;
            read.unwrap();
            let found = payload.to_vec();
            assert_eq!(
                (&found[..2048], &found[2048..6144], &found[6144..]),
                (&content[..2048], &[0; 4096][..], &content[6144..])
            );
            payload.fill(3);
            let durable = Flags { fua: true, ..Flags::default() };
            stack.write_with(Sector(0), payload, durable).await.0.unwrap();
            stack.discard(extent(0, 8)).await.unwrap();
            stack.close().await.unwrap();
        });
    }
}

#[test]
fn blocking_requests_work_on_the_callers_own_memory() {
    let image = Image::new("blocking");
    let buffered = FileOptions { direct: forebay::Direct::Off, ..FileOptions::default() };
    for (table, engine, files) in [
        ("0 16384 linear ram:8M 0".to_owned(), Engine::Auto, FileOptions::default()),
        (image.table(), Engine::Uring, buffered.clone()),
        (image.table(), Engine::Threads, buffered),
    ] {
        let disk = Disk::open_with(&table, &DiskOptions { engine, files }).unwrap();
        assert_eq!((disk.sectors(), disk.limits().memory_align), (SectorCount(16_384), 1));
        let content = pattern(8192, 9);
        let slices = [&content[..100], &[], &content[100..1000], &content[1000..]].map(IoSlice::new);
        disk.write(Sector(40), &slices).unwrap();
        disk.flush().unwrap();
        let (mut one, mut two) = (vec![0; 4097], vec![0; 4095]);
        disk.read(Sector(40), &mut [IoSliceMut::new(&mut one), IoSliceMut::new(&mut two)]).unwrap();
        assert_eq!([one, two].concat(), content);
        disk.write_zeroes(extent(40, 4)).unwrap();
        disk.discard(extent(48, 8)).unwrap();
        let mut found = vec![1; 4096];
        disk.read(Sector(40), &mut [IoSliceMut::new(&mut found)]).unwrap();
        assert_eq!(found, [vec![0; 2048], content[2048..4096].to_vec()].concat());
        let mut payload = Payload::of(disk.pool(), &[512, 1024]).unwrap();
        payload.copy_from(&content[..1536]);
        disk.write_payload(Sector(80), &mut payload).unwrap();
        payload.fill(0);
        disk.read_payload(Sector(80), &mut payload).unwrap();
        assert_eq!(payload.to_vec(), content[..1536]);
        disk.close().unwrap();
    }
}

fn refused(result: Result<(), RequestError>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn what_no_device_can_take_is_refused_with_a_reason_and_the_payload() {
    let image = Image::new("refused");
    let disk = Disk::open(&image.table()).unwrap();
    let limits = disk.limits();
    assert!(limits.memory_align > 1, "the folder of the build takes direct I/O");
    let mut memory = vec![0; 8192 + 4096];
    let skip = memory.as_ptr().align_offset(4096);
    let mut read = |at, from: usize, bytes| disk.read(Sector(at), &mut [IoSliceMut::new(&mut memory[skip + from..][..bytes])]);
    read(0, 0, 4096).unwrap();
    let memory_align = format!("the memory of the request is not a multiple of {} bytes: make it one", limits.memory_align);
    assert_eq!(refused(read(0, 1, 4096)), memory_align);
    assert_eq!(refused(read(0, 0, 4095)), "the length of the request is not a multiple of 512 bytes: make it one");
    let outside = "sectors 16383+2 are not all inside the 16384 sectors: ask for fewer, or for others";
    assert_eq!(refused(read(16_383, 0, 1024)), outside);
    assert!(matches!(read(u64::MAX, 0, 512), Err(RequestError::Outside { .. })));
    assert!(matches!(read(0, 0, 0), Err(RequestError::Payload(SegmentsError::Empty))));
    assert!(matches!(disk.discard(extent(0, 0)), Err(RequestError::Misaligned { what: "length", .. })));
    disk.close().unwrap();

    run(Engine::Auto, "0 16 error", async |_, pool, stack| {
        let payload = |bytes| Payload::of(pool, &[bytes]).unwrap();
        let (result, back) = stack.write(Sector(8), payload(4096)).await;
        let failed = "Write of sectors 8+8 failed: the device failed; its own error is in the log";
        assert_eq!((refused(result), back.bytes()), (failed.to_owned(), 4096));
        let (result, back) = stack.read(Sector(12), payload(4096)).await;
        assert!(matches!(result, Err(RequestError::Outside { .. })) && back.bytes() == 4096);
    });
    for lengths in [&[][..], &[512, 0], &[(1 << 30) + 1]] {
        assert!(Payload::of(&BufferPool::default(), lengths).is_err(), "{lengths:?}");
    }
}

#[test]
fn errors_are_what_programs_expect_from_the_system() {
    let kind = |status| {
        let error = RequestError::Failed { op: Op::Write, extent: extent(0, 8), status };
        io::Error::from(error).kind()
    };
    let expected = [
        (Status::IoError, io::ErrorKind::Other),
        (Status::NoSpace, io::ErrorKind::StorageFull),
        (Status::ReadOnly, io::ErrorKind::ReadOnlyFilesystem),
        (Status::Unsupported, io::ErrorKind::Unsupported),
        (Status::Aborted, io::ErrorKind::Other),
        (Status::Again, io::ErrorKind::WouldBlock),
    ];
    assert_eq!(expected.map(|(status, _)| kind(status)), expected.map(|(_, kind)| kind));
    assert_eq!(io::Error::from(RequestError::Payload(SegmentsError::Empty)).kind(), io::ErrorKind::InvalidInput);
}

#[test]
fn a_payload_whose_future_was_given_up_goes_back_when_the_device_is_done() {
    run(Engine::Auto, "0 2048 delay ram:1M 0 100", async |reactor, pool, stack| {
        drop(stack.read(Sector(0), Payload::of(pool, &[4096, 8192]).unwrap()));
        assert_eq!(pool.bytes_out(), 12_288, "the device has it");
        while pool.bytes_out() > 0 {
            reactor.sleep(Duration::from_millis(10)).await;
        }
        // Forgotten for good, it is lost, which harms nobody.
        std::mem::forget(stack.read(Sector(0), Payload::of(pool, &[4096]).unwrap()));
        reactor.sleep(Duration::from_millis(300)).await;
        assert_eq!(pool.bytes_out(), 4096);
        let (result, payload) = stack.read(Sector(0), Payload::of(pool, &[4096]).unwrap()).await;
        assert!(result.is_ok() && payload.bytes() == 4096);
    });
}
