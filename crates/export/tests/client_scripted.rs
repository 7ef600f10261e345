//! The NBD device against servers that go away, come back, stay silent, or talk nonsense.
//!
//! A scripted server is a thread that negotiates as our own server does and then follows its script.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests are servers on threads of their own")]

mod common;

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use common::client::{FLUSH, READ, WRITE};
use common::script::{
    BYTES, LONG, Peer, Script, answer_with_anything, done, each, each_at_once, options, read, socket, until_exists, write,
};
use common::{Engine, patiently};
use forebay_block::{Bio, Sector, Status, call};
use forebay_device::{NbdDevice, NbdError, NbdOptions};
use forebay_nbd::{TransmissionFlags, WireError};
use forebay_reactor::{BufferPool, Reactor};

/// Why a server of this script cannot be connected to.
fn refused(options: &NbdOptions, script: impl Fn(UnixListener, PathBuf) + Send + Clone + 'static) -> String {
    let mut told = Vec::new();
    for engine in [Engine::Uring, Engine::Threads] {
        let script = Script::new(script.clone());
        let reactor = Reactor::new(engine.backend());
        let pool = BufferPool::new(&reactor);
        let uri = script.uri();
        let connected = reactor.run(NbdDevice::connect(&reactor, &pool, &uri.parse().unwrap(), options.clone())).unwrap();
        let error: NbdError = connected.err().expect("there is nothing to connect to");
        told.push(error.to_string().replace(&uri, "URI"));
        script.end();
    }
    assert_eq!(told[0], told[1]);
    told.swap_remove(0)
}

#[test]
fn a_server_that_is_of_no_use_is_told_in_one_sentence() {
    let short = NbdOptions { dial: Duration::from_millis(300), ..options() };
    let reactor = Reactor::new(Engine::Threads.backend());
    let nowhere = "nbd+unix:///?socket=/nonexistent/nbd.sock";
    let (pool, uri) = (BufferPool::new(&reactor), nowhere.parse().unwrap());
    let said =
        reactor.run(NbdDevice::connect(&reactor, &pool, &uri, options())).unwrap().err().expect("there is nothing").to_string();
    assert!(said.starts_with("nbd+unix:///?socket=/nonexistent/nbd.sock cannot be reached: No such file"), "{said}");
    let silent = refused(&short, |listener, _| {
        let (mut stream, _) = listener.accept().unwrap();
        assert_eq!(stream.read(&mut [0; 1]).unwrap_or(0), 0);
    });
    assert_eq!(silent, "URI did not answer within 300 ms: is it overloaded, or something else than an NBD server?");
    let other = refused(&options(), |listener, _| {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"220 mail.example ESMTP\r\n").unwrap();
    });
    assert_eq!(other, "URI: what answers is no NBD server");
    let gone = refused(&options(), |listener, _| drop(listener.accept().unwrap()));
    assert_eq!(gone, "URI cannot be reached: the server hung up in the handshake: is the server running?");
    let read_only = refused(&options(), |listener, _| drop(Peer::accept_with(&listener, TransmissionFlags::READ_ONLY)));
    assert!(read_only.starts_with("URI is read-only: "), "{read_only}");
}

#[test]
fn what_had_no_reply_is_sent_again_in_order_and_what_overlaps_it_waits() {
    each(
        &options(),
        |listener, path| {
            let mut first = Peer::accept(&listener);
            let mut asked = Vec::new();
            for _ in 0..2 {
                let (header, _) = first.request().unwrap();
                asked.push((header.kind, header.offset));
            }
            asked.sort_unstable();
            assert_eq!(asked, [(READ, 65536), (WRITE, 0)]);
            drop(first);
            // The second connection is negotiated only when the client has seen the end of the first.
            until_exists(&path.with_extension("go"));
            let mut second = Peer::accept(&listener);
            let (held, _) = second.request().unwrap();
            assert_eq!((held.kind, held.offset), (WRITE, 0), "the first to arrive is the first to leave");
            let (next, _) = second.request().unwrap();
            assert_eq!((next.kind, next.offset), (READ, 65536));
            second.done(&next);
            // The read that came meanwhile overlaps the write: it leaves only behind its reply.
            second.stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
            assert!(second.input.is_empty() && second.stream.read(&mut [0; 1]).is_err(), "what overlaps waits");
            second.stream.set_read_timeout(Some(LONG)).unwrap();
            second.done(&held);
            let (waited, _) = second.request().unwrap();
            assert_eq!((waited.kind, waited.offset), (READ, 512));
            second.done(&waited);
            second.serve();
        },
        async |reactor, device| {
            let written = call(&*device, write(0, 4096));
            reactor.sleep(Duration::from_millis(20)).await;
            let far = call(&*device, read(65536, 512));
            // Until the connection was lost and there is another one: what comes now is later.
            while device.connections() > 0 {
                reactor.sleep(Duration::from_millis(1)).await;
            }
            let near = call(&*device, read(512, 512));
            std::fs::write(socket(&device).with_extension("go"), b"").unwrap();
            assert_eq!(written.await.status(), Status::Ok);
            assert_eq!(far.await.status(), Status::Ok);
            assert_eq!(near.await.status(), Status::Ok);
        },
    );
}

#[test]
fn a_flush_that_may_not_cover_what_was_acknowledged_fails_once() {
    each(
        &options(),
        |listener, _| {
            let mut first = Peer::accept(&listener);
            for kind in [WRITE, FLUSH, WRITE] {
                let (header, _) = first.request().unwrap();
                assert_eq!(header.kind, kind);
                first.done(&header);
            }
            drop(first);
            let asked = Peer::accept(&listener).serve();
            assert_eq!(asked.iter().map(|asked| asked.0).collect::<Vec<_>>(), [WRITE, FLUSH, FLUSH]);
        },
        async |_, device| {
            assert_eq!(done(&device, write(0, 512)).await, Status::Ok);
            assert_eq!(done(&device, Bio::flush()).await, Status::Ok);
            assert_eq!(done(&device, write(512, 512)).await, Status::Ok);
            // The server goes away here with a write that it acknowledged, and comes back.
            assert_eq!(done(&device, write(1024, 512)).await, Status::Ok);
            assert_eq!(done(&device, Bio::flush()).await, Status::IoError);
            assert_eq!(done(&device, Bio::flush()).await, Status::Ok);
            assert_eq!(done(&device, Bio::flush()).await, Status::Ok);
        },
    );
}

#[test]
fn a_flush_under_way_fails_with_a_loss_and_is_sent_again_where_nothing_is_lost() {
    each(
        &options(),
        |listener, _| {
            for (kinds, replies) in [(&[FLUSH][..], 0), (&[FLUSH, WRITE, FLUSH], 2), (&[FLUSH], 1)] {
                let mut peer = Peer::accept(&listener);
                for (at, kind) in kinds.iter().enumerate() {
                    let (header, _) = peer.request().unwrap();
                    assert_eq!(header.kind, *kind);
                    if at < replies {
                        peer.done(&header);
                    }
                }
                if replies == 1 {
                    peer.serve();
                }
            }
        },
        async |_, device| {
            assert_eq!(done(&device, Bio::flush()).await, Status::Ok, "nothing was written: the second server may answer");
            assert_eq!(done(&device, write(0, 512)).await, Status::Ok);
            assert_eq!(done(&device, Bio::flush()).await, Status::IoError);
            assert_eq!(done(&device, Bio::flush()).await, Status::Ok);
        },
    );
}

#[test]
fn a_server_that_shuts_down_is_waited_for() {
    each(
        &options(),
        |listener, _| {
            let mut first = Peer::accept(&listener);
            let (header, _) = first.request().unwrap();
            first.fail(&header, WireError::ShuttingDown);
            assert!(first.request().is_none(), "the client hangs up");
            assert_eq!(Peer::accept(&listener).serve(), [(WRITE, 4096)]);
        },
        async |_, device| assert_eq!(done(&device, write(4096, 512)).await, Status::Ok),
    );
}

#[test]
fn a_request_without_a_reply_has_a_time_limit() {
    patiently(|| {
        each_at_once(
            &NbdOptions { reply: Duration::from_secs(4), ..options() },
            |listener, _| {
                let mut first = Peer::accept(&listener);
                for _ in 0..2 {
                    first.request().unwrap();
                }
                assert!(first.request().is_none(), "the client hangs up");
                Peer::accept(&listener).serve();
            },
            async |_, device| {
                let (written, read) = (call(&*device, write(0, 512)), call(&*device, read(4096, 512)));
                assert_eq!(written.await.status(), Status::IoError, "the server may still be at work on it");
                assert_eq!(read.await.status(), Status::Ok, "sent again");
            },
        );
    });
}

#[test]
fn nonsense_ends_the_connection_and_its_requests() {
    each(
        &options(),
        |listener, _| {
            let mut first = Peer::accept(&listener);
            first.request().unwrap();
            first.stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
            assert!(first.request().is_none(), "the client hangs up");
            Peer::accept(&listener).serve();
        },
        async |_, device| {
            assert_eq!(done(&device, read(0, 512)).await, Status::IoError);
            assert_eq!(done(&device, read(0, 512)).await, Status::Ok);
        },
    );
}

#[test]
fn a_server_that_stays_away_fails_requests_until_it_is_back() {
    each(
        &NbdOptions { away: Duration::from_millis(200), ..options() },
        |listener, path| {
            drop(Peer::accept(&listener));
            drop(listener);
            std::fs::remove_file(&path).unwrap();
            let back = path.with_extension("back");
            until_exists(&back);
            let listener = UnixListener::bind(&path).unwrap();
            Peer::accept(&listener).serve();
        },
        async |reactor, device| {
            assert_eq!(done(&device, read(0, 512)).await, Status::IoError);
            let begun = Instant::now();
            assert_eq!(done(&device, write(0, 512)).await, Status::IoError, "at once");
            assert!(begun.elapsed() < LONG);
            std::fs::write(socket(&device).with_extension("back"), b"").unwrap();
            // Each request causes an attempt, at most one a second.
            while done(&device, read(0, 512)).await != Status::Ok {
                reactor.sleep(Duration::from_millis(200)).await;
            }
        },
    );
}

#[test]
fn an_export_that_came_back_smaller_is_not_taken_for_the_old_one() {
    each(
        &NbdOptions { away: Duration::from_millis(200), ..options() },
        |listener, _| {
            drop(Peer::accept(&listener));
            listener.set_nonblocking(false).unwrap();
            let (mut stream, _) = listener.accept().unwrap();
            // Refuses options, then tells another size by name.
            let mut words = b"NBDMAGICIHAVEOPT\0\x03".to_vec();
            for option in [11_u32, 8, 7] {
                words.extend(0x0003_e889_0455_65a9_u64.to_be_bytes());
                words.extend(option.to_be_bytes());
                words.extend(0x8000_0001_u32.to_be_bytes());
                words.extend(0_u32.to_be_bytes());
            }
            words.extend((BYTES / 2).to_be_bytes());
            words.extend([0, 5]);
            stream.write_all(&words).unwrap();
            drop(listener);
            while stream.read(&mut [0; 64]).is_ok_and(|received| received > 0) {}
        },
        async |_, device| assert_eq!(done(&device, read(0, 512)).await, Status::IoError),
    );
}

#[test]
fn a_write_with_fua_is_flushed_where_the_server_has_no_fua() {
    each(
        &options(),
        |listener, _| {
            let asked = Peer::accept_with(&listener, TransmissionFlags::SEND_FLUSH).serve();
            assert_eq!(asked, [(WRITE, 512), (FLUSH, 0)]);
        },
        async |_, device| {
            let flags = forebay_block::Flags { fua: true, ..forebay_block::Flags::default() };
            assert_eq!(done(&device, write(512, 512).with(flags)).await, Status::Ok);
        },
    );
}

#[test]
fn zeroes_are_written_where_the_server_has_no_write_zeroes() {
    each(
        &options(),
        |listener, _| {
            let mut peer = Peer::accept(&listener);
            let (header, payload) = peer.request().unwrap();
            assert_eq!((header.kind, header.offset), (WRITE, 4096));
            assert!(payload.len() == 200 << 10 && payload.iter().all(|byte| *byte == 0));
            peer.done(&header);
            peer.serve();
        },
        async |_, device| {
            let extent = forebay_block::Extent::new(Sector(8), forebay_block::SectorCount(400));
            assert_eq!(done(&device, Bio::write_zeroes(extent)).await, Status::Ok);
        },
    );
}

#[test]
fn whatever_a_server_says_every_request_ends() {
    each(
        &NbdOptions { reply: Duration::from_secs(20), ..options() },
        |listener, path| {
            let mut random = fastrand::Rng::with_seed(11);
            while !path.with_extension("over").exists() {
                let Ok(mut peer) = Peer::accept_if_it_stays(&listener) else { continue };
                while answer_with_anything(&mut peer, &mut random) {}
            }
        },
        async |_, device| {
            let mut random = fastrand::Rng::with_seed(12);
            let (mut good, mut bad) = (0, 0);
            for _ in 0..60 {
                let at = random.u64(0..200) * 4096;
                let bio = if random.bool() { write(at, 4096) } else { read(at, 40960) };
                let bio = call(&*device, bio).await;
                if bio.status().is_ok() { good += 1 } else { bad += 1 }
            }
            assert!(good > 20 && bad > 0, "{good} good, {bad} bad");
            std::fs::write(socket(&device).with_extension("over"), b"").unwrap();
            // Whoever waits for a client gets one.
            drop(UnixStream::connect(socket(&device)));
        },
    );
}

#[test]
fn a_read_only_server_is_read_where_nothing_is_to_be_written() {
    each(
        &NbdOptions { read_only: true, ..options() },
        |listener, _| {
            let asked = Peer::accept_with(&listener, TransmissionFlags::READ_ONLY).serve();
            assert_eq!(asked, [(READ, 512)]);
        },
        async |_, device| {
            assert_eq!(done(&device, read(512, 512)).await, Status::Ok);
            assert_eq!(done(&device, write(512, 512)).await, Status::ReadOnly);
        },
    );
}

#[test]
fn a_long_discard_is_cut_and_sent_without_payload() {
    each(
        &options(),
        |listener, _| {
            let mut peer = Peer::accept_large(&listener, TransmissionFlags::SEND_TRIM);
            let mut asked = Vec::new();
            while let Some((header, _)) = peer.request() {
                asked.push((header.kind, header.offset >> 29, header.length >> 29));
                peer.done(&header);
            }
            asked.sort_unstable();
            assert_eq!(asked, [(4, 1, 2), (4, 3, 2), (4, 5, 1)]);
        },
        async |_, device| {
            let extent = forebay_block::Extent::new(Sector(1 << 20), forebay_block::SectorCount(5 << 20));
            assert_eq!(done(&device, Bio::discard(extent)).await, Status::Ok);
        },
    );
}
