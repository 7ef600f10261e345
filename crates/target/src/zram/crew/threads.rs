//! Packers that are threads. They start with the first parcel.

use std::cell::OnceCell;
use std::rc::Rc;

use forebay_reactor::{Crew, Reactor};

use super::super::codec::Algorithm;
use super::parcel::PARCEL_BYTES;
use super::{Hand, Packers, Parcel};
use crate::event::Event;

/// Parcels that wait for each thread, so that none has to wait for a parcel.
const AHEAD: usize = 2;

/// Threads that compress for a disk.
pub struct PackerThreads {
    reactor: Reactor,
    count: usize,
    /// `None` when the system gave no thread.
    crew: OnceCell<Option<Crew<Parcel>>>,
    came_back: Rc<Event>,
}

impl PackerThreads {
    /// `count` threads, once there is something to do.
    #[must_use]
    pub fn new(reactor: &Reactor, count: usize) -> Self {
        Self { reactor: reactor.clone(), count, crew: OnceCell::new(), came_back: Rc::default() }
    }

    fn crew(&self) -> Option<&Crew<Parcel>> {
        self.crew.get_or_init(|| self.start()).as_ref()
    }

    fn start(&self) -> Option<Crew<Parcel>> {
        let hand = || {
            let mut hand = Hand::default();
            move |parcel: &mut Parcel| parcel.pack(&mut hand)
        };
        let started = Crew::start(&self.reactor, "forebay-pack", self.count, hand);
        let (crew, mut mailbox) = match started {
            Ok(started) => started,
            Err(error) => {
                tracing::warn!("pages are compressed on one thread: {error}");
                return None;
            }
        };
        let came_back = Rc::clone(&self.came_back);
        let listens = self.reactor.spawn(async move {
            while mailbox.receive().await.is_some() {
                came_back.raise();
            }
        });
        listens.then_some(crew)
    }
}

impl Packers for PackerThreads {
    /// What it costs to rouse a thread is a few pages of a fast codec, and less than one of a slow one.
    fn least_bytes(&self, algorithm: Algorithm) -> u64 {
        match algorithm {
            Algorithm::Lz4 => 2 * PARCEL_BYTES,
            Algorithm::Zstd | Algorithm::Deflate => PARCEL_BYTES + PARCEL_BYTES / 2,
            Algorithm::Store => u64::MAX,
        }
    }

    fn has_room(&self) -> bool {
        self.crew().is_some_and(|crew| crew.waiting() < self.count * AHEAD)
    }

    fn give(&self, parcel: Parcel) {
        self.crew().expect("parcels are given where there is room").give(parcel);
    }

    fn take(&self) -> Option<Parcel> {
        self.crew()?.take()
    }

    fn take_back(&self) -> Option<Parcel> {
        self.crew()?.take_back()
    }

    fn will_tell(&self) -> bool {
        self.crew().is_some_and(Crew::ring_next)
    }

    fn came_back(&self) -> Rc<Event> {
        Rc::clone(&self.came_back)
    }
}
