//! Times a compressed RAM disk beside its bare codec, on one thread: what a page costs in all.
//!
//! `cargo run --release -p forebay-target --example zram_speed [lz4|zstd|deflate]`

use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;
use forebay_block::{Bio, HeapMemory, Sector, SectorCount, Segments, Target};
use forebay_reactor::{BufferPool, Engine, Reactor, engine};
use forebay_target::zram::{Algorithm, Codec, CodecParams, PACKED_MAX, Setup, Zram};
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
