//! A running stack that is told things, with requests beside them, on simulated time.
//!
//! The first byte chooses the table; then come lines, each a letter and what it is about: requests (`w` write, `z`
//! zeroes, `t` trim, `r` read, `f` flush, followed by a byte for the page and one for how many), `m` a message, `s` an
//! attribute, `=` and its value, `g` an attribute, `S` suspend, `R` resume, `p` a pause, `x` a scrub, `q` the status.
//! Laws: nothing panics or hangs, what is refused is told in one line, and whatever is told, each page holds what was
//! written to it last. Words that name files are left out.
#![no_main]

use forebay::block::{Extent, Sector, SectorCount};
use forebay::{BufferPool, Payload, Reactor, Stack};
use forebay_sim::world::{World, WorldOptions};
use libfuzzer_sys::fuzz_target;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

const PAGE: usize = 4096;
const PAGES: usize = 64;
/// Lines that are carried out.
const LINES_MAX: usize = 64;

/// Disks of `PAGES` pages.
const TABLES: [&str; 9] = [
    "0 512 zram threads=1",
    "0 512 zram threads=1 algo=zstd recomp=deflate,zstd:9 backing_dev=ram:256K",
    "0 512 zram threads=1 mem_limit=64K backing_dev=ram:128K packed=yes promote=yes spill_at=50 idle_after=1",
    "0 512 writecache s ram:256K ram:64K 4096 0",
    "0 512 writecache s ram:256K ram:128K 512 4 high_watermark 50 low_watermark 10",
    "0 512 mirror core 1 64 2 ram:256K 0 ram:256K 0 1 handle_errors",
    "0 512 clone ram:64K ram:256K ram:256K 8 0",
    "0 512 snapshot ram:256K ram:1M P 8",
    "0 256 writecache s ram:128K ram:32K 4096 0; 256 256 zram threads=1 algo=deflate",
];

/// What a page holds: one byte over and over, text, or noise.
fn fill(payload: &mut [u8], page: usize, version: u8) {
    let mut noise = (page as u64) << 8 | u64::from(version) | 1 << 40;
    for (at, byte) in payload.iter_mut().enumerate() {
        noise = noise.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        *byte = match version % 3 {
            0 => version,
            1 => b"forebay "[at % 8] ^ (at / 512) as u8 ^ version,
            _ => (noise >> 56) as u8,
        };
    }
}

type Answer = Pin<Box<dyn Future<Output = Result<Option<Vec<u8>>, String>>>>;

/// What a request does to the pages from `first` on.
enum Doing {
    Read,
    Write(u8),
    Zeroes,
    Trim,
}

struct Asked {
    first: usize,
    count: usize,
    doing: Doing,
    answer: Answer,
}

struct Server {
    stack: Stack,
    reactor: Reactor,
    pool: BufferPool,
    /// What each page holds, where that is known: a version, or `None` for zeroes.
    pages: [Option<Option<u8>>; PAGES],
    asked: Vec<Asked>,
    version: u8,
    suspended: bool,
}

fn one_line(error: impl std::fmt::Display) {
    let sentence = error.to_string();
    assert!(!sentence.is_empty() && !sentence.contains('\n'), "{sentence:?}");
}

fn told<T>(result: Result<T, impl std::fmt::Display>) {
    if let Err(error) = result {
        one_line(error);
    }
}

impl Server {
    /// Waits for all answers, and holds them against what is known.
    async fn settle(&mut self) {
        for Asked { first, count, doing, answer } in std::mem::take(&mut self.asked) {
            let answer = answer.await;
            for (at, page) in (first..first + count).enumerate() {
                let known = &mut self.pages[page];
                match (&answer, &doing) {
                    (Ok(found), Doing::Read) => {
                        let Some(known) = known else { continue };
                        let mut expected = vec![0; PAGE];
                        if let Some(version) = known {
                            fill(&mut expected, page, *version);
                        }
                        let found = found.as_ref().expect("a read has content");
                        assert!(found[at * PAGE..][..PAGE] == expected, "page {page} does not hold {known:?}");
                    }
                    (Err(_), Doing::Read) => {}
                    (Ok(_), Doing::Write(version)) => *known = Some(Some(*version)),
                    (Ok(_), Doing::Zeroes) => *known = Some(None),
                    (_, Doing::Trim) | (Err(_), _) => *known = None,
                }
            }
            if let Err(sentence) = answer {
                one_line(sentence);
            }
        }
    }

    /// Sends a request; one that meets another is sent when that is answered, or not at all while nothing is.
    async fn ask(&mut self, letter: u8, first: u8, count: u8) {
        let first = usize::from(first) % PAGES;
        let count = (1 + usize::from(count) % 8).min(PAGES - first);
        if self.asked.iter().any(|asked| asked.first < first + count && first < asked.first + asked.count) {
            if self.suspended {
                return;
            }
            self.settle().await;
        }
        let (at, extent) = (Sector(8 * first as u64), Extent::new(Sector(8 * first as u64), SectorCount(8 * count as u64)));
        let mut payload = Payload::of(&self.pool, &[(PAGE * count) as u32]).expect("a payload");
        let mut answered = None;
        let doing = match letter {
            b'w' => {
                self.version = self.version.wrapping_add(1);
                let mut bytes = vec![0; PAGE * count];
                for (page, bytes) in (first..).zip(bytes.chunks_exact_mut(PAGE)) {
                    fill(bytes, page, self.version);
                }
                payload.copy_from(&bytes);
                let transfer = self.stack.write(at, payload);
                answered =
                    Some(Box::pin(async move { transfer.await.0.map(|()| None).map_err(|error| error.to_string()) }) as Answer);
                Doing::Write(self.version)
            }
            b'r' => {
                let transfer = self.stack.read(at, payload);
                answered = Some(Box::pin(async move {
                    let (result, payload) = transfer.await;
                    result.map(|()| Some(payload.to_vec())).map_err(|error| error.to_string())
                }));
                Doing::Read
            }
            b'z' => Doing::Zeroes,
            _ => Doing::Trim,
        };
        let answer = answered.unwrap_or_else(|| {
            let command = if letter == b'z' { self.stack.write_zeroes(extent) } else { self.stack.discard(extent) };
            Box::pin(async move { command.await.map(|()| None).map_err(|error| error.to_string()) })
        });
        self.asked.push(Asked { first, count, doing, answer });
    }

    async fn line(&mut self, letter: u8, rest: &[u8]) {
        let byte = |at: usize| rest.get(at).copied().unwrap_or(0);
        let Ok(text) = std::str::from_utf8(rest) else { return };
        match letter {
            b'w' | b'r' | b'z' | b't' => self.ask(letter, byte(0), byte(1)).await,
            b'f' if !self.suspended => told(self.stack.flush().await),
            b'm' if !self.suspended => {
                let words: Vec<_> = text.split_whitespace().collect();
                told(self.stack.message(&words).await);
            }
            b's' if !text.contains('/') && !text.contains("dict") => {
                let (name, value) = text.split_once('=').unwrap_or((text, ""));
                if name == "reset" {
                    self.resume();
                    self.settle().await;
                }
                let Ok(zram) = self.stack.zram() else { return };
                match zram.set(name, value).await {
                    Ok(()) if name == "reset" => {
                        let first = if self.stack.caches().next().is_some() { PAGES / 2 } else { 0 };
                        self.pages[first..].fill(Some(None));
                    }
                    done => told(done),
                }
            }
            b'g' => drop(self.stack.zram().map(|zram| told(zram.get(text)))),
            b'S' => {
                let suspended = self.stack.suspend().await;
                self.suspended |= self.stack.status().suspended;
                told(suspended);
            }
            b'R' => self.resume(),
            b'p' => self.reactor.sleep(Duration::from_millis(u64::from(byte(0)) * 20)).await,
            b'x' if !self.suspended => {
                if let Ok(reports) = self.stack.scrub(byte(0) == b'r').await {
                    assert!(reports.iter().all(|report| report.differing == 0), "{reports:?}");
                }
            }
            b'q' => drop(self.stack.status()),
            _ => {}
        }
    }

    fn resume(&mut self) {
        told(self.stack.resume());
        self.suspended = false;
    }
}

async fn serve(reactor: Reactor, table: &str, lines: &[u8]) {
    let pool = BufferPool::new(&reactor);
    let stack = Stack::open(&reactor, &pool, "disk", table).await.unwrap_or_else(|error| panic!("{table}: {error}"));
    let mut server = Server { stack, reactor, pool, pages: [Some(None); PAGES], asked: Vec::new(), version: 0, suspended: false };
    for line in lines.split(|&byte| byte == b'\n').take(LINES_MAX) {
        if let Some((&letter, rest)) = line.split_first() {
            server.line(letter, rest).await;
        }
    }
    server.resume();
    server.settle().await;
    for first in (0..PAGES).step_by(8) {
        server.ask(b'r', first as u8, 7).await;
    }
    server.settle().await;
    told(server.stack.close().await);
}

fuzz_target!(|data: &[u8]| {
    let Some((choice, lines)) = data.split_first() else { return };
    let table = TABLES[usize::from(*choice) % TABLES.len()];
    let world = World::new(WorldOptions { seed: 13, disks: Vec::new(), yield_always: false, early_effect: false, trace: false });
    let reactor = world.restart();
    reactor.run(serve(reactor.clone(), table, lines)).unwrap_or_else(|error| panic!("{table}: {error}: {:?}", world.stop()));
    reactor.clear();
});
