//! Clones of the real binary: served while they hydrate, written by fio, copied by libnbd, killed and opened again.
#![forbid(unsafe_code)]

use std::fs;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use forebay_tests::foreign::fio;
use forebay_tests::nbd::Client;
use forebay_tests::run::Ended;
use forebay_tests::server::forebay;
use forebay_tests::{Scratch, Server, pattern, require, run};
use serde_json::Value;

const MIB: u64 = 1 << 20;
/// Size of the clones here.
const BYTES: u64 = 32 * MIB;
/// Bytes of a region.
const REGION: u64 = 16 << 10;
/// Slow enough that nothing here sees the end of it: a quarter of an hour for what is not a hole.
const SLOW: &str = "0 6 hydration_threshold 8 hydration_batch_size 4 hydration_rate 24576";

fn index(bytes: u64) -> usize {
    usize::try_from(bytes).expect("a small disk")
}

/// A source with data and holes, and what the clone must hold.
struct Cloned {
    scratch: Scratch,
    source: String,
    expected: Vec<u8>,
}

impl Cloned {
    fn new() -> Self {
        let scratch = Scratch::new();
        let source = scratch.sparse("source.img", BYTES);
        let mut rng = fastrand::Rng::with_seed(5);
        let file = fs::OpenOptions::new().write(true).open(&source).expect("the source");
        let mut expected = vec![0; index(BYTES)];
        for place in [0..12 * MIB, 20 * MIB..BYTES] {
            let bytes = &mut expected[index(place.start)..index(place.end)];
            bytes.fill_with(|| rng.u8(..));
            file.write_all_at(bytes, place.start).expect("room for the source");
        }
        scratch.sparse("destination.img", BYTES);
        scratch.sparse("metadata.img", MIB);
        Self { scratch, source, expected }
    }

    fn table(&self, options: &str) -> String {
        let [metadata, destination] = ["metadata.img", "destination.img"].map(|name| self.scratch.file(name));
        format!("0 {} clone {metadata} {destination} {} {} {options}", BYTES / 512, self.source, REGION / 512)
    }

    fn serve(&self, options: &str) -> Server {
        let export = format!("nbd+unix:///?socket={}", self.scratch.file("nbd.sock"));
        let (table, control) = (self.table(options), self.scratch.file("control.sock"));
        let words = ["--table", &table, "--export", &export, "--control", &control, "--name", "vol"];
        Server::start(&self.scratch.file("server"), 1, &words)
    }

    fn ask(&self, words: &[&str]) -> Ended {
        forebay(&[words, &["--control", &self.scratch.file("control.sock")]].concat())
    }

    /// A number of the clone's status.
    fn number(&self, name: &str) -> u64 {
        let ended = self.ask(&["status", "--json"]);
        let report: Value = serde_json::from_str(&ended.stdout).unwrap_or_else(|_| panic!("{}", ended.stderr));
        report["devices"][0]["clones"][0][name].as_u64().unwrap_or_else(|| panic!("{report}"))
    }

    fn until_hydrated(&self) {
        let all = BYTES / REGION;
        run::wait_for("the hydration", Duration::from_mins(2), || (self.number("hydrated_regions") == all).then_some(()));
    }

    /// Writes a pattern, and expects it from now on.
    fn write(&mut self, client: &mut Client, first_sector: u64, sectors: u64, version: u64) {
        let bytes = pattern::of(&(first_sector..first_sector + sectors), version);
        let at = index(first_sector * 512);
        client.write(first_sector * 512, &bytes, 0).expect("a write");
        self.expected[at..at + bytes.len()].copy_from_slice(&bytes);
    }

    /// Holds a file from byte `from` on against what is expected.
    fn same(&self, path: &str, from: u64) {
        let bytes = fs::read(path).expect("a file of this test");
        let from = index(from);
        let differs = bytes.iter().zip(&self.expected).skip(from).position(|(found, expected)| found != expected);
        assert_eq!((bytes.len(), differs), (self.expected.len(), None), "{path}");
    }

    fn copied(&self, server: &Server) -> String {
        let copy = self.scratch.file("copy.img");
        let _ = fs::remove_file(&copy);
        run::ok(60, &["nbdcopy", server.uri(), &copy]);
        copy
    }
}

#[test]
fn a_clone_is_used_killed_and_finished_while_it_hydrates() {
    require(&["fio", "nbdcopy"]);
    let mut cloned = Cloned::new();
    let source = run::sha256(cloned.source.as_ref());
    let fio_bytes = 4 * MIB;
    let mut server = cloned.serve(SLOW);
    let mut client = Client::connect(server.uri()).expect("a client is taken");
    for round in 1..4 {
        run::wait_for("some hydration", Duration::from_mins(2), || (cloned.number("background_regions") > 0).then_some(()));
        let job = "--rw=randwrite --bsrange=512-64k --iodepth=8 --size=4m --verify_backlog=16";
        fio::verify(server.uri(), cloned.scratch.path(), job);
        // One sector, the edges of regions, whole regions, over a hole.
        for (first, sectors) in [(10_001, 1), (20_000 + round * 77, 100), (16_384 + round * 96, 64), (25_000, 900), (50_000, 3)] {
            cloned.write(&mut client, first, sectors, round);
        }
        client.flush().expect("a flush");
        cloned.same(&cloned.copied(&server), fio_bytes);
        assert!(cloned.number("hydrated_regions") < BYTES / REGION, "round {round} was no test");
        let through: Vec<u8> = client.read(0, u32::try_from(fio_bytes).unwrap()).expect("a read");
        cloned.expected[..through.len()].copy_from_slice(&through);
        client.flush().expect("a flush");
        server.kill();
        server = cloned.serve(SLOW);
        client = Client::connect(server.uri()).expect("a client is taken");
        cloned.same(&cloned.copied(&server), 0);
    }
    assert_eq!(cloned.ask(&["message", "vol", "hydration_rate", "0"]).code, 0);
    cloned.until_hydrated();
    assert!(cloned.number("hole_regions") > 0);
    server.stop();
    cloned.same(&cloned.scratch.file("destination.img"), 0);
    assert_eq!(run::sha256(cloned.source.as_ref()), source, "the source was written");
    // Without its source, too, it is what it was.
    fs::write(&cloned.source, vec![0xEE; index(BYTES)]).expect("a file of this test");
    let server = cloned.serve(SLOW);
    cloned.same(&cloned.copied(&server), 0);
    server.stop();
}

#[test]
fn status_and_messages_are_the_kernels() {
    let cloned = Cloned::new();
    let server = cloned.serve("1 no_hydration");
    let line = |cloned: &Cloned| cloned.ask(&["status", "vol", "--line"]).stdout;
    let words = "4 hydration_threshold 1 hydration_batch_size 1 rw\n";
    assert_eq!(line(&cloned), format!("0 65536 clone 8 4/256 32 0/2048 0 1 no_hydration {words}"));
    let mut client = Client::connect(server.uri()).expect("a client is taken");
    client.write(512, &[7; 512], 0).expect("a write");
    assert_eq!(line(&cloned), format!("0 65536 clone 8 4/256 32 1/2048 0 1 no_hydration {words}"));
    for said in [&["hydration_batch_size", "64"][..], &["vol", "hydration_threshold", "128"], &["vol", "ENABLE_HYDRATION"]] {
        assert_eq!(cloned.ask(&[&["message"], said].concat()).code, 0, "{said:?}");
    }
    cloned.until_hydrated();
    let words = "4 hydration_threshold 128 hydration_batch_size 64 rw\n";
    assert_eq!(line(&cloned), format!("0 65536 clone 8 4/256 32 2048/2048 0 0 {words}"));
    assert_eq!(cloned.ask(&["wait", "vol"]).stdout, "1\n", "everything is hydrated");
    assert!(cloned.ask(&["status"]).stdout.contains("2,048 of 2,048 regions of 16 KiB hydrated"));
    let refused = cloned.ask(&["message", "vol", "flush"]);
    assert_eq!((refused.code, refused.stderr.contains("a clone takes enable_hydration")), (1, true), "{}", refused.stderr);
    let refused = cloned.ask(&["message", "vol", "hydration_threshold", "0"]);
    assert_eq!((refused.code, refused.stderr.contains("whole number")), (1, true), "{}", refused.stderr);
    for wrong in [&["vol", "hydration_threshold"][..], &["vol", "hydration_threshold", "many"], &["vol", "enable_hydration", "1"]]
    {
        assert_eq!(cloned.ask(&[&["message"], wrong].concat()).code, 2, "{wrong:?}");
    }
    server.stop();
}

#[test]
fn what_does_not_fit_is_refused_in_one_sentence_and_nothing_is_written() {
    let cloned = Cloned::new();
    cloned.serve("1 no_hydration").stop();
    let refusal = |table: &str| {
        let before = ["metadata.img", "destination.img"].map(|name| run::sha256(cloned.scratch.file(name).as_ref()));
        let export = format!("nbd+unix:///?socket={}", cloned.scratch.file("nbd.sock"));
        let ended = forebay(&["serve", "--table", table, "--export", &export]);
        assert_eq!((ended.code, ended.stderr.lines().count()), (1, 1), "{}", ended.stderr);
        let after = ["metadata.img", "destination.img"].map(|name| run::sha256(cloned.scratch.file(name).as_ref()));
        assert_eq!(before, after);
        ended.stderr
    };
    let table = cloned.table("1 no_hydration");
    assert!(refusal(&table.replace(" 32 1 ", " 64 1 ")).contains("regions of 32 sectors, and the table says 64"));
    assert!(refusal(&table.replace("0 65536 ", "0 65504 ")).contains("belongs to a clone of 65536 sectors"));
    assert!(refusal(&table.replace("source.img", "destination.img")).contains("is named twice"));
    let mut metadata = fs::read(cloned.scratch.file("metadata.img")).expect("a file of this test");
    for copy in [2, 3] {
        metadata[copy * 4096 + 99] ^= 1;
    }
    fs::write(cloned.scratch.file("metadata.img"), &metadata).expect("a file of this test");
    assert!(refusal(&table).contains("both copies of page 0 are damaged"));
    metadata[..8192].fill(3);
    fs::write(cloned.scratch.file("metadata.img"), &metadata).expect("a file of this test");
    assert!(refusal(&table).contains("zero its first 8 KiB to begin a new clone"));
    let ended = forebay(&["serve", "--table", "0 8 clone a b c 8 1 fast", "--export", "nbd+unix:///?socket=x"]);
    assert_eq!((ended.code, ended.stderr.contains("Invalid feature: \"fast\"")), (2, true), "{}", ended.stderr);
}
