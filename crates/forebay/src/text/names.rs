//! What the lines of a table name: devices, and the files that lie beside them.

use std::path::Path;

use super::{Place, TableText, TargetText};
use crate::device::DeviceName;

/// What a table names.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TableNames<'a> {
    /// Devices, one entry each time that one is named.
    pub devices: Vec<&'a DeviceName>,
    /// Files that are only read.
    pub read: Vec<&'a Path>,
    /// Files that are made, replaced or removed; they need not exist.
    pub made: Vec<&'a Path>,
    /// Whether there is a disk that is saved to, and restored from, whatever file a message names.
    pub saved: bool,
}

impl TableText {
    /// What the lines name, in their order.
    #[must_use]
    pub fn names(&self) -> TableNames<'_> {
        let mut names = TableNames::default();
        for row in self.rows() {
            names.add(&row.target);
        }
        names
    }
}

impl<'a> TableNames<'a> {
    fn add(&mut self, target: &'a TargetText) {
        match target {
            TargetText::Error => {}
            TargetText::Linear(place) | TargetText::Flakey(place, _) | TargetText::Stats(place) => self.places([place]),
            TargetText::Striped { columns, .. } => self.places(columns),
            TargetText::Delay { read, write, flush } => {
                self.places([read].into_iter().chain(write).chain(flush).map(|detour| &detour.place));
            }
            TargetText::LogWrites { device, log } => self.devices.extend([device, log]),
            TargetText::Mirror { legs, log, .. } => {
                self.places(legs);
                self.devices.extend(log);
            }
            TargetText::Zram { options, backing } => {
                self.saved = true;
                self.devices.extend(backing);
                self.read.extend(options.dictionary.as_deref().map(Path::new));
                self.made.extend(options.image.as_deref().map(Path::new));
            }
            TargetText::Clone { metadata, destination, source, .. } => self.devices.extend([metadata, destination, source]),
            TargetText::Writecache { args, origin, fast } => {
                self.devices.extend([origin, fast]);
                self.made.extend(args.options.side.as_deref().map(Path::new));
            }
            TargetText::Snapshot { origin, cow, .. } | TargetText::SnapshotMerge { origin, cow, .. } => {
                self.devices.extend([origin, cow]);
            }
            TargetText::SnapshotOrigin(origin) => self.devices.push(origin),
        }
    }

    fn places(&mut self, places: impl IntoIterator<Item = &'a Place>) {
        self.devices.extend(places.into_iter().map(|place| &place.device));
    }
}
