//! The snapshots of a stack: opened, asked, closed.

use std::fmt;
use std::num::NonZeroU64;
use std::rc::Rc;

use forebay_block::{Extent, Target};
use forebay_reactor::{BufferPool, Reactor};
use forebay_target::event::Event;
use forebay_target::snapshot::options::SnapshotArgs;
use forebay_target::snapshot::{self, Merge, MergeSetup, MergeStatus, Origin, Snapshot, SnapshotError, SnapshotStatus};

use crate::status::SnapshotLayer;

/// What is to be opened.
pub(crate) struct Wish<'a> {
    pub(crate) args: &'a SnapshotArgs,
    pub(crate) extent: Extent,
    /// As the table names them.
    pub(crate) origin_name: String,
    pub(crate) cow_name: String,
    pub(crate) origin: Rc<Origin>,
    pub(crate) cow: Rc<dyn Target>,
    /// That the store is its own.
    pub(crate) taken: Rc<()>,
}

/// A snapshot, or one that is being merged.
#[derive(Clone)]
pub(crate) enum View {
    Snapshot(Rc<Snapshot>),
    Merge(Rc<Merge>),
}

/// A snapshot of a stack.
pub(crate) struct OpenSnapshot {
    extent: Extent,
    origin: String,
    cow: String,
    view: View,
    _taken: Rc<()>,
}

/// What a snapshot, or a merge, tells about itself; printed as the kernel's status line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ViewStatus {
    /// A `snapshot`.
    Snapshot(SnapshotStatus),
    /// A `snapshot-merge`.
    Merge(MergeStatus),
}

impl fmt::Display for ViewStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Snapshot(status) => status.fmt(f),
            Self::Merge(status) => status.fmt(f),
        }
    }
}

impl OpenSnapshot {
    /// Opens a snapshot, or one that is to be merged.
    pub(crate) async fn open(
        reactor: &Reactor,
        pool: &BufferPool,
        wish: Wish<'_>,
        merges: bool,
    ) -> Result<(Self, Rc<dyn Target>), SnapshotError> {
        let Wish { args, extent, origin_name, cow_name, origin, cow, taken } = wish;
        let (sectors, chunk_sectors) = (extent.count, args.chunk_sectors);
        let (view, target): (View, Rc<dyn Target>) = if merges {
            let rate = NonZeroU64::new(args.merge_rate);
            let merge = snapshot::merge(reactor, pool, MergeSetup { origin, cow, sectors, chunk_sectors, rate }).await?;
            (View::Merge(Rc::clone(&merge)), merge)
        } else {
            let (store, discards) = (args.store, args.discards);
            let setup = snapshot::Setup { origin, cow, sectors, store, chunk_sectors, discards, coalesce: true };
            let snapshot = snapshot::open(reactor, pool, setup).await?;
            (View::Snapshot(Rc::clone(&snapshot)), snapshot)
        };
        Ok((Self { extent, origin: origin_name, cow: cow_name, view, _taken: taken }, target))
    }

    /// What it did so far.
    pub(crate) fn layer(&self) -> SnapshotLayer {
        let status = match &self.view {
            View::Snapshot(snapshot) => ViewStatus::Snapshot(snapshot.status()),
            View::Merge(merge) => ViewStatus::Merge(merge.status()),
        };
        SnapshotLayer { extent: self.extent, origin: self.origin.clone(), cow: self.cow.clone(), status }
    }

    /// What people wait for.
    pub(crate) fn events(&self) -> Rc<Event> {
        match &self.view {
            View::Snapshot(snapshot) => snapshot.events(),
            View::Merge(merge) => merge.events(),
        }
    }

    /// Begins to merge, where that is what it is for.
    pub(crate) fn begin(&self) {
        if let View::Merge(merge) = &self.view {
            merge.begin();
        }
    }

    /// Ends it; see [`Snapshot::close`] and [`Merge::close`].
    pub(crate) async fn close(&self) {
        match &self.view {
            View::Snapshot(snapshot) => snapshot.close().await,
            View::Merge(merge) => merge.close().await,
        }
    }
}

/// Ends all of them.
pub(crate) async fn close_all(snapshots: &[OpenSnapshot]) {
    for open in snapshots {
        open.close().await;
    }
}
