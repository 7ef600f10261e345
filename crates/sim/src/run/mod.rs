//! One seed: a target over simulated disks, lived through many crashes, checked after each.
//!
//! ```text
//!   ┌─▶ restart ─▶ open ─▶ read everything back ─▶ requests … ─▶ power cut or kill ─┐
//!   └───────────────────────────────────────────────────────────────────────────────┘
//!   last life: disks healed ─▶ open ─▶ read back ─▶ drain ─▶ what lies below is checked
//! ```
//!
//! Invariants:
//! - I1: a target that cannot be opened, or a request that fails, is a failure unless a fault was
//!   injected while its life lasted.
//! - I2: nothing is answered twice or never: a life that hangs is a failure.
//! - I3: everything read at any time is what the model allows.

mod client;
mod life;
mod load;

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;

use forebay_block::Target;
use forebay_reactor::{BufferPool, Reactor};

use crate::check::Model;
use crate::world::{Digest, World};

pub(crate) use client::{Client, Ledger};
pub(crate) use life::read_back;
pub use life::run;
pub(crate) use load::Ask;
pub use load::Load;

/// What an asynchronous step of a subject returns.
pub type Later<T> = Pin<Box<dyn Future<Output = Result<T, String>>>>;

/// What is put to the test.
pub trait Subject {
    /// Opens the target over the disks of `world`, as after a start of the process.
    fn open(&self, world: &World, reactor: &Reactor, pool: &BufferPool) -> Later<Rc<dyn Opened>>;

    /// Number of the disk that holds everything after [`Opened::drain`]; `None` where there is none.
    fn bottom(&self) -> Option<usize>;

    /// Number of the disk whose flushes are worth a crash more often than those of others.
    fn delicate(&self) -> Option<usize> {
        None
    }
}

/// A subject, its world, and what is to happen there.
pub struct Stage {
    /// The disks.
    pub world: World,
    /// What is on them.
    pub subject: Box<dyn Subject>,
    /// What is asked of it.
    pub load: Load,
    /// What it holds in the beginning.
    pub model: Model,
    /// Whether disks may fail.
    pub faults: bool,
}

/// A subject in one of its lives.
pub trait Opened {
    /// What requests go to.
    fn target(&self) -> &dyn Target;

    /// Does something to the running target that changes no content; `number` chooses what.
    fn disturb(&self, number: u64) -> Later<Disturbed>;

    /// Writes everything down to the bottom disk; fails where something stayed behind.
    fn drain(&self) -> Later<()>;

    /// Makes everything acknowledged durable and stops, as an orderly end of the process does.
    fn leave(&self) -> Later<()>;

    /// Block size in sectors where every group of this life was atomic so far.
    fn atomic_block_sectors(&self) -> Option<usize>;

    /// Sectors that are lost for ever because of an error: every request to them fails.
    fn lost(&self) -> Vec<Range<usize>> {
        Vec::new()
    }

    /// Whether the target has stopped to accept changes for the rest of this life because of an error.
    fn is_latched(&self) -> bool;
}

/// What [`Opened::disturb`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disturbed {
    /// Nothing that a model must know.
    Silently,
    /// Everything acknowledged before the call is durable now.
    Flushed,
}

/// What a run counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Seeds run.
    pub seeds: u64,
    /// Requests answered or cut off.
    pub requests: u64,
    /// Power cuts and kills.
    pub crashes: u64,
    /// Requests that reached a disk.
    pub device_ios: u64,
    /// Faults injected.
    pub faults: u64,
    /// Sectors compared with the model.
    pub checks: u64,
    /// Damaged pages that were asked for and refused.
    pub detected: u64,
}

impl Totals {
    /// Adds what another run counted.
    pub fn add(&mut self, other: Totals) {
        self.seeds += other.seeds;
        self.requests += other.requests;
        self.crashes += other.crashes;
        self.device_ios += other.device_ios;
        self.faults += other.faults;
        self.checks += other.checks;
        self.detected += other.detected;
    }
}

/// How a seed ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What it did.
    pub totals: Totals,
    /// Its fingerprint.
    pub digest: Digest,
    /// What went wrong, if anything did.
    pub failure: Option<String>,
    /// Operations drawn in each life.
    pub drawn: Vec<u32>,
}

#[cfg(test)]
mod tests;
