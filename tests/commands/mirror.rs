//! A mirror that is served: its status, scrubs that find and repair what differs, messages, and legs that are lost.
#![forbid(unsafe_code)]

use forebay_tests::mirror::{Log, Mirror};
use forebay_tests::nbd::Client;
use forebay_tests::pattern;
use forebay_tests::run::Ended;
use forebay_tests::server::forebay;
use forebay_tests::{Scratch, Server, run};
use std::fs;
use std::os::unix::fs::FileExt;
use std::time::Duration;

const LIMIT: Duration = Duration::from_mins(1);

struct Served {
    server: Server,
    control: String,
}

impl Served {
    fn start(scratch: &Scratch, table: &str) -> Self {
        let export = format!("nbd+unix:///?socket={}", scratch.file("nbd.sock"));
        let control = scratch.file("control.sock");
        let args = ["--table", table, "--export", &export, "--control", &control, "--name", "vol"];
        Self { server: Server::start(&scratch.file("server"), 1, &args), control }
    }

    fn ask(&self, words: &[&str]) -> Ended {
        forebay(&[words, &["--control", &self.control]].concat())
    }

    fn told(&self, words: &[&str]) -> String {
        let ended = self.ask(words);
        assert_eq!(ended.code, 0, "{words:?}: {}", ended.stderr);
        ended.stdout
    }

    fn line(&self) -> String {
        self.told(&["status", "vol", "--line"])
    }
}

fn mirror() -> Mirror {
    Mirror { name: "m".to_owned(), legs: 2, region: 64, seed: 1 }
}

fn client_writes(served: &Served, sectors: std::ops::Range<u64>) {
    let mut client = Client::connect(served.server.uri()).expect("a client is taken");
    client.write(sectors.start * 512, &pattern::of(&sectors, 1), 0).expect("a write");
    client.flush().expect("a flush");
}

#[test]
fn a_scrub_finds_what_differs_and_repairs_it_when_told() {
    let scratch = Scratch::in_memory();
    let mirror = mirror();
    mirror.make(&scratch);
    let (legs, log) = mirror.files(&scratch);
    let served = Served::start(&scratch, &mirror.table(&legs, &log, "nosync"));
    assert_eq!(served.line(), format!("0 8192 mirror 2 {} {} 128/128 1 AA 3 disk {log} A\n", legs[0], legs[1]));
    client_writes(&served, 640..704);
    assert!(served.told(&["message", "vol", "scrub"]).contains("; 0 regions differ\n"));
    let second = fs::OpenOptions::new().write(true).open(&legs[1]).expect("a leg");
    second.write_all_at(&[0xAA; 512], 650 * 512).expect("a leg can be damaged");
    second.write_all_at(&[0xAA; 512], 8191 * 512).expect("a leg can be damaged");
    let found = served.told(&["message", "vol", "scrub"]);
    assert!(found.contains("4 MiB compared") && found.contains("2 regions differ\n"), "{found}");
    assert!(found.contains("regions 10 to 10\n") && found.contains("regions 127 to 127\n"), "{found}");
    assert!(served.told(&["message", "vol", "scrub_repair"]).contains("which are copied now"));
    run::wait_for("all regions in sync", LIMIT, || served.line().contains(" 128/128 ").then_some(()));
    assert!(served.told(&["message", "vol", "scrub"]).contains("; 0 regions differ\n"));
    let people = served.told(&["status", "vol"]);
    assert!(people.contains("mirror: 128 of 128 regions of 32 KiB in sync") && people.contains("has everything"), "{people}");
    served.told(&["message", "vol", "revive"]);
    served.told(&["message", "vol", "release"]);
    let refused = served.ask(&["message", "vol", "cleaner"]);
    assert!(refused.code != 0 && refused.stderr.contains("has no write cache"), "{}", refused.stderr);
    served.server.stop();
    assert_eq!(Log::read(&log).clean(), 128);
    assert!(fs::read(&legs[0]).expect("a leg") == fs::read(&legs[1]).expect("a leg"));
}

#[test]
fn a_server_that_was_killed_copies_only_what_was_being_written() {
    let scratch = Scratch::in_memory();
    let mirror = mirror();
    mirror.make(&scratch);
    let (legs, log) = mirror.files(&scratch);
    let served = Served::start(&scratch, &mirror.table(&legs, &log, "nosync"));
    client_writes(&served, 128..136);
    served.server.kill();
    assert!(!Log::read(&log).is_clean(2) || Log::read(&log).clean() == 128, "only what was written is dirty");
    // A difference where the log says clean stays, which shows that it is not copied.
    let second = fs::OpenOptions::new().write(true).open(&legs[1]).expect("a leg");
    second.write_all_at(&[0xAA; 512], 4096 * 512).expect("a leg can be changed");
    let served = Served::start(&scratch, &mirror.table(&legs, &log, ""));
    run::wait_for("all regions in sync", LIMIT, || served.line().contains(" 128/128 ").then_some(()));
    let found = served.told(&["message", "vol", "scrub"]);
    assert!(found.contains("1 regions differ\n") && found.contains("regions 64 to 64\n"), "{found}");
    served.server.stop();
}

#[test]
fn what_does_not_fit_together_is_refused_with_a_sentence() {
    let scratch = Scratch::in_memory();
    let mirror = mirror();
    mirror.make(&scratch);
    let (legs, log) = mirror.files(&scratch);
    let export = format!("nbd+unix:///?socket={}", scratch.file("nbd.sock"));
    let small = scratch.sparse("small", 1024);
    for (table, sentence) in [
        (mirror.table(&legs, &legs[0], ""), "cannot be a leg and the log at once"),
        (mirror.table(&legs, &small, ""), "the log device"),
        (mirror.table(&legs, &log, "").replace(" 64 ", " 63 "), "a region of 63 sectors is not possible"),
        (mirror.table(&legs[..1], &log, ""), "the device of mirror is missing"),
    ] {
        let ended = forebay(&["serve", "--table", &table, "--export", &export]);
        assert_eq!((ended.code != 0, ended.stderr.contains(sentence)), (true, true), "{table}: {}", ended.stderr);
    }
}
