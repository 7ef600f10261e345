//! Clients that leave, push, wait and come in crowds.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests start servers on threads and wait for them")]

mod common;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::time::{Duration, Instant};

use common::client::{Client, FLUSH, Framing, READ, WRITE, connect, option};
use common::targets::{HOLDING, Memory};
use common::{Bed, Engine, LONG, limits};
use forebay_block::{SectorCount, Status};
use forebay_device::RamDevice;
use forebay_export::serve::{Offer, ServeLimits};

fn ram(engine: Engine, limits: ServeLimits) -> Bed {
    Bed::with(engine, limits, |reactor, server| {
        let device = RamDevice::new(reactor, SectorCount(16 << 11)).unwrap();
        server.add_export(&Offer::new("").as_default(), device).unwrap();
    })
}

fn holding(engine: Engine, limits: ServeLimits) -> Bed {
    Bed::with(engine, limits, |_, server| {
        server.add_export(&Offer::new(""), HOLDING.with(Rc::clone)).unwrap();
    })
}

fn held(bed: &Bed) -> usize {
    bed.ask(|_, _, _| HOLDING.with(|holding| holding.held()))
}

fn release(bed: &Bed, status: Status) {
    bed.ask(move |_, _, _| HOLDING.with(|holding| holding.release(status)));
}

#[test]
fn a_write_that_was_received_in_part_is_never_applied() {
    for engine in Engine::ALL {
        let bed = ram(engine, limits());
        let base = bed.ask(|_, pool, _| pool.bytes_out());
        for framing in Framing::ALL {
            for length in [512_u64, 4096, 65_536, 1 << 20] {
                for part in [0, 1, 511, length - 1] {
                    let mut client = Client::enter(&bed.path, "", framing, true);
                    let (header, _) = client.header(WRITE, 0, 0, length);
                    client.stream.write_all(&header).unwrap();
                    client.stream.write_all(&vec![1; usize::try_from(part).unwrap()]).unwrap();
                }
                let mut client = Client::enter(&bed.path, "", framing, true);
                let (header, _) = client.header(WRITE, 0, 0, length);
                client.stream.write_all(&header[..20]).unwrap();
            }
        }
        bed.until_left(0);
        let mut client = Client::enter(&bed.path, "", Framing::Simple, true);
        assert!(client.read(0, 1 << 20).iter().all(|&byte| byte == 0));
        drop(client);
        bed.until_left(0);
        bed.until("all buffers are back", move |bed| bed.ask(|_, pool, _| pool.bytes_out()) == base);
        assert_eq!(bed.counts(0).writes, 0);
    }
}

#[test]
fn a_client_that_leaves_with_requests_in_flight_harms_nobody() {
    for engine in Engine::ALL {
        let bed = holding(engine, limits());
        let base = bed.ask(|_, pool, _| pool.bytes_out());
        let mut client = Client::enter(&bed.path, "", Framing::Structured, true);
        for at in 0..20 {
            client.send(READ, 0, at * 4096, 4096, &[]);
            client.send(WRITE, 0, at * 4096, 4096, &[1; 4096]);
        }
        bed.until("all requests are in flight", |bed| held(bed) == 40);
        drop(client);
        let mut other = Client::enter(&bed.path, "", Framing::Structured, true);
        let cookie = other.send(READ, 0, 512, 512, &[]);
        bed.until("the other's request is in flight", |bed| held(bed) == 41);
        release(&bed, Status::Ok);
        let answer = other.answer().unwrap();
        assert_eq!((answer.cookie, answer.error, answer.data), (cookie, 0, vec![1; 512]));
        drop(other);
        bed.until_left(0);
        bed.until("all buffers are back", move |bed| bed.ask(|_, pool, _| pool.bytes_out()) == base);
    }
}

#[test]
fn answers_come_in_the_order_in_which_requests_end() {
    for engine in Engine::ALL {
        let bed = holding(engine, limits());
        for framing in Framing::ALL {
            let mut client = Client::enter(&bed.path, "", framing, true);
            let cookies: Vec<u64> = (0..30).map(|at| client.send(READ, 0, at * 512, 512, &[])).collect();
            bed.until("all requests are in flight", |bed| held(bed) == 30);
            // The youngest is ended first.
            release(&bed, Status::Ok);
            for (at, cookie) in cookies.iter().enumerate().rev() {
                let answer = client.answer().unwrap();
                assert_eq!((answer.cookie, answer.error), (*cookie, 0));
                assert_eq!(answer.data, vec![u8::try_from(at).unwrap(); 512]);
            }
        }
        let counts = bed.counts(0);
        assert!(counts.sends <= 6, "replies that are due together leave together: {} sends", counts.sends);
    }
}

#[test]
fn a_client_that_disconnects_gets_the_answers_it_waits_for() {
    for engine in Engine::ALL {
        let bed = holding(engine, limits());
        let mut client = Client::enter(&bed.path, "", Framing::Simple, true);
        let cookie = client.send(FLUSH, 0, 0, 0, &[]);
        client.send(common::client::DISCONNECT, 0, 0, 0, &[]);
        bed.until("the flush is in flight", |bed| held(bed) == 1);
        release(&bed, Status::NoSpace);
        let answer = client.answer().unwrap();
        assert_eq!((answer.cookie, answer.error), (cookie, 28));
        assert!(client.is_at_end());
        bed.until_left(0);
    }
}

#[test]
fn a_client_has_no_more_in_flight_than_its_share() {
    for engine in Engine::ALL {
        let bed = holding(engine, limits());
        let base = bed.ask(|_, pool, _| pool.bytes_out());
        let mut client = Client::enter(&bed.path, "", Framing::Structured, true);
        let mut all = Vec::new();
        for at in 0..300 {
            all.extend(client.header(READ, 0, at * 512, 512).0);
        }
        client.stream.write_all(&all).unwrap();
        bed.until("as many as allowed are in flight", |bed| held(bed) == 128);
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(held(&bed), 128);
        for _ in 0..300 {
            bed.until("something is in flight", |bed| held(bed) > 0);
            release(&bed, Status::Ok);
            if bed.counts(0).reads == 300 && held(&bed) == 0 {
                break;
            }
        }
        for _ in 0..300 {
            assert_eq!(client.answer().unwrap().error, 0);
        }
        // By bytes: of three reads of 32 MiB only two fit.
        for _ in 0..3 {
            client.send(READ, 0, 0, 32 << 20, &[]);
        }
        bed.until("two reads are in flight", |bed| held(bed) == 2);
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(held(&bed), 2);
        let out = bed.ask(|_, pool, _| pool.bytes_out());
        assert!(out - base <= (64 << 20) + (1 << 20), "{out} bytes are on loan");
        release(&bed, Status::IoError);
        bed.until("the third follows", |bed| held(bed) == 1);
        release(&bed, Status::IoError);
        for _ in 0..3 {
            assert_eq!(client.answer().unwrap().error, 5);
        }
    }
}

#[test]
fn a_client_that_takes_no_replies_does_not_stop_others() {
    for engine in Engine::ALL {
        let bed = ram(engine, limits());
        let mut silent = Client::enter(&bed.path, "", Framing::Simple, true);
        for _ in 0..100 {
            silent.send(READ, 0, 0, 1 << 20, &[]);
        }
        let start = Instant::now();
        let mut client = Client::enter(&bed.path, "", Framing::Simple, true);
        for _ in 0..100 {
            client.write(0, &[9; 4096]);
        }
        assert!(start.elapsed() < Duration::from_mins(1), "{:?}", start.elapsed());
        let out = bed.ask(|_, pool, _| pool.bytes_out());
        assert!(out <= 70 << 20, "{out} bytes are on loan");
        for _ in 0..100 {
            assert_eq!(silent.answer().unwrap().data.len(), 1 << 20);
        }
    }
}

#[test]
fn eight_connections_at_once_keep_their_data_apart() {
    for engine in Engine::ALL {
        let bed = ram(engine, limits());
        let path = &bed.path;
        std::thread::scope(|scope| {
            for number in 0..8_u8 {
                scope.spawn(move || {
                    let framing = Framing::ALL[usize::from(number) % 3];
                    let mut client = Client::enter(path, "", framing, true);
                    let base = u64::from(number) << 20;
                    for round in 0..40 {
                        let fill = number.wrapping_mul(31).wrapping_add(round);
                        let length = 512 << (round % 8);
                        client.write(base, &vec![fill; length]);
                        assert_eq!(client.call(FLUSH, 0, 0, 0, &[]).error, 0);
                        assert!(client.read(base, length as u64).iter().all(|&byte| byte == fill));
                    }
                });
            }
        });
        bed.until_left(0);
        assert_eq!(bed.counts(0).connections_total, 8);
    }
}

/// Two names of one slow device, on which changes would overlap if nothing kept them apart.
fn slow(engine: Engine) -> Bed {
    Bed::new(engine, |reactor, server| {
        let mut memory = Memory::new(1 << 20);
        memory.slow = Some((reactor.clone(), Duration::from_micros(200)));
        let memory = Rc::new(memory);
        server.add_export(&Offer::new("a"), Rc::clone(&memory) as _).unwrap();
        server.add_export(&Offer::new("b"), memory).unwrap();
    })
}

#[test]
fn changes_of_parts_of_the_same_block_do_not_lose_each_other() {
    for engine in Engine::ALL {
        let bed = slow(engine);
        let path = &bed.path;
        std::thread::scope(|scope| {
            for number in 0..8_u8 {
                scope.spawn(move || {
                    let name = if number % 2 == 0 { "a" } else { "b" };
                    let mut client = Client::enter(path, name, Framing::Structured, false);
                    let offset = u64::from(number) * 100;
                    for round in 0..20 {
                        let fill = round * 8 + number;
                        client.write(offset, &[fill; 100]);
                        assert_eq!(client.read(offset, 100), [fill; 100], "{number} {round}");
                    }
                });
            }
        });
        let mut client = Client::enter(path, "a", Framing::Simple, false);
        for number in 0..8_u8 {
            assert_eq!(client.read(u64::from(number) * 100, 100), [152 + number; 100]);
        }
    }
}

#[test]
fn a_change_of_part_of_a_block_never_undoes_a_write_of_the_whole() {
    for engine in Engine::ALL {
        let bed = slow(engine);
        let path = &bed.path;
        std::thread::scope(|scope| {
            let part = scope.spawn(move || {
                let mut client = Client::enter(path, "a", Framing::Simple, false);
                for _ in 0..60 {
                    client.write(0, &[255; 100]);
                }
            });
            let mut client = Client::enter(path, "b", Framing::Simple, true);
            let mut fill = 0;
            while !part.is_finished() {
                client.write(0, &[fill; 512]);
                assert_eq!(client.read(0, 512)[100..], [fill; 412]);
                fill = (fill + 1) % 100;
            }
            assert!(fill > 5, "the two were busy at the same time");
        });
    }
}

#[test]
fn a_thousand_silent_clients_keep_nobody_out() {
    for engine in Engine::ALL {
        // Their handshakes would take longer than anybody is made to wait.
        let bed = ram(engine, ServeLimits { handshake: Duration::from_mins(10), ..limits() });
        let silent: Vec<_> = (0..1000).map(|_| connect(&bed.path)).collect();
        let start = Instant::now();
        let mut client = Client::enter(&bed.path, "", Framing::Structured, true);
        client.write(0, &[3; 4096]);
        assert_eq!(client.read(0, 4096), [3; 4096]);
        assert!(start.elapsed() < Duration::from_mins(1), "{:?}", start.elapsed());
        let out = bed.ask(|_, pool, _| pool.bytes_out());
        assert!(out < 2 << 20, "{out} bytes are on loan to silent clients");
        // The oldest had to make way.
        let mut first = &silent[0];
        assert_eq!(first.read(&mut [0; 100]).unwrap(), 18, "the greeting");
        assert_eq!(first.read(&mut [0; 100]).unwrap(), 0);
        drop(silent);
        client.write(0, &[4; 4096]);
    }
}

#[test]
fn a_handshake_that_takes_too_long_ends() {
    for engine in Engine::ALL {
        let bed = ram(engine, ServeLimits { handshake: Duration::from_millis(200), ..limits() });
        let start = Instant::now();
        let mut silent = connect(&bed.path);
        let mut slow = connect(&bed.path);
        slow.write_all(&3_u32.to_be_bytes()).unwrap();
        slow.write_all(&option(7, &[0; 40])[..30]).unwrap();
        let mut rest = Vec::new();
        assert_eq!((silent.read_to_end(&mut rest).unwrap(), slow.read_to_end(&mut rest).unwrap()), (18, 18));
        let took = start.elapsed();
        assert!(took >= Duration::from_millis(190) && took < Duration::from_mins(1), "{took:?}");
        // Whoever is through has all the time there is.
        let enters = || Client::over(Box::new(connect(&bed.path)), "", Framing::Simple, true).ok();
        let mut client = (0..20).find_map(|_| enters()).expect("one of twenty is quick enough");
        std::thread::sleep(Duration::from_millis(400));
        assert_eq!(client.read(0, 512), [0; 512]);
    }
}

#[test]
fn a_client_that_breaks_the_protocol_is_hung_up_on_alone() {
    for engine in Engine::ALL {
        let bed = ram(engine, limits());
        let mut good = Client::enter(&bed.path, "", Framing::Simple, true);
        let mut bad = Client::enter(&bed.path, "", Framing::Simple, true);
        bad.stream.write_all(&[0xff; 64]).unwrap();
        assert!(bad.is_at_end());
        let mut rude = connect(&bed.path);
        rude.write_all(&[0xff; 64]).unwrap();
        let mut rest = Vec::new();
        let _ = rude.read_to_end(&mut rest);
        good.write(0, &[1; 512]);
        bed.until("only the good one is left", |bed| bed.counts(0).connections == 1);
    }
}

#[test]
fn random_bytes_harm_nobody() {
    for engine in Engine::ALL {
        let bed = ram(engine, limits());
        let base = bed.ask(|_, pool, _| pool.bytes_out());
        let mut random = fastrand::Rng::with_seed(11);
        for round in 0..200 {
            let mut client = Client::enter(&bed.path, "", Framing::ALL[round % 3], random.bool());
            let mut bytes = Vec::new();
            for _ in 0..random.u32(1..20) {
                // Mostly requests as they should be, some with a byte changed, some with a payload
                // of the wrong length.
                let (command, offset) = (random.u16(0..9), random.u64(0..17 << 20));
                let length = random.u64(0..70_000);
                bytes.extend(client.header(command, random.u16(0..64), offset, length).0);
                if random.u32(0..4) == 0 {
                    let at = random.usize(0..bytes.len());
                    bytes[at] ^= random.u8(1..=255);
                }
                if command == WRITE {
                    bytes.resize(bytes.len() + usize::try_from(length).unwrap() + random.usize(0..2), 7);
                }
            }
            // A server that has hung up already takes no more.
            let _ = client.stream.write_all(&bytes);
        }
        bed.until_left(0);
        bed.until("all buffers are back", move |bed| bed.ask(|_, pool, _| pool.bytes_out()) == base);
        let mut client = Client::enter(&bed.path, "", Framing::Simple, true);
        client.write(0, &[1; 512]);
        assert_eq!(client.read(0, 512), [1; 512]);
    }
}

#[test]
fn more_clients_than_allowed_wait_for_one_to_leave() {
    for engine in Engine::ALL {
        let bed = ram(engine, ServeLimits { connections_max: 2, ..limits() });
        let first = Client::enter(&bed.path, "", Framing::Simple, true);
        let mut second = Client::enter(&bed.path, "", Framing::Simple, true);
        bed.until("both are in", |bed| bed.counts(0).connections == 2);
        let path = bed.path.clone();
        let third = std::thread::spawn(move || Client::enter(&path, "", Framing::Simple, true).read(0, 512));
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(bed.counts(0).connections_total, 2);
        drop(first);
        assert_eq!(third.join().unwrap(), [0; 512]);
        second.write(0, &[1; 512]);
    }
}

#[test]
fn a_shutdown_answers_what_is_in_flight_and_refuses_the_rest() {
    for engine in Engine::ALL {
        let bed = holding(engine, limits());
        let mut half_open = connect(&bed.path);
        let mut client = Client::enter(&bed.path, "", Framing::Structured, true);
        let first = client.send(WRITE, 0, 0, 512, &[1; 512]);
        bed.until("it is in flight", |bed| held(bed) == 1);
        // A large payload, half of which is on its way when the shutdown begins.
        let (header, second) = client.header(WRITE, 0, 0, 65_536);
        client.stream.write_all(&header).unwrap();
        client.stream.write_all(&[1; 1000]).unwrap();
        bed.until("its beginning was received", |bed| bed.counts(0).receives >= 2);
        let ended = bed.shutdown();
        let mut rest = Vec::new();
        half_open.read_to_end(&mut rest).unwrap();
        assert!(UnixStream::connect(&bed.path).is_err(), "nobody is taken any more");
        assert!(ended.recv_timeout(Duration::from_millis(100)).is_err(), "it waits for what is in flight");
        release(&bed, Status::Ok);
        let answer = client.answer().unwrap();
        assert_eq!((answer.cookie, answer.error), (first, 0));
        assert_ne!(answer.cookie, second, "what was received in part is not applied");
        assert!(client.is_at_end());
        assert!(ended.recv_timeout(LONG).unwrap());
        assert!(!bed.path.exists());
        assert_eq!(held(&bed), 0);
    }
}

#[test]
fn requests_that_come_during_a_shutdown_are_told_so() {
    for engine in Engine::ALL {
        let bed = holding(engine, limits());
        let mut client = Client::enter(&bed.path, "", Framing::Structured, true);
        // As many as are allowed in flight; those behind them wait in the socket.
        let mut all = Vec::new();
        for at in 0..140 {
            all.extend(client.header(READ, 0, at * 512, 512).0);
        }
        client.stream.write_all(&all).unwrap();
        bed.until("as many as allowed are in flight", |bed| held(bed) == 128);
        let ended = bed.shutdown();
        assert!(ended.recv_timeout(Duration::from_millis(50)).is_err());
        release(&bed, Status::Ok);
        let errors: Vec<u32> = (0..140).map(|_| client.answer().unwrap().error).collect();
        let count = |wanted| errors.iter().filter(|&&error| error == wanted).count();
        assert_eq!((count(0), count(108)), (128, 12));
        assert!(client.is_at_end());
        assert!(ended.recv_timeout(LONG).unwrap());
    }
}

#[test]
fn a_shutdown_does_not_wait_for_ever() {
    for engine in Engine::ALL {
        let bed = holding(engine, ServeLimits { drain: Duration::from_millis(200), ..limits() });
        let mut client = Client::enter(&bed.path, "", Framing::Simple, true);
        client.send(FLUSH, 0, 0, 0, &[]);
        bed.until("it is in flight", |bed| held(bed) == 1);
        let ended = bed.shutdown();
        assert!(!ended.recv_timeout(LONG).unwrap());
        assert!(client.is_at_end());
        release(&bed, Status::Ok);
    }
}
