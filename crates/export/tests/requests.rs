//! Every request in every framing, compared with a plain array of bytes.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests start servers on threads and wait for them")]

mod common;

use std::rc::Rc;
use std::sync::Arc;

use common::client::{CACHE, Client, DF, FAST, FLUSH, FUA, Framing, NO_HOLE, ONE, READ, STATUS, TRIM, WRITE, ZEROES};
use common::targets::{Log, Memory};
use common::{Bed, Engine};
use forebay_block::{Ability, Limits, Op, SectorCount};
use forebay_device::RamDevice;
use forebay_export::serve::Offer;

const MIB: u64 = 1 << 20;

fn ram(engine: Engine, bytes: u64) -> Bed {
    Bed::new(engine, move |reactor, server| {
        let device = RamDevice::new(reactor, SectorCount(bytes / 512)).unwrap();
        server.add_export(&Offer::new("disk").as_default(), device).unwrap();
    })
}

/// A bed on memory with its own limits, and the log of what it was asked.
fn memory(engine: Engine, bytes: usize, change: impl FnOnce(&mut Memory) + Send + 'static) -> (Bed, Log) {
    let log = Log::default();
    let kept = Arc::clone(&log);
    let bed = Bed::new(engine, move |_, server| {
        let mut memory = Memory::new(bytes);
        memory.log = kept;
        change(&mut memory);
        server.add_export(&Offer::new("disk"), Rc::new(memory)).unwrap();
    });
    (bed, log)
}

fn random_bytes(random: &mut fastrand::Rng, length: u64) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(length).unwrap()];
    random.fill(&mut bytes);
    bytes
}

/// Sends random requests of all kinds and compares every read with `model`.
fn exercise(client: &mut Client, model: &mut [u8], requests: u32, random: &mut fastrand::Rng) {
    let grain = u64::from(client.minimum);
    let blocks = model.len() as u64 / grain;
    for _ in 0..requests {
        let longest = [1, 9, 64, 300, blocks][random.usize(0..5)].min(blocks);
        let length = random.u64(1..=longest) * grain;
        let offset = random.u64(0..=blocks - length / grain) * grain;
        let range = usize::try_from(offset).unwrap()..usize::try_from(offset + length).unwrap();
        match random.u32(0..16) {
            0..6 => {
                let flags = if client.framing == Framing::Simple { 0 } else { random.u16(0..2) * DF };
                let answer = client.call(READ, flags, offset, length, &[]);
                assert_eq!(answer.error, 0);
                assert!(answer.data == model[range], "{length} bytes at {offset} read as they were written");
            }
            6..12 => {
                let bytes = random_bytes(random, length);
                assert_eq!(client.call(WRITE, random.u16(0..2) * FUA, offset, length, &bytes).error, 0);
                model[range].copy_from_slice(&bytes);
            }
            12 => {
                let flags = random.u16(0..4);
                assert_eq!(client.call(ZEROES, flags, offset, length, &[]).error, 0);
                model[range].fill(0);
            }
            13 => {
                // Memory zeroes what it discards, and only whole sectors are discarded.
                assert_eq!(client.call(TRIM, random.u16(0..2) * FUA, offset, length, &[]).error, 0);
                let (start, end) = (range.start.next_multiple_of(512), range.end / 512 * 512);
                if start < end {
                    model[start..end].fill(0);
                }
            }
            14 => assert_eq!(client.call(FLUSH, 0, 0, 0, &[]).error, 0),
            _ => assert_eq!(client.call(CACHE, 0, offset, length, &[]).error, 0),
        }
    }
    let size = model.len() as u64;
    assert!(client.read(0, size) == model, "the whole export reads as it was written");
}

#[test]
fn random_requests_of_all_kinds_read_back_what_was_written() {
    for engine in Engine::ALL {
        for framing in Framing::ALL {
            for knows in [true, false] {
                let bed = ram(engine, 3 * MIB);
                let mut random = fastrand::Rng::with_seed(7);
                let mut client = Client::enter(&bed.path, "disk", framing, knows);
                assert_eq!((client.size, client.minimum), (3 * MIB, if knows { 512 } else { 1 }));
                let mut model = vec![0; 3 << 20];
                exercise(&mut client, &mut model, 400, &mut random);
                let counts = bed.counts(0);
                assert_eq!(counts.unaligned > 0, !knows);
                assert_eq!(counts.errors, 0);
            }
        }
    }
}

#[test]
fn large_blocks_are_read_around_as_well() {
    for engine in Engine::ALL {
        let (bed, _) = memory(engine, 1 << 20, |memory| {
            memory.limits = Limits { logical_bytes: 4096, physical_bytes: 4096, ..Limits::unlimited() };
        });
        let mut client = Client::enter(&bed.path, "disk", Framing::Structured, true);
        assert_eq!(client.minimum, 4096);
        assert_eq!(client.call(READ, 0, 512, 512, &[]).error, 22, "who knows the block size keeps to it");
        let mut client = Client::enter(&bed.path, "disk", Framing::Simple, false);
        let mut model = vec![0; 1 << 20];
        let mut random = fastrand::Rng::with_seed(8);
        for _ in 0..300 {
            let length = random.u64(1..=12_000);
            let offset = random.u64(0..=MIB - length);
            let range = usize::try_from(offset).unwrap()..usize::try_from(offset + length).unwrap();
            if random.bool() {
                let bytes = random_bytes(&mut random, length);
                client.write(offset, &bytes);
                model[range].copy_from_slice(&bytes);
            } else {
                assert_eq!(client.call(ZEROES, 0, offset, length, &[]).error, 0);
                model[range].fill(0);
            }
        }
        assert!(client.read(0, MIB) == model);
    }
}

#[test]
fn payloads_of_every_size_arrive_whole() {
    for engine in Engine::ALL {
        let bed = ram(engine, 64 * MIB);
        for framing in Framing::ALL {
            let mut client = Client::enter(&bed.path, "", framing, true);
            let mut random = fastrand::Rng::with_seed(9);
            for length in [512, 4096, 32 << 10, (32 << 10) + 512, 100 << 10, 128 << 10, 512 << 10, MIB + 512, 32 * MIB] {
                let bytes = random_bytes(&mut random, length);
                client.write(4096, &bytes);
                assert!(client.read(4096, length) == bytes, "{length}");
            }
            let more = client.call(READ, 0, 0, 32 * MIB + 512, &[]);
            assert_eq!(more.error, 22, "a read beyond 32 MiB is refused");
        }
    }
}

#[test]
fn many_requests_sent_at_once_are_all_answered() {
    for engine in Engine::ALL {
        let bed = ram(engine, 64 * MIB);
        let mut client = Client::enter(&bed.path, "", Framing::Structured, true);
        let mut random = fastrand::Rng::with_seed(10);
        // Writes of mixed sizes to places of their own, each followed by others before its answer.
        let writes: Vec<(u64, Vec<u8>)> = (0..60)
            .map(|at| {
                let length = [512, 4096, 20_480, 66_560, 300 << 10][random.usize(0..5)];
                (at * MIB, random_bytes(&mut random, length))
            })
            .collect();
        let mut all = Vec::new();
        let mut cookies: Vec<u64> = Vec::new();
        for (offset, bytes) in &writes {
            let (header, cookie) = client.header(WRITE, 0, *offset, bytes.len() as u64);
            all.extend(header);
            all.extend(bytes);
            cookies.push(cookie);
        }
        client.stream.write_all(&all).unwrap();
        let mut answered: Vec<u64> = cookies.iter().map(|_| client.answer().unwrap()).map(|answer| answer.cookie).collect();
        cookies.sort_unstable();
        answered.sort_unstable();
        assert_eq!(answered, cookies);
        // The headers of all reads fit into one packet of the socket, so one receive call gets them.
        let before = bed.counts(0).receives;
        let mut reads: Vec<u64> = Vec::new();
        let mut headers = Vec::new();
        for (offset, bytes) in &writes {
            let (header, cookie) = client.header(READ, 0, *offset, bytes.len() as u64);
            headers.extend(header);
            reads.push(cookie);
        }
        client.stream.write_all(&headers).unwrap();
        for _ in &writes {
            let answer = client.answer().unwrap();
            let at = reads.iter().position(|cookie| *cookie == answer.cookie).unwrap();
            assert!(answer.data == writes[at].1, "write {at}");
        }
        let receives = bed.counts(0).receives - before;
        assert!(receives <= 2, "headers come in many at a time: {receives}");
    }
}

#[test]
fn requests_of_no_bytes_succeed() {
    let bed = ram(Engine::Uring, MIB);
    for framing in Framing::ALL {
        let mut client = Client::enter(&bed.path, "", framing, true);
        for command in [READ, WRITE, TRIM, ZEROES, CACHE] {
            assert_eq!(client.call(command, 0, 512, 0, &[]).error, 0, "{command}");
        }
    }
}

#[test]
fn what_is_wrong_is_refused_and_the_next_request_served() {
    for engine in Engine::ALL {
        let bed = ram(engine, MIB);
        for framing in Framing::ALL {
            let mut client = Client::enter(&bed.path, "", framing, true);
            let payload = vec![1; 4096];
            assert_eq!(client.call(WRITE, 0, MIB, 4096, &payload).error, 28, "a write behind the end");
            assert_eq!(client.call(WRITE, NO_HOLE, 0, 4096, &payload).error, 22, "a flag that writes do not have");
            assert_eq!(client.call(WRITE, 0, 100, 4096, &payload).error, 22, "a write that is not aligned");
            assert_eq!(client.call(READ, 0, MIB, 512, &[]).error, 22, "a read behind the end");
            assert_eq!(client.call(99, 0, 0, 512, &[]).error, 22, "a command that does not exist");
            assert!(client.read(0, 4096).iter().all(|&byte| byte == 0));
        }
        assert_eq!(bed.counts(0).errors, 15);
    }
}

#[test]
fn a_payload_that_is_too_long_ends_the_connection_with_an_answer() {
    for engine in Engine::ALL {
        let bed = ram(engine, 64 * MIB);
        for framing in Framing::ALL {
            let mut client = Client::enter(&bed.path, "", framing, true);
            let cookie = client.send(WRITE, 0, 0, 32 * MIB + 512, &[7; 10_000]);
            let answer = client.answer().unwrap();
            assert_eq!((answer.cookie, answer.error), (cookie, 22));
            assert!(client.is_at_end());
        }
        bed.until_left(0);
    }
}

#[test]
fn a_read_that_fails_gives_out_no_memory() {
    for engine in Engine::ALL {
        let (bed, _) = memory(engine, 1 << 20, |memory| memory.bad_from = 1024);
        for framing in Framing::ALL {
            let mut client = Client::enter(&bed.path, "disk", framing, true);
            client.write(0, &vec![7; 65_536]);
            let answer = client.call(READ, 0, 512 << 10, 65_536, &[]);
            assert_eq!((answer.error, answer.data.len()), (5, 0));
            assert_eq!(client.call(WRITE, 0, 512 << 10, 4096, &[1; 4096]).error, 5);
            assert!(client.read(0, 65_536) == vec![7; 65_536]);
        }
    }
}

#[test]
fn a_change_is_durable_where_it_was_asked_to_be() {
    let (bed, log) = memory(Engine::Uring, 1 << 20, |_| {});
    let mut client = Client::enter(&bed.path, "disk", Framing::Structured, false);
    let mut asked = |command, flags, offset, length: u64| {
        log.lock().unwrap().clear();
        let payload = if command == WRITE { vec![1; usize::try_from(length).unwrap()] } else { Vec::new() };
        assert_eq!(client.call(command, flags, offset, length, &payload).error, 0);
        std::mem::take(&mut *log.lock().unwrap())
    };
    assert_eq!(asked(WRITE, 0, 0, 512), [(Op::Write, 0, 512, false)]);
    assert_eq!(asked(WRITE, FUA, 512, 1024), [(Op::Write, 1, 1024, true)]);
    assert_eq!(asked(ZEROES, FUA, 0, 512), [(Op::WriteZeroes, 0, 512, false), (Op::Flush, 0, 0, false)]);
    assert_eq!(asked(TRIM, FUA, 100, 1000), [(Op::Discard, 1, 512, false), (Op::Flush, 0, 0, false)]);
    assert_eq!(asked(TRIM, FUA, 100, 800), []);
    assert_eq!(asked(FLUSH, 0, 0, 0), [(Op::Flush, 0, 0, false)]);
    let read_around = [(Op::Read, 0, 512, false), (Op::Write, 0, 512, false), (Op::Flush, 0, 0, false)];
    assert_eq!(asked(WRITE, FUA, 0, 100), read_around);
    let (bed, log) = memory(Engine::Uring, 1 << 20, |memory| memory.limits.fua = Ability::No);
    let mut client = Client::enter(&bed.path, "disk", Framing::Simple, true);
    assert_eq!(client.call(WRITE, FUA, 0, 512, &[1; 512]).error, 0);
    assert_eq!(*log.lock().unwrap(), [(Op::Write, 0, 512, false), (Op::Flush, 0, 0, false)]);
}

#[test]
fn zeroing_that_would_not_be_fast_is_refused_to_those_who_ask() {
    let (bed, _) = memory(Engine::Uring, 1 << 20, |memory| memory.limits.write_zeroes = Ability::Emulate);
    let mut client = Client::enter(&bed.path, "disk", Framing::Simple, true);
    assert_eq!(client.call(ZEROES, FAST, 0, 4096, &[]).error, 95);
    assert_eq!(client.call(ZEROES, 0, 0, 4096, &[]).error, 0);
    let (bed, _) = memory(Engine::Uring, 1 << 20, |_| {});
    let mut client = Client::enter(&bed.path, "disk", Framing::Simple, false);
    assert_eq!(client.call(ZEROES, FAST, 0, 4096, &[]).error, 0);
    assert_eq!(client.call(ZEROES, FAST, 0, 4095, &[]).error, 95);
}

#[test]
fn what_a_target_cannot_do_is_not_offered() {
    let (bed, _) = memory(Engine::Uring, 1 << 20, |memory| {
        memory.limits.flush = Ability::No;
        memory.limits.fua = Ability::No;
        memory.limits.discard = Ability::No;
        memory.limits.write_zeroes = Ability::No;
    });
    let mut client = Client::enter(&bed.path, "disk", Framing::Simple, true);
    assert_eq!(client.flags, 0x501, "flags, several connections, cache");
    for command in [TRIM, ZEROES] {
        assert_eq!(client.call(command, 0, 0, 512, &[]).error, 22);
    }
    assert_eq!(client.call(FLUSH, 0, 0, 0, &[]).error, 22);
    assert_eq!(client.call(WRITE, FUA, 0, 512, &[0; 512]).error, 22);
}

#[test]
fn a_read_only_export_takes_no_changes() {
    let bed = Bed::new(Engine::Uring, |reactor, server| {
        let device = RamDevice::new(reactor, SectorCount(2048)).unwrap();
        server.add_export(&Offer::new("rw"), device.clone()).unwrap();
        server.add_export(&Offer::new("ro").read_only(), device).unwrap();
    });
    Client::enter(&bed.path, "rw", Framing::Simple, true).write(0, &[5; 512]);
    for framing in Framing::ALL {
        let mut client = Client::enter(&bed.path, "ro", framing, true);
        for (command, payload) in [(WRITE, vec![1; 512]), (TRIM, Vec::new()), (ZEROES, Vec::new())] {
            assert_eq!(client.call(command, 0, 0, 512, &payload).error, 1);
        }
        assert_eq!(client.read(0, 512), [5; 512]);
        assert_eq!(client.call(FLUSH, 0, 0, 0, &[]).error, 0);
    }
}

#[test]
fn block_status_tells_what_the_target_knows() {
    let bed = Bed::new(Engine::Uring, |_, server| {
        server.add_export(&Offer::new("plain"), Rc::new(Memory::new(200 << 10))).unwrap();
        let mut holes = Memory::new(200 << 10);
        holes.hole_sectors = 128;
        server.add_export(&Offer::new("holes"), Rc::new(holes)).unwrap();
        let limits = Limits { logical_bytes: 4096, physical_bytes: 4096, ..Limits::unlimited() };
        let mut coarse = Memory::new(64 << 10);
        (coarse.hole_sectors, coarse.limits) = (12, limits);
        server.add_export(&Offer::new("coarse"), Rc::new(coarse)).unwrap();
    });
    for framing in [Framing::Structured, Framing::Extended] {
        let mut client = Client::enter(&bed.path, "plain", framing, true);
        assert_eq!(client.call(STATUS, 0, 4096, 8192, &[]).extents, [(8192, 0)]);
        assert_eq!(client.call(STATUS, ONE, 0, 200 << 10, &[]).extents, [(200 << 10, 0)]);
        let mut client = Client::enter(&bed.path, "holes", framing, true);
        let all = [(65_536, 0), (65_536, 3), (65_536, 0), (8192, 3)];
        assert_eq!(client.call(STATUS, 0, 0, 200 << 10, &[]).extents, all);
        assert_eq!(client.call(STATUS, ONE, 4096, 200 << 10, &[]).error, 22);
        assert_eq!(client.call(STATUS, ONE, 4096, 100 << 10, &[]).extents, [(61_440, 0)]);
        // Holes of 6 KiB every 12 KiB have one whole block each.
        let mut client = Client::enter(&bed.path, "coarse", framing, true);
        let first = [(8192, 0), (4096, 3), (8192, 0), (4096, 3)];
        assert_eq!(client.call(STATUS, 0, 0, 24 << 10, &[]).extents, first);
        // Who did not ask for the block size may ask about any byte.
        let mut client = Client::enter(&bed.path, "coarse", framing, false);
        assert_eq!(client.call(STATUS, ONE, 8193, 100, &[]).extents, [(100, 3)]);
        assert_eq!(client.call(STATUS, 0, 4097, 5000, &[]).extents, [(4095, 0), (4096, 3)]);
    }
}

#[test]
fn block_status_of_many_pieces_is_cut_short_and_goes_on_from_there() {
    let bed = Bed::new(Engine::Uring, |_, server| {
        let mut holes = Memory::new(4 << 20);
        holes.hole_sectors = 1;
        server.add_export(&Offer::new("holes"), Rc::new(holes)).unwrap();
    });
    let mut client = Client::enter(&bed.path, "holes", Framing::Structured, true);
    let (mut at, mut holes) = (0, 0);
    while at < 4 << 20 {
        let extents = client.call(STATUS, 0, at, (4 << 20) - at, &[]).extents;
        assert!(!extents.is_empty() && extents.len() <= 8192);
        at += extents.iter().map(|extent| extent.0).sum::<u64>();
        holes += extents.iter().filter(|extent| **extent == (512, 3)).count();
    }
    assert_eq!((at, holes), (4 << 20, 4096));
}
