//! What the NBD device does with requests and with what was acknowledged when servers are lost, over and over, with
//! several connections, half-way through a request, or while it is being closed.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests are servers on threads of their own")]

mod common;

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use common::client::{FLUSH, READ, WRITE};
use common::patiently;
use common::script::{LONG, Peer, done, each, each_at_once, options, read, socket, until_exists, write};
use forebay_block::{Bio, Flags, Status, call};
use forebay_device::{NbdDevice, NbdOptions};
use forebay_nbd::{TransmissionFlags, WireError};
use forebay_reactor::Reactor;

const SEVERAL: TransmissionFlags = TransmissionFlags::CAN_MULTI_CONN;

/// How often a request is sent before it is given up.
const TRIES: usize = 6;

fn durable(at: u64) -> Bio {
    write(at, 512).with(Flags { fua: true, ..Flags::default() })
}

fn flushing() -> TransmissionFlags {
    TransmissionFlags::SEND_FLUSH
}

fn several() -> TransmissionFlags {
    SEVERAL | TransmissionFlags::SEND_FLUSH
}

/// The kinds of the requests that come next, which are answered.
fn answer(peer: &mut Peer, kinds: &[u16]) {
    for kind in kinds {
        let (header, _) = peer.request().unwrap();
        assert_eq!(header.kind, *kind);
        peer.done(&header);
    }
}

fn kinds(asked: &[(u16, u64)]) -> Vec<u16> {
    asked.iter().map(|asked| asked.0).collect()
}

/// Nobody else has come.
fn nobody(listener: &UnixListener) {
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err(), "no further connection is made");
}

#[test]
fn a_flush_for_a_write_with_fua_leaves_the_loss_to_be_told() {
    each(
        &options(),
        |listener, _| {
            let mut first = Peer::accept_with(&listener, flushing());
            answer(&mut first, &[WRITE]);
            drop(first);
            let asked = Peer::accept_with(&listener, flushing()).serve();
            assert_eq!(kinds(&asked), [WRITE, FLUSH, FLUSH]);
        },
        async |_, device| {
            assert_eq!(done(&device, write(0, 512)).await, Status::Ok);
            // The server goes away here with a write that it acknowledged, and comes back.
            assert_eq!(done(&device, durable(4096)).await, Status::Ok);
            assert_eq!(done(&device, Bio::flush()).await, Status::IoError);
            assert_eq!(done(&device, Bio::flush()).await, Status::Ok);
        },
    );
}

#[test]
fn a_write_whose_flush_for_fua_was_lost_is_sent_again_and_nothing_is_lost() {
    each(
        &options(),
        |listener, _| {
            let mut first = Peer::accept_with(&listener, flushing());
            answer(&mut first, &[WRITE]);
            assert_eq!(first.request().unwrap().0.kind, FLUSH);
            drop(first);
            let asked = Peer::accept_with(&listener, flushing()).serve();
            assert_eq!(asked, [(WRITE, 4096), (FLUSH, 0), (FLUSH, 0)]);
        },
        async |_, device| {
            assert_eq!(done(&device, durable(4096)).await, Status::Ok);
            assert_eq!(done(&device, Bio::flush()).await, Status::Ok);
        },
    );
}

#[test]
fn a_flush_that_failed_for_a_write_with_fua_is_told_by_the_next_flush() {
    each(
        &options(),
        |listener, _| {
            let mut peer = Peer::accept_with(&listener, flushing());
            answer(&mut peer, &[WRITE, WRITE]);
            let (header, _) = peer.request().unwrap();
            assert_eq!(header.kind, FLUSH);
            peer.fail(&header, WireError::Io);
            assert_eq!(kinds(&peer.serve()), [FLUSH]);
        },
        async |_, device| {
            assert_eq!(done(&device, write(0, 512)).await, Status::Ok);
            assert_eq!(done(&device, durable(4096)).await, Status::IoError);
            assert_eq!(done(&device, Bio::flush()).await, Status::IoError);
            assert_eq!(done(&device, Bio::flush()).await, Status::Ok);
        },
    );
}

#[test]
fn every_user_is_told_of_a_loss_once() {
    each(
        &options(),
        |listener, _| {
            let mut first = Peer::accept_with(&listener, flushing());
            answer(&mut first, &[WRITE]);
            drop(first);
            Peer::accept_with(&listener, flushing()).serve();
        },
        async |_, device| {
            let other = device.share();
            assert_eq!(done(&device, write(0, 512)).await, Status::Ok);
            assert_eq!(done(&device, read(0, 512)).await, Status::Ok);
            let late = device.share();
            for user in [&device, &other] {
                assert_eq!(done(user, Bio::flush()).await, Status::IoError);
            }
            for user in [&device, &other, &late] {
                assert_eq!(done(user, Bio::flush()).await, Status::Ok);
            }
            drop(device);
            assert_eq!(done(&other, read(0, 512)).await, Status::Ok, "it is open as long as anybody uses it");
        },
    );
}

#[test]
fn a_server_that_comes_back_without_several_connections_gets_one() {
    each(
        &NbdOptions { connections: 2, ..options() },
        |listener, path| {
            let (first, mut second) = (Peer::accept_with(&listener, SEVERAL), Peer::accept_with(&listener, SEVERAL));
            drop(first);
            assert!(second.request().is_none(), "all connections end together");
            std::fs::write(path.with_extension("go"), b"").unwrap();
            Peer::accept_with(&listener, flushing()).serve();
            nobody(&listener);
        },
        async |reactor, device| {
            exists(reactor, &socket(&device).with_extension("go")).await;
            for at in 0..8 {
                assert_eq!(done(&device, read(at * 512, 512)).await, Status::Ok);
            }
            assert_eq!(device.connections(), 1);
        },
    );
}

#[test]
fn a_server_that_takes_several_connections_back_is_used_with_one_from_then_on() {
    each(
        &NbdOptions { connections: 4, ..options() },
        |listener, path| {
            let (mut first, mut second) = (Peer::accept_with(&listener, SEVERAL), Peer::accept_with(&listener, SEVERAL));
            let mut third = Peer::accept_with(&listener, flushing());
            for peer in [&mut first, &mut second, &mut third] {
                assert!(peer.request().is_none(), "the client hangs up");
            }
            std::fs::write(path.with_extension("go"), b"").unwrap();
            Peer::accept_with(&listener, SEVERAL).serve();
            nobody(&listener);
        },
        async |reactor, device| {
            exists(reactor, &socket(&device).with_extension("go")).await;
            assert_eq!(done(&device, read(0, 512)).await, Status::Ok);
            assert_eq!(device.connections(), 1);
        },
    );
}

#[test]
fn a_request_that_ends_the_server_each_time_fails_in_the_end() {
    each(
        &options(),
        |listener, _| {
            for _ in 0..TRIES {
                assert_eq!(Peer::accept(&listener).request().unwrap().0.kind, WRITE);
            }
            assert_eq!(Peer::accept(&listener).serve(), [(READ, 0)]);
        },
        async |_, device| {
            assert_eq!(done(&device, write(4096, 512)).await, Status::IoError);
            assert_eq!(done(&device, read(0, 512)).await, Status::Ok);
        },
    );
}

#[test]
fn a_server_that_shuts_down_for_ever_is_given_up() {
    each(
        &options(),
        |listener, _| {
            for _ in 0..TRIES {
                let mut peer = Peer::accept(&listener);
                let (header, _) = peer.request().unwrap();
                peer.fail(&header, WireError::ShuttingDown);
            }
            assert_eq!(Peer::accept(&listener).serve(), [(READ, 512)]);
        },
        async |_, device| {
            assert_eq!(done(&device, read(0, 512)).await, Status::IoError);
            assert_eq!(done(&device, read(512, 512)).await, Status::Ok);
        },
    );
}

#[test]
fn a_read_that_is_never_answered_is_sent_twice() {
    patiently(|| {
        each_at_once(
            &NbdOptions { reply: Duration::from_secs(5), ..options() },
            |listener, path| {
                let mut unanswered = 0;
                // On a slow machine the client may hang up on the second read, too.
                while !path.with_extension("over").exists() {
                    let Ok(mut peer) = Peer::accept_if_it_stays(&listener) else { continue };
                    while let Some((header, _)) = peer.request() {
                        if header.offset == 0 {
                            unanswered += 1;
                        } else if peer.try_done(&header).is_err() {
                            break;
                        }
                    }
                }
                assert_eq!(unanswered, 2);
            },
            async |_, device| {
                assert_eq!(done(&device, read(0, 512)).await, Status::IoError);
                assert_eq!(done(&device, read(512, 512)).await, Status::Ok);
                std::fs::write(socket(&device).with_extension("over"), b"").unwrap();
                // Whoever waits for a client gets one.
                drop(UnixStream::connect(socket(&device)));
            },
        );
    });
}

#[test]
fn a_write_that_is_answered_early_and_never_taken_has_its_time_limit() {
    patiently(|| {
        each_at_once(
            &NbdOptions { reply: Duration::from_secs(5), ..options() },
            |listener, path| {
                let mut peer = Peer::accept(&listener);
                let header = peer.header();
                peer.done(&header);
                until_exists(&path.with_extension("over"));
            },
            async |_, device| {
                assert_eq!(done(&device, write(0, 1 << 20)).await, Status::Ok, "the server said so");
                std::fs::write(socket(&device).with_extension("over"), b"").unwrap();
            },
        );
    });
}

#[test]
fn a_write_that_is_refused_early_by_a_server_that_shuts_down_is_sent_again() {
    each(
        &options(),
        |listener, _| {
            let mut first = Peer::accept(&listener);
            let header = first.header();
            first.fail(&header, WireError::ShuttingDown);
            // Long enough for the reply to be taken in, mostly.
            std::thread::sleep(Duration::from_millis(100));
            drop(first);
            assert_eq!(Peer::accept(&listener).serve(), [(WRITE, 0)]);
        },
        async |_, device| assert_eq!(done(&device, write(0, 1 << 20)).await, Status::Ok),
    );
}

/// Takes the payload of a write slowly: in eight pieces, with as many pauses, which take `time` together.
fn take_slowly(peer: &mut Peer, bytes: usize, time: Duration) {
    let mut piece = vec![0; bytes / 8];
    for _ in 0..8 {
        std::thread::sleep(time / 8);
        peer.stream.read_exact(&mut piece).unwrap();
    }
}

#[test]
fn the_time_for_a_reply_begins_when_the_request_was_sent() {
    // Each part leaves 3.5 s for a machine that stalls. Both together are more than the limit and a quarter of it, which is
    // how often the client looks.
    let part = Duration::from_millis(6500);
    patiently(|| {
        each_at_once(
            &NbdOptions { reply: Duration::from_secs(10), ..options() },
            move |listener, _| {
                let mut peer = Peer::accept(&listener);
                let header = peer.header();
                // So long until it is sent, and as long until the reply.
                take_slowly(&mut peer, 1 << 20, part);
                std::thread::sleep(part);
                peer.done(&header);
                peer.serve();
            },
            async |_, device| assert_eq!(done(&device, write(0, 1 << 20)).await, Status::Ok),
        );
    });
}

/// Waits for both connections.
async fn both(reactor: &Reactor, device: &NbdDevice) {
    let until = reactor.now() + LONG;
    while device.connections() != 2 {
        assert!(reactor.now() < until, "both are there in time");
        reactor.sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn nonsense_on_one_of_several_connections_fails_what_was_on_that_one() {
    each(
        &NbdOptions { connections: 2, ..options() },
        |listener, _| {
            let (mut first, mut second) = (Peer::accept_with(&listener, SEVERAL), Peer::accept_with(&listener, SEVERAL));
            first.request().unwrap();
            second.request().unwrap();
            first.stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
            assert!(second.request().is_none(), "all connections end together");
            let asked = Peer::accept_with(&listener, flushing()).serve();
            assert_eq!(asked.len(), 1, "what was on the other one is sent again");
        },
        async |reactor, device| {
            both(reactor, &device).await;
            let calls = [call(&*device, write(0, 512)), call(&*device, write(65536, 512))];
            let mut good = 0;
            for call in calls {
                good += usize::from(call.await.status().is_ok());
            }
            assert_eq!(good, 1);
        },
    );
}

#[test]
fn a_loss_with_several_connections_sends_all_again_and_is_told_once() {
    each(
        &NbdOptions { connections: 2, ..options() },
        |listener, path| {
            let (mut first, mut second) = (Peer::accept_with(&listener, several()), Peer::accept_with(&listener, several()));
            answer(&mut first, &[WRITE]);
            until_exists(&path.with_extension("go"));
            first.request().unwrap();
            second.request().unwrap();
            drop(second);
            assert!(first.request().is_none(), "all connections end together");
            let mut asked = Peer::accept_with(&listener, flushing()).serve();
            asked.sort_unstable();
            assert_eq!(asked, [(WRITE, 4096), (WRITE, 65536), (FLUSH, 0)]);
        },
        async |reactor, device| {
            both(reactor, &device).await;
            assert_eq!(done(&device, write(0, 512)).await, Status::Ok);
            let calls = [call(&*device, write(4096, 512)), call(&*device, write(65536, 512))];
            std::fs::write(socket(&device).with_extension("go"), b"").unwrap();
            for call in calls {
                assert_eq!(call.await.status(), Status::Ok);
            }
            assert_eq!(done(&device, Bio::flush()).await, Status::IoError);
            assert_eq!(done(&device, Bio::flush()).await, Status::Ok);
        },
    );
}

#[test]
fn a_device_that_is_closed_ends_what_is_in_flight() {
    each(
        &options(),
        |listener, path| {
            let mut peer = Peer::accept(&listener);
            for _ in 0..2 {
                peer.request().unwrap();
            }
            std::fs::write(path.with_extension("go"), b"").unwrap();
            assert!(peer.request().is_none(), "the client hangs up");
        },
        async |reactor, device| {
            let calls = [call(&*device, write(0, 512)), call(&*device, read(4096, 512))];
            exists(reactor, &socket(&device).with_extension("go")).await;
            drop(device);
            for call in calls {
                assert_eq!(call.await.status(), Status::IoError);
            }
        },
    );
}

#[test]
fn a_device_that_is_closed_at_once_hangs_up() {
    each(
        &options(),
        |listener, path| {
            assert!(Peer::accept(&listener).request().is_none(), "the client hangs up");
            std::fs::write(path.with_extension("go"), b"").unwrap();
        },
        async |reactor, device| {
            let path = socket(&device).with_extension("go");
            drop(device);
            exists(reactor, &path).await;
        },
    );
}

/// Waits for a file, while the reactor goes on.
async fn exists(reactor: &Reactor, path: &Path) {
    let until = reactor.now() + LONG;
    while !path.exists() {
        assert!(reactor.now() < until, "{} is there in time", path.display());
        reactor.sleep(Duration::from_millis(1)).await;
    }
}
