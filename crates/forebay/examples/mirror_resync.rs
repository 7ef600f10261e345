//! Times the resync of a mirror of two disks in memory, beside a plain copy of one to the other.
//!
//! `cargo run --release -p forebay --example mirror_resync [MIB [REPETITIONS [REGION_SECTORS…]]]`
//!
//! Prints a line of JSON for each size of regions and repetition. The copy uses the same engine with
//! slices of 1 MiB and nothing above it. All memory is touched before.

use std::error::Error;
use std::rc::Rc;
use std::time::Duration;

use forebay::block::{Bio, Extent, Sector, SectorCount, Target};
use forebay::{BufferPool, Engine, Reactor, engine};
use forebay_device::RamDevice;
use forebay_target::copy::{self, How, Settings};
use forebay_target::mirror::options::{Features, Sync};
use forebay_target::mirror::{LogSetup, Setup, open};

/// How often it is looked whether everything is in sync.
const LOOK_EVERY: Duration = Duration::from_micros(200);

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<u64> = std::env::args().skip(1).map(|word| word.parse()).collect::<Result<_, _>>()?;
    let mib = words.first().copied().unwrap_or(256);
    let repetitions = words.get(1).copied().unwrap_or(5);
    let regions = words.get(2..).filter(|sizes| !sizes.is_empty()).unwrap_or(&[128, 1024, 8192]);
    let reactor = Reactor::new(engine(Engine::Auto)?);
    let pool = BufferPool::new(&reactor);
    reactor.run(async {
        let sectors = SectorCount(mib * 2048);
        let legs = [RamDevice::new(&reactor, sectors)?, RamDevice::new(&reactor, sectors)?];
        for leg in &legs {
            let touch = Bio::write_zeroes(Extent::new(Sector(0), sectors));
            if !forebay::block::call(&**leg, touch).await.status().is_ok() {
                return Err("the memory cannot be written".into());
            }
        }
        let legs = legs.map(|leg| leg as Rc<dyn Target>);
        for &region in regions {
            for repetition in 0..repetitions {
                let plain = Box::pin(copy(&reactor, &pool, &legs, sectors)).await?;
                let resync = resync(&reactor, &pool, &legs, sectors, region).await?;
                let speed = |time: Duration| f64::from(u32::try_from(mib).unwrap_or(u32::MAX)) / time.as_secs_f64();
                let (plain, resync) = (speed(plain), speed(resync));
                let figures = format!("\"resync_mib_s\":{resync:.1},\"copy_mib_s\":{plain:.1}");
                println!("{{\"round\":{},\"region_sectors\":{region},{figures}}}", repetition + 1);
            }
        }
        Ok(())
    })?
}

/// A plain copy of the whole disk.
async fn copy(
    reactor: &Reactor,
    pool: &BufferPool,
    legs: &[Rc<dyn Target>; 2],
    sectors: SectorCount,
) -> Result<Duration, Box<dyn Error>> {
    let engine = copy::Engine::new(reactor, pool, &Settings { piece_bytes: 1 << 20, ..Settings::default() });
    let end = |leg: usize| copy::Leg::new(Rc::clone(&legs[leg]), Sector(0));
    let began = reactor.now();
    let outcome = engine.copy(&end(0), &[end(1)], sectors, &How::default()).await;
    if outcome.is_ok() { Ok(reactor.now().saturating_sub(began)) } else { Err("the copy failed".into()) }
}

/// A mirror that is opened with all regions out of sync, until they are in sync.
async fn resync(
    reactor: &Reactor,
    pool: &BufferPool,
    legs: &[Rc<dyn Target>; 2],
    sectors: SectorCount,
    region: u64,
) -> Result<Duration, Box<dyn Error>> {
    let setup = Setup {
        legs: legs.iter().map(|leg| ("ram".to_owned(), Rc::clone(leg))).collect(),
        sectors,
        log: LogSetup::Core,
        region: SectorCount(region),
        sync: Sync::AsLogged,
        features: Features::default(),
    };
    let began = reactor.now();
    let mirror = Box::pin(open(reactor, pool, setup)).await?;
    while !mirror.is_in_sync() {
        reactor.sleep(LOOK_EVERY).await;
    }
    let time = reactor.now().saturating_sub(began);
    if mirror.close().await.is_ok() { Ok(time) } else { Err("the mirror did not close".into()) }
}
