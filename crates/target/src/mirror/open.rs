//! Opening a mirror: what the log says decides what is copied, and from where.
//!
//! ```text
//!   read the log ─▶ source: the first leg that its record does not name
//!                ─▶ regions that are not clean: all legs but the source lack them
//!                ─▶ the whole log is written back and flushed ─▶ requests may come
//! ```
//!
//! The log is written back whole, because bits that a killed process wrote may not be durable.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{Bio, Limits, SECTOR_BYTES, Sector, SectorCount, Target, call};
use forebay_reactor::{BufferPool, Reactor};

use super::log::format::{Behind, FormatError, Header, Image, decode, log_bytes};
use super::log::{DirtyLog, LogDevice, LogState, REQUEST_BYTES_MAX};
use super::options::{Features, Sync};
use super::resync::PIECES;
use super::who::State;
use super::who::legs::{LEGS_MAX, LegSet, Legs};
use super::who::regions::Regions;
use super::{JOBS, Leg, Mirror};
use crate::copy::{Engine, Settings};
use crate::event::Event;

/// Most regions: their bitmaps take 32 MiB for each leg.
const REGIONS_MAX: u64 = 1 << 28;
/// Bytes of a piece.
const PIECE_BYTES: u32 = 512 << 10;
/// While requests of clients take longer than this, copies step back.
const FOREGROUND: Duration = Duration::from_millis(10);

/// Where the log is kept.
pub enum LogSetup {
    /// In memory: after each start everything is copied, unless told otherwise.
    Core,
    /// On a device of its own.
    Disk {
        /// What it is called.
        name: String,
        /// The device.
        target: Rc<dyn Target>,
    },
}

/// What a mirror is made of.
pub struct Setup {
    /// Each leg and what it is called, 2 to 9. All have at least `sectors` sectors.
    pub legs: Vec<(String, Rc<dyn Target>)>,
    /// Its size.
    pub sectors: SectorCount,
    /// Where the log is.
    pub log: LogSetup,
    /// Size of a region: a power of two from 2.
    pub region: SectorCount,
    /// Whether the log is believed.
    pub sync: Sync,
    /// What is done about errors.
    pub features: Features,
}

/// Why a mirror does not open.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The number of legs.
    #[error("a mirror has 2 to {LEGS_MAX} legs, not {0}")]
    Legs(usize),
    /// The size of a region.
    #[error("regions of {region} sectors do not fit a mirror of {sectors}: give a power of two, at most its length")]
    Region {
        /// The size that was asked for, sectors.
        region: u64,
        /// The size of the mirror, sectors.
        sectors: u64,
    },
    /// Regions are not whole blocks of a leg.
    #[error("regions of {region} sectors are not whole blocks of {block_bytes} bytes: give larger regions")]
    RegionBlocks {
        /// The size of a region, sectors.
        region: u64,
        /// The largest logical block of the legs.
        block_bytes: u32,
    },
    /// Too many regions.
    #[error("{0} regions are too many: give larger regions")]
    TooMany(u64),
    /// A leg is shorter than the mirror.
    #[error("{name} has {found} sectors, and {wanted} are needed: give a smaller length")]
    Short {
        /// The leg.
        name: String,
        /// Its size, sectors.
        found: u64,
        /// The size of the mirror, sectors.
        wanted: u64,
    },
    /// The log device is too small.
    #[error("the log device {name} has {found} bytes, and {wanted} are needed: give a larger one, or larger regions")]
    LogSize {
        /// The log device.
        name: String,
        /// Its size, bytes.
        found: u64,
        /// What the log needs, bytes.
        wanted: u64,
    },
    /// One device for both.
    #[error("{0} cannot be a leg and the log at once: give two devices")]
    LogOnLeg(String),
    /// The log cannot be read, so nobody knows what is to be copied, and from where.
    #[error("the log on {0} cannot be read: repair it, or give `sync` to copy everything from the first leg")]
    LogRead(String),
    /// The log cannot be written.
    #[error("the log on {0} cannot be written: look at the device, or use another")]
    LogWrite(String),
    /// The log knows of legs that lack something, but these were more or fewer legs.
    #[error(
        "the log on {name} is of {logged} legs, of which {behind} lacks something, and {given} are given: give all {logged} as before, or put one that has everything first, and \
         `sync` to copy all from it"
    )]
    LegsBehind {
        /// The log device.
        name: String,
        /// How many legs there were.
        logged: u16,
        /// Numbers of those that lack something, counted from 0.
        behind: String,
        /// How many legs are given.
        given: usize,
    },
    /// The log is of a kind that is not known.
    #[error("the log on {name} cannot be used: {source}")]
    Format {
        /// The log device.
        name: String,
        /// What is wrong with it.
        source: FormatError,
    },
    /// The reactor has no room for another task.
    #[error("this thread has too many tasks: use fewer devices on it")]
    TooManyTasks,
}

/// Checks what is known without reading; the limits of all legs together.
fn check(setup: &Setup) -> Result<Limits, OpenError> {
    let (region, sectors) = (setup.region.0, setup.sectors.0);
    if !(2..=LEGS_MAX).contains(&setup.legs.len()) {
        return Err(OpenError::Legs(setup.legs.len()));
    }
    if region < 2 || !region.is_power_of_two() || region > sectors {
        return Err(OpenError::Region { region, sectors });
    }
    if sectors.div_ceil(region) > REGIONS_MAX {
        return Err(OpenError::TooMany(sectors.div_ceil(region)));
    }
    let mut limits = Limits::unlimited();
    for (name, leg) in &setup.legs {
        if leg.sectors() < setup.sectors {
            return Err(OpenError::Short { name: name.clone(), found: leg.sectors().0, wanted: sectors });
        }
        limits = limits.stack(leg.limits());
    }
    if !setup.region.to_bytes().is_multiple_of(u64::from(limits.logical_bytes)) {
        return Err(OpenError::RegionBlocks { region, block_bytes: limits.logical_bytes });
    }
    // Discards are written as zeroes.
    limits.discard = limits.write_zeroes;
    limits.discard_grain_bytes = limits.logical_bytes;
    Ok(limits)
}

/// Reads the first `bytes` bytes of the log device.
async fn read_log(target: &dyn Target, pool: &BufferPool, bytes: usize) -> Option<Vec<u8>> {
    let mut all = Vec::with_capacity(bytes);
    while all.len() < bytes {
        let part = (bytes - all.len()).min(REQUEST_BYTES_MAX);
        let mut buffer = pool.take(part);
        let length = u32::try_from(part).expect("at most REQUEST_BYTES_MAX");
        let read = Bio::read(Sector(all.len() as u64 / 512), Rc::clone(buffer.segments()), 0, length);
        if !call(target, read).await.status().is_ok() {
            return None;
        }
        all.extend_from_slice(&buffer.bytes_mut()[..part]);
    }
    Some(all)
}

/// What the log says, as an image of it and the leg to copy from.
async fn recall(setup: &Setup, pool: &BufferPool) -> Result<(Image, usize), OpenError> {
    let regions = setup.sectors.0.div_ceil(setup.region.0);
    let nothing = Header { regions: 0, behind: None };
    let fresh_clean = setup.sync == Sync::None;
    let LogSetup::Disk { name, target } = &setup.log else {
        let mut image = Image::new(regions, SECTOR_BYTES);
        image.adopt(&nothing, &[], fresh_clean);
        return Ok((image, 0));
    };
    let block_bytes = target.limits().logical_bytes;
    let (found, wanted) = (target.sectors().to_bytes(), log_bytes(regions, block_bytes));
    if found < wanted {
        return Err(OpenError::LogSize { name: name.clone(), found, wanted });
    }
    let mut image = Image::new(regions, block_bytes);
    image.change_all();
    if setup.sync != Sync::AsLogged {
        image.adopt(&nothing, &[], fresh_clean);
        return Ok((image, 0));
    }
    let bytes = usize::try_from(wanted).expect("a log fits in memory");
    let old = read_log(&**target, pool, bytes).await.ok_or_else(|| OpenError::LogRead(name.clone()))?;
    let header = decode(&old).map_err(|source| OpenError::Format { name: name.clone(), source })?.unwrap_or(nothing);
    image.adopt(&header, old.get(1024..).unwrap_or_default(), fresh_clean);
    let legs = setup.legs.len();
    let Some(Behind { legs: behind, of }) = header.behind.filter(|_| image.dirty().next().is_some()) else {
        return Ok((image, 0));
    };
    if usize::from(of) != legs {
        let numbers: Vec<String> = behind.iter().map(|leg| leg.to_string()).collect();
        return Err(OpenError::LegsBehind { name: name.clone(), logged: of, behind: numbers.join(" and "), given: legs });
    }
    let Some(source) = LegSet::first_of(legs).without(behind).first() else { return Ok((image, 0)) };
    image.record(Some(Behind { legs: behind, of }));
    Ok((image, source))
}

/// Opens a mirror. Requests may come at once; what is out of sync is copied meanwhile.
///
/// # Errors
/// [`OpenError`], one sentence.
pub async fn open(reactor: &Reactor, pool: &BufferPool, setup: Setup) -> Result<Rc<Mirror>, OpenError> {
    let limits = check(&setup)?;
    let (image, source) = recall(&setup, pool).await?;
    let count = setup.legs.len();
    let mut state = State::new(Legs::new(count), Regions::new(setup.sectors, setup.region, count), source);
    let others = state.legs.all().without(LegSet::only(source));
    for regions in image.dirty() {
        state.regions.lose(others, &regions);
    }
    let (log_name, device) = match setup.log {
        LogSetup::Core => (None, None),
        LogSetup::Disk { name, target } => (Some(name), Some(LogDevice { target, pool: pool.clone() })),
    };
    let settings = Settings {
        piece_bytes: PIECE_BYTES,
        in_flight_bytes: u64::from(PIECE_BYTES) * PIECES as u64,
        rate: std::num::NonZeroU64::new(setup.features.resync_rate),
        foreground: Some(FOREGROUND),
        ..Settings::default()
    };
    let mirror = Rc::new_cyclic(|me| Mirror {
        me: me.clone(),
        reactor: reactor.clone(),
        pool: pool.clone(),
        legs: setup.legs.into_iter().map(|(name, target)| Leg { name, target }).collect(),
        log_name,
        sectors: setup.sectors,
        limits,
        features: setup.features,
        state: RefCell::new(state),
        log: DirtyLog::new(image, device),
        locks: crate::lock::RangeLocks::new(),
        fans: super::Fans::default(),
        reads: reactor.job_pool(JOBS, |(mirror, bio): (Rc<Mirror>, Bio)| mirror.read(bio)),
        changes: reactor.job_pool(JOBS, |(mirror, bio): (Rc<Mirror>, Bio)| mirror.change(bio)),
        pieces: reactor.job_pool(PIECES, |(mirror, piece): (Rc<Mirror>, super::resync::Piece)| mirror.copy_piece(piece)),
        engine: Engine::new(reactor, pool, &settings),
        held: RefCell::default(),
        broken: Cell::new(false),
        closed: Cell::new(false),
        recorded: Cell::new(0),
        work: Event::default(),
        copied: Event::default(),
        written: Event::default(),
        flushes: super::Flushes::default(),
        copying: Cell::new(0),
        begun: Cell::new(0),
        suspended: Cell::new(false),
        waiting: RefCell::default(),
        resumed: Event::default(),
        unread: RefCell::default(),
        scrubbed: RefCell::default(),
    });
    start(&mirror).await?;
    Ok(mirror)
}

/// Starts the mirror's tasks, once its log is written.
async fn start(mirror: &Rc<Mirror>) -> Result<(), OpenError> {
    let reactor = mirror.reactor.clone();
    let (writer, resync, cleaner) = (Rc::clone(mirror), Rc::clone(mirror), Rc::clone(mirror));
    let rounds = async move {
        writer.log.write_rounds().await;
        if writer.log.state() != LogState::Alive {
            writer.events().raise();
        }
    };
    if !reactor.spawn(rounds) {
        return Err(OpenError::TooManyTasks);
    }
    let round = mirror.log.first_round();
    if !mirror.log.settled(round).await {
        return Err(OpenError::LogWrite(mirror.log_name.clone().unwrap_or_default()));
    }
    let no_clean = mirror.log.is_kept() && !reactor.spawn(cleaner.clean());
    if no_clean || !reactor.spawn(resync.resync()) {
        mirror.close().await;
        return Err(OpenError::TooManyTasks);
    }
    Ok(())
}
