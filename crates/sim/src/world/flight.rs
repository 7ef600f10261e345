//! A request's way through the world: submitted, taking effect, done.
//!
//! Between submission and completion a request takes effect at one instant: a read takes its bytes
//! from what is newest then, a write puts them there. Requests in flight at once therefore happen
//! in any order that their times allow.

use std::ops::Range;
use std::time::Duration;

use forebay_block::bvec;
use forebay_reactor::{Done, Kind, Request, Requests, Tag};

use super::clock::Step;
use super::disk::SECTOR;
use super::fault::{EIO, Fate};
use super::{State, Stop};

/// Requests that take effect early do so at any eighth of their time.
const EIGHTHS: u32 = 8;

/// A request in flight.
pub(crate) struct Flight {
    disk: usize,
    sectors: Range<u64>,
    fate: Fate,
    /// How many requests of the world were done at submission: what a flush covers.
    floor: u64,
    /// Order of the write on its disk, once it took effect.
    order: Option<u64>,
}

impl State {
    pub(crate) fn submit(&mut self, requests: &Requests, tag: Tag) {
        let request = requests.get(tag);
        if request.stream.is_some() {
            return self.submit_stream(requests, request.kind, tag);
        }
        let Some(&disk) = self.routes.get(usize::from(request.device.0)) else {
            return self.misuse("a request for a device that was never attached".to_owned());
        };
        let sectors = request.offset / 512..(request.offset + request.bytes) / 512;
        let kind = request.kind;
        if let Some(complaint) = self.complaint(disk, request) {
            return self.misuse(complaint);
        }
        self.counts.requests += 1;
        let grain = u64::from(self.disks[disk].options.limits.logical_bytes);
        let (fate, delay) = self.disks[disk].faults.decide(&mut self.rng, kind, &sectors, grain);
        let (shortest, longest) = self.disks[disk].options.latency_ns;
        let time = Duration::from_nanos(self.rng.u64(shortest..=longest)) + delay;
        let effect = if self.early_effect { time * self.rng.u32(0..=EIGHTHS) / EIGHTHS } else { time };
        let name = self.disks[disk].options.name;
        self.note(&[1, disk as u64, sectors.start, sectors.end, number_of(kind)], || {
            format!("{name} <- {kind:?} {}+{} tag {tag} {fate:?}", sectors.start, sectors.end - sectors.start)
        });
        let slot = tag as usize;
        if self.flights.len() <= slot {
            self.flights.resize_with(slot + 1, || None);
        }
        self.flights[slot] = Some(Flight { disk, sectors, fate, floor: self.done_requests, order: None });
        self.clock.plan(effect, tag, Step::Effect);
        self.clock.plan(time, tag, Step::Done);
        if let Some(cut) = self.step(requests, (kind == Kind::Flush).then_some(disk)) {
            self.end_life(requests, cut);
        }
    }

    fn misuse(&mut self, complaint: String) {
        self.stop = Some(Stop::Misuse(complaint));
    }

    /// What is wrong with a request that no layer may send.
    fn complaint(&self, disk: usize, request: &Request) -> Option<String> {
        let options = &self.disks[disk].options;
        let name = options.name;
        let (offset, bytes) = (request.offset, request.bytes);
        let grain = u64::from(options.limits.logical_bytes);
        if matches!(request.kind, Kind::Receive | Kind::Send | Kind::Readable) {
            return Some(format!("{:?} of a simulated disk", request.kind));
        }
        if offset + bytes > options.sectors * 512 {
            return Some(format!("{name}: {:?} of bytes {offset}+{bytes}, beyond its end", request.kind));
        }
        if !offset.is_multiple_of(grain) || !bytes.is_multiple_of(grain) {
            return Some(format!("{name}: {:?} of bytes {offset}+{bytes}, not whole blocks of {grain}", request.kind));
        }
        let moves = matches!(request.kind, Kind::Read | Kind::Write { .. });
        if moves && (bytes == 0 || bytes > u64::from(options.limits.max_sectors) * 512) {
            return Some(format!("{name}: {:?} of {bytes} bytes, outside its limits", request.kind));
        }
        if moves && request.pieces().count() > options.limits.max_segments as usize {
            return Some(format!("{name}: {:?} in more segments than its limits allow", request.kind));
        }
        None
    }

    /// One step of a request in flight.
    pub(crate) fn happen(&mut self, requests: &Requests, tag: Tag, step: Step, done: &mut Vec<Done>) {
        if requests.get(tag).stream.is_some() {
            return self.move_bytes(requests, tag, done);
        }
        match step {
            Step::Effect => self.take_effect(requests.get(tag), tag),
            Step::Done => self.report(requests.get(tag), tag, done),
        }
        if let Some(cut) = self.step(requests, None) {
            self.end_life(requests, cut);
        }
    }

    fn flight(&mut self, tag: Tag) -> &mut Flight {
        self.flights[tag as usize].as_mut().expect("what is due is in flight")
    }

    fn take_effect(&mut self, request: &Request, tag: Tag) {
        let flight = self.flight(tag);
        let (disk, sectors, fate, floor) = (flight.disk, flight.sectors.clone(), flight.fate, flight.floor);
        let Some(sectors) = self.affected(&sectors, fate) else { return };
        let disk = &mut self.disks[disk];
        let failed = matches!(fate, Fate::Error { .. });
        match request.kind {
            Kind::Read => {
                if !failed {
                    copy_in(request, &disk.newest()[sectors.start * SECTOR..sectors.end * SECTOR]);
                }
            }
            Kind::Write { .. } | Kind::WriteZeroes { .. } | Kind::Discard => {
                let mut data = disk.take_spare();
                let first = index(request.offset) / SECTOR;
                let whole = if failed { index(request.bytes) } else { (sectors.end - first) * SECTOR };
                data.resize(whole, 0);
                copy_out(request, &mut data);
                let mut sectors = sectors;
                if request.kind == Kind::Discard {
                    // Any part of what is discarded reads as zeroes; the rest stays.
                    let cut = self.rng.usize(sectors.start..=sectors.end);
                    if self.rng.bool() { sectors.start = cut } else { sectors.end = cut }
                }
                data.truncate((sectors.end - first) * SECTOR);
                data.drain(..(sectors.start - first) * SECTOR);
                let order = disk.write(sectors.start, data);
                self.flight(tag).order = Some(order);
            }
            Kind::Flush if !failed => disk.flush(floor),
            Kind::Flush | Kind::Receive | Kind::Send | Kind::Readable => {}
        }
    }

    /// The sectors to which something happens; `None` where nothing does.
    fn affected(&mut self, sectors: &Range<u64>, fate: Fate) -> Option<Range<usize>> {
        let (start, end) = (index(sectors.start), index(sectors.end));
        match fate {
            Fate::Whole => Some(start..end),
            Fate::Short(bytes) => Some(start..start + index(bytes) / SECTOR),
            Fate::Error { partly: false, .. } => None,
            Fate::Error { partly: true, .. } => {
                let from = self.rng.usize(start..=end);
                let to = self.rng.usize(from..=end);
                Some(from..to)
            }
        }
    }

    fn report(&mut self, request: &Request, tag: Tag, done: &mut Vec<Done>) {
        let flight = self.flights[tag as usize].take().expect("what is due is in flight");
        self.done_requests += 1;
        let failed = matches!(flight.fate, Fate::Error { .. });
        let fua = request.kind == Kind::Write { fua: true } && !failed;
        if let Some(order) = flight.order {
            self.disks[flight.disk].write_done(order, fua, self.done_requests);
        }
        if request.kind == Kind::Flush && matches!(flight.fate, Fate::Error { partly: true, .. }) {
            self.disks[flight.disk].flush_failed(&mut self.rng, flight.floor);
        }
        let moves = matches!(request.kind, Kind::Read | Kind::Write { .. });
        let result = match flight.fate {
            Fate::Whole if moves => i32::try_from(request.bytes).unwrap_or(-EIO),
            Fate::Whole => 0,
            Fate::Short(bytes) => i32::try_from(bytes).unwrap_or(-EIO),
            Fate::Error { errno, .. } => -errno,
        };
        let name = self.disks[flight.disk].options.name;
        self.note(&[2, u64::from(tag), u64::from(result.unsigned_abs())], || format!("{name} -> tag {tag}: {result}"));
        done.push(Done { tag, result });
    }

    /// The writes of each disk that are in flight without effect, in a seeded order.
    pub(crate) fn writes_in_flight(&mut self, requests: &Requests) -> Vec<Vec<(usize, Vec<u8>)>> {
        let mut writes: Vec<Vec<(usize, Vec<u8>)>> = self.disks.iter().map(|_| Vec::new()).collect();
        for (tag, flight) in self.flights.iter().enumerate() {
            let Some(flight) = flight else { continue };
            let request = requests.get(Tag::try_from(tag).expect("tags are 32 bits"));
            let changes = matches!(request.kind, Kind::Write { .. } | Kind::WriteZeroes { .. } | Kind::Discard);
            if changes && flight.order.is_none() && !matches!(flight.fate, Fate::Error { partly: false, .. }) {
                let mut data = vec![0; index(request.bytes)];
                copy_out(request, &mut data);
                writes[flight.disk].push((index(request.offset) / SECTOR, data));
            }
        }
        for list in &mut writes {
            self.rng.shuffle(list);
        }
        writes
    }
}

/// A position or length as an index into memory.
fn index(value: u64) -> usize {
    usize::try_from(value).expect("a simulated disk fits in memory")
}

fn number_of(kind: Kind) -> u64 {
    match kind {
        Kind::Read => 0,
        Kind::Write { fua } => 1 + u64::from(fua),
        Kind::Flush => 3,
        Kind::Discard => 4,
        Kind::WriteZeroes { no_unmap } => 5 + u64::from(no_unmap),
        Kind::Receive | Kind::Send | Kind::Readable => 7,
    }
}

/// Copies the payload of a request that is still to be done into `to`, as far as both reach.
fn copy_out(request: &Request, to: &mut [u8]) {
    let (mut at, mut skip) = (0, request.skip);
    for bio in &request.bios {
        let Some(segments) = bio.segments() else { continue };
        let mut iter = bio.iter();
        iter.advance(Some(segments), skip).expect("a short result is shorter than its bio");
        skip = 0;
        if at < to.len() {
            at += bvec::copy_out(segments, iter, &mut to[at..]);
        }
    }
}

/// Fills the payload of a request that is still to be done from `from`, as far as both reach.
fn copy_in(request: &Request, from: &[u8]) {
    let (mut at, mut skip) = (0, request.skip);
    for bio in &request.bios {
        let Some(segments) = bio.segments() else { continue };
        let mut iter = bio.iter();
        iter.advance(Some(segments), skip).expect("a short result is shorter than its bio");
        skip = 0;
        if at < from.len() {
            at += bvec::copy_in(segments, iter, &from[at..]);
        }
    }
}
