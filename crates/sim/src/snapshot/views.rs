//! Two views of one tiny origin, one behind the other in a table, so that scripts use both.
//!
//! ```text
//!   sectors   0                 n                  2n
//!   Beside    │ origin          │ its snapshot     │     what either keeps goes to the first store
//!   Two       │ snapshot 1      │ snapshot 2       │     of an origin at rest
//!   Merging   │ snapshot-merge  │ snapshot 2       │     of the first store, saving for the second
//! ```

use std::ops::Range;
use std::rc::Rc;

use forebay_block::{Extent, Row, Sector, SectorCount, Table, Target};
use forebay_reactor::{BufferPool, Reactor};
use forebay_target::snapshot::options::{Discards, StoreKind};
use forebay_target::snapshot::{Condition, Merge, MergeSetup, Origin, OriginFront, Setup, Snapshot, merge, open};

use crate::run::{Disturbed, Later, Opened, Subject};
use crate::world::{SimDisk, World};

/// What is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Beside,
    Two,
    Merging,
}

/// An origin, and chunks of its stores in sectors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Views {
    pub(super) kind: Kind,
    /// Of one view.
    pub(super) sectors: u64,
    pub(super) chunks: [u64; 2],
}

/// Number of the origin's disk; the stores' follow.
pub(super) const ORIGIN: usize = 0;

impl Subject for Views {
    fn open(&self, world: &World, reactor: &Reactor, pool: &BufferPool) -> Later<Rc<dyn Opened>> {
        let disks: Vec<_> = (0..world.disks()).map(|disk| world.disk(reactor, disk)).collect();
        Box::pin(open_views(*self, disks, reactor.clone(), pool.clone()))
    }

    fn bottom(&self) -> Option<usize> {
        (self.kind == Kind::Merging).then_some(ORIGIN)
    }
}

async fn open_views(views: Views, disks: Vec<Rc<SimDisk>>, reactor: Reactor, pool: BufferPool) -> Result<Rc<dyn Opened>, String> {
    let disk = |at: usize| Rc::clone(&disks[at]) as Rc<dyn Target>;
    let origin = Origin::new(&reactor, &pool, disk(ORIGIN));
    let sectors = SectorCount(views.sectors);
    let snapshot = |at: usize| {
        let (origin, cow, chunk_sectors) = (Rc::clone(&origin), disk(1 + at), views.chunks[at]);
        let (store, discards) = (StoreKind::Persistent { overflow: false }, Discards::ZeroCow);
        open(&reactor, &pool, Setup { origin, cow, sectors, store, chunk_sectors, discards, coalesce: true })
    };
    let mut opened = OpenedViews { sectors: views.sectors, rows: Vec::new(), merge: None, table: None };
    match views.kind {
        Kind::Beside => {
            let front = OriginFront::new(Rc::clone(&origin), sectors).map_err(|error| error.to_string())?;
            opened.rows.push((Rc::new(front) as Rc<dyn Target>, None));
            opened.add(snapshot(0).await.map_err(|error| error.to_string())?);
        }
        Kind::Two => {
            opened.add(snapshot(0).await.map_err(|error| error.to_string())?);
            opened.add(snapshot(1).await.map_err(|error| error.to_string())?);
        }
        Kind::Merging => {
            let (cow, chunk_sectors) = (disk(1), views.chunks[0]);
            let setup = MergeSetup { origin: Rc::clone(&origin), cow, sectors, chunk_sectors, rate: None };
            let merge = merge(&reactor, &pool, setup).await.map_err(|error| error.to_string())?;
            opened.rows.push((Rc::clone(&merge) as Rc<dyn Target>, None));
            opened.add(snapshot(1).await.map_err(|error| error.to_string())?);
            merge.begin();
            opened.merge = Some(merge);
        }
    }
    Ok(Rc::new(opened.into_table()?) as Rc<dyn Opened>)
}

/// What is read and written; where it is a snapshot, that too.
type View = (Rc<dyn Target>, Option<Rc<Snapshot>>);

/// Both views in one of their lives.
struct OpenedViews {
    sectors: u64,
    rows: Vec<View>,
    merge: Option<Rc<Merge>>,
    table: Option<Table>,
}

impl OpenedViews {
    fn add(&mut self, snapshot: Rc<Snapshot>) {
        self.rows.push((Rc::clone(&snapshot) as Rc<dyn Target>, Some(snapshot)));
    }

    fn into_table(mut self) -> Result<Self, String> {
        let extent = |at: u64| Extent::new(Sector(at * self.sectors), SectorCount(self.sectors));
        let rows = (0..).zip(&self.rows).map(|(at, (target, _))| Row { extent: extent(at), target: Rc::clone(target) });
        self.table = Some(Table::new(rows.collect()).map_err(|error| error.to_string())?);
        Ok(self)
    }
}

impl Opened for OpenedViews {
    fn target(&self) -> &dyn Target {
        self.table.as_ref().expect("it is made when everything is open")
    }

    fn disturb(&self, _number: u64) -> Later<Disturbed> {
        Box::pin(async { Ok(Disturbed::Silently) })
    }

    fn drain(&self) -> Later<()> {
        let merge = self.merge.clone();
        Box::pin(async move {
            let Some(merge) = merge else { return Ok(()) };
            merge.done().await;
            let status = merge.status();
            if status.left == 0 { Ok(()) } else { Err(format!("the merge ended before its end: {status:?}")) }
        })
    }

    fn leave(&self) -> Later<()> {
        let (merge, snapshots) = (self.merge.clone(), self.rows.iter().filter_map(|(_, snapshot)| snapshot.clone()));
        let snapshots: Vec<_> = snapshots.collect();
        Box::pin(async move {
            if let Some(merge) = merge {
                merge.close().await;
            }
            for snapshot in snapshots {
                snapshot.close().await;
            }
            Ok(())
        })
    }

    fn atomic_block_sectors(&self) -> Option<usize> {
        None
    }

    fn is_latched(&self) -> bool {
        false
    }

    fn lost(&self) -> Vec<Range<usize>> {
        let sectors = usize::try_from(self.sectors).expect("a tiny device");
        let is_lost = |snapshot: &Rc<Snapshot>| snapshot.status().condition == Condition::Invalid;
        let rows = self.rows.iter().enumerate().filter(|(_, (_, snapshot))| snapshot.as_ref().is_some_and(is_lost));
        rows.map(|(at, _)| at * sectors..(at + 1) * sectors).collect()
    }
}
