//! Times a compressed RAM disk beside its bare codec: what a page costs in all on one thread, and how
//! far two threads get beside two that only compress.
//!
//! `cargo run --release -p forebay-target --example zram_speed [lz4|zstd|deflate]`

use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;
use forebay_block::{Bio, HeapMemory, Sector, SectorCount, Segments, Target, call};
use forebay_reactor::{BufferPool, Engine, Reactor, engine};
use forebay_target::zram::{Algorithm, Codec, CodecParams, PACKED_MAX, PackerThreads, Setup, Zram};
use rustix::time::{ClockId, clock_gettime};

/// Pages that are written and read.
const PAGES: usize = 16_384;
const PAGE: usize = 4096;
/// Bytes of each 512 that are random, the rest is zero: compressible by 60 %.
const NOISE: usize = 205;
/// Times that everything is measured; the best counts.
const ROUNDS: usize = 7;

fn main() {
    let name = std::env::args().nth(1).unwrap_or_else(|| "lz4".to_owned());
    let algorithm = Algorithm::named(&name).expect("lz4, zstd, deflate or store");
    let params = CodecParams { algorithm, ..CodecParams::default() };
    let reactor = Reactor::new(engine(Engine::Auto).expect("an engine"));
    let setup = Setup { sectors: SectorCount(PAGES as u64 * 8), codec: params.clone(), ..Setup::default() };
    let disk = Zram::new(&reactor, &BufferPool::default(), &setup).expect("a disk");
    let content = content();
    let mut codec = Bare::new(&params, &content);
    let payload = payload(&content);
    let scratch = payload_of(32 * PAGE);
    let mut best = [Duration::MAX; 6];
    for _ in 0..ROUNDS {
        let times = [
            timed(|| codec.compress(&content)),
            timed(|| codec.decompress()),
            timed(|| run(&disk, 1, |sector, at| Bio::write(sector, Rc::clone(&payload), at, 4096))),
            timed(|| run(&disk, 1, |sector, _| Bio::read(sector, Rc::clone(&scratch), 0, 4096))),
            timed(|| run(&disk, 32, |sector, at| Bio::write(sector, Rc::clone(&payload), at, 131_072))),
            timed(|| run(&disk, 32, |sector, _| Bio::read(sector, Rc::clone(&scratch), 0, 131_072))),
        ];
        for (best, time) in best.iter_mut().zip(times) {
            *best = time.min(*best);
        }
    }
    let pages = f64::from(u32::try_from(PAGES).expect("not many"));
    let ns = |at: usize| best[at].as_secs_f64() * 1e9 / pages;
    println!("{name}, processor time, ns a page, best of {ROUNDS}: alone, 4k, 128k, beside the codec");
    for (what, bare, first, second) in [("write", 0, 2, 4), ("read", 1, 3, 5)] {
        let [bare, small, large] = [bare, first, second].map(ns);
        println!("{what:>6} {bare:8.0} {small:8.0} {large:8.0} {:8.2} {:8.2}", small / bare, large / bare);
    }
    println!("{} bytes for {} of data", disk.status().compressed_bytes, PAGES * PAGE);
    two_threads(&reactor, &params, &content, &payload);
}

/// Writes at a depth of 8 with one packer beside the disk's thread, and the bare codec on two threads with
/// half of the pages each, in turns.
fn two_threads(reactor: &Reactor, params: &CodecParams, content: &[u8], payload: &Rc<Segments>) {
    let packers = Rc::new(PackerThreads::new(reactor, 1));
    let sectors = SectorCount(PAGES as u64 * 8);
    let setup = Setup { sectors, codec: params.clone(), packers: Some(packers), ..Setup::default() };
    let disk = Zram::new(reactor, &BufferPool::default(), &setup).expect("a disk");
    let mut codecs = [(); 2].map(|()| Bare::new(params, &content[..content.len() / 2]));
    for pages in [32, 256] {
        let (mut ratios, mut cores) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let bare = waited(|| {
                std::thread::scope(|scope| {
                    for (codec, half) in codecs.iter_mut().zip(content.chunks(content.len() / 2)) {
                        scope.spawn(|| codec.compress(half));
                    }
                });
            });
            let ours = waited(|| write_deep(reactor, &disk, payload, pages));
            ratios.push(bare.0.as_secs_f64() / ours.0.as_secs_f64());
            cores.push(bare.1.as_secs_f64() / ours.1.as_secs_f64());
        }
        ratios.sort_by(f64::total_cmp);
        cores.sort_by(f64::total_cmp);
        println!(
            "two threads, {} KiB a write, beside two codecs: {:.2} ({:.2} to {:.2}); by processor time {:.2} ({:.2} to {:.2})",
            pages * 4,
            ratios[ROUNDS / 2],
            ratios[0],
            ratios[ROUNDS - 1],
            cores[ROUNDS / 2],
            cores[0],
            cores[ROUNDS - 1],
        );
    }
}

fn write_deep(reactor: &Reactor, disk: &Rc<Zram>, payload: &Rc<Segments>, pages: usize) {
    let bytes = u32::try_from(pages * PAGE).expect("less than 4 GiB");
    let write = |at: usize| {
        let skip = u32::try_from(at * PAGE).expect("less than 4 GiB");
        call(&**disk, Bio::write(Sector(at as u64 * 8), Rc::clone(payload), skip, bytes))
    };
    let all = async {
        let mut under_way = std::collections::VecDeque::<forebay_block::bio::Call>::new();
        for at in (0..PAGES).step_by(pages) {
            if under_way.len() == 8 {
                assert!(under_way.pop_front().expect("eight").await.status().is_ok());
            }
            under_way.push_back(write(at));
        }
        for call in under_way {
            assert!(call.await.status().is_ok());
        }
    };
    reactor.run(all).expect("a backend");
}

/// Time that passes, and processor time of all threads.
fn waited(what: impl FnOnce()) -> (Duration, Duration) {
    let now = |clock| Duration::try_from(clock_gettime(clock)).expect("a clock is not negative");
    let start = (now(ClockId::Monotonic), now(ClockId::ProcessCPUTime));
    what();
    (now(ClockId::Monotonic).saturating_sub(start.0), now(ClockId::ProcessCPUTime).saturating_sub(start.1))
}

/// Time of this thread.
fn timed(what: impl FnOnce()) -> Duration {
    let now = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).expect("a clock is not negative");
    let start = now();
    what();
    now().saturating_sub(start)
}

fn content() -> Vec<u8> {
    let mut rng = Rng::with_seed(7);
    let mut content = vec![0; PAGES * PAGE];
    for chunk in content.chunks_mut(512) {
        rng.fill(&mut chunk[..NOISE]);
    }
    content
}

fn payload_of(bytes: usize) -> Rc<Segments> {
    let length = u32::try_from(bytes).expect("less than 4 GiB");
    Segments::whole(Box::new(HeapMemory::new(bytes, 4096)), length).expect("not empty")
}

fn payload(content: &[u8]) -> Rc<Segments> {
    let mut segments = payload_of(content.len());
    Rc::get_mut(&mut segments).expect("not shared yet").bytes_mut().copy_from_slice(content);
    segments
}

/// Requests of `pages` pages over the whole disk.
fn run(disk: &Rc<Zram>, pages: usize, bio: impl Fn(Sector, u32) -> Bio) {
    for at in (0..PAGES).step_by(pages) {
        disk.submit(bio(Sector(at as u64 * 8), u32::try_from(at * PAGE).expect("less than 4 GiB")));
    }
}

/// The codec with nothing around it.
struct Bare {
    codec: Codec,
    packed: Vec<u8>,
    objects: Vec<(usize, usize)>,
}

impl Bare {
    fn new(params: &CodecParams, content: &[u8]) -> Self {
        Self { codec: Codec::new(params).expect("a codec"), packed: vec![0; content.len()], objects: Vec::new() }
    }

    /// Each page, and its object behind the last.
    fn compress(&mut self, content: &[u8]) {
        let (pages, _) = content.as_chunks::<PAGE>();
        let mut buffer = [0; PACKED_MAX];
        let mut end = 0;
        self.objects.clear();
        for page in pages {
            let bytes = self.codec.compress(page, &mut buffer).expect("compressible");
            self.packed[end..end + bytes].copy_from_slice(&buffer[..bytes]);
            self.objects.push((end, end + bytes));
            end += bytes;
        }
    }

    fn decompress(&mut self) {
        let mut page = [0; PAGE];
        for &(start, end) in &self.objects {
            self.codec.decompress(&self.packed[start..end], &mut page).expect("its own object");
            std::hint::black_box(&page);
        }
    }
}
