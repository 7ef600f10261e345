//! The plug and the merge engine: requests held back during a turn, then sorted, merged and let go.
//!
//! ```text
//!   add(bio) …  add(bio)            unplug
//!   dev 1 W 80+8, dev 1 W 64+16  ─▶ sort by (device, direction, sector, arrival)
//!                                ─▶ neighbours that adjoin become one request: dev 1 W 64+24
//! ```
//!
//! Invariants:
//! - I1: a request is merged only within its device's limits, with the same operation and flags;
//!   FUA writes, flushes and bios marked `nomerge` are never merged.
//! - I2: of two overlapping bios of one batch of which one writes, the later one leaves after the
//!   earlier one is done.
//! - I3: sorting is stable: bios at the same place keep their order. Where nothing merges and
//!   nothing writes, there is nothing to sort for.
//! - I4: nothing here allocates once the lists are warm.
//!
//! Sorting makes every front merge a back merge. Facts: `block/blk-merge.c`, Linux 6.12.

use forebay_block::{Bio, Limits, Op, split};

use crate::request::{DeviceId, Kind};

/// A bio that waits in the plug, and what is asked of whom in what order, as one number: it stands in
/// two registers, and sorting compares numbers.
///
/// ```text
///   bits  48..63   40..47   32    0..31
///         device   what     alone arrival
/// ```
pub(crate) struct Entry {
    pub(crate) bio: Bio,
    key: u64,
}

const DEVICE_SHIFT: u32 = 48;
const KIND_SHIFT: u32 = 40;
const ALONE: u64 = 1 << 32;

impl Entry {
    fn new(device: DeviceId, kind: Kind, alone: bool, arrival: u32, bio: Bio) -> Self {
        let alone = if alone { ALONE } else { 0 };
        let key = u64::from(device.0) << DEVICE_SHIFT | kind_number(kind) << KIND_SHIFT | alone | u64::from(arrival);
        Self { bio, key }
    }

    /// Whom it is for.
    pub(crate) fn device(&self) -> DeviceId {
        DeviceId(u16::try_from(self.key >> DEVICE_SHIFT).expect("16 bits are left"))
    }

    /// What is asked.
    pub(crate) fn kind(&self) -> Kind {
        kind_of(&self.bio)
    }

    /// Device and kind as one number: neighbours that may merge have the same.
    fn group(&self) -> u64 {
        self.key >> KIND_SHIFT
    }

    /// Never merged.
    fn alone(&self) -> bool {
        self.key & ALONE != 0
    }

    /// Place in the order of arrival.
    fn arrival(&self) -> u32 {
        u32::try_from(self.key & u64::from(u32::MAX)).expect("32 bits are left")
    }

    fn start(&self) -> u64 {
        self.bio.sector().0
    }

    fn end(&self) -> u64 {
        self.bio.extent().end().0
    }

    fn writes(&self) -> bool {
        writes(self.kind())
    }
}

/// What a bio asks of a device.
#[inline]
pub(crate) fn kind_of(bio: &Bio) -> Kind {
    let flags = bio.flags();
    match bio.op() {
        Op::Read => Kind::Read,
        Op::Write => Kind::Write { fua: flags.fua },
        Op::Flush => Kind::Flush,
        Op::Discard => Kind::Discard,
        Op::WriteZeroes => Kind::WriteZeroes { no_unmap: flags.no_unmap },
    }
}

/// A number for each kind of block request.
fn kind_number(kind: Kind) -> u64 {
    match kind {
        Kind::Read => 0,
        Kind::Write { fua } => 1 + u64::from(fua),
        Kind::Flush => 3,
        Kind::Discard => 4,
        Kind::WriteZeroes { no_unmap } => 5 + u64::from(no_unmap),
        Kind::Receive | Kind::Send | Kind::Readable => unreachable!("stream steps have no bio"),
    }
}

/// The requests held back since the last unplug.
#[derive(Default)]
pub(crate) struct Plug {
    entries: Vec<Entry>,
    arrivals: u32,
    /// Whether order may matter: something may merge, or something writes.
    order: bool,
}

impl Plug {
    /// Holds a bio back for `device`; `merging` is whether the device wants merges at all.
    pub(crate) fn add(&mut self, device: DeviceId, merging: bool, bio: Bio) {
        let kind = kind_of(&bio);
        let payload = matches!(kind, Kind::Read | Kind::Write { fua: false });
        let alone = !merging || !payload || bio.flags().nomerge;
        self.order |= !alone || writes(kind);
        self.entries.push(Entry::new(device, kind, alone, self.arrivals, bio));
        self.arrivals += 1;
    }

    /// Takes the bio added last out again.
    pub(crate) fn take_last(&mut self) -> Entry {
        self.entries.pop().expect("called right after add")
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Sorts what is held, moves what must wait for an overlapping neighbour to `held` (I2), and
    /// gives the rest in order through `out`.
    pub(crate) fn sort_into(&mut self, held: &mut Vec<Entry>, out: &mut Vec<Entry>) {
        self.arrivals = 0;
        // Reads that are not to be merged leave as they came.
        if std::mem::take(&mut self.order) && self.entries.len() > 1 {
            sort(&mut self.entries);
            if has_overlap(&self.entries) {
                hold_overlaps(&mut self.entries, held);
            }
        }
        if out.is_empty() {
            // Nothing is moved: the two lists change places, and grow together (I4).
            std::mem::swap(out, &mut self.entries);
            self.entries.reserve(out.capacity());
        } else {
            out.append(&mut self.entries);
        }
    }
}

fn writes(kind: Kind) -> bool {
    matches!(kind, Kind::Write { .. } | Kind::Discard | Kind::WriteZeroes { .. })
}

fn conflict(a: &Entry, b: &Entry) -> bool {
    a.device() == b.device() && a.start() < b.end() && b.start() < a.end() && (a.writes() || b.writes())
}

fn sort(entries: &mut [Entry]) {
    entries.sort_unstable_by_key(|entry| (entry.group(), entry.start(), entry.arrival()));
}

/// Whether any two entries conflict. Entries are sorted by device, kind and start, so those of one
/// device and kind are in order of their start: one pass for each pair of kinds.
fn has_overlap(entries: &[Entry]) -> bool {
    let mut groups = entries.chunk_by(|a, b| a.group() == b.group());
    if groups.clone().count() == 1 {
        return groups.next().is_some_and(|group| group[0].writes() && self_overlap(group));
    }
    let groups: &mut dyn Iterator<Item = &[Entry]> = &mut groups;
    let mut earlier_at = 0;
    let mut at = 0;
    for group in groups {
        if at > 0 && entries[earlier_at].device() != group[0].device() {
            earlier_at = at;
        }
        if group[0].writes() && self_overlap(group) {
            return true;
        }
        for other in entries[earlier_at..at].chunk_by(|a, b| a.group() == b.group()) {
            if (group[0].writes() || other[0].writes()) && cross_overlap(group, other) {
                return true;
            }
        }
        at += group.len();
    }
    false
}

fn self_overlap(group: &[Entry]) -> bool {
    let mut reach = 0;
    for entry in group {
        if entry.start() < reach {
            return true;
        }
        reach = reach.max(entry.end());
    }
    false
}

fn cross_overlap(a: &[Entry], b: &[Entry]) -> bool {
    let (mut i, mut j) = (0, 0);
    while let (Some(x), Some(y)) = (a.get(i), b.get(j)) {
        if x.start() < y.end() && y.start() < x.end() {
            return true;
        }
        if x.end() <= y.start() { i += 1 } else { j += 1 }
    }
    false
}

/// The rare case: every entry that conflicts with an earlier one waits in `held`, in order of
/// arrival. What conflicts with a waiting one waits too.
fn hold_overlaps(entries: &mut Vec<Entry>, held: &mut Vec<Entry>) {
    entries.sort_unstable_by_key(Entry::arrival);
    let mut kept = 0;
    let mut at = 0;
    let first_held = held.len();
    while at < entries.len() {
        let entry = &entries[at];
        let waits = entries[..kept].iter().chain(&held[first_held..]).any(|earlier| conflict(earlier, entry));
        if waits {
            held.push(entries.remove(at));
        } else {
            kept += 1;
            at += 1;
        }
    }
    sort(entries);
}

/// How many entries from the front of `entries` go into one request (I1); at least one.
#[inline]
pub(crate) fn run_length(entries: &[Entry], limits: &Limits) -> usize {
    match entries {
        [first, second, ..] if !first.alone() && first.group() == second.group() => merge_length(entries, limits),
        _ => 1,
    }
}

fn merge_length(entries: &[Entry], limits: &Limits) -> usize {
    let first = &entries[0];
    let mut segments = split::segments(limits, &first.bio);
    let mut count = 1;
    for pair in entries.windows(2) {
        let (last, next) = (&pair[0], &pair[1]);
        if next.group() != first.group() || next.start() != last.end() || next.alone() {
            break;
        }
        segments = segments.saturating_add(split::segments(limits, &next.bio));
        if next.end() - first.start() > u64::from(limits.max_sectors)
            || segments > limits.max_segments
            || crosses_chunk(first.start(), next.end(), limits)
            || leaves_gap(last, next, limits)
        {
            break;
        }
        count += 1;
    }
    count
}

fn crosses_chunk(start: u64, end: u64, limits: &Limits) -> bool {
    let chunk = u64::from(limits.chunk_sectors);
    chunk > 0 && start / chunk != (end - 1) / chunk
}

fn leaves_gap(last: &Entry, next: &Entry, limits: &Limits) -> bool {
    if limits.gap_mask == 0 {
        return false;
    }
    let mask = limits.gap_mask as usize;
    let ends = last.bio.pieces().last().map_or(0, |piece| piece.base() as usize + piece.bytes() as usize);
    let starts = next.bio.pieces().next().map_or(0, |piece| piece.base() as usize);
    ends & mask != 0 || starts & mask != 0
}

#[cfg(test)]
mod tests;
