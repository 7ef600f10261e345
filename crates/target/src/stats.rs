//! Stats: counts what passes, and changes nothing.
//!
//! Requests and bytes are counted when a bio enters, errors when it ends. Sizes are counted by
//! power of two: bucket k holds requests of `2^k` up to below `2^(k+1)` sectors. A request costs one
//! pooled bio and a few counters; nothing is allocated once as many were in flight as ever will be.

use std::cell::Cell;
use std::rc::Rc;

use forebay_block::{Allocation, Bio, End, Extent, Limits, Op, SectorCount, Target};

use crate::below::Parked;

/// Buckets of sizes; the last also holds everything from `2^31` sectors (1 TiB) on.
pub const SIZE_BUCKETS: usize = 32;

/// What was counted of one operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpCounts {
    /// Bios that entered.
    pub requests: u64,
    /// Their bytes; 0 for flushes.
    pub bytes: u64,
    /// Bios that ended with an error.
    pub errors: u64,
    /// Bios that entered, by size; flushes are in none.
    pub sizes: [u64; SIZE_BUCKETS],
}

/// What was counted so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// By operation, in the order read, write, flush, discard, write-zeroes.
    pub ops: [OpCounts; 5],
    /// Bios below right now.
    pub in_flight: u64,
}

impl Snapshot {
    /// What was counted of `op`.
    #[must_use]
    pub fn of(&self, op: Op) -> &OpCounts {
        &self.ops[place(op)]
    }
}

fn place(op: Op) -> usize {
    match op {
        Op::Read => 0,
        Op::Write => 1,
        Op::Flush => 2,
        Op::Discard => 3,
        Op::WriteZeroes => 4,
    }
}

#[derive(Default)]
struct Counters {
    requests: Cell<u64>,
    bytes: Cell<u64>,
    errors: Cell<u64>,
    sizes: [Cell<u64>; SIZE_BUCKETS],
}

fn add(counter: &Cell<u64>, more: u64) {
    counter.set(counter.get() + more);
}

impl Counters {
    fn enter(&self, bytes: u64) {
        add(&self.requests, 1);
        add(&self.bytes, bytes);
        if let Some(exponent) = (bytes / 512).checked_ilog2() {
            add(&self.sizes[(exponent as usize).min(SIZE_BUCKETS - 1)], 1);
        }
    }

    fn counts(&self) -> OpCounts {
        OpCounts {
            requests: self.requests.get(),
            bytes: self.bytes.get(),
            errors: self.errors.get(),
            sizes: std::array::from_fn(|at| self.sizes[at].get()),
        }
    }
}

#[derive(Default)]
struct Inner {
    ops: [Counters; 5],
    in_flight: Cell<u64>,
    parked: Parked<()>,
}

impl End for Inner {
    fn bio_ended(&self, part: Bio, token: u64) {
        let (bio, ()) = self.parked.take(token);
        let status = part.status();
        drop(part);
        self.in_flight.set(self.in_flight.get() - 1);
        if !status.is_ok() {
            add(&self.ops[place(bio.op())].errors, 1);
        }
        bio.end(status);
    }
}

/// Counts what passes to the target below.
pub struct Stats {
    below: Rc<dyn Target>,
    inner: Rc<Inner>,
}

impl Stats {
    /// Counts what passes to `below`.
    #[must_use]
    pub fn new(below: Rc<dyn Target>) -> Self {
        Self { below, inner: Rc::default() }
    }

    /// What was counted so far.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot { ops: std::array::from_fn(|at| self.inner.ops[at].counts()), in_flight: self.inner.in_flight.get() }
    }
}

impl Target for Stats {
    fn kind(&self) -> &'static str {
        "stats"
    }

    fn limits(&self) -> Limits {
        self.below.limits()
    }

    fn sectors(&self) -> SectorCount {
        self.below.sectors()
    }

    fn submit(&self, bio: Bio) {
        self.inner.ops[place(bio.op())].enter(bio.bytes());
        add(&self.inner.in_flight, 1);
        self.inner.parked.pass(bio, (), Rc::clone(&self.inner) as Rc<dyn End>, &*self.below);
    }

    fn allocation(&self, extent: Extent, out: &mut Allocation) {
        out.below(&*self.below, extent);
    }
}

#[cfg(test)]
mod tests;
