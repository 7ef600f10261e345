//! From table text to running targets.
//!
//! ```text
//!   TableText ── each row ──▶ open devices ──▶ make its target ──▶ Row      all rows ──▶ Table
//! ```

use std::path::PathBuf;
use std::rc::Rc;

use forebay_block::{Extent, Row, Sector, SectorCount, Target};
use forebay_device::DeviceError;
use forebay_reactor::{BufferPool, Reactor};
use forebay_target::BuildError;
use forebay_target::cache::options::CacheArgs;
use forebay_target::cache::{self, Setup};
use forebay_target::clone::{self, options::CloneArgs};
use forebay_target::delay::{Delay, Leg, Legs};
use forebay_target::error::Failing;
use forebay_target::flaky::Flaky;
use forebay_target::linear::Linear;
use forebay_target::log::LogWrites;
use forebay_target::mirror::options::MirrorArgs;
use forebay_target::mirror::{self, LogSetup};
use forebay_target::snapshot::options::SnapshotArgs;
use forebay_target::snapshot::{OriginFront, SnapshotError};
use forebay_target::stats::Stats;
use forebay_target::stripe::Stripe;
use forebay_target::zram::options::ZramOptions;
use forebay_target::zram::{self, BackingSetup, CodecParams, Zram, ZramError};

use crate::device::{DeviceName, Devices, OpenDevice};
use crate::image::{ImageFileError, Kept};
use crate::snapshots::{OpenSnapshot, Wish};
use crate::stack::clones::OpenClone;
use crate::stack::{OpenCache, OpenError, OpenMirror};
use crate::text::{Detour, Place, RowText, TargetText};

/// What a stack is made of, as far as it is open.
#[derive(Default)]
pub(crate) struct Parts {
    pub(crate) rows: Vec<Row>,
    pub(crate) kinds: Vec<&'static str>,
    pub(crate) caches: Vec<OpenCache>,
    pub(crate) counters: Vec<(Extent, Rc<Stats>)>,
    pub(crate) zrams: Vec<(Extent, Rc<Zram>)>,
    pub(crate) snapshots: Vec<OpenSnapshot>,
    /// Disks that are kept in files.
    pub(crate) images: Vec<Kept>,
    pub(crate) mirrors: Vec<OpenMirror>,
    pub(crate) clones: Vec<OpenClone>,
    pub(crate) devices: Vec<OpenDevice>,
}

/// Makes the targets of one stack.
pub(crate) struct Assembly<'a> {
    pub(crate) devices: &'a Devices,
    pub(crate) pool: &'a BufferPool,
    /// Whether devices that are only read and written through are opened for reading only.
    pub(crate) read_only: bool,
    pub(crate) parts: Parts,
}

/// What is wrong with one row, before its line is known.
enum Trouble {
    Device(DeviceError),
    Build(BuildError),
    Same(String, &'static str),
    Cache { fast: String, origin: String, error: cache::OpenError },
    Clone { destination: String, error: clone::OpenError },
    Twice(String),
    Zram(ZramError),
    Snapshot { cow: String, origin: String, error: SnapshotError },
    Mirror(mirror::OpenError),
    Dictionary { path: String, error: std::io::Error },
    Image(ImageFileError),
    SameImage(PathBuf),
}

impl From<DeviceError> for Trouble {
    fn from(error: DeviceError) -> Self {
        Self::Device(error)
    }
}

impl From<BuildError> for Trouble {
    fn from(error: BuildError) -> Self {
        Self::Build(error)
    }
}

impl Assembly<'_> {
    /// Opens what `row` needs and adds its target.
    pub(crate) async fn add(&mut self, row: &RowText) -> Result<(), OpenError> {
        let line = row.line;
        // On the heap: whoever opens a stack is not to be as large as what opens every kind of row.
        let target = Box::pin(self.target(row)).await.map_err(|trouble| match trouble {
            Trouble::Device(source) => OpenError::Device { line, source },
            Trouble::Build(source) => OpenError::Target { line, source },
            Trouble::Same(name, role) => OpenError::SameDevice { line, name, role },
            Trouble::Mirror(source) => OpenError::Mirror { line, source },
            Trouble::Clone { destination, error } => OpenError::Clone { line, destination, source: error },
            Trouble::Twice(name) => OpenError::DeviceTwice { line, name },
            Trouble::Zram(source) => OpenError::Zram { line, source },
            Trouble::Image(source) => OpenError::Image { line, source },
            Trouble::SameImage(path) => OpenError::SameImage { line, path },
            Trouble::Dictionary { path, error } => OpenError::Dictionary { line, path, source: error },
            Trouble::Snapshot { cow, origin, error } => OpenError::Snapshot { line, cow, origin, source: error },
            Trouble::Cache { fast, origin, error } => OpenError::Cache { line, fast, origin, source: error },
        })?;
        self.parts.rows.push(Row { extent: row.extent, target });
        self.parts.kinds.push(row.target.kind());
        Ok(())
    }

    async fn target(&mut self, row: &RowText) -> Result<Rc<dyn Target>, Trouble> {
        let reactor = self.devices.reactor().clone();
        differ(&row.target, row.extent.count)?;
        for name in row.target.devices() {
            let read_only = self.read_only || row.target.only_reads(name);
            self.devices.connect(self.pool, name, read_only).await?;
        }
        Ok(match &row.target {
            TargetText::Linear(place) => self.linear(place, row.extent)?,
            TargetText::Stats(place) => {
                let stats = Rc::new(Stats::new(self.linear(place, row.extent)?));
                self.parts.counters.push((row.extent, Rc::clone(&stats)));
                stats
            }
            TargetText::Striped { chunk, columns } => {
                let opened: Result<Vec<_>, Trouble> =
                    columns.iter().map(|place| Ok((self.open(&place.device)?, place.offset))).collect();
                Rc::new(Stripe::new(opened?, *chunk, row.extent.count)?)
            }
            TargetText::Error => Rc::new(Failing::new(row.extent.count)),
            TargetText::Delay { read, write, flush } => {
                let read = self.leg(read, row.extent)?;
                let write = write.as_ref().map(|detour| self.leg(detour, row.extent)).transpose()?;
                let flush = flush.as_ref().map(|detour| self.leg(detour, row.extent)).transpose()?;
                let write = write.unwrap_or_else(|| read.clone());
                let flush = flush.unwrap_or_else(|| write.clone());
                Rc::new(Delay::new(reactor, Legs { read, write, flush })?)
            }
            TargetText::Flakey(place, flakiness) => Rc::new(Flaky::new(reactor, self.linear(place, row.extent)?, *flakiness)?),
            TargetText::LogWrites { device, log } => {
                let below = self.linear(&Place { device: device.clone(), offset: Sector(0) }, row.extent)?;
                let log = self.open(log)?;
                Rc::new(LogWrites::new(below, log)?)
            }
            TargetText::Mirror { args, legs, log } => {
                Box::pin(self.mirror(&reactor, args, legs, log.as_ref(), row.extent)).await?
            }
            TargetText::Zram { options, backing } => Box::pin(self.zram(&reactor, options, backing.as_ref(), row.extent)).await?,
            TargetText::Clone { args, metadata, destination, source } => {
                Box::pin(self.clone_of(&reactor, args, [metadata, destination, source], row.extent)).await?
            }
            TargetText::Writecache { args, origin, fast } => {
                Box::pin(self.cache(&reactor, args, [origin, fast], row.extent)).await?
            }
            TargetText::Snapshot { args, origin, cow } => Box::pin(self.snapshot(args, [origin, cow], row.extent, false)).await?,
            TargetText::SnapshotMerge { args, origin, cow } => {
                Box::pin(self.snapshot(args, [origin, cow], row.extent, true)).await?
            }
            TargetText::SnapshotOrigin(origin) => {
                let device = self.open_device(origin)?;
                Rc::new(OriginFront::new(self.devices.origin(&device, self.pool), row.extent.count)?)
            }
        })
    }

    /// Opens a device, and notes it as one of this stack.
    fn open_device(&mut self, name: &DeviceName) -> Result<OpenDevice, DeviceError> {
        self.open_as(name, self.read_only)
    }

    fn open_as(&mut self, name: &DeviceName, read_only: bool) -> Result<OpenDevice, DeviceError> {
        let device = self.devices.open(name, read_only)?;
        if !self.parts.devices.iter().any(|known| known.id == device.id) {
            self.parts.devices.push(device.clone());
        }
        Ok(device)
    }

    fn open(&mut self, name: &DeviceName) -> Result<Rc<dyn Target>, DeviceError> {
        Ok(self.open_device(name)?.target)
    }

    fn linear(&mut self, place: &Place, extent: Extent) -> Result<Rc<dyn Target>, Trouble> {
        let device = self.open(&place.device)?;
        if place.offset == Sector(0) && device.sectors() == extent.count {
            return Ok(device);
        }
        Ok(Rc::new(Linear::new(device, place.offset, extent.count)?))
    }

    fn leg(&mut self, detour: &Detour, extent: Extent) -> Result<Leg, Trouble> {
        Ok(Leg { below: self.linear(&detour.place, extent)?, delay: detour.delay })
    }

    async fn zram(
        &mut self,
        reactor: &Reactor,
        options: &ZramOptions,
        backing: Option<&DeviceName>,
        extent: Extent,
    ) -> Result<Rc<dyn Target>, Trouble> {
        let dictionary = match &options.dictionary {
            None => None,
            Some(path) => {
                Some(zram::read_dictionary(path.as_ref()).map_err(|error| Trouble::Dictionary { path: path.clone(), error })?)
            }
        };
        let codec = CodecParams { algorithm: options.algorithm, level: options.level, dictionary };
        let backing = match backing {
            None => None,
            Some(name) => {
                let device = self.open_device(name)?;
                if self.devices.is_backing(device.id) {
                    return Err(Trouble::Twice(name.to_string()));
                }
                Some((device.id, BackingSetup { name: name.to_string(), target: device.target, options: options.writeback }))
            }
        };
        let (backing_id, backing) = backing.unzip();
        let (mem_limit, recompression) = (options.mem_limit, options.recompression.clone());
        let packers = packers(reactor, options.threads);
        let setup = zram::Setup { sectors: extent.count, codec, mem_limit, backing, recompression, packers };
        let disk = Zram::new(reactor, self.pool, &setup).map_err(Trouble::Zram)?;
        let image = options.image.as_ref().map(PathBuf::from);
        if !self.devices.note_disk(&disk, backing_id, image.as_deref()) {
            return Err(Trouble::SameImage(image.unwrap_or_default()));
        }
        if let Some(path) = image {
            self.parts.images.push(Box::pin(Kept::restore(reactor, &disk, &path)).await.map_err(Trouble::Image)?);
        }
        self.parts.zrams.push((extent, Rc::clone(&disk)));
        Ok(disk)
    }

    async fn mirror(
        &mut self,
        reactor: &Reactor,
        args: &MirrorArgs,
        places: &[Place],
        log: Option<&DeviceName>,
        extent: Extent,
    ) -> Result<Rc<dyn Target>, Trouble> {
        let log = log.map(|name| Ok::<_, Trouble>((name.to_string(), self.open(name)?))).transpose()?;
        let mut legs = Vec::new();
        for place in places {
            let name = place.device.to_string();
            legs.push((name, self.linear(place, extent)?));
        }
        let log = log.map_or(LogSetup::Core, |(name, target)| LogSetup::Disk { name, target });
        let (region, sync, features) = (args.region, args.sync, args.features);
        let setup = mirror::Setup { legs, sectors: extent.count, log, region, sync, features };
        let mirror = mirror::open(reactor, self.pool, setup).await.map_err(Trouble::Mirror)?;
        self.parts.mirrors.push((extent, Rc::clone(&mirror)));
        Ok(mirror)
    }

    async fn clone_of(
        &mut self,
        reactor: &Reactor,
        args: &CloneArgs,
        names: [&DeviceName; 3],
        extent: Extent,
    ) -> Result<Rc<dyn Target>, Trouble> {
        let [metadata_name, destination_name, source_name] = names;
        let [metadata, destination] = [self.open(metadata_name)?, self.open(destination_name)?];
        // Nothing of this stack writes to the source.
        let devices = [metadata, destination, self.open_as(source_name, true)?.target];
        let trouble = |error| Trouble::Clone { destination: destination_name.to_string(), error };
        let opened = OpenClone::open(reactor, self.pool, args, extent, names.map(ToString::to_string), devices).await;
        let opened = opened.map_err(trouble)?;
        let target = opened.target();
        self.parts.clones.push(opened);
        Ok(target)
    }

    async fn cache(
        &mut self,
        reactor: &Reactor,
        args: &CacheArgs,
        names: [&DeviceName; 2],
        extent: Extent,
    ) -> Result<Rc<dyn Target>, Trouble> {
        let [origin_name, fast_name] = names.map(ToString::to_string);
        let [origin, fast] = [self.open(names[0])?, self.open(names[1])?];
        if Rc::ptr_eq(&origin, &fast) {
            return Err(Trouble::Same(fast_name, "cache"));
        }
        let options = args.options.clone();
        let side = options.side.as_ref().map(|path| crate::side::side(path, names[0], names[1]));
        let setup = Setup { fast, origin, sectors: extent.count, block_bytes: args.block_bytes, options, extend: true, side };
        let trouble = |error| Trouble::Cache { fast: fast_name.clone(), origin: origin_name.clone(), error };
        let cache = cache::open(reactor, self.pool, setup).await.map_err(trouble)?;
        self.parts.caches.push(OpenCache { extent, origin: origin_name, fast: fast_name, cache: Rc::clone(&cache) });
        Ok(cache)
    }

    async fn snapshot(
        &mut self,
        args: &SnapshotArgs,
        names: [&DeviceName; 2],
        extent: Extent,
        merges: bool,
    ) -> Result<Rc<dyn Target>, Trouble> {
        let [origin_name, cow_name] = names.map(ToString::to_string);
        let (device, cow) = (self.open_device(names[0])?, self.open_device(names[1])?);
        if device.id == cow.id {
            return Err(Trouble::Same(cow_name, "snapshot"));
        }
        let trouble = |error| Trouble::Snapshot { cow: cow_name.clone(), origin: origin_name.clone(), error };
        let taken = self.devices.take_store(device.id, cow.id).ok_or_else(|| trouble(SnapshotError::InUse))?;
        let origin = self.devices.origin(&device, self.pool);
        let (origin_name, cow_name) = (origin_name.clone(), cow_name.clone());
        let wish = Wish { args, extent, origin_name, cow_name, origin, cow: cow.target, taken };
        let opened = Box::pin(OpenSnapshot::open(self.devices.reactor(), self.pool, wish, merges)).await;
        let (snapshot, target) = opened.map_err(trouble)?;
        self.parts.snapshots.push(snapshot);
        Ok(target)
    }
}

/// Refuses a target of `sectors` of which two devices must differ and are one.
fn differ(target: &TargetText, sectors: SectorCount) -> Result<(), Trouble> {
    let twice = |name: &DeviceName| Err(Trouble::Twice(name.to_string()));
    match target {
        TargetText::Mirror { legs, log, .. } => {
            let overlap = |one: &Place, other: &Place| one.offset.0.abs_diff(other.offset.0) < sectors.0;
            for (at, leg) in legs.iter().enumerate() {
                if log.as_ref().is_some_and(|log| log.is_same(&leg.device)) {
                    return Err(Trouble::Mirror(mirror::OpenError::LogOnLeg(leg.device.to_string())));
                }
                if legs[..at].iter().any(|other| other.device.is_same(&leg.device) && overlap(other, leg)) {
                    return twice(&leg.device);
                }
            }
            Ok(())
        }
        TargetText::Clone { metadata, destination, source, .. } => {
            let same = [(metadata, destination), (metadata, source), (destination, source)];
            same.into_iter().find(|(one, other)| one.is_same(other)).map_or(Ok(()), |(_, other)| twice(other))
        }
        _ => Ok(()),
    }
}

/// Threads that compress large writes of a compressed RAM disk, where nothing else is said: more find
/// little to do, since one thread keeps what they make.
const PACKING_THREADS_MAX: usize = 4;

/// Those beside the thread of the disk; `None` where that is alone.
fn packers(reactor: &Reactor, threads: Option<u32>) -> Option<Rc<dyn zram::Packers>> {
    let cores = || std::thread::available_parallelism().map_or(1, |cores| cores.get().min(PACKING_THREADS_MAX));
    let threads = threads.map_or_else(cores, |threads| usize::try_from(threads).expect("at most 64"));
    let beside = threads.checked_sub(1).filter(|beside| *beside > 0)?;
    Some(Rc::new(zram::PackerThreads::new(reactor, beside)))
}
