//! The NBD device against our own server, on every backend, compared with a plain array of bytes.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests start servers on threads and wait for them")]

mod common;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use common::targets::{Log, Memory};
use common::{Bed, Engine};
use forebay_block::{
    Ability, Bio, Extent, Flags, HeapMemory, Op, Sector, SectorCount, Segments, Status, Target, allocation, call,
};
use forebay_device::{NbdDevice, NbdOptions, RamDevice};
use forebay_export::serve::{Listen, Offer};
use forebay_reactor::{BufferPool, Reactor};

const MIB: usize = 1 << 20;

fn ram(engine: Engine, bytes: usize) -> Bed {
    Bed::new(engine, move |reactor, server| {
        let device = RamDevice::new(reactor, SectorCount(bytes as u64 / 512)).unwrap();
        server.add_export(&Offer::new("disk").as_default(), device).unwrap();
    })
}

/// A bed on memory, and the log of what it was asked.
fn memory(engine: Engine, bytes: usize, change: impl FnOnce(&Reactor, &mut Memory) + Send + 'static) -> (Bed, Log) {
    let log = Log::default();
    let kept = Arc::clone(&log);
    let bed = Bed::new(engine, move |reactor, server| {
        let mut memory = Memory::new(bytes);
        memory.log = kept;
        change(reactor, &mut memory);
        server.add_export(&Offer::new("disk").as_default(), Rc::new(memory)).unwrap();
    });
    (bed, log)
}

fn patient() -> NbdOptions {
    NbdOptions { reply: Duration::from_mins(2), ..NbdOptions::default() }
}

/// Runs `work` with a device that is connected to `uri`.
fn with_device(engine: Engine, uri: &str, options: NbdOptions, work: impl AsyncFnOnce(&Reactor, &Rc<NbdDevice>)) {
    let reactor = Reactor::new(engine.backend());
    let pool = BufferPool::new(&reactor);
    reactor
        .run(async {
            let device = NbdDevice::connect(&reactor, &pool, &uri.parse().unwrap(), options).await.unwrap();
            work(&reactor, &device).await;
        })
        .unwrap();
}

/// A payload of several segments of odd lengths.
fn payload(bytes: usize) -> Rc<Segments> {
    let third = bytes / 3 + 1;
    let ranges: Vec<(usize, u32)> =
        (0..bytes).step_by(third).map(|at| (at, u32::try_from(third.min(bytes - at)).unwrap())).collect();
    Segments::ranges(Box::new(HeapMemory::new(bytes, 4096)), &ranges).unwrap()
}

fn write(at: u64, bytes: &[u8]) -> Bio {
    let mut segments = payload(bytes.len());
    Rc::get_mut(&mut segments).unwrap().bytes_mut().copy_from_slice(bytes);
    Bio::write(Sector(at / 512), segments, 0, u32::try_from(bytes.len()).unwrap())
}

async fn read(device: &dyn Target, at: u64, bytes: usize) -> Result<Vec<u8>, Status> {
    let bio = call(device, Bio::read(Sector(at / 512), payload(bytes), 0, u32::try_from(bytes).unwrap())).await;
    let mut out = vec![0; bytes];
    bio.copy_out(&mut out);
    if bio.status().is_ok() { Ok(out) } else { Err(bio.status()) }
}

/// One of `jobs` that work at the same time, each in its own part of the device.
async fn job(device: Rc<NbdDevice>, part: std::ops::Range<usize>, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut model = vec![0; part.len()];
    let sectors = part.len() / 512;
    for _ in 0..40 {
        let longest = [1, 8, 64, 128, sectors][random.usize(0..5)].min(sectors);
        let count = random.usize(1..=longest);
        let first = random.usize(0..=sectors - count);
        let (range, at) = (first * 512..(first + count) * 512, (part.start + first * 512) as u64);
        let extent = Extent::new(Sector(at / 512), SectorCount(count as u64));
        match random.u32(0..10) {
            0..4 => assert!(read(&*device, at, range.len()).await.unwrap() == model[range], "{count} sectors at {at}"),
            4..8 => {
                random.fill(&mut model[range.clone()]);
                let flags = Flags { fua: random.bool(), ..Flags::default() };
                let written = call(&*device, write(at, &model[range]).with(flags)).await;
                assert_eq!(written.status(), Status::Ok);
            }
            8 => {
                model[range].fill(0);
                assert_eq!(call(&*device, Bio::write_zeroes(extent)).await.status(), Status::Ok);
            }
            _ => {
                model[range].fill(0);
                assert_eq!(call(&*device, Bio::discard(extent)).await.status(), Status::Ok);
                assert_eq!(call(&*device, Bio::flush()).await.status(), Status::Ok);
            }
        }
    }
    assert!(read(&*device, part.start as u64, part.len()).await.unwrap() == model);
}

/// Runs `count` futures at the same time.
async fn at_once<F: Future<Output = ()> + 'static>(reactor: &Reactor, futures: impl IntoIterator<Item = F>) {
    let left = Rc::new(RefCell::new(0));
    for future in futures {
        *left.borrow_mut() += 1;
        let left = Rc::clone(&left);
        assert!(reactor.spawn(async move {
            future.await;
            *left.borrow_mut() -= 1;
        }));
    }
    while *left.borrow() > 0 {
        reactor.sleep(Duration::from_millis(2)).await;
    }
}

#[test]
fn many_jobs_at_once_read_what_they_wrote() {
    for engine in Engine::ALL {
        let bed = ram(engine, 16 * MIB);
        with_device(engine, &bed.uri, patient(), async |reactor, device| {
            let parts = (0..16).map(|at| at * MIB..(at + 1) * MIB);
            at_once(reactor, parts.enumerate().map(|(seed, part)| job(Rc::clone(device), part, seed as u64))).await;
        });
        bed.until_left(0);
    }
}

#[test]
fn servers_are_reached_over_tcp_by_address_and_by_name() {
    for engine in [Engine::Uring, Engine::Threads] {
        let bed = ram(engine, 4 * MIB);
        let address = "127.0.0.1:0".parse().unwrap();
        let uri =
            bed.ask(move |_, _, server| server.listen(Listen::Tcp { address, beyond_loopback: false }).unwrap()).to_string();
        for (half, uri) in [uri.clone(), uri.replace("127.0.0.1", "localhost")].into_iter().enumerate() {
            with_device(engine, &uri, patient(), async |reactor, device| {
                at_once(reactor, (half * 2..half * 2 + 2).map(|at| job(Rc::clone(device), at * MIB..(at + 1) * MIB, 1))).await;
            });
        }
    }
}

#[test]
fn what_the_server_offers_becomes_limits_and_abilities() {
    let (bed, _) = memory(Engine::Uring, 8 * MIB, |_, memory| {
        memory.limits.logical_bytes = 4096;
        memory.limits.physical_bytes = 16384;
        memory.limits.discard = Ability::No;
        memory.limits.write_zeroes = Ability::Emulate;
    });
    with_device(Engine::Uring, &bed.uri, patient(), async |_, device| {
        let limits = device.limits();
        assert_eq!((limits.logical_bytes, limits.physical_bytes), (4096, 16384));
        assert_eq!((limits.flush, limits.fua), (Ability::Native, Ability::Native));
        assert_eq!((limits.discard, limits.max_sectors), (Ability::No, 8192));
        assert_eq!(device.sectors(), SectorCount(16384));
        let discard = Bio::discard(Extent::new(Sector(0), SectorCount(8)));
        assert_eq!(call(&**device, discard).await.status(), Status::Unsupported);
        assert_eq!(read(&**device, 8 * MIB as u64, 4096).await, Err(Status::IoError), "behind the end");
    });
}

#[test]
fn neighbours_of_one_turn_become_one_request() {
    let (bed, log) = memory(Engine::Uring, MIB, |_, _| ());
    with_device(Engine::Uring, &bed.uri, patient(), async |reactor, device| {
        let before = reactor.device_counts(device.id());
        let calls: Vec<_> = (0..16).map(|at| call(&**device, write(at * 4096, &[7; 4096]))).collect();
        for call in calls {
            assert_eq!(call.await.status(), Status::Ok);
        }
        let counts = reactor.device_counts(device.id());
        assert_eq!((counts.bios - before.bios, counts.requests - before.requests), (16, 1));
        assert_eq!(read(&**device, 0, 65536).await, Ok(vec![7; 65536]));
    });
    let log = log.lock().unwrap();
    assert_eq!(log.iter().filter(|entry| entry.0 == Op::Write).count(), 1);
}

#[test]
fn an_error_of_the_server_is_the_error_of_its_bio_only() {
    for engine in Engine::ALL {
        let (bed, _) = memory(engine, MIB, |_, memory| memory.bad_from = 1024);
        with_device(engine, &bed.uri, patient(), async |_, device| {
            // One merged request, of which the server fails the second half.
            let calls: Vec<_> = (96..160).map(|at| call(&**device, write(at * 4096, &[9; 4096]))).collect();
            let mut ok = 0;
            for call in calls {
                ok += usize::from(call.await.status().is_ok());
            }
            assert_eq!(ok, 32);
            assert_eq!(read(&**device, 96 * 4096, 4096).await, Ok(vec![9; 4096]));
            assert_eq!(read(&**device, 130 * 4096, 4096).await, Err(Status::IoError));
        });
    }
}

#[test]
fn holes_of_the_server_are_holes_here() {
    for engine in Engine::ALL {
        let (bed, _) = memory(engine, MIB, |_, memory| memory.hole_sectors = 128);
        with_device(engine, &bed.uri, patient(), async |_, device| {
            let all = Extent::new(Sector(0), SectorCount(2048));
            let runs = allocation::runs(&**device, all, 64).await;
            let found: Vec<_> = runs.iter().map(|run| (run.count.0, run.hole)).collect();
            let wanted: Vec<_> = (0..16).map(|at| (128, at % 2 == 1)).collect();
            assert_eq!(found, wanted);
        });
    }
}

#[test]
fn several_connections_share_the_work() {
    for engine in Engine::ALL {
        let bed = ram(engine, 4 * MIB);
        with_device(engine, &bed.uri, patient(), async |reactor, device| {
            while device.connections() < 4 {
                reactor.sleep(Duration::from_millis(1)).await;
            }
            let calls: Vec<_> = (0..32).map(|at| call(&**device, write(at * 65536, &[3; 4096]))).collect();
            for call in calls {
                assert_eq!(call.await.status(), Status::Ok);
            }
            bed.until("all are counted", |bed| bed.counts(0).connections == 4);
            assert_eq!(call(&**device, Bio::flush()).await.status(), Status::Ok);
        });
        bed.until_left(0);
    }
}

#[test]
fn one_connection_is_made_where_one_is_asked_for() {
    let bed = ram(Engine::Uring, MIB);
    let options = NbdOptions { connections: 1, ..patient() };
    with_device(Engine::Uring, &bed.uri, options, async |reactor, device| {
        for at in 0..50 {
            assert_eq!(call(&**device, write(at * 4096, &[1; 512])).await.status(), Status::Ok);
            reactor.sleep(Duration::from_millis(1)).await;
        }
        assert_eq!((device.connections(), bed.counts(0).connections), (1, 1));
    });
}

#[test]
fn large_reads_are_received_where_they_belong_and_small_ones_share_calls() {
    let bed = ram(Engine::Uring, 8 * MIB);
    let options = NbdOptions { connections: 1, ..patient() };
    with_device(Engine::Uring, &bed.uri, options, async |_, device| {
        let copied = forebay_block::bvec::copied().bytes;
        let calls: Vec<_> = (0..8)
            .map(|at| call(&**device, Bio::read(Sector(at * 2048), payload(MIB), 0, u32::try_from(MIB).unwrap())))
            .collect();
        for call in calls {
            assert_eq!(call.await.status(), Status::Ok);
        }
        let copied = forebay_block::bvec::copied().bytes - copied;
        // What the first call was offered before anything was asked, and some heads with what follows them.
        assert!(copied <= (36 << 10) + 16 * 4096, "{copied} bytes of {} were copied", 8 * MIB);
    });
}
