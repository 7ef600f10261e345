//! Holes of whole stacks against a model: what is told as a hole reads as zeroes, whatever happens to
//! it meanwhile, and what was never touched is told as a hole.
#![allow(clippy::unwrap_used, clippy::large_futures, reason = "a test that fails may panic, and runs one future at a time")]

use std::ops::Range;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use forebay::block::{Bio, Extent, Flags, Op, Run, Sector, SectorCount, Status, Target, allocation, call};
use forebay::{BufferPool, Engine, Reactor, Stack, engine};

const SECTORS: u64 = 16 << 11;
/// Sectors that are data together at most: the largest block of the stacks below.
const GRAIN: usize = 128;

/// A folder of this test alone, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("forebay-allocation-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn sparse(&self, name: &str, bytes: u64) -> String {
        let path = self.0.join(name);
        std::fs::File::create(&path).unwrap().set_len(bytes).unwrap();
        path.display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn places(extent: Extent) -> Range<usize> {
    usize::try_from(extent.start.0).unwrap()..usize::try_from(extent.end().0).unwrap()
}

/// What the disk holds, a byte for each sector, and which grains were ever touched.
struct Model {
    bytes: Vec<u8>,
    touched: Vec<bool>,
}

impl Model {
    fn touch(&mut self, extent: Extent) {
        let places = places(extent);
        self.touched[places.start / GRAIN..places.end.div_ceil(GRAIN)].fill(true);
    }
}

struct Bed<'a> {
    stack: &'a Stack,
    pool: &'a BufferPool,
    random: fastrand::Rng,
    model: Model,
}

impl Bed<'_> {
    fn table(&self) -> &dyn Target {
        &**self.stack.table()
    }

    /// The first byte of each sector of `extent`; the others must be equal.
    async fn read(&self, extent: Extent) -> Vec<u8> {
        let bytes = u32::try_from(extent.count.to_bytes()).unwrap();
        let mut buffer = self.pool.take(bytes as usize);
        let bio = call(self.table(), Bio::read(extent.start, Rc::clone(buffer.segments()), 0, bytes)).await;
        assert_eq!(bio.status(), Status::Ok);
        drop(bio);
        let sectors = buffer.bytes_mut()[..bytes as usize].chunks(512);
        sectors
            .map(|sector| {
                assert!(sector.iter().all(|byte| *byte == sector[0]), "a sector was written whole");
                sector[0]
            })
            .collect()
    }

    /// A change of a random range.
    fn change(&mut self, extent: Extent) -> (Bio, u8) {
        let byte = self.random.u8(1..);
        let flags = Flags { fua: self.random.u8(..8) == 0, no_unmap: self.random.bool(), ..Flags::default() };
        match self.random.u8(..10) {
            0 => (Bio::discard(extent), 0),
            1..4 => (Bio::write_zeroes(extent).with(Flags { fua: false, ..flags }), 0),
            _ => {
                let bytes = u32::try_from(extent.count.to_bytes()).unwrap();
                let mut buffer = self.pool.take(bytes as usize);
                buffer.bytes_mut()[..bytes as usize].fill(byte);
                let flags = Flags { no_unmap: false, ..flags };
                (Bio::write(extent.start, Rc::clone(buffer.segments()), 0, bytes).with(flags), byte)
            }
        }
    }

    /// Some changes at once, none over another, and questions in their midst.
    async fn round(&mut self) {
        let mut changes: Vec<(Extent, Op, u8, forebay::block::bio::Call)> = Vec::new();
        for _ in 0..self.random.usize(1..8) {
            let most = [1, 8, 64, 1500][self.random.usize(..4)];
            let count = self.random.u64(1..=most);
            let extent = Extent::new(Sector(self.random.u64(..=SECTORS - count)), SectorCount(count));
            if changes.iter().any(|(other, ..)| other.overlaps(extent)) {
                continue;
            }
            let (bio, byte) = self.change(extent);
            let op = bio.op();
            changes.push((extent, op, byte, call(self.table(), bio)));
            if self.random.u8(..3) == 0 {
                let under_way: Vec<Extent> = changes.iter().map(|(extent, ..)| *extent).collect();
                self.ask_meanwhile(&under_way).await;
            }
        }
        for (extent, op, byte, end) in changes {
            assert_eq!(end.await.status(), Status::Ok);
            self.model.touch(extent);
            let content = if op == Op::Discard { self.read(extent).await } else { vec![byte; places(extent).len()] };
            self.model.bytes[places(extent)].copy_from_slice(&content);
        }
    }

    /// While changes of `under_way` are under way, everything else that is data is told as data.
    async fn ask_meanwhile(&mut self, under_way: &[Extent]) {
        let start = self.random.u64(..SECTORS / 8) * 8;
        let asked = Extent::new(Sector(start), SectorCount(SECTORS - start));
        let most = self.random.usize(1..20);
        for (extent, hole) in placed(asked, allocation::runs(self.table(), asked, most).await) {
            for sector in places(extent).filter(|_| hole) {
                let at = Extent::new(Sector(sector as u64), SectorCount(1));
                let changing = under_way.iter().any(|change| change.contains(at));
                assert!(changing || self.model.bytes[sector] == 0, "sector {sector} is data and told as a hole");
            }
        }
    }

    /// Asks about all of the disk, piece by piece, and compares.
    async fn check(&mut self) {
        let mut at = Sector(0);
        while at < Sector(SECTORS) {
            let left = SectorCount(SECTORS).0 - at.0;
            let most = [1, 5, 1000][self.random.usize(..3)];
            let asked = Extent::new(at, SectorCount(left));
            let runs = allocation::runs(self.table(), asked, most).await;
            assert!(!runs.is_empty(), "something is told");
            for (extent, hole) in placed(asked, runs) {
                at = extent.end();
                if hole {
                    assert!(self.model.bytes[places(extent)].iter().all(|byte| *byte == 0), "{extent} is told as a hole");
                    assert!(self.read(extent).await.iter().all(|byte| *byte == 0), "hole {extent} reads as zeroes");
                } else {
                    let whole = places(extent).start.div_ceil(GRAIN)..places(extent).end / GRAIN;
                    let untouched = whole.clone().find(|&grain| !self.model.touched[grain]);
                    assert_eq!(untouched, None, "grain of {extent} was never touched and is told as data");
                }
            }
        }
    }
}

/// Runs with their places.
fn placed(asked: Extent, runs: Vec<Run>) -> impl Iterator<Item = (Extent, bool)> {
    let mut at = asked.start;
    runs.into_iter().map(move |run| {
        let extent = Extent::new(at, run.count);
        at = extent.end();
        assert!(asked.contains(extent), "an answer stays inside the question");
        (extent, run.hole)
    })
}

fn against_the_model(choice: Engine, seeds: Range<u64>, name: &str, table: impl Fn(&Folder) -> String) {
    for seed in seeds {
        let folder = Folder::new(name);
        let table = table(&folder);
        let reactor = Reactor::new(engine(choice).unwrap());
        let pool = BufferPool::new(&reactor);
        let sectors = places(Extent::new(Sector(0), SectorCount(SECTORS))).end;
        let model = Model { bytes: vec![0; sectors], touched: vec![false; sectors / GRAIN] };
        let work = async {
            let stack = Stack::open(&reactor, &pool, "disk", &table).await.unwrap();
            let mut bed = Bed { stack: &stack, pool: &pool, random: fastrand::Rng::with_seed(seed), model };
            for round in 0..40 {
                bed.round().await;
                if round % 6 == 0 {
                    bed.check().await;
                }
            }
            stack.drain(Duration::from_secs(1), |_| {}).await.unwrap();
            bed.check().await;
            bed.model
        };
        let model = reactor.run(work).unwrap();
        assert!(model.touched.contains(&false), "seed {seed}: some of the disk was never touched");
        reactor.clear();
    }
}

#[test]
fn a_cache_over_a_sparse_file_tells_no_hole_that_is_none_and_every_one_that_was_never_touched() {
    for (block, options) in [(4096, "0"), (512, "2 overwrite new"), (65_536, "4 high_watermark 60 low_watermark 40")] {
        against_the_model(Engine::Auto, 0..3, "cache", |folder| {
            let file = folder.sparse("origin", SECTORS * 512);
            format!("0 {SECTORS} writecache s {file} ram:3M {block} {options}")
        });
    }
}

#[test]
fn so_does_a_small_stack_of_everything() {
    against_the_model(Engine::Auto, 0..3, "everything", |folder| {
        let (one, other) = (folder.sparse("one", SECTORS * 256), folder.sparse("other", SECTORS * 256 + 4096));
        let half = SECTORS / 2;
        let file = folder.sparse("half", half * 512);
        format!("0 {half} striped 2 64 {one} 0 {other} 8; {half} {half} stats {file} 0")
    });
}

#[test]
fn so_does_a_cache_on_the_thread_pool() {
    against_the_model(Engine::Threads, 0..2, "threads", |folder| {
        let file = folder.sparse("origin", SECTORS * 512);
        format!("0 {SECTORS} writecache s {file} ram:3M 4096 0")
    });
}
