//! Packers whose threads are tasks: they take simulated time, by the seed.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;
use forebay_reactor::Reactor;
use forebay_target::event::Event;
use forebay_target::zram::{Algorithm, Hand, Packers, Parcel};

/// Parcels that wait at most.
const WAITING_MAX: usize = 4;

#[derive(Default)]
struct Line {
    waiting: VecDeque<Parcel>,
    done: Vec<Parcel>,
    hand: Hand,
}

/// Simulated threads that compress.
pub(super) struct SimPackers {
    reactor: Reactor,
    rng: RefCell<Rng>,
    line: Rc<RefCell<Line>>,
    came_back: Rc<Event>,
}

impl SimPackers {
    pub(super) fn new(reactor: &Reactor, seed: u64) -> Self {
        let rng = RefCell::new(Rng::with_seed(seed ^ 0xC4E3));
        Self { reactor: reactor.clone(), rng, line: Rc::default(), came_back: Rc::default() }
    }
}

impl Packers for SimPackers {
    fn least_bytes(&self, _algorithm: Algorithm) -> u64 {
        32 << 10
    }

    fn has_room(&self) -> bool {
        self.line.borrow().waiting.len() < WAITING_MAX && self.rng.borrow_mut().u32(0..8) > 0
    }

    /// A task begins a parcel at a time and has it done at another; it may find that all were taken back.
    fn give(&self, parcel: Parcel) {
        self.line.borrow_mut().waiting.push_back(parcel);
        let time = || Duration::from_nanos(self.rng.borrow_mut().u64(0..200_000));
        let (reactor, idle, work) = (self.reactor.clone(), time(), time());
        let (line, came_back) = (Rc::clone(&self.line), Rc::clone(&self.came_back));
        // Without a task the parcel waits until it is taken back.
        self.reactor.spawn(async move {
            reactor.sleep(idle).await;
            let begun = line.borrow_mut().waiting.pop_front();
            let Some(mut parcel) = begun else { return };
            reactor.sleep(work).await;
            {
                let line = &mut *line.borrow_mut();
                parcel.pack(&mut line.hand);
                line.done.push(parcel);
            }
            came_back.raise();
        });
    }

    fn take(&self) -> Option<Parcel> {
        self.line.borrow_mut().done.pop()
    }

    fn take_back(&self) -> Option<Parcel> {
        self.line.borrow_mut().waiting.pop_back()
    }

    fn will_tell(&self) -> bool {
        self.line.borrow().done.is_empty()
    }

    fn came_back(&self) -> Rc<Event> {
        Rc::clone(&self.came_back)
    }
}
