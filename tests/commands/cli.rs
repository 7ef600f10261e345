//! The command line as people meet it: wrong words, missing files, full disks, signals, and the embedded default.
#![forbid(unsafe_code)]

use forebay_tests::foreign::unmount;
use forebay_tests::nbd::Client;
use forebay_tests::run::Ended;
use forebay_tests::server::forebay;
use forebay_tests::{Scratch, Server, pattern, require, require_root, run, server};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// The simulator can be built with known bugs in it; what stands in it then stands nowhere in the binary.
#[test]
fn the_binary_has_no_planted_bugs() {
    let bytes = fs::read(server::binary()).expect("the binary was built");
    for mark in ["dm-writecache aa9509209c5a", "CVE-2022-0485", "Open CAS #832"] {
        assert!(!bytes.windows(mark.len()).any(|window| window == mark.as_bytes()), "{mark}");
    }
}

/// A cached pair in a folder, by its paths.
struct Pair {
    origin: String,
    cache: String,
    socket: String,
    log: String,
}

impl Pair {
    fn new(scratch: &Scratch) -> Self {
        let origin = scratch.sparse("origin.img", 64 * MIB);
        let cache = scratch.sparse("cache.img", 16 * MIB);
        Self { origin, cache, socket: scratch.file("nbd.sock"), log: scratch.file("server") }
    }

    fn table(&self) -> String {
        format!("0 131072 writecache s {} {} 4096 0", self.origin, self.cache)
    }

    fn export(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket)
    }

    fn serve(&self, more: &[&str]) -> Server {
        Server::start(&self.log, 1, &[&["--table", &self.table(), "--export", &self.export()], more].concat())
    }
}

/// Panics unless the command failed with `code` and said so plainly.
fn assert_plain_failure(what: &str, ended: &Ended, code: i32) {
    assert_eq!(ended.code, code, "{what}: {}{}", ended.stdout, ended.stderr);
    assert!(!ended.stderr.trim().is_empty(), "{what}: nothing on standard error");
    for word in ["panicked", "RUST_BACKTRACE", "backtrace", "src/", "os error"] {
        assert!(!ended.stderr.contains(word), "{what}: \"{word}\" is not for users: {}", ended.stderr);
    }
}

#[test]
fn wrong_arguments_end_with_2_and_a_plain_sentence() {
    for words in [
        &["nonsense"][..],
        &["serve", "--nonsense"],
        &["serve", "--engine", "quick"],
        &["serve", "--table"],
        &["serve", "--export", "http://localhost/"],
        &["serve", "--table", "0 8 linear"],
        &["serve", "--table", "0 8 nonsense", "--export", "nbd+unix:///?socket=/nonexistent/s"],
        &["serve", "--table", "gibberish", "--export", "nbd+unix:///?socket=/nonexistent/s"],
        &["status", "--json", "--line"],
        &["message"],
        &["message", "disk"],
        &["message", "disk", "nonsense"],
        &["message", "disk", "flush", "twice"],
        &["cache"],
        &["cache", "nonsense", "x"],
        &["cache", "check"],
        &["bench", "nonsense"],
        &["bench", "bvec", "--block-size", "513"],
        &["bench", "zram", "--plain", "--backing", "disk.img"],
        &["zram", "save", "disk"],
        &["bench", "writecache", "--size", "0"],
        &["bench", "writecache", "--size", "99999999G"],
        &["bench", "writecache", "--block-size", "100"],
    ] {
        assert_plain_failure(&words.join(" "), &forebay(words), 2);
    }
}

#[test]
fn help_and_version_succeed() {
    for words in [&["--help"][..], &["--version"], &["serve", "--help"], &["cache", "check", "--help"]] {
        let ended = forebay(words);
        assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{words:?}");
        assert!(ended.stdout.contains("forebay"), "{words:?}: {}", ended.stdout);
    }
}

#[test]
fn a_missing_file_is_named() {
    let scratch = Scratch::new();
    let pair = Pair::new(&scratch);
    for missing in [&pair.origin, &pair.cache] {
        let hidden = format!("{missing}.hidden");
        fs::rename(missing, &hidden).expect("a file of this test");
        let ended = forebay(&["serve", "--table", &pair.table(), "--export", &pair.export()]);
        assert_plain_failure("a missing device", &ended, 1);
        assert!(ended.stderr.contains(missing.as_str()), "{missing} is not named: {}", ended.stderr);
        assert!(!Path::new(missing).exists(), "a missing device was made up");
        fs::rename(&hidden, missing).expect("a file of this test");
    }
}

#[test]
fn what_is_no_cache_is_never_called_repairable() {
    let scratch = Scratch::new();
    let texts: [(&str, &[u8]); 4] = [("empty", b""), ("short", b"one line\n"), ("zeroes", &[0; 512]), ("text", &[b'x'; 8192])];
    for (name, bytes) in texts {
        let file = scratch.write(name, bytes);
        let check = forebay(&["cache", "check", &file]);
        assert_eq!(check.code, 2, "{name}: {}{}", check.stdout, check.stderr);
        assert!(check.stdout.starts_with(&format!("{file}: damaged\n  it is not a cache")), "{name}: {}", check.stdout);
        let dump = forebay(&["cache", "dump", &file]);
        assert_plain_failure(name, &dump, 1);
        assert!(dump.stderr.starts_with(&format!("forebay: {file} is not a cache")), "{name}: {}", dump.stderr);
    }
    let nowhere = scratch.file("nowhere");
    let sound = scratch.sparse("cache.img", MIB);
    for words in [&["cache", "check", &nowhere][..], &["cache", "check", &sound, &nowhere]] {
        let ended = forebay(words);
        assert_plain_failure("cache check", &ended, 2);
        assert!(ended.stderr.contains(&nowhere), "{}", ended.stderr);
    }
}

#[test]
fn status_without_a_server_says_so() {
    let scratch = Scratch::new();
    let control = scratch.file("control.sock");
    let ended = forebay(&["status", "--control", &control]);
    assert_plain_failure("status", &ended, 1);
    assert!(ended.stderr.contains(&control), "{}", ended.stderr);
}

#[test]
fn a_second_server_on_the_same_files_is_refused_and_the_first_serves_on() {
    let scratch = Scratch::new();
    let pair = Pair::new(&scratch);
    let first = pair.serve(&[]);
    let other = format!("nbd+unix:///?socket={}", scratch.file("other.sock"));
    let ended = forebay(&["serve", "--table", &pair.table(), "--export", &other]);
    assert_plain_failure("a second server", &ended, 1);
    assert!(ended.stderr.contains(&pair.origin) || ended.stderr.contains(&pair.cache), "{}", ended.stderr);
    let mut client = Client::connect(first.uri()).expect("the first server serves on");
    client.write(0, &pattern::of(&(0..8), 1), 0).expect("a write");
    drop(client);
    first.stop();
}

#[test]
fn a_socket_is_for_its_owner_only_and_that_of_a_killed_server_is_taken_over() {
    let scratch = Scratch::new();
    let pair = Pair::new(&scratch);
    let server = pair.serve(&[]);
    let mode = fs::metadata(&pair.socket).expect("the socket exists").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    server.kill();
    assert!(Path::new(&pair.socket).exists());
    let server = pair.serve(&[]);
    Client::connect(server.uri()).expect("the new server serves at the old place");
    server.stop();
    assert!(!Path::new(&pair.socket).exists(), "a clean stop leaves no socket behind");
}

#[test]
fn a_socket_in_use_is_not_taken_from_a_living_server() {
    let scratch = Scratch::new();
    let pair = Pair::new(&scratch);
    let server = pair.serve(&[]);
    let other = scratch.sparse("other.img", MIB);
    let ended = forebay(&["serve", "--table", &format!("0 2048 linear {other} 0"), "--export", &pair.export()]);
    assert_plain_failure("a taken socket", &ended, 1);
    assert!(ended.stderr.contains(&pair.socket), "{}", ended.stderr);
    Client::connect(server.uri()).expect("the first server serves on");
    server.stop();
}

#[test]
fn a_full_disk_fails_the_writes_concerned_and_nothing_else() {
    require_root();
    let scratch = Scratch::new();
    let mount = scratch.file("small");
    run::shell(20, &format!("mkdir {mount}; mount -t tmpfs -o size=4m forebay-test {mount}"));
    let origin = format!("{mount}/origin.img");
    run::shell(20, &format!("truncate -s 64M {origin}"));
    let export = format!("nbd+unix:///?socket={}", scratch.file("nbd.sock"));
    let table = format!("0 131072 linear {origin} 0");
    let server = Server::start(&scratch.file("server"), 1, &["--table", &table, "--export", &export]);
    let mut client = Client::connect(server.uri()).expect("a client is taken");
    let write = |client: &mut Client, mib: u64| client.write(mib * MIB, &pattern::of(&(mib * 2048..mib * 2048 + 2048), 1), 0);
    for mib in 0..3 {
        write(&mut client, mib).expect("there is room for three");
    }
    let refused: Vec<i32> = (3..9).filter_map(|mib| write(&mut client, mib).err()?.raw_os_error()).collect();
    assert!(!refused.is_empty() && refused.iter().all(|code| *code == 28), "not \"no space\": {refused:?}");
    for mib in 0..3 {
        let bytes = client.read(mib * MIB, 1 << 20).expect("the rest is readable");
        assert!(bytes == pattern::of(&(mib * 2048..mib * 2048 + 2048), 1), "MiB {mib}");
    }
    run::shell(20, &format!("mount -o remount,size=32m {mount}"));
    write(&mut client, 8).expect("with room again, writes work again");
    drop(client);
    server.stop();
    unmount(&mount);
}

#[test]
fn sigterm_leaves_with_clients_connected_and_keeps_dirty_data_in_the_cache() {
    let scratch = Scratch::new();
    let pair = Pair::new(&scratch);
    let mut server = pair.serve(&[]);
    let mut client = Client::connect(server.uri()).expect("a client is taken");
    client.write(0, &pattern::of(&(0..256), 5), 0).expect("a write");
    server.terminate();
    assert_eq!(server.wait().code, 0, "{}", server.stderr());
    let origin = fs::read(&pair.origin).expect("the origin is there");
    assert!(origin[..4096].iter().all(|byte| *byte == 0), "the data was to stay in the cache");
    let server = pair.serve(&[]);
    let mut client = Client::connect(server.uri()).expect("a client is taken");
    assert!(client.read(0, 131_072).expect("a read") == pattern::of(&(0..256), 5), "an unflushed write before a clean stop");
    drop(client);
    server.stop();
}

#[test]
fn drain_leaves_everything_on_the_origin() {
    let scratch = Scratch::new();
    let pair = Pair::new(&scratch);
    let server = pair.serve(&["--drain"]);
    let mut client = Client::connect(server.uri()).expect("a client is taken");
    for mib in 0..8 {
        client.write(mib * MIB, &pattern::of(&(mib * 2048..mib * 2048 + 2048), 6), 0).expect("a write");
    }
    drop(client);
    server.stop();
    let origin = fs::read(&pair.origin).expect("the origin is there");
    assert!(origin[..8 << 20] == pattern::of(&(0..8 * 2048), 6), "the origin alone holds everything");
    let check = forebay(&["cache", "check", &pair.cache, &pair.origin]);
    assert_eq!(check.code, 0, "{}{}", check.stdout, check.stderr);
}

/// Every third call into the ring ends with ENOMEM: nothing is lost, and nobody waits for what was not handed over.
#[test]
fn a_kernel_short_of_memory_makes_a_server_slower_and_nothing_else() {
    require(&["strace"]);
    let scratch = Scratch::new();
    let pair = Pair::new(&scratch);
    let (calls, pid_file) = (scratch.file("calls"), scratch.file("pid"));
    let strace =
        ["strace", "-f", "-o", &calls, "-e", "trace=io_uring_enter", "-e", "inject=io_uring_enter:error=ENOMEM:when=4+3"];
    let (table, export) = (pair.table(), pair.export());
    let serve = [server::binary(), "serve", "--engine", "uring", "--table", &table, "--export", &export, "--pid-file", &pid_file];
    let traced = run::limited(60, &[&strace[..], &serve].concat()).stdout(Stdio::null()).spawn();
    let mut traced = traced.expect("setpriv is installed");
    let ready = || fs::read_to_string(&pid_file).ok().and_then(|text| Pid::from_raw(text.trim().parse().ok()?));
    let server = run::wait_for("the server to be ready", Duration::from_secs(20), ready);
    let mut client = Client::connect(&export).expect("a client is taken");
    for mib in 0..8 {
        client.write(mib * MIB, &pattern::of(&(mib * 2048..mib * 2048 + 2048), mib), 0).expect("a write");
    }
    client.flush().expect("a flush");
    for mib in 0..8 {
        assert!(
            client.read(mib * MIB, 1 << 20).expect("a read") == pattern::of(&(mib * 2048..mib * 2048 + 2048), mib),
            "MiB {mib}"
        );
    }
    drop(client);
    kill_process(server, Signal::TERM).expect("the server runs");
    assert_eq!(traced.wait().expect("a child can be waited for").code(), Some(0));
    let calls = fs::read_to_string(&calls).expect("strace wrote what it saw");
    assert!(calls.matches("(INJECTED)").count() >= 10, "{calls}");
}

#[test]
fn an_idle_server_uses_no_processor_time() {
    let scratch = Scratch::new();
    let pair = Pair::new(&scratch);
    for engine in ["auto", "threads"] {
        let server = pair.serve(&["--engine", engine]);
        let mut client = Client::connect(server.uri()).expect("a client is taken");
        client.write(0, &pattern::of(&(0..8), 1), 0).expect("a write");
        client.flush().expect("a flush");
        // The first spell may meet the automatic commit of a machine that is late.
        let idle = || {
            run::pause(Duration::from_millis(1500));
            let before = ticks(&server);
            run::pause(Duration::from_secs(2));
            ticks(&server) - before
        };
        let mut used = idle();
        if used > 1 {
            used = idle();
        }
        assert!(used <= 1, "{engine}: {used} ticks of 10 ms in two idle seconds");
        drop(client);
        server.stop();
    }
}

/// Processor time of a server, user and system, in ticks of 10 ms.
fn ticks(server: &Server) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", server.id())).expect("the server runs");
    let after_name = stat.rsplit_once(") ").expect("a name in brackets").1;
    after_name.split(' ').skip(11).take(2).map(|word| word.parse::<u64>().expect("a number")).sum()
}

#[test]
fn serve_without_arguments_is_a_cached_disk_in_the_current_folder() {
    let scratch = Scratch::new();
    let server = Server::start_in(scratch.path(), &scratch.file("server"), 1, &[]);
    let (origin, cache) = (scratch.file("forebay-data/origin.img"), scratch.file("forebay-data/cache.img"));
    for (path, bytes) in [(&origin, 1024 * MIB), (&cache, 256 * MIB)] {
        let metadata = fs::metadata(path).expect("the files were made");
        assert_eq!(metadata.len(), bytes, "{path}");
        assert!(metadata.blocks() * 512 < bytes / 4, "{path} is not sparse");
    }
    let mut client = Client::connect(server.uri()).expect("a client is taken");
    assert_eq!(client.size(), 1024 * MIB);
    client.write(77 * MIB, &pattern::of(&(77 * 2048..77 * 2048 + 8), 1), 0).expect("a write");
    client.flush().expect("a flush");
    drop(client);
    server.kill();
    let server = Server::start_in(scratch.path(), &scratch.file("server"), 1, &[]);
    let mut client = Client::connect(server.uri()).expect("a client is taken");
    assert!(client.read(77 * MIB, 4096).expect("a read") == pattern::of(&(77 * 2048..77 * 2048 + 8), 1));
    drop(client);
    server.stop();
}
