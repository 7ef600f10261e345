//! Side files as people meet them: made by the server, checked offline, and in the way of mistakes.
#![forbid(unsafe_code)]

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use forebay_tests::foreign::unmount;
use forebay_tests::nbd::Client;
use forebay_tests::run::Ended;
use forebay_tests::server::forebay;
use forebay_tests::{Scratch, Server, pattern, require_root, run};

const MIB: u64 = 1 << 20;

/// A cached pair with a side file beside the cache.
struct Pair {
    origin: String,
    cache: String,
    side: String,
    socket: String,
    log: String,
}

impl Pair {
    fn new(scratch: &Scratch, name: &str) -> Self {
        let cache = scratch.sparse(&format!("{name}.cache"), 16 * MIB);
        let origin = scratch.sparse(&format!("{name}.origin"), 64 * MIB);
        let (socket, log) = (scratch.file(&format!("{name}.sock")), scratch.file(name));
        Self { origin, side: format!("{cache}.side"), cache, socket, log }
    }

    fn words(&self) -> Vec<String> {
        let table = format!("0 131072 writecache s {} {} 4096 2 side {}", self.origin, self.cache, self.side);
        ["--table", &table, "--export", &format!("nbd+unix:///?socket={}", self.socket)].map(str::to_owned).to_vec()
    }

    fn serve(&self) -> Server {
        Server::start(&self.log, 1, &self.words().iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Serves once, writes a MiB with `stamp`, and stops.
    fn fill(&self, stamp: u64) {
        let server = self.serve();
        write(&server, stamp);
        server.stop();
    }

    /// How the server says that it does not serve; neither device may change by that.
    fn refusal(&self) -> String {
        let before = (digest(&self.origin), digest(&self.cache), digest(&self.side));
        let words = self.words();
        let words: Vec<&str> = ["serve"].into_iter().chain(words.iter().map(String::as_str)).collect();
        let ended = forebay(&words);
        assert_eq!(ended.code, 1, "{}{}", ended.stdout, ended.stderr);
        assert!(!ended.stderr.contains("os error") && !ended.stderr.contains("panicked"), "{}", ended.stderr);
        assert_eq!((digest(&self.origin), digest(&self.cache), digest(&self.side)), before, "something was written");
        ended.stderr
    }

    fn check(&self, more: &[&str]) -> Ended {
        forebay(&[&["cache", "check", &self.cache, &self.origin], more].concat())
    }
}

fn write(server: &Server, stamp: u64) {
    let mut client = Client::connect(server.uri()).expect("a client is taken");
    client.write(0, &pattern::of(&(0..2048), stamp), 0).expect("a write");
    client.flush().expect("a flush");
}

fn holds(server: &Server, stamp: u64) -> bool {
    let mut client = Client::connect(server.uri()).expect("a client is taken");
    client.read(0, 1 << 20).expect("a read") == pattern::of(&(0..2048), stamp)
}

/// The content of a file that may be missing.
fn digest(path: &str) -> Option<Vec<u8>> {
    fs::read(path).ok()
}

#[test]
fn a_clean_stop_and_a_kill_are_both_opened_again() {
    let scratch = Scratch::new();
    let pair = Pair::new(&scratch, "a");
    pair.fill(1);
    let check = pair.check(&[]);
    assert_eq!(check.code, 0, "{}", check.stdout);
    assert!(check.stdout.contains(&format!("{}: clean", pair.side)), "{}", check.stdout);
    for stamp in 2..5 {
        let server = pair.serve();
        assert!(holds(&server, stamp - 1), "{stamp}");
        assert!(!server.stderr().contains("make sure that this is the right one"), "{}", server.stderr());
        write(&server, stamp);
        server.kill();
        let check = pair.check(&["--json"]);
        assert!(check.code < 2 && check.stdout.contains("\"state\":\"open\""), "{}{}", check.stdout, check.stderr);
    }
    let server = pair.serve();
    assert!(holds(&server, 4));
    server.stop();
}

#[test]
fn exchanged_origins_and_exchanged_caches_are_refused() {
    let scratch = Scratch::new();
    let (one, other) = (Pair::new(&scratch, "one"), Pair::new(&scratch, "other"));
    let exchange = |a: &str, b: &str| {
        let aside = scratch.file("aside");
        for (from, to) in [(a, aside.as_str()), (b, a), (&aside, b)] {
            fs::rename(from, to).expect("files of this test");
        }
    };
    one.fill(1);
    other.fill(2);
    exchange(&one.origin, &other.origin);
    for pair in [&one, &other] {
        let said = pair.refusal();
        assert!(said.contains("with another origin") && said.contains(&format!("delete {}", pair.side)), "{said}");
        assert_eq!(pair.check(&[]).code, 2);
    }
    exchange(&one.origin, &other.origin);
    exchange(&one.cache, &other.cache);
    for pair in [&one, &other] {
        let said = pair.refusal();
        assert!(said.contains("belongs to another cache"), "{said}");
        assert_eq!(pair.check(&[]).code, 2);
    }
    exchange(&one.cache, &other.cache);
    let server = one.serve();
    assert!(holds(&server, 1));
    server.stop();
}

#[test]
fn damaged_metadata_are_refused_by_the_server_and_named_by_check() {
    let scratch = Scratch::new();
    let pair = Pair::new(&scratch, "a");
    pair.fill(1);
    let whole = fs::read(&pair.cache).expect("the cache");
    // Another sector of the same origin: nothing but a checksum tells that it is wrong.
    let mut damaged = whole.clone();
    damaged[64 + 1] ^= 1;
    fs::write(&pair.cache, &damaged).expect("the cache");
    let said = pair.refusal();
    assert!(said.contains("the metadata changed since the cache was closed here") && said.contains("slots 0 to"), "{said}");
    let check = pair.check(&[]);
    assert!(check.code == 2 && check.stdout.contains("the metadata changed"), "{}", check.stdout);
    let side = fs::read(&pair.side).expect("the side file");
    fs::write(&pair.side, &side[..side.len() / 2]).expect("the side file");
    let said = pair.refusal();
    assert!(said.contains("cannot be used, it is damaged"), "{said}");
    assert_eq!(pair.check(&[]).code, 2);
    fs::write(&pair.side, &side).expect("the side file");
    fs::write(&pair.cache, &whole).expect("the cache");
    let server = pair.serve();
    assert!(holds(&server, 1));
    server.stop();
}

#[test]
fn a_cache_that_another_program_used_is_refused_until_the_side_file_is_deleted() {
    let scratch = Scratch::new();
    let pair = Pair::new(&scratch, "a");
    pair.fill(1);
    let aside = scratch.file("aside");
    fs::rename(&pair.side, &aside).expect("a side file");
    let flushed = forebay(&["cache", "flush", &pair.cache, &pair.origin]);
    assert_eq!(flushed.code, 0, "{}", flushed.stderr);
    fs::rename(&aside, &pair.side).expect("a side file");
    let said = pair.refusal();
    assert!(said.contains("kernel or another program") && said.contains(&format!("delete {}", pair.side)), "{said}");
    fs::remove_file(&pair.side).expect("a side file");
    let server = pair.serve();
    assert!(holds(&server, 1));
    server.stop();
    assert!(Path::new(&pair.side).exists(), "a new one is made");
}

#[test]
fn offline_commands_find_it_beside_the_cache_and_only_flush_writes_it() {
    let scratch = Scratch::new();
    let pair = Pair::new(&scratch, "a");
    pair.fill(1);
    let written = |pair: &Pair| fs::metadata(&pair.side).map(|side| (side.ino(), side.mtime_nsec())).expect("the side file");
    let before = written(&pair);
    for words in
        [&["cache", "check", &pair.cache][..], &["cache", "dump", &pair.cache], &["cache", "dump", "--json", &pair.cache]]
    {
        let ended = forebay(words);
        assert_eq!(ended.code, 0, "{}{}", ended.stdout, ended.stderr);
        assert!(ended.stdout.contains(&pair.side), "{}", ended.stdout);
    }
    assert_eq!(written(&pair), before, "looking changes nothing");
    let flushed = forebay(&["cache", "flush", &pair.cache, &pair.origin]);
    assert_eq!(flushed.code, 0, "{}", flushed.stderr);
    assert_ne!(written(&pair), before);
    let check = pair.check(&["--side", &pair.side]);
    assert!(check.code == 0 && check.stdout.contains("clean"), "{}", check.stdout);
    let missing = pair.check(&["--side", &scratch.file("nowhere")]);
    assert!(missing.code == 2 && missing.stderr.contains("nowhere"), "{}", missing.stderr);
    let server = pair.serve();
    assert!(holds(&server, 1));
    server.stop();
}

#[test]
fn a_full_disk_under_the_side_file_does_not_stop_the_server() {
    require_root();
    let scratch = Scratch::new();
    let mount = scratch.file("small");
    run::shell(20, &format!("mkdir {mount}; mount -t tmpfs -o size=64k forebay-test {mount}"));
    let pair = Pair { side: format!("{mount}/a.side"), ..Pair::new(&scratch, "a") };
    pair.fill(1);
    assert!(Path::new(&pair.side).exists());
    run::shell(20, &format!("! dd if=/dev/zero of={mount}/full bs=4k 2>/dev/null"));
    let server = pair.serve();
    assert!(server.stderr().contains("make room on that disk"), "{}", server.stderr());
    assert!(!Path::new(&pair.side).exists(), "what is not true any more is gone");
    assert!(holds(&server, 1));
    write(&server, 2);
    run::shell(20, &format!("rm {mount}/full"));
    server.stop();
    assert!(Path::new(&pair.side).exists(), "with room again, the clean end is recorded");
    let server = pair.serve();
    assert!(holds(&server, 2));
    server.stop();
    unmount(&mount);
}

#[test]
fn the_embedded_default_has_a_side_file_and_an_older_folder_gets_one() {
    let scratch = Scratch::new();
    let side = scratch.file("forebay-data/cache.img.side");
    let serve = || Server::start_in(scratch.path(), &scratch.file("server"), 1, &[]);
    let server = serve();
    write(&server, 1);
    server.stop();
    assert!(Path::new(&side).exists());
    fs::remove_file(&side).expect("a side file");
    let server = serve();
    assert!(server.stderr().contains("make sure that this is the right one"), "{}", server.stderr());
    server.stop();
    let server = serve();
    assert!(!server.stderr().contains("make sure that this is the right one"), "{}", server.stderr());
    assert!(holds(&server, 1));
    server.stop();
    // A fresh cache would hide what was written.
    fs::remove_file(scratch.file("forebay-data/cache.img")).expect("a cache");
    let refused = run::outcome(20, &["sh", "-c", &format!("cd {} && {} serve", scratch.path().display(), binary())]);
    assert!(refused.code == 1 && refused.stderr.contains("there is no cache here"), "{}{}", refused.stdout, refused.stderr);
}

fn binary() -> &'static str {
    forebay_tests::server::binary()
}
