//! Requests at a steady depth.

use std::cell::Cell;
use std::rc::{Rc, Weak};

use forebay_block::{Bio, End, Sector, Target};
use forebay_reactor::{Buffer, BufferPool, Reactor};

/// Bytes of each request.
pub const BYTES: u32 = 4096;

/// Keeps `depth` requests of 4 KiB in flight; every second one is a read, or all. Places are apart, so
/// that nothing merges.
pub struct Load {
    me: Weak<Self>,
    target: Rc<dyn Target>,
    writes: bool,
    buffers: Vec<Buffer>,
    next: Cell<u64>,
    until: Cell<u64>,
    ended: Cell<u64>,
}

impl Load {
    pub fn new(reactor: &Reactor, target: Rc<dyn Target>, depth: usize) -> Rc<Self> {
        Self::with(reactor, target, depth, true)
    }

    /// As [`Load::new`], of reads alone.
    pub fn reading(reactor: &Reactor, target: Rc<dyn Target>, depth: usize) -> Rc<Self> {
        Self::with(reactor, target, depth, false)
    }

    fn with(reactor: &Reactor, target: Rc<dyn Target>, depth: usize, writes: bool) -> Rc<Self> {
        let pool = BufferPool::new(reactor);
        let buffers = (0..depth).map(|_| pool.take(BYTES as usize)).collect();
        Rc::new_cyclic(|me| Self {
            me: me.clone(),
            target,
            writes,
            buffers,
            next: Cell::new(0),
            until: Cell::new(0),
            ended: Cell::new(0),
        })
    }

    fn submit(self: &Rc<Self>, slot: usize) {
        let number = self.next.get();
        if number == self.until.get() {
            return;
        }
        self.next.set(number + 1);
        let blocks = self.target.sectors().0 / u64::from(BYTES / 512);
        let sector = Sector((number * 7 + number % 2 * (blocks / 2)) % blocks * u64::from(BYTES / 512));
        let segments = Rc::clone(self.buffers[slot].segments());
        let bio = if self.writes && number.is_multiple_of(2) {
            Bio::write(sector, segments, 0, BYTES)
        } else {
            Bio::read(sector, segments, 0, BYTES)
        };
        self.target.submit(bio.on_end(Rc::clone(self) as Rc<dyn End>, slot as u64));
    }

    /// Runs `count` more requests.
    pub fn run(self: &Rc<Self>, reactor: &Reactor, count: u64) {
        self.until.set(self.until.get() + count);
        for slot in 0..self.buffers.len() {
            self.submit(slot);
        }
        while self.ended.get() < self.until.get() {
            reactor.turn(true).unwrap();
        }
    }
}

impl End for Load {
    fn bio_ended(&self, bio: Bio, token: u64) {
        assert!(bio.status().is_ok());
        drop(bio);
        self.ended.set(self.ended.get() + 1);
        let slot = usize::try_from(token).unwrap();
        self.me.upgrade().expect("a load outlives its requests").submit(slot);
    }
}
