//! Clients that mean harm, or are broken: they get nothing, and keep nobody else from being served.
#![forbid(unsafe_code)]

use forebay_tests::nbd::{Client, command};
use forebay_tests::server::forebay;
use forebay_tests::{Scratch, Server, pattern, run};
use rustix::io::Errno;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// A server of a disk in memory; and of a second one, in the same process, where `other` is.
fn serve(scratch: &Scratch, other: bool) -> Server {
    let device = |name: &&str| {
        let export = format!("nbd+unix:///{name}?socket={}", scratch.file(name));
        let table = format!("0 {} linear ram:64M 0", 64 * MIB / 512);
        format!("[[device]]\nname = \"{name}\"\ntable = \"{table}\"\nexport = [\"{export}\"]\n")
    };
    let config: String = ["disk", "other"].iter().take(1 + usize::from(other)).map(device).collect();
    let config = scratch.write("server.toml", config.as_bytes());
    Server::start(&scratch.file("server"), 1 + usize::from(other), &["--config", &config])
}

/// Time until a new client has its first 4 KiB.
fn time_to_serve(server: &Server) -> Duration {
    let start = run::now();
    let mut client = Client::connect(server.uri()).expect("the server takes clients");
    assert_eq!(client.read(0, 4096).expect("a read").len(), 4096);
    start.elapsed()
}

/// The `NoNewPrivs` of a thread, which is a folder; nothing when it is gone.
fn has_given_up(thread: &Path) -> Option<bool> {
    match fs::read_to_string(thread.join("status")) {
        Ok(status) => Some(status.lines().any(|line| line.split_whitespace().eq(["NoNewPrivs:", "1"]))),
        Err(error) if error.kind() == ErrorKind::NotFound || Errno::from_io_error(&error) == Some(Errno::SRCH) => None,
        Err(error) => panic!("{}: {error}", thread.display()),
    }
}

/// The `NoNewPrivs` of each thread of the server.
fn privileges_given_up(server: &Server) -> Vec<bool> {
    let threads = fs::read_dir(format!("/proc/{}/task", server.id())).expect("the server lives");
    threads.filter_map(|thread| has_given_up(&thread.expect("a thread").path())).collect()
}

/// At most this long, in the best of a few tries: the machine may be busy with other things.
fn is_served_within(server: &Server, limit: Duration) {
    let times: Vec<_> = (0..5).map(|_| time_to_serve(server)).collect();
    assert!(times.iter().min() < Some(&limit), "a client waited {times:?}");
}

fn socket_of(server: &Server) -> &str {
    server.uri().split_once("socket=").expect("a unix socket").1
}

#[test]
fn ten_thousand_clients_who_say_nothing_keep_nobody_waiting() {
    let scratch = Scratch::new();
    let server = serve(&scratch, false);
    let mut client = Client::connect(server.uri()).expect("the server takes clients");
    let _warm = client.read(0, 1 << 20).expect("a read");
    let before = server.resident();
    let allowed = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let wanted = rustix::process::Rlimit { current: allowed.maximum, maximum: allowed.maximum };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, wanted).expect("up to the hard limit");
    let silent: Vec<_> = (0..10_000)
        .map(|number| {
            UnixStream::connect(socket_of(&server))
                .unwrap_or_else(|error| panic!("connection {number}: {error}; `ulimit -Hn` must allow 10,100"))
        })
        .collect();
    is_served_within(&server, Duration::from_secs(3));
    assert_eq!(client.read(4096, 4096).expect("whoever was there before is still served").len(), 4096);
    let grown = server.resident().saturating_sub(before);
    assert!(grown <= 64 * MIB, "{} MiB for {} clients", grown / MIB, silent.len());
    server.stop();
}

#[test]
fn a_client_who_reads_nothing_back_costs_a_bounded_amount_and_nobody_else_waits() {
    let scratch = Scratch::new();
    let server = serve(&scratch, false);
    let _warm = time_to_serve(&server);
    let before = server.resident();
    let mut slow: Vec<_> = (0..4).map(|_| Client::connect(server.uri()).expect("the server takes clients")).collect();
    for client in &mut slow {
        let stream = client.stream();
        stream.set_write_timeout(Some(Duration::from_millis(300))).expect("a time");
        for _ in 0..2000 {
            if client.send(command::READ, 0, 0, 1 << 20, &[]).is_err() {
                break;
            }
        }
    }
    is_served_within(&server, Duration::from_secs(3));
    // Each may have 64 MiB of payload in flight.
    let grown = server.resident().saturating_sub(before);
    assert!(grown <= 4 * 64 * MIB + 64 * MIB, "{} MiB", grown / MIB);
    drop(slow);
    server.stop();
}

#[test]
fn requests_beyond_all_limits_are_refused_and_others_are_served() {
    let scratch = Scratch::new();
    let server = serve(&scratch, false);
    for (offset, length) in [(0, u32::MAX), (u64::MAX, 4096), (u64::MAX - 4095, 4096), (64 * MIB, 1), (64 * MIB - 512, 4096)] {
        let mut client = Client::connect(server.uri()).expect("the server takes clients");
        client.read(offset, length).expect_err("out of range, or too large");
        assert_eq!(client.read(0, 512).expect("the connection goes on").len(), 512);
        // After a write that is too large the connection ends; the payload of one out of range is skipped.
        let payload = if length == u32::MAX { Vec::new() } else { vec![7; length as usize] };
        client.send(command::WRITE, 0, offset, length, &payload).expect("a request");
        let mut answer = Vec::new();
        client.stream().shutdown(Shutdown::Write).expect("a socket");
        client.stream().read_to_end(&mut answer).expect("an error, or the end");
        assert!(answer.len() == 16 && answer[4..8] != [0; 4], "{answer:?}");
    }
    let mut client = Client::connect(server.uri()).expect("the server takes clients");
    assert!(client.read(0, 1 << 20).expect("a read").iter().all(|&byte| byte == 0), "nothing was written");
    server.stop();
}

#[test]
fn half_a_payload_is_never_written() {
    let scratch = Scratch::new();
    let server = serve(&scratch, false);
    for length in [4096_u32, 100 << 10, 4 << 20] {
        let mut client = Client::connect(server.uri()).expect("the server takes clients");
        client.send(command::WRITE, 0, 8 * MIB, length, &vec![9; length as usize / 2]).expect("half a request");
        client.stream().shutdown(Shutdown::Both).expect("a socket");
    }
    let mut client = Client::connect(server.uri()).expect("the server takes clients");
    client.write(0, &[1; 512], 0).expect("a write");
    for _ in 0..20 {
        assert!(client.read(8 * MIB, 4 << 20).expect("a read").iter().all(|&byte| byte == 0));
        run::pause(Duration::from_millis(10));
    }
    server.stop();
}

/// What one export's clients wrote, and what was in its buffers, never shows in what another's receive.
#[test]
fn what_is_secret_never_reaches_another_client() {
    let scratch = Scratch::new();
    let server = serve(&scratch, true);
    let canary = b"forebay-canary-7f3a9c51e2d84b60!";
    let (secret, open) = (&server.uris()[0], &server.uris()[1]);
    let mut writer = Client::connect(secret).expect("the server takes clients");
    for length in [512, 4096, 5000, 65_536, 1 << 20, 4 << 20] {
        let payload: Vec<u8> = canary.iter().copied().cycle().take(length).collect();
        writer.write(0, &payload, 0).expect("a write");
        assert_eq!(writer.read(0, u32::try_from(length).expect("small")).expect("a read"), payload);
        writer.write(64 * MIB, &payload, 0).expect_err("out of range");
    }
    drop(writer);
    let mut seen = Vec::new();
    for (command, offset, length) in [
        (command::READ, 0, 512),
        (command::READ, 100, 5000),
        (command::READ, 4096, 65_536),
        (command::READ, 7, 4 << 20),
        (command::READ, 64 * MIB - 512, 1024),
        (command::READ, 0, u32::MAX),
        (command::FLUSH, 0, 0),
        (command::TRIM, 0, 4096),
        (command::WRITE_ZEROES, 100, 1000),
        (99, 0, 4096),
    ] {
        let mut client = Client::connect(open).expect("the server takes clients");
        client.send(command, 0, offset, length, &[]).expect("a request");
        client.stream().shutdown(Shutdown::Write).expect("a socket");
        client.stream().read_to_end(&mut seen).expect("a reply, or the end");
    }
    let socket = open.split_once("socket=").expect("a unix socket").1;
    for kind in 0..12_u32 {
        let mut raw = UnixStream::connect(socket).expect("the server takes clients");
        let mut option = b"\0\0\0\x03IHAVEOPT".to_vec();
        option.extend(kind.to_be_bytes());
        option.extend([0, 0, 0, 8, 0, 0, 0, 200, 1, 2, 3, 4]);
        raw.write_all(&option).expect("an option");
        raw.shutdown(Shutdown::Write).expect("a socket");
        raw.read_to_end(&mut seen).expect("an answer, or the end");
    }
    assert!(seen.len() > 4 << 20, "replies were seen");
    assert!(!seen.windows(8).any(|window| window == &canary[..8] || window == &canary[16..24]), "the secret was sent");
    server.stop();
}

#[test]
fn a_server_lets_go_of_all_but_its_own_files_unless_told_otherwise() {
    let [scratch, foreign] = [Scratch::new(), Scratch::new()];
    let table = format!("0 2048 zram threads=2 image={}", scratch.file("kept.img"));
    let export = format!("nbd+unix:///?socket={}", scratch.file("nbd.sock"));
    let control = scratch.file("control.sock");
    let (own, other) = (scratch.file("own.img"), foreign.file("other.img"));
    let serve = |more: &[&str]| {
        let args = ["--table", &table, "--export", &export, "--control", &control];
        Server::start(&scratch.file("server"), 1, &[&args, more].concat())
    };
    let save = |path: &str| forebay(&["zram", "save", "disk", path, "--control", &control]);

    let server = serve(&[]);
    let mut client = Client::connect(server.uri()).expect("the server takes clients");
    // Pages that are not all the same are compressed by a thread.
    client.write(0, &pattern::of(&(0..2048), 1), 0).expect("a write");
    let given_up = privileges_given_up(&server);
    assert!(given_up.len() > 1 && given_up.iter().all(|&given_up| given_up), "{given_up:?}");
    assert_eq!(save(&own).code, 0);
    let refused = save(&other);
    assert_eq!(refused.code, 1);
    assert!(refused.stderr.contains("Permission denied") && refused.stderr.contains("--allow-path"), "{}", refused.stderr);
    assert!(fs::read_dir(foreign.path()).expect("the folder is there").next().is_none(), "nothing was made");
    server.stop();

    // Whoever starts the tests may have given them up before.
    let already = has_given_up(Path::new("/proc/thread-self")).expect("this thread is there");
    for more in [["--allow-path", foreign.path().to_str().expect("a plain name")].as_slice(), &["--no-sandbox"]] {
        let server = serve(more);
        assert_eq!(privileges_given_up(&server).contains(&true), more.len() == 2 || already);
        assert_eq!(save(&other).code, 0);
        fs::remove_file(&other).expect("the image was made");
        server.stop();
    }
}
